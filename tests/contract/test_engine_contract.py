"""The contract of `gradbus_rollout.engines.base.Engine`, run on every engine that conftest.py lists."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gradbus.errors import ModelError
from gradbus_kernels.models.device_memory import OffDevice
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.engines.base import Engine, PromptGroup, TokenSpan

from .conftest import NEW, VOCAB


@pytest.fixture
async def engine(start, weights) -> Engine:
    engine = start()
    await engine.load([weights], 0)
    return engine


def skip_noise(kind):
    if not kind.computes:
        pytest.skip("its tokens are noise, whatever the weights")


async def test_greedy_equals_transformers_generate(engine, model, kind):
    skip_noise(kind)
    prompts = [[5, 6, 7], [9] * 20, [1]]
    results = await engine.generate([PromptGroup(str(i), tuple(ids), (0,), greedy=1) for i, ids in enumerate(prompts)])
    for ids, result in zip(prompts, results, strict=True):
        given = torch.tensor([ids])
        expected = model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=NEW, pad_token_id=0)
        assert list(result.completions[0].token_ids) == expected[0, len(ids) :].tolist()


async def test_logprobs_are_those_of_transformers_in_float64_at_the_temperature(start, weights, model, kind):
    skip_noise(kind)
    engine = start(temperature=0.8)
    await engine.load([weights], 0)
    model.double()
    prompt = (4, 8, 15, 16, 23)
    result = (await engine.generate([PromptGroup("a", prompt, tuple(range(20)))]))[0]
    for completion in result.completions:
        ids = torch.tensor([[*prompt, *completion.token_ids]])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(prompt) - 1 : -1] / 0.8
        expected = torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None]).squeeze(-1).numpy()
        np.testing.assert_allclose(np.frombuffer(completion.logprobs, "<f4"), expected, atol=1e-5)


async def test_a_stop_token_ends_a_sample_and_belongs_to_it(start, weights):
    engine = start(stop_token_ids=frozenset({3, 7, 11, 30}))
    await engine.load([weights], 0)
    completions = (await engine.generate([PromptGroup("a", (1, 2), tuple(range(100)))]))[0].completions
    assert {completion.finish for completion in completions} == {"stop", "length"}
    for completion in completions:
        stops = [token in {3, 7, 11, 30} for token in completion.token_ids]
        assert not any(stops[:-1])
        assert stops[-1] if completion.finish == "stop" else len(stops) == NEW
        assert len(completion.logprobs) == 4 * len(completion.token_ids)


async def test_results_come_in_the_order_of_the_groups_from_concurrent_calls(engine, kind):
    calls = [[PromptGroup(f"{call}.{i}", (call + 1, i + 1), (call, i)) for i in range(5)] for call in range(6)]
    results = await asyncio.gather(*(engine.generate(groups) for groups in calls))
    assert [[group.key for group in result] for result in results] == [[group.key for group in groups] for groups in calls]
    if kind.exact:
        assert results[2] == await engine.generate(calls[2])


async def test_progress_grows_with_a_load_and_with_samples(start, weights):
    engine = start()
    begun = await engine.progress()
    await engine.load([weights], 0)
    loaded = await engine.progress()
    await engine.generate([PromptGroup("a", (1, 2), (0,))])
    assert begun < loaded < await engine.progress()


async def test_the_attested_digest_is_that_of_the_weights_and_follows_them(engine, weights, tmp_path):
    tensors = load_file(weights)
    assert await engine.load([weights], 1) == weights_digest(tensors)
    name = "model.layers.1.self_attn.k_proj.weight"
    changed = tensors | {name: tensors[name] + 1}
    names = sorted(changed)
    save_file({key: changed[key] for key in names[:5]}, tmp_path / "one")
    save_file({key: changed[key] for key in names[5:]}, tmp_path / "two")
    assert await engine.load([tmp_path / "one", tmp_path / "two"], 2) == weights_digest(changed) != weights_digest(tensors)
    assert engine.version == 2


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "twice", "garbage"])
async def test_a_wrong_load_is_refused_and_changes_nothing(engine, weights, tmp_path, fault, kind):
    tensors, files = load_file(weights), [tmp_path / "bad"]
    group = PromptGroup("a", (1, 2, 3), (1, 2), greedy=0 if kind.exact else 2)
    before = await engine.generate([group])
    changed = {name: tensor + 1 for name, tensor in tensors.items()}
    match fault:
        case "missing":
            del changed["model.norm.weight"]
        case "unknown":
            changed["lm_head.weight"] = torch.zeros(VOCAB, 32)
        case "shape":
            changed["model.norm.weight"] = torch.zeros(31)
        case "twice":
            files.append(weights)
    save_file(changed, files[0])
    if fault == "garbage":
        files[0].write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match=r"load weights that belong|fetch them again"):
        await engine.load(files, 1)
    assert engine.version == 0
    kind.assert_same(await engine.generate([group]), before)


async def test_a_load_in_flight_begins_a_new_span(start, weights, tmp_path, kind):
    engine = start(max_new_tokens=kind.long)
    await engine.load([weights], 4)
    save_file({name: tensor * 1.5 for name, tensor in load_file(weights).items()}, tmp_path / "next")
    running = await kind.begin(engine, [PromptGroup("a", (1, 2, 3), (5, 6))])
    await engine.load([tmp_path / "next"], 5)
    assert not running.done()
    for completion in (await running)[0].completions:
        first, second = completion.spans
        assert first == TokenSpan(0, second.start, 4)
        assert (second.end, second.version) == (kind.long, 5)


async def test_a_sample_that_waited_for_a_slot_over_a_load_is_of_one_version(start, weights, tmp_path, kind):
    if not kind.exact:
        pytest.skip("two engines would share one server; tests/engines shows it by transformers")
    engine, fresh = (start(slots=4, max_new_tokens=kind.long) for _ in range(2))
    await engine.load([weights], 4)
    save_file({name: tensor * 1.5 for name, tensor in load_file(weights).items()}, tmp_path / "next")
    await fresh.load([tmp_path / "next"], 5)
    waits = PromptGroup("a", (1, 2, 3, 4, 5, 6), (11, 12))
    running = await kind.begin(engine, [PromptGroup("first", (1, 2, 3), (5, 6, 7, 8)), waits])
    await engine.load([tmp_path / "next"], 5)
    first, second = await running
    assert first.completions[0].spans[0].version == 4, "the load came before any token"
    assert second == (await fresh.generate([waits]))[0]


async def test_a_load_between_calls_leaves_one_span_and_acts_like_a_fresh_engine(engine, start, weights, tmp_path, kind):
    save_file({name: tensor * 1.5 for name, tensor in load_file(weights).items()}, tmp_path / "next")
    group = PromptGroup("a", (1, 2, 3), (5, 6), greedy=0 if kind.exact else 2)
    await engine.generate([group])
    await engine.load([tmp_path / "next"], 1)
    fresh = start()
    await fresh.load([tmp_path / "next"], 1)
    found = await engine.generate([group])
    kind.assert_same(found, await fresh.generate([group]))
    assert found[0].completions[0].spans == (TokenSpan(0, NEW, 1),)


async def test_samples_in_flight_wait_while_the_device_is_released_and_go_on_as_if_nothing_had_been(start, weights, kind):
    if kind.name == "sglang":
        pytest.skip("a server on a CPU has no memory saver; tests of the SGLang engine show it with a stand-in")
    engine, undisturbed = (start(slots=4, max_new_tokens=200) for _ in range(2))
    groups = [PromptGroup("a", (1, 2, 3), (5, 6, 7)), PromptGroup("b", (4, 5), (8, 9, 10))]  # the last ones wait for a slot
    for one in (engine, undisturbed):
        await one.load([weights], 3)
    running = await kind.begin(engine, groups)
    for _ in range(2):
        await engine.release()
        await engine.release()
        seen = await engine.progress()
        await asyncio.sleep(0.05)
        assert not running.done()
        assert kind.name == "stub" or await engine.progress() == seen, "it draws tokens"
        await engine.load([weights], 3)
        await asyncio.sleep(0.01)
    found = await running
    assert found == await undisturbed.generate(groups)
    assert {sample.spans for group in found for sample in group.completions} == {(TokenSpan(0, 200, 3),)}


async def test_a_released_engine_reads_no_weight_until_the_next_load(start, weights, monkeypatch, kind):
    if kind.name != "torch":
        pytest.skip("it has no weights in this process")
    reload = OffDevice.reload

    def noise(self):
        """As the memory is after a real release: anything."""
        reload(self)
        for views in engine._model.weights.named.values():
            for view in views:
                view.fill_(float("nan"))

    monkeypatch.setattr(OffDevice, "reload", noise)
    engine, undisturbed = (start(slots=4, max_new_tokens=200) for _ in range(2))
    group = PromptGroup("a", (1, 2, 3), (5, 6, 7, 8, 9))
    for one in (engine, undisturbed):
        await one.load([weights], 3)
    running = await kind.begin(engine, [group])
    await engine.release()
    await engine.load([weights], 3)
    assert await running == await undisturbed.generate([group])


async def test_a_call_during_a_release_waits_for_the_next_load(engine, weights, kind):
    if kind.name == "sglang":
        pytest.skip("a server on a CPU has no memory saver; tests of the SGLang engine show it with a stand-in")
    await engine.release()
    running = asyncio.create_task(engine.generate([PromptGroup("a", (1, 2, 3), (5,))]))
    await asyncio.sleep(0.05)
    assert not running.done()
    await engine.load([weights], 7)
    assert [span.version for span in (await running)[0].completions[0].spans] == [7]


async def test_a_broken_engine_fails_every_waiter_and_every_later_call(start, weights, tmp_path, kind):
    skip_noise(kind)
    if not kind.exact:
        pytest.skip("weights that are not numbers are refused by the load; tests/engines shows it")
    engine = start(max_new_tokens=4000)
    await engine.load([weights], 0)
    running = [asyncio.create_task(engine.generate([PromptGroup("a", (1,), (n,))])) for n in range(20)]  # some wait for slots
    await asyncio.sleep(0.02)
    save_file({name: tensor * float("nan") for name, tensor in load_file(weights).items()}, tmp_path / "nan")
    await engine.load([tmp_path / "nan"], 1)
    results = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 60)
    assert all(isinstance(result, ModelError) and "not finite" in str(result) for result in results)
    with pytest.raises(ModelError, match="policy version 1 gives logits that are not finite; lower"):
        await engine.generate([PromptGroup("a", (1,), (1,))])
    with pytest.raises(ModelError, match="policy version 1 gives logits that are not finite; lower"):
        await engine.load([weights], 2)


async def test_close_ends_calls_in_flight(start, weights, kind):
    engine = start(max_new_tokens=kind.long)
    await engine.load([weights], 0)
    running = await kind.begin(engine, [PromptGroup("a", (1,), (1,))])
    await engine.close()
    with pytest.raises(ModelError, match="closed"):
        await running
    await engine.close()


async def test_a_cancelled_call_frees_its_slots(start, weights, kind):
    engine = start(max_new_tokens=kind.long, slots=4)
    await engine.load([weights], 0)
    running = await kind.begin(engine, [PromptGroup("a", (1,), tuple(range(40)))])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    other = await engine.generate([PromptGroup("b", (1,), (3,))])
    assert len(other[0].completions[0].token_ids) == kind.long


@pytest.mark.parametrize(("prompt", "seeds"), [((), (1,)), ((1,) * 9000, (1,)), ((VOCAB,), (1,)), ((-1,), (1,)), ((1,), ())])
async def test_a_group_that_cannot_be_sampled_is_refused(engine, prompt, seeds):
    with pytest.raises(ModelError, match="group 'x'"):
        await engine.generate([PromptGroup("x", prompt, seeds)])


async def test_a_group_may_ask_for_fewer_tokens_and_then_has_room_for_a_longer_prompt(engine, kind):
    groups = [PromptGroup("whole", (1, 2, 3), (5, 6)), PromptGroup("short", (1, 2, 3), (5, 6), max_new_tokens=2)]
    whole, short = await engine.generate(groups)
    for all_of_it, beginning in zip(whole.completions, short.completions, strict=True):
        assert (len(beginning.token_ids), beginning.finish) == (2, "length")
        if kind.exact:
            assert all_of_it.token_ids[:2] == beginning.token_ids
    for wrong in (0, NEW + 1):
        with pytest.raises(ModelError, match="allowed are 1 to"):
            await engine.generate([PromptGroup("x", (1,), (1,), max_new_tokens=wrong)])


async def test_nothing_is_sampled_before_the_first_load(start):
    with pytest.raises(ModelError, match="load a version first"):
        await start().generate([PromptGroup("a", (1,), (1,))])
