"""The reference service as a process: it finds a run's base model by the digests in its spec."""

import asyncio
import copy

import grpc
import numpy as np
import pytest
import torch

from gradbus.v1.reference_service_pb2 import LogProbsRequest, ReferenceSequence
from gradbus.v1.reference_service_pb2_grpc import ReferenceServiceStub


@pytest.fixture
def stub(channel):
    return ReferenceServiceStub(channel)


def sequences(seed):
    rng = np.random.default_rng(seed)
    return [
        ReferenceSequence(
            sample_id=f"{seed}.{n}",
            prompt_ids=rng.integers(0, 17, 3).astype("<i4").tobytes(),
            token_ids=rng.integers(0, 17, 1 + n).astype("<i4").tobytes(),
        )
        for n in range(3)
    ]


def expected(model, sequence, temperature):
    prompt, response = (np.frombuffer(ids, "<i4") for ids in (sequence.prompt_ids, sequence.token_ids))
    ids = torch.tensor([*prompt, *response])[None]
    with torch.no_grad():
        table = (model(ids).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return table.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


async def status_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_calls_at_once_get_what_each_gets_alone(stub, run_id, model):
    requests = [
        LogProbsRequest(run_id=run_id, temperature=temperature, sequences=sequences(seed))
        for seed, temperature in enumerate((1.0, 0.7, 1.0))
    ]
    together = await asyncio.gather(*(stub.LogProbs(request, timeout=60) for request in requests))
    for request, response in zip(requests, together, strict=True):
        assert await stub.LogProbs(request, timeout=60) == response, "the same bits, whoever else asks"
        for sequence, result in zip(request.sequences, response.results, strict=True):
            assert result.sample_id == sequence.sample_id
            found = np.frombuffer(result.logprobs, "<f4")
            np.testing.assert_allclose(found, expected(model, sequence, request.temperature), rtol=1e-5, atol=1e-5)


async def test_a_teacher_answers_for_itself_and_beside_the_base_model(stub, new_run, folder, model, teacher):
    run_id = await new_run(folder / "model", teacher=folder / "teacher", algorithm={"name": "opd"})
    requests = [LogProbsRequest(run_id=run_id, temperature=0.7, sequences=sequences(0), of_teacher=of) for of in (False, True)]
    answers = await asyncio.gather(*(stub.LogProbs(request, timeout=60) for request in requests))
    for which, answer in zip((model, teacher), answers, strict=True):
        for sequence, result in zip(requests[0].sequences, answer.results, strict=True):
            np.testing.assert_allclose(np.frombuffer(result.logprobs, "<f4"), expected(which, sequence, 0.7), rtol=1e-5, atol=1e-5)


async def test_the_teachers_most_likely_tokens_come_with_the_mass_of_the_others(stub, new_run, folder, model, teacher):
    run_id = await new_run(folder / "model", teacher=folder / "teacher", algorithm={"name": "opd"})
    request = LogProbsRequest(run_id=run_id, temperature=0.7, sequences=sequences(1), of_teacher=True, top_k=4)
    answer = await stub.LogProbs(request, timeout=60)
    for sequence, result in zip(request.sequences, answer.results, strict=True):
        prompt, response = (np.frombuffer(ids, "<i4") for ids in (sequence.prompt_ids, sequence.token_ids))
        with torch.no_grad():
            logits = teacher(torch.tensor([*prompt, *response])[None]).logits[0, len(prompt) - 1 : -1]
        values, ids = (logits.double() / 0.7).log_softmax(-1).topk(4)
        np.testing.assert_array_equal(np.frombuffer(result.rows.ids, "<i4").reshape(-1, 4), ids)
        found = np.frombuffer(result.rows.logprobs, "<f4").reshape(-1, 5)
        np.testing.assert_allclose(found[:, :-1], values, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.exp(found, dtype=np.float64).sum(1), 1.0, atol=1e-6)
        np.testing.assert_allclose(np.frombuffer(result.logprobs, "<f4"), expected(teacher, sequence, 0.7), rtol=1e-5, atol=1e-5)
    request.top_k = 17
    code, details = await status_of(stub.LogProbs(request, timeout=60))
    assert (code, "the model has 17 tokens" in details) == (grpc.StatusCode.FAILED_PRECONDITION, True)


async def test_a_run_without_a_teacher_is_told_so(stub, run_id):
    code, details = await status_of(stub.LogProbs(LogProbsRequest(run_id=run_id, temperature=1.0, of_teacher=True), timeout=60))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert details.endswith("names no teacher; ask for the base model's log-probabilities")


def lora_adapters(model, rank, scale):
    """Drawn adapters of the query projections under peft's names, and the model with them merged."""
    draw, merged, adapters = torch.Generator().manual_seed(4), copy.deepcopy(model), {}
    for number, layer in enumerate(merged.model.layers):
        weight = layer.self_attn.q_proj.weight
        down, up = torch.randn(rank, weight.shape[1], generator=draw), torch.randn(weight.shape[0], rank, generator=draw)
        name = f"base_model.model.model.layers.{number}.self_attn.q_proj"
        adapters |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        weight.data += scale * up @ down
    return adapters, merged


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 4, "target_modules": ["q_proj"]}], ids=["every weight", "adapters"])
async def test_a_version_computes_with_its_own_weights_and_the_base_model_stays_what_it_is(stub, new_run, folder, model, stored_file, lora):
    run_id = await new_run(folder / "model", kind="sft", reward={}, trainer={"lora": lora})
    if lora is None:
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.data += 0.05
        tensors = other.state_dict()
    else:
        tensors, other = lora_adapters(model, 2, 2.0)
    asked, version = sequences(0), [await stored_file(tensors)]
    for files, computes in (((), model), (version, other), ((), model)):
        request = LogProbsRequest(run_id=run_id, temperature=1.0, sequences=asked, version_files=files)
        for sequence, result in zip(asked, (await stub.LogProbs(request, timeout=60)).results, strict=True):
            np.testing.assert_allclose(np.frombuffer(result.logprobs, "<f4"), expected(computes, sequence, 1.0), rtol=1e-4, atol=1e-5)
    moved = [np.abs(expected(other, sequence, 1.0) - expected(model, sequence, 1.0)).max() for sequence in asked]
    assert max(moved) > 1e-2
    assert not list((folder / "cache" / "versions").iterdir()), "files of versions do not stay"


async def test_the_adapters_with_which_a_run_begins_are_rounded_as_its_version_0(stub, new_run, folder, model, stored_file):
    """A run in float32 that publishes bfloat16 goes on with adapters of one that published float32."""
    lora = {"rank": 2, "alpha": 4, "target_modules": ["q_proj"]}
    run_id = await new_run(folder / "model", trainer={"lora": lora}, weights={"dtype": "bf16"})
    adapters, _ = lora_adapters(model, 2, 2.0)
    rounded = {name: tensor.bfloat16() for name, tensor in adapters.items()}
    requests = [
        LogProbsRequest(run_id=run_id, temperature=1.0, sequences=sequences(0), version_files=[await stored_file(tensors)])
        for tensors in (adapters, rounded, {name: tensor.float() for name, tensor in rounded.items()})
    ]
    begun, published, widened = [await stub.LogProbs(request, timeout=60) for request in requests]
    assert begun == published == widened


async def test_a_version_that_is_gone_or_of_another_model_says_so(stub, new_run, folder, model, stored_file):
    run_id = await new_run(folder / "model", kind="sft", reward={})
    gone = LogProbsRequest(run_id=run_id, temperature=1.0, sequences=sequences(0), version_files=["sha256:" + "0" * 64])
    assert (await status_of(stub.LogProbs(gone, timeout=60)))[0] == grpc.StatusCode.UNAVAILABLE
    other = await stored_file({"model.norm.weight": torch.ones(3)})
    wrong = LogProbsRequest(run_id=run_id, temperature=1.0, sequences=sequences(0), version_files=[other])
    code, details = await status_of(stub.LogProbs(wrong, timeout=60))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "the weights are of another model" in details


@pytest.mark.parametrize("wrong", [-1, 17, 2**31 - 1])
async def test_an_unknown_token_fails_its_own_call_and_none_that_waits_beside_it(stub, run_id, wrong):
    good = [LogProbsRequest(run_id=run_id, temperature=1.0, sequences=sequences(seed)) for seed in range(3)]
    bad = LogProbsRequest(run_id=run_id, temperature=1.0, sequences=sequences(3))
    bad.sequences[1].token_ids = np.array([1, wrong], "<i4").tobytes()
    calls = [stub.LogProbs(request, timeout=60) for request in (good[0], bad, *good[1:])]
    first, failed, *others = await asyncio.gather(*calls, return_exceptions=True)
    assert failed.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "3.1" in failed.details()
    assert [len(answer.results) for answer in (first, *others)] == [3, 3, 3]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
async def test_an_invalid_temperature_is_refused(stub, run_id, temperature):
    request = LogProbsRequest(run_id=run_id, temperature=temperature, sequences=sequences(0))
    assert (await status_of(stub.LogProbs(request, timeout=60)))[0] == grpc.StatusCode.FAILED_PRECONDITION


async def test_bad_requests_are_answered_with_advice(stub, run_id):
    unknown = LogProbsRequest(run_id="run-nobody", temperature=1.0, sequences=sequences(0))
    assert await status_of(stub.LogProbs(unknown, timeout=60)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "ModelError: run run-nobody is not known; name a run that the gateway has accepted",
    )
    torn = LogProbsRequest(
        run_id=run_id, temperature=1.0, sequences=[ReferenceSequence(sample_id="0.0", prompt_ids=b"123", token_ids=b"1234")]
    )
    code, details = await status_of(stub.LogProbs(torn, timeout=60))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "0.0" in details
    assert (await status_of(stub.LogProbs(LogProbsRequest(run_id="../x"), timeout=60)))[0] == grpc.StatusCode.FAILED_PRECONDITION
