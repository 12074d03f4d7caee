"""A teacher that is an SGLang server: the reference service asks it, checks what it says, and trains nobody on an answer that is none."""

import asyncio

import grpc
import numpy as np
import pytest
import torch
from sglang_peer import Faults, SGLangPeer

from gradbus.v1.reference_service_pb2 import LogProbsRequest, ReferenceSequence
from gradbus.v1.reference_service_pb2_grpc import ReferenceServiceStub

KEY = "of-the-server"


def table_of(model):
    """The log-probabilities of a model in torch, in float32, as a server computes them."""

    def table(ids):
        with torch.no_grad():
            return model(torch.tensor(ids)[None]).logits[0].log_softmax(-1).numpy()

    return table


@pytest.fixture
def peer(teacher):
    peer = SGLangPeer(table_of(teacher))
    yield peer
    peer.close()


@pytest.fixture
def stub(channel):
    return ReferenceServiceStub(channel)


@pytest.fixture
def served_run(new_run, folder, model):
    """A run whose teacher is the server at a URL, as the gateway stores it; returns its id."""

    async def run(url, **served):
        served = {"model_path": "models/large", "weight_version": "default", "vocab_size": 17} | served
        return await new_run(folder / "model", algorithm={"name": "opd"}, teacher={"url": url, "served": served})

    return run


def sequences(count=3, first=1):
    rng = np.random.default_rng(7)
    return [
        ReferenceSequence(
            sample_id=f"0.{n}",
            prompt_ids=rng.integers(0, 17, 3 + n).astype("<i4").tobytes(),
            token_ids=rng.integers(0, 17, first + n).astype("<i4").tobytes(),
        )
        for n in range(count)
    ]


def expected(model, sequence):
    """Float64 log-probabilities `[T, V]` at the response's positions, and its ids."""
    prompt, response = (np.frombuffer(ids, "<i4") for ids in (sequence.prompt_ids, sequence.token_ids))
    with torch.no_grad():
        logits = model(torch.tensor([*prompt, *response])[None]).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1).numpy(), response


def request(run_id, **changes):
    return LogProbsRequest(**{"run_id": run_id, "temperature": 1.0, "sequences": sequences(), "of_teacher": True} | changes)


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_the_servers_log_probabilities_are_those_of_its_model(stub, peer, served_run, teacher):
    asked = request(await served_run(peer.url))
    answer = await stub.LogProbs(asked, timeout=60)
    for sequence, result in zip(asked.sequences, answer.results, strict=True):
        rows, ids = expected(teacher, sequence)
        assert result.sample_id == sequence.sample_id
        np.testing.assert_allclose(np.frombuffer(result.logprobs, "<f4"), rows[np.arange(len(ids)), ids], rtol=1e-5, atol=1e-5)
        assert not result.HasField("rows")
    bodies = [body for path, body in peer.asked if path == "/generate"]
    assert sorted(len(body["input_ids"]) - body["logprob_start_len"] for body in bodies) == [2, 3, 4], "prompts are not asked about"


async def test_the_most_likely_tokens_come_with_the_mass_of_the_others(stub, peer, served_run, teacher):
    asked = request(await served_run(peer.url), top_k=4)
    answer = await stub.LogProbs(asked, timeout=60)
    for sequence, result in zip(asked.sequences, answer.results, strict=True):
        rows, _ = expected(teacher, sequence)
        order = np.argsort(-rows, axis=1)[:, :4]
        np.testing.assert_array_equal(np.frombuffer(result.rows.ids, "<i4").reshape(-1, 4), order)
        found = np.frombuffer(result.rows.logprobs, "<f4").reshape(-1, 5)
        np.testing.assert_allclose(found[:, :4], np.take_along_axis(rows, order, 1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.exp(found, dtype=np.float64).sum(1), 1.0, atol=1e-6)


async def test_a_mass_that_float32_cannot_tell_from_nothing_stays_finite(stub, served_run):
    sure = np.full((64, 17), -80.0)
    sure[:, 3] = 0.0
    peer = SGLangPeer(lambda ids: sure[: len(ids)])
    answer = await stub.LogProbs(request(await served_run(peer.url), top_k=2), timeout=60)
    peer.close()
    for result in answer.results:
        found = np.frombuffer(result.rows.logprobs, "<f4").reshape(-1, 3)
        np.testing.assert_allclose(found[:, 2], -24 * np.log(2.0), rtol=1e-6)


UNUSABLE = {
    "fewer tokens": (Faults(dropped=1), "input_token_logprobs of"),
    "a number that is none": (Faults(logprob=float("nan")), "NaN is not a number of JSON"),
    "nothing in place of a number": (Faults(logprob="null"), "has null for the log-probability of token"),
    "more than certain": (Faults(logprob=0.7), "has 0.7 for the log-probability"),
    "other tokens": (Faults(other_token=True), "of other tokens than those asked about"),
    "no JSON": (Faults(raw=b"<html>"), "that cannot be used"),
    "no UTF-8": (Faults(raw=b"\xff{}"), "it is not UTF-8"),
    "a list": (Faults(raw=b"[]"), "it is no JSON object"),
    "no numbers at all": (Faults(raw=b"{}"), "it has no meta_info"),
    "another status": (Faults(status=400), 'answered /model_info with 400: {"error": {"message": "not now"}}'),
}


@pytest.mark.parametrize("name", UNUSABLE)
async def test_an_answer_that_cannot_be_used_is_an_error_and_never_a_number(stub, peer, served_run, name):
    peer.faults, words = UNUSABLE[name]
    code, details = await refused(stub.LogProbs(request(await served_run(peer.url)), timeout=60))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert words in details
    assert peer.url in details
    peer.faults = Faults()


async def test_fewer_likely_tokens_than_asked_for_are_an_error(stub, peer, served_run):
    peer.vocab_size = 3  # of a table with more
    peer.table = lambda ids: np.full((len(ids), 3), -np.log(3.0))
    few = [ReferenceSequence(sample_id="0.0", prompt_ids=np.zeros(2, "<i4").tobytes(), token_ids=np.ones(1, "<i4").tobytes())]
    code, details = await refused(stub.LogProbs(request(await served_run(peer.url), sequences=few, top_k=4), timeout=60))
    assert (code, "it has not 4 different tokens of each position" in details) == (grpc.StatusCode.FAILED_PRECONDITION, True)


@pytest.mark.parametrize("changed", [{"weight_version": "step-9"}, {"model_path": "models/other"}], ids=str)
async def test_other_weights_than_at_the_submission_are_an_error_that_names_both(stub, peer, served_run, changed):
    run_id = await served_run(peer.url)
    await stub.LogProbs(request(run_id), timeout=60)
    for name, value in changed.items():
        setattr(peer, name, value)
    code, details = await refused(stub.LogProbs(request(run_id), timeout=60))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "had weights 'default' of 'models/large' when the run was submitted" in details
    assert next(iter(changed.values())) in details


async def test_weights_that_change_between_two_answers_are_an_error(stub, peer, served_run):
    run_id, table = await served_run(peer.url), peer.table

    def updated(ids):
        peer.weight_version = "step-1"
        return table(ids)

    peer.table = updated
    assert (await refused(stub.LogProbs(request(run_id), timeout=60)))[0] == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_server_that_refuses_work_for_now_is_asked_again(stub, peer, served_run, status):
    run_id = await served_run(peer.url)
    peer.faults = Faults(status=status)
    assert (await refused(stub.LogProbs(request(run_id), timeout=60)))[0] == grpc.StatusCode.UNAVAILABLE
    peer.faults = Faults()
    assert len((await stub.LogProbs(request(run_id), timeout=60)).results) == 3


async def test_a_server_that_is_down_fails_no_run_and_its_return_is_noticed(stub, served_run, teacher, free_port):
    port = free_port()
    run_id = await served_run(f"http://127.0.0.1:{port}")
    code, details = await refused(stub.LogProbs(request(run_id), timeout=60))
    assert (code, "check that it runs" in details) == (grpc.StatusCode.UNAVAILABLE, True)
    started = SGLangPeer(table_of(teacher), port=port)
    answer = await stub.LogProbs(request(run_id), timeout=60)
    started.close()
    assert len(answer.results) == 3


async def test_a_slow_server_holds_up_no_other_run(stub, peer, served_run, run_id):
    peer.faults = Faults(seconds=20.0)
    slow = asyncio.create_task(stub.LogProbs(request(await served_run(peer.url)), timeout=120))
    own = LogProbsRequest(run_id=run_id, temperature=1.0, sequences=sequences())
    assert len((await stub.LogProbs(own, timeout=60)).results) == 3
    assert not slow.done(), "the model of the other run was not behind it"
    slow.cancel()


async def test_a_server_that_wants_a_key_that_nobody_set_says_so(stub, served_run, teacher):
    locked = SGLangPeer(table_of(teacher), key=KEY)
    code, details = await refused(stub.LogProbs(request(await served_run(locked.url)), timeout=60))
    locked.close()
    assert (code, "GRADBUS_TEACHER_KEYS" in details) == (grpc.StatusCode.FAILED_PRECONDITION, True)


async def test_what_no_server_can_answer_is_refused_before_it_is_asked(stub, peer, served_run):
    run_id = await served_run(peer.url)
    warm = await refused(stub.LogProbs(request(run_id, temperature=0.7), timeout=60))
    unknown = [ReferenceSequence(sample_id="0.0", prompt_ids=np.zeros(2, "<i4").tobytes(), token_ids=np.full(1, 17, "<i4").tobytes())]
    outside = await refused(stub.LogProbs(request(run_id, sequences=unknown), timeout=60))
    assert {warm[0], outside[0]} == {grpc.StatusCode.FAILED_PRECONDITION}
    assert "a teacher's server has log-probabilities at temperature 1" in warm[1]
    assert "a token id outside 0..16" in outside[1]
    assert peer.asked == []


async def test_a_likely_token_that_the_policy_does_not_have_is_an_error(stub, peer, served_run):
    peer.vocab_size, table = 19, peer.table
    peer.table = lambda ids: np.pad(table(ids), ((0, 0), (0, 2)), constant_values=-1e-4)
    code, details = await refused(stub.LogProbs(request(await served_run(peer.url), top_k=2), timeout=60))
    assert (code, "the policy has 17 tokens" in details) == (grpc.StatusCode.FAILED_PRECONDITION, True)
