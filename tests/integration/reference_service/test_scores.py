"""Scores of a run's reward model by the reference service, asked as the conductor asks a scorer."""

import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gradbus.aio.tasks import background
from gradbus.bus import Buckets, Bus, BusSettings
from gradbus.objects import ObjectStore
from gradbus.v1.reference_service_pb2 import LogProbsRequest, ReferenceSequence
from gradbus.v1.reference_service_pb2_grpc import ReferenceServiceStub
from gradbus.v1.reward_pb2 import RewardStatus, ScoreRequest, ScoreSample
from gradbus.v1.reward_service_pb2_grpc import RewardServiceStub
from gradbus_reference.model import ModelCache
from gradbus_reference.requests import decoded
from gradbus_reference.settings import ReferenceSettings

RUNS = ((True, "fp32"), (False, "bf16"))
"""Whether the run's reward model leaves, and the dtype of its decoder: two models of one folder."""
OK, ERROR = RewardStatus.REWARD_STATUS_OK, RewardStatus.REWARD_STATUS_ERROR


@pytest.fixture
def stub(channel):
    return RewardServiceStub(channel)


def samples(seed, number=3):
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 17, 3).astype("<i4").tobytes()
    return [
        ScoreSample(sample_id=f"{seed}.{n}", prompt_ids=prompt, token_ids=rng.integers(0, 17, 1 + n).astype("<i4").tobytes())
        for n in range(number)
    ]


def request(run_id, *groups):
    return ScoreRequest(run_id=run_id, samples=[sample for group in groups for sample in group])


def expected(model, sample):
    ids = [int(token) for part in (sample.prompt_ids, sample.token_ids) for token in np.frombuffer(part, "<i4")]
    with torch.no_grad():
        return float(model(torch.tensor(ids)[None]).logits)


async def test_every_sample_gets_the_score_of_its_tokens(stub, run_id, scorer):
    asked = samples(0) + samples(1)
    response = await stub.Score(request(run_id, asked), timeout=60)
    assert [(result.sample_id, result.status) for result in response.results] == [(sample.sample_id, OK) for sample in asked]
    found = [result.reward for result in response.results]
    np.testing.assert_allclose(found, [expected(scorer, sample) for sample in asked], atol=1e-5)
    assert len(set(found)) == len(found)


async def test_a_groups_bits_depend_on_nothing_else_in_the_call_or_beside_it(stub, channel, run_id, new_run, folder):
    alone = [list((await stub.Score(request(run_id, samples(seed)), timeout=60)).results) for seed in range(3)]
    together = await stub.Score(request(run_id, *map(samples, range(3))), timeout=60)
    assert list(together.results) == [result for results in alone for result in results]
    other = await new_run(folder / "model", folder / "scorer")
    sequence = ReferenceSequence(sample_id="0.0", prompt_ids=samples(0)[0].prompt_ids, token_ids=samples(0)[0].token_ids)
    logprobs = ReferenceServiceStub(channel).LogProbs(LogProbsRequest(run_id=run_id, temperature=1.0, sequences=[sequence]), timeout=60)
    calls = [stub.Score(request(run, samples(seed)), timeout=60) for run, seed in ((run_id, 0), (other, 1), (run_id, 2))]
    found = await asyncio.gather(logprobs, *calls)
    assert [list(response.results) for response in found[1:]] == alone
    assert len(found[0].results) == 1


def spoiled(folder, target, value):
    """The reward model with another number in its head."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors["score.weight"][:] = value
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize("wrong", [-1, 17, 2**31 - 1])
async def test_an_unknown_token_is_an_error_of_its_own_call_and_never_a_reward(stub, run_id, wrong):
    bad = samples(3)
    bad[1].token_ids = np.array([1, wrong], "<i4").tobytes()
    calls = [stub.Score(request(run_id, asked), timeout=60) for asked in (samples(0), bad, samples(1))]
    first, failed, other = await asyncio.gather(*calls)
    assert {(result.status, result.permanent, result.reward) for result in failed.results} == {(ERROR, True, 0.0)}
    assert all("sample '3.1' has a token id outside 0..16" in result.reason for result in failed.results)
    assert {result.status for response in (first, other) for result in response.results} == {OK}


@pytest.mark.parametrize("value", [3e38, -3e38])
async def test_a_score_that_is_no_reward_is_an_error(stub, new_run, folder, model, scorer, tmp_path, value):
    run_id = await new_run(folder / "model", spoiled(folder / "scorer", tmp_path / "scorer", value))
    response = await stub.Score(request(run_id, samples(0)), timeout=60)
    assert {(result.status, result.permanent) for result in response.results} == {(ERROR, True)}
    assert "a reward is a number within ±1e+06; take another reward model" in response.results[0].reason


async def test_what_cannot_be_scored_is_an_error_with_advice(stub, run_id, new_run, folder, tmp_path):
    async def reason(asked):
        response = await stub.Score(asked, timeout=60)
        assert {(result.status, result.permanent) for result in response.results} == {(ERROR, True)}
        return response.results[0].reason

    torn = [ScoreSample(sample_id="0.0", prompt_ids=b"123", token_ids=b"1234")]
    assert "sample '0.0': token ids must be little-endian int32" in await reason(request(run_id, torn))
    text = [ScoreSample(sample_id="0.0", prompt="1+1=", response="2")]
    assert "sample '0.0': token ids must be little-endian int32" in await reason(request(run_id, text))
    assert "run run-nobody is not known" in await reason(request("run-nobody", samples(0)))
    assert "is not a name" in await reason(request("../x", samples(0)))
    without = await new_run(folder / "model")
    assert f"the spec of {without} names no reward model" in await reason(request(without, samples(0)))
    not_finite = await new_run(folder / "model", spoiled(folder / "scorer", tmp_path / "scorer", float("nan")))
    assert "score.weight holds values that are not finite" in await reason(request(not_finite, samples(0)))


@pytest.fixture
async def models(nats_url, object_url, tmp_path):
    """A cache of models that believes to be on an accelerator, and its torch thread."""
    bus, thread = await Bus.connect(BusSettings(nats_url), "test"), ThreadPoolExecutor(1)
    settings = ReferenceSettings(offload_seconds=0.2, cache_dir=tmp_path / "cache")
    cache = ModelCache(settings, await bus.bucket(Buckets.RUNS), ObjectStore.open(object_url), thread)
    cache._has_accelerator = True
    yield cache, thread
    thread.shutdown()
    await bus.close()


async def test_a_reward_model_leaves_the_accelerator_while_it_is_idle_if_the_run_asked_for_it(models, new_run, folder, model, scorer):
    cache, thread = models
    runs = [await new_run(folder / "model", folder / "scorer", offload=offload, trainer={"dtype": dtype}) for offload, dtype in RUNS]
    served = [(await cache.reward_of(run)).model for run in runs]
    asked = decoded(samples(0))

    async def scores(one):
        return await asyncio.get_running_loop().run_in_executor(thread, one.scores, asked)

    before = [await scores(one) for one in served]
    async with background(cache.tend_idle(), "tend"):
        while any(parameter.untyped_storage().nbytes() for parameter in served[0]._model.parameters()):  # noqa: ASYNC110 - the service looks at its models now and then
            await asyncio.sleep(0.05)
        assert all(parameter.untyped_storage().nbytes() for parameter in served[1]._model.parameters()), "nobody asked it to leave"
        assert (await cache.reward_of(runs[0])).model is served[0], "it is loaded all the same"
        np.testing.assert_array_equal([await scores(one) for one in served], before)


async def test_on_a_cpu_it_stays_and_scores_the_same(stub, run_id, new_run, folder):
    """In the service as it runs, which has no accelerator."""
    leaving = await new_run(folder / "model", folder / "scorer", offload=True)
    found = [(await stub.Score(request(run, samples(0)), timeout=60)).results for run in (run_id, leaving)]
    assert list(found[0]) == list(found[1])
    assert {result.status for result in found[1]} == {OK}


async def test_the_run_that_used_a_reward_model_last_says_whether_it_leaves(models, new_run, folder, model, scorer):
    cache, _ = models
    leaving, staying = [await new_run(folder / "model", folder / "scorer", offload=offload) for offload in (True, False)]
    served = (await cache.reward_of(leaving)).model
    assert (await cache.reward_of(staying)).model is served
    assert not cache._leaving
    await cache.reward_of(leaving)
    assert len(cache._leaving) == 1
    await cache.drop_all()
    await cache._drop_idle()
    assert not cache._leaving


async def leaving_models(cache, new_run, folder):
    """Two reward models that leave, and their runs."""
    runs = [await new_run(folder / "model", folder / "scorer", offload=True, trainer={"dtype": dtype}) for dtype in ("fp32", "bf16")]
    return runs, [(await cache.reward_of(run)).model for run in runs]


async def test_models_may_be_dropped_while_another_leaves(models, new_run, folder, model, scorer):
    cache, thread = models
    await leaving_models(cache, new_run, folder)
    may_move = threading.Event()
    thread.submit(may_move.wait)
    look = asyncio.create_task(cache._offload_idle())
    await asyncio.sleep(0)
    await cache.drop_all()
    may_move.set()
    await look
    assert not cache._loaded


async def test_a_model_that_cannot_leave_stays_until_its_next_use_and_keeps_no_other(
    models, new_run, folder, model, scorer, monkeypatch, capsys
):
    cache, _ = models
    runs, served = await leaving_models(cache, new_run, folder)
    monkeypatch.setattr(served[0]._model, "buffers", lambda: [torch.empty(1).to_sparse()])  # has no storage to move
    for one in served:
        one._used_at -= 3600.0
    await cache._offload_idle()
    held = [[parameter.untyped_storage().nbytes() for parameter in one._model.parameters()] for one in served]
    assert (all(held[0]), any(held[1])) == (True, False)
    assert "reward_model_stays" in "".join(capsys.readouterr())
    assert len(cache._leaving) == 1
    await cache.reward_of(runs[0])
    assert len(cache._leaving) == 2


async def test_a_version_of_a_run_that_trains_a_reward_model_scores_by_its_own_weights(stub, new_run, folder, model, scorer, stored_file):
    """The run's own model is the one that it started from; nothing else scores it."""
    run_id = await new_run(folder / "scorer", kind="reward_model", reward={})
    changed = {name: tensor + 0.05 for name, tensor in scorer.state_dict().items()}
    asked = samples(0)
    response = await stub.Score(ScoreRequest(run_id=run_id, samples=asked, version_files=[await stored_file(changed)]), timeout=60)
    other = copy.deepcopy(scorer)
    other.load_state_dict(changed)
    found = [result.reward for result in response.results]
    np.testing.assert_allclose(found, [expected(other, sample) for sample in asked], atol=1e-5)
    assert abs(found[0] - expected(scorer, asked[0])) > 1e-3
    without = await stub.Score(request(run_id, asked), timeout=60)
    assert "names no reward model" in without.results[0].reason
