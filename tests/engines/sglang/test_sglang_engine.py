"""Pauses in flight, proofs of arrival and repairs, on a real SGLang server. All engines attach to one server."""

from __future__ import annotations

import asyncio

import httpx2
import numpy as np
import pytest
import sglang_lab
import torch
from safetensors.torch import load_file, save_file

from gradbus.errors import AttestationError, EngineError
from gradbus_rollout.engines.base import PromptGroup, TokenSpan
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine
from gradbus_rollout.engines.sglang.api import ServerApi

pytestmark = pytest.mark.engines
PROMPT = (4, 8, 15, 16, 23)
LONG = 500


@pytest.fixture
async def attach(tmp_path, model, sglang_url):
    engines = []

    def begin(**config):
        config = SGLangConfig(**{"slots": 8, "max_new_tokens": 12} | config)
        engines.append(SGLangEngine(tmp_path, config, sglang_lab.settings(url=sglang_url), tmp_path / "cache"))
        return engines[-1]

    yield begin
    for engine in engines:
        await engine.close()


@pytest.fixture
def versions(weights, tmp_path):
    """File of a version: the base model's tensors, some of them scaled."""

    def write(step):
        tensors = load_file(weights)
        save_file({name: tensor * (1 + 0.1 * step * ("proj" in name)) for name, tensor in tensors.items()}, tmp_path / f"v{step}")
        return tmp_path / f"v{step}"

    return write


def expected(model, file, prompt, completion, temperature=1.0):
    """Log-probabilities that transformers computes for the completion's tokens with the weights in `file`."""
    model.load_state_dict(load_file(file), strict=False)
    model.tie_weights()
    ids = torch.tensor([[*prompt, *completion.token_ids]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None]).squeeze(-1).numpy()


def logprobs(completion):
    return np.frombuffer(completion.logprobs, "<f4")


async def test_at_every_version_the_log_probabilities_are_those_of_transformers(attach, versions, model):
    engine = attach(temperature=0.7)
    for step in (0, 1, 2, 1):
        await engine.load([versions(step)], step)
        (group,) = await engine.generate([PromptGroup("a", PROMPT * 20, tuple(range(8)))])
        for completion in group.completions:
            assert completion.spans == (TokenSpan(0, 12, step),)
            np.testing.assert_allclose(logprobs(completion), expected(model, versions(step), PROMPT * 20, completion, 0.7), atol=1e-5)


async def test_the_likeliest_tokens_log_probability_is_of_the_temperature_too(attach, versions, model):
    engine = attach(temperature=0.5)
    await engine.load([versions(0)], 0)
    (group,) = await engine.generate([PromptGroup("a", PROMPT, (1,), greedy=1)])
    np.testing.assert_allclose(logprobs(group.completions[0]), expected(model, versions(0), PROMPT, group.completions[0], 0.5), atol=1e-5)


@pytest.mark.parametrize("pause", ["abort", "retract", "in_place"])
async def test_a_load_in_flight_changes_the_version_at_a_token(attach, versions, model, pause):
    engine = attach(max_new_tokens=LONG, pause=pause)
    await engine.load([versions(0)], 0)
    running = asyncio.create_task(engine.generate([PromptGroup("a", PROMPT, (1, 2, 3))]))
    await asyncio.sleep(0.5)
    await engine.load([versions(1)], 1)
    (group,) = await running
    for completion in group.completions:
        old, new = completion.spans
        assert (old.start, old.version, old.end, new.version, new.end) == (0, 0, new.start, 1, LONG)
        np.testing.assert_allclose(logprobs(completion)[: old.end], expected(model, versions(0), PROMPT, completion)[: old.end], atol=1e-5)
        after = np.abs(logprobs(completion) - expected(model, versions(1), PROMPT, completion))[new.start :]
        # In place, keys and values of the old weights stay; else the new weights compute all of them again.
        assert (after.max() > 1e-4) if pause == "in_place" else (after.max() < 1e-5)


async def test_after_a_load_in_place_no_prefix_of_the_old_weights_is_used(attach, versions, model):
    engine = attach(max_new_tokens=LONG, pause="in_place")
    prompt = PROMPT * 20
    await engine.load([versions(0)], 0)
    running = asyncio.create_task(engine.generate([PromptGroup("a", prompt, (1, 2))]))
    await asyncio.sleep(0.5)
    await engine.load([versions(1)], 1)
    (group,) = await engine.generate([PromptGroup("b", prompt, (3,))])
    assert group.completions[0].spans == (TokenSpan(0, LONG, 1),)
    np.testing.assert_allclose(logprobs(group.completions[0]), expected(model, versions(1), prompt, group.completions[0]), atol=1e-5)
    await running


async def test_an_update_that_answers_200_and_moves_nothing_is_found(attach, versions, monkeypatch):
    engine = attach()
    await engine.load([versions(0)], 0)

    async def nothing(*_args):
        return None

    with monkeypatch.context() as patch:
        patch.setattr(ServerApi, "update_from_disk", nothing)
        with pytest.raises(AttestationError, match="did not take all of version 1"):
            await engine.load([versions(1)], 1)
    assert engine.version == 0
    (group,) = await engine.generate([PromptGroup("a", PROMPT, (1,))])  # what the failed proof left is replaced first
    assert group.completions[0].spans == (TokenSpan(0, 12, 0),)
    assert await engine.load([versions(1)], 1) != await engine.load([versions(0)], 0)


async def test_weights_that_are_not_numbers_are_refused(attach, versions, weights, tmp_path):
    save_file({name: tensor * float("nan") for name, tensor in load_file(weights).items()}, tmp_path / "nan")
    with pytest.raises(AttestationError, match="max_abs_err=nan"):
        await attach().load([tmp_path / "nan"], 1)


@pytest.mark.parametrize("label", ["default", "0-000000000000"])
async def test_a_server_that_holds_other_weights_is_given_ours_again(attach, versions, model, label):
    engine = attach()
    await engine.load([versions(0)], 0)
    api = engine.server.api  # somebody else, or a restart: the base weights or others, under their own label
    await api.update_from_disk(str(versions(1).parent), label)
    (group,) = await engine.generate([PromptGroup("a", PROMPT, (1, 2))])
    for completion in group.completions:
        assert completion.spans == (TokenSpan(0, 12, 0),)
        np.testing.assert_allclose(logprobs(completion), expected(model, versions(0), PROMPT, completion), atol=1e-5)


async def running_requests(url):
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {sglang_lab.KEY}"}) as client:
        return sum(load["num_running_reqs"] for load in (await client.get(f"{url}/v1/loads")).json()["loads"])


async def test_a_cancelled_sample_ends_on_the_server_too(attach, versions, sglang_url):
    engine = attach(max_new_tokens=8000)
    await engine.load([versions(0)], 0)
    running = asyncio.create_task(engine.generate([PromptGroup("a", PROMPT, (1, 2))]))
    async with asyncio.timeout(30):
        while await running_requests(sglang_url) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        running.cancel()
        while await running_requests(sglang_url):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_loads_right_after_the_last_sample_leave_the_server_alive(attach, versions):
    engine = attach(max_new_tokens=1)
    files = [versions(0), versions(1)]
    for step in range(12):
        await engine.load([files[step % 2]], step)
        (group,) = await engine.generate([PromptGroup("a", PROMPT, tuple(range(8)))])
        assert {completion.spans for completion in group.completions} == {(TokenSpan(0, 1, step),)}
    assert engine.server.starts == 1


@pytest.mark.parametrize("pause", ["retract", "in_place"])
async def test_a_server_that_a_killed_worker_left_in_mid_load_is_taken_over(attach, versions, model, sglang_url, pause):
    left = ServerApi(sglang_url, sglang_lab.KEY, 8, 60.0)
    sampling = asyncio.create_task(left.generate({"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 8000}}, 600.0))
    async with asyncio.timeout(30):
        while not await running_requests(sglang_url):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await left.pause(pause)
    await left.check_weights("snapshot")
    await left.check_weights("reset_tensors")
    sampling.cancel()  # and with it the connection, as the kernel closes it
    await left.close()
    engine = attach()
    await engine.start()
    await engine.load([versions(1)], 1)
    (group,) = await engine.generate([PromptGroup("a", PROMPT, (1, 2))])
    for completion in group.completions:
        np.testing.assert_allclose(logprobs(completion), expected(model, versions(1), PROMPT, completion), atol=1e-5)
    assert not await running_requests(sglang_url)


async def test_control_calls_without_the_key_are_refused(sglang_url, attach):
    stranger = ServerApi(sglang_url, "", 1, 10.0)
    for call in (stranger.abort_all(), stranger.label("mine"), stranger.generate({"input_ids": [1]}, 10.0)):
        with pytest.raises(EngineError, match="answered 401"):
            await call
    assert await stranger.requires_key()
    await stranger.close()
