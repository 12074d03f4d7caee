"""Scoring over real gRPC: a failed sample is scored again, and never gets a reward of 0."""

import asyncio
import dataclasses
import json

import pytest

from gradbus.rpc import RpcServer, RpcSettings, open_channel, token_hash
from gradbus.v1.group_pb2 import Verdict
from gradbus.v1.reference_service_pb2_grpc import ReferenceServiceStub, add_ReferenceServiceServicer_to_server
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.reward_service_pb2_grpc import RewardServiceStub, add_RewardServiceServicer_to_server
from gradbus.v1.sample_pb2 import FinishReason
from gradbus_conductor.groups import call_sizes, judging
from gradbus_conductor.groups import scorer as scorer_module
from gradbus_conductor.groups import scoring as scoring_module
from gradbus_conductor.groups.pending_group import PendingGroup
from gradbus_conductor.groups.scoring import Scoring
from gradbus_conductor.groups.task_kinds import EvaluationTasks
from gradbus_conductor.groups.traces import GroupTraces, ServiceCall

pytestmark = pytest.mark.usefixtures("never_late")
TOKEN = "of-the-test"
OK, INVALID, ERROR = RewardStatus.REWARD_STATUS_OK, RewardStatus.REWARD_STATUS_INVALID, RewardStatus.REWARD_STATUS_ERROR


@pytest.fixture
async def judged(clients, record, run_id):
    """Has groups judged; the entries by index."""
    opened = []

    async def judge(*groups, only=clients, **sections):
        found, complete = {}, asyncio.Event()

        def done(entry):
            assert entry.index not in found
            found[entry.index] = entry
            if len(found) == len(groups):
                complete.set()

        scoring = Scoring(only, run_id, record(**sections).spec, GroupTraces(run_id, 0.0), done)
        opened.append(scoring)
        scoring.submit((group, f'{{"row": {group.index}}}') for group in groups)
        await asyncio.wait_for(complete.wait(), 60)
        assert scoring.state.failing == {}
        return found

    yield judge
    for scoring in opened:
        await scoring.close()


async def test_rewards_follow_the_sample_id_whatever_the_order(judged, scorer, group):
    scorer.answer = lambda sample, _: SampleReward(sample_id=sample.sample_id, status=OK, reward=float(sample.sample_id))
    found = await judged(*(group(index) for index in range(5)))
    for index, entry in found.items():
        assert [reward.sample_id for reward in entry.rewards] == [f"{index}.0", f"{index}.1"]
        assert [reward.reward for reward in entry.rewards] == [index, index + 0.1]
        assert entry.verdict == Verdict.VERDICT_TRAIN
        assert entry.group == group(index).SerializeToString()


async def test_the_scorer_gets_the_prompt_the_response_and_the_row(judged, scorer, group):
    seen = []
    scorer.answer = lambda sample, _: seen.append(sample) or SampleReward(sample_id=sample.sample_id, status=OK, reward=len(seen))
    await judged(group(3, finish=FinishReason.FINISH_REASON_LENGTH))
    assert (seen[1].prompt, seen[1].response, seen[1].item_json) == ("2+2=", "answer 1", '{"row": 3}')
    assert (seen[1].finish_reason, seen[1].weight_version, seen[1].group_id) == ("length", 4, "3")


async def test_a_reward_model_gets_the_tokens_and_no_text_from_the_service_that_holds_it(clients, judged, scorer, group):
    """The stub of the reward service is left out: nobody calls it."""
    seen = []
    scorer.answer = lambda sample, _: seen.append(sample) or SampleReward(sample_id=sample.sample_id, status=OK, reward=len(seen))
    found = await judged(group(3, tokens=5), only=dataclasses.replace(clients, reward=None), reward={"model": {"path": "scorer"}})
    ids = group(3, tokens=5)
    assert [(sample.prompt_ids, sample.token_ids) for sample in seen] == [(ids.prompt_ids, sample.token_ids) for sample in ids.samples]
    assert {(sample.group_id, sample.prompt, sample.response, sample.item_json) for sample in seen} == {("3", "", "", "")}
    assert [reward.reward for reward in found[3].rewards] == [1.0, 2.0]


@pytest.mark.parametrize(
    "reward", [{"service": "grpc://127.0.0.1:1"}, {"grader": {"type": "string_check", "input": "a", "reference": "b"}}]
)
async def test_other_scorers_get_the_section_without_a_model_and_no_tokens(clients, run_id, record, group, reward):
    spec = record(reward=reward).spec
    [request] = scorer_module.RunScorer.of(clients, run_id, spec.reward).requests([PendingGroup(group(0), "{}")], ServiceCall({}))
    section = spec.reward.model_dump(mode="json")
    assert (section.pop("model"), section.pop("changes")) == (None, [])
    assert json.loads(request.reward_json) == section
    assert [(sample.prompt_ids, sample.token_ids) for sample in request.samples] == [(b"", b"")] * 2


async def test_a_group_that_is_too_large_for_a_reward_models_call_is_divided_by_itself(clients, run_id, record, group, monkeypatch):
    """So the bits of its scores depend on no other group."""
    monkeypatch.setattr(call_sizes, "_MOST_BYTES", 200)
    scorer = scorer_module.RunScorer.of(clients, run_id, record(reward={"model": {"path": "scorer"}}).spec.reward)
    batch = [PendingGroup(group(index, tokens), "{}") for index, tokens in enumerate((3, 30, 3))]
    calls = [[sample.sample_id for sample in request.samples] for request in scorer.requests(batch, ServiceCall({}))]
    assert calls == [["0.0", "0.1", "1.0"], ["1.1", "2.0", "2.1"]]


async def test_a_sample_that_failed_is_asked_again_and_the_others_are_not(judged, scorer, group):
    def answer(sample, attempt):
        if sample.sample_id == "1.1" and attempt < 3:
            return SampleReward(sample_id="1.1", status=ERROR, reason="busy") if attempt == 1 else None
        return SampleReward(sample_id=sample.sample_id, status=OK, reward=float(sample.sample_id.endswith("0")))

    scorer.answer = answer
    found = await judged(group(0), group(1))
    assert [reward.reward for reward in found[1].rewards] == [1.0, 0.0]
    assert scorer.asked == {"0.0": 1, "0.1": 1, "1.0": 1, "1.1": 3}


async def test_answers_for_samples_nobody_asked_about_change_nothing(judged, scorer, group):
    def answer(sample, attempt):
        sample_id = "7.7" if attempt == 1 and sample.sample_id == "0.1" else sample.sample_id
        return SampleReward(sample_id=sample_id, status=OK, reward=float(sample.sample_id.endswith("0")))

    scorer.answer = answer
    found = await judged(group(0))
    assert [reward.sample_id for reward in found[0].rewards] == ["0.0", "0.1"]


async def test_a_scorer_that_is_down_is_waited_for(judged, scorer, group):
    scorer.down = 7  # more than the channel tries by itself
    found = await judged(group(0))
    assert found[0].verdict == Verdict.VERDICT_TRAIN


async def test_equal_rewards_are_filtered(judged, scorer, group):
    scorer.answer = lambda sample, _: SampleReward(sample_id=sample.sample_id, status=OK, reward=0.5)
    found = await judged(group(0))
    assert found[0].verdict == Verdict.VERDICT_FILTERED
    assert found[0].reason


@pytest.mark.parametrize("case", ["invalid", "truncated"])
async def test_masked_samples_leave_too_few_to_train(judged, scorer, group, case):
    def answer(sample, _):
        status = INVALID if case == "invalid" and sample.sample_id.endswith("0") else OK
        return SampleReward(sample_id=sample.sample_id, status=status, reward=float(sample.sample_id.endswith("0")))

    scorer.answer = answer
    finish = FinishReason.FINISH_REASON_LENGTH if case == "truncated" else FinishReason.FINISH_REASON_STOP
    found = await judged(group(0, finish=finish), algorithm={"truncated": "mask"})
    assert found[0].verdict == Verdict.VERDICT_FILTERED


async def test_the_reference_is_asked_for_groups_that_train_and_no_others(judged, scorer, reference, group):
    def answer(sample, _):
        return SampleReward(sample_id=sample.sample_id, status=OK, reward=float(sample.sample_id == "0.0"))

    scorer.answer = answer
    found = await judged(group(0), group(1), algorithm={"kl": 0.1})
    assert [len(values) for values in found[0].reference_logprobs] == [12, 12]
    assert list(found[1].reference_logprobs) == []
    assert sorted(set(reference.asked)) == ["0.0", "0.1"]


async def test_equal_rewards_are_trained_when_their_kl_is_yet_to_be_subtracted(judged, scorer, reference, group):
    scorer.answer = lambda sample, _: SampleReward(sample_id=sample.sample_id, status=OK, reward=1.0)
    found = await judged(group(0), algorithm={"name": "rloo"})
    assert found[0].verdict == Verdict.VERDICT_TRAIN
    assert [len(values) for values in found[0].reference_logprobs] == [12, 12]


DISTILLED = {"algorithm": {"name": "opd"}, "teacher": {"path": "teacher"}, "reward": {}}


async def test_a_teacher_judges_what_no_scorer_is_asked_about(clients, judged, reference, group):
    """The stub of the reward service is left out: nobody calls it."""
    found = await judged(group(0), group(1), only=dataclasses.replace(clients, reward=None), **DISTILLED)
    for entry in found.values():
        assert (entry.verdict, entry.reason, list(entry.rewards), list(entry.reference_logprobs)) == (Verdict.VERDICT_TRAIN, "", [], [])
        assert [len(values) for values in entry.teacher_logprobs] == [12, 12]
    assert sorted(reference.asked) == sorted(reference.teacher) == ["0.0", "0.1", "1.0", "1.1"]


async def test_base_model_and_teacher_are_asked_one_after_the_other(judged, reference, group):
    found = await judged(group(0), **DISTILLED | {"algorithm": {"name": "opd", "kl": 0.1}})
    assert [len(values) for values in (*found[0].reference_logprobs, *found[0].teacher_logprobs)] == [12] * 4
    assert (reference.asked, reference.teacher) == (["0.0", "0.1"] * 2, ["0.0", "0.1"])


async def test_what_a_teacher_left_out_is_asked_for_again_and_the_base_models_is_not(judged, reference, group):
    reference.short = 1
    algorithm = {"name": "grpo", "filter": "none"}
    found = await judged(group(0), algorithm=algorithm, teacher={"path": "teacher", "coefficient": 0.5})
    assert [reward.reward for reward in found[0].rewards] == [1.0, 0.0]
    assert [len(values) for values in found[0].teacher_logprobs] == [12, 12]
    assert len(reference.teacher) == 4


ROWS = DISTILLED | {
    "algorithm": {"name": "opd", "importance": "none", "trust_region": "none"},
    "teacher": {"path": "teacher", "top_k": 5},
}


async def test_the_rows_of_a_teacher_are_in_the_entry_and_whole(judged, reference, group):
    reference.short = 1
    entry = (await judged(group(0), **ROWS))[0]
    assert [len(values) for values in entry.teacher_logprobs] == [12, 12]
    assert [(len(rows.ids), len(rows.logprobs)) for rows in entry.teacher_rows] == [(60, 72)] * 2
    assert len(reference.teacher) == 4, "the first answer lacked a number"


async def test_a_call_asks_for_as_many_rows_as_its_answer_has_room_for(judged, reference, group, monkeypatch):
    monkeypatch.setattr(call_sizes, "_MOST_BYTES", 11 * 60)
    await judged(group(0), group(1), **ROWS)
    assert sorted(reference.calls) == [["0.0", "0.1"], ["1.0", "1.1"]]


async def test_held_out_rows_of_a_taught_run_are_scored_and_no_frozen_model_is_asked(clients, run_id, record, reference, scorer, group):
    found = asyncio.get_running_loop().create_future()
    body = DISTILLED | {"reward": {"service": "grpc://127.0.0.1:1"}, "data": {"train": "t", "eval": "e"}}
    scoring = Scoring(clients, run_id, record(**body).spec, GroupTraces(run_id, 0.0), found.set_result, EvaluationTasks(3))
    scoring.submit([(group(0), "{}")])
    entry = await asyncio.wait_for(found, 60)
    assert ([reward.reward for reward in entry.rewards], list(entry.teacher_logprobs)) == ([1.0, 0.0], [])
    assert reference.asked == []
    await scoring.close()


async def test_without_a_kl_term_the_reference_is_left_alone(judged, reference, group):
    await judged(group(0))
    assert reference.asked == []


async def test_a_run_with_adapters_is_judged_without_the_reference(judged, reference, group):
    found = await judged(group(0), algorithm={"kl": 0.1}, trainer={"lora": {"rank": 2}})
    assert found[0].verdict == Verdict.VERDICT_TRAIN
    assert list(found[0].reference_logprobs) == []
    assert reference.asked == []


async def test_log_probs_that_are_too_few_are_asked_for_again(judged, reference, group):
    reference.short = 1
    found = await judged(group(0), algorithm={"kl": 0.1})
    assert [len(values) for values in found[0].reference_logprobs] == [12, 12]
    assert len(reference.asked) == 4


async def test_a_group_that_is_too_large_for_one_message_takes_several_calls(judged, reference, group):
    found = await judged(group(0), group(1, tokens=9_000_000), algorithm={"kl": 0.1})
    assert [len(values) for values in found[1].reference_logprobs] == [36_000_000] * 2, "72 MB, of which gRPC takes 64 MiB"
    assert sorted(reference.calls) == [["0.0", "0.1"], ["1.0"], ["1.1"]]


async def test_rows_that_are_too_long_for_one_message_are_scored_in_several_calls(clients, run_id, record, scorer, group):
    found, seen = asyncio.get_running_loop().create_future(), []
    scorer.hangs = lambda ids, _number: seen.append(ids)
    scoring = Scoring(clients, run_id, record().spec, GroupTraces(run_id, 0.0), found.set_result)
    scoring.submit([(group(0), f'{{"row": "{"x" * 40_000_000}"}}')])
    entry = await asyncio.wait_for(found, 60)
    assert [reward.reward for reward in entry.rewards] == [1.0, 0.0]
    assert sorted({tuple(ids) for ids in seen}) == [("0.0",), ("0.1",)], "80 MB, of which gRPC takes 64 MiB"
    await scoring.close()


async def test_many_groups_all_come_through(judged, group):
    assert len(await judged(*(group(index) for index in range(300)))) == 300


async def failing(clients, run_id, record, scorer, group):
    scorer.answer = lambda sample, _: SampleReward(sample_id=sample.sample_id, status=ERROR, reason="the disk is full")
    scoring = Scoring(
        clients, run_id, record().spec, GroupTraces(run_id, 0.0), lambda entry: pytest.fail(f"{entry.index} cannot be judged")
    )
    scoring.submit([(group(0), "{}")])
    async with asyncio.timeout(60):
        while scorer.asked.get("0.0", 0) < 2:  # noqa: ASYNC110 - the scorer counts, it does not signal
            await asyncio.sleep(0.01)
    return scoring


async def test_why_a_group_waits_is_noted(clients, run_id, record, scorer, group):
    scoring = await failing(clients, run_id, record, scorer, group)
    assert "the disk is full" in scoring.state.failing[0]
    await scoring.close()


async def test_what_a_service_says_itself_is_quoted(clients, run_id, record, scorer, group):
    scorer.down = 1000
    scoring = Scoring(clients, run_id, record().spec, GroupTraces(run_id, 0.0), lambda _: None)
    scoring.submit([(group(0), "{}")])
    async with asyncio.timeout(60):
        while not scoring.state.failing:  # noqa: ASYNC110 - the state does not signal
            await asyncio.sleep(0.01)
    assert scoring.state.failing[0] == "the reward service at the-address:1 refused: the scorer's machine is on fire"
    await scoring.close()


@pytest.fixture
def away(clients, free_port):
    """The clients with one service at an address where nobody listens: (clients, address), and the channel's end."""
    channels = []

    def replaced(service):
        address = f"127.0.0.1:{free_port()}"
        channels.append(open_channel(address, TOKEN))
        stub = (ReferenceServiceStub if service == "reference" else RewardServiceStub)(channels[-1])
        addresses = dataclasses.replace(clients.addresses, **{"reward" if service == "reward" else "reference": address})
        return dataclasses.replace(clients, addresses=addresses, **{service: stub}), address

    return replaced


@pytest.mark.parametrize(("service", "name"), [("reward", "reward"), ("reference", "reference"), ("reward_model", "reference")])
async def test_a_service_that_stays_away_is_named_with_its_address_and_without_the_words_of_grpc(
    away, run_id, record, group, service, name, monkeypatch
):
    for module in (judging, scorer_module):
        monkeypatch.setattr(module, "REFERENCE_SECONDS", 2.0)
    monkeypatch.setattr(scorer_module, "_EXTRA_SECONDS", 0.0)
    clients, address = away(service)
    source = {"model": {"path": "scorer"}} if service == "reward_model" else {"service": "grpc://127.0.0.1:1"}
    spec = record(algorithm={"kl": 0.1}, reward=source | {"timeout_seconds": 2.0}).spec
    scoring = Scoring(clients, run_id, spec, GroupTraces(run_id, 0.0), lambda _: None)
    scoring.submit([(group(0), "{}")])
    words = f"the {name} service at {address} does not answer; check that it runs, or wait if it is starting"
    async with asyncio.timeout(60):
        while scoring.state.failing.get(0) != words:  # noqa: ASYNC110 - the state does not signal
            await asyncio.sleep(0.01)
    await scoring.close()


@pytest.mark.parametrize("service", ["reward", "reference"])
async def test_a_service_that_starts_late_is_waited_for_without_a_failure(
    away, run_id, record, group, service, scorer, reference, monkeypatch
):
    clients, address = away(service)
    found = asyncio.get_running_loop().create_future()
    spec = record(algorithm={"kl": 0.1}).spec
    scoring = Scoring(clients, run_id, spec, GroupTraces(run_id, 0.0), found.set_result)
    failures = []
    monkeypatch.setattr(judging.ScoringState, "fail", lambda state, groups, reason: failures.append(reason) or [])
    scoring.submit([(group(0), "{}")])
    async with asyncio.timeout(60):
        while not scoring.state.first_answers.waiting_for(0.5):  # noqa: ASYNC110 - it tells when it is asked
            await asyncio.sleep(0.01)
    server = RpcServer(RpcSettings(address, {"conductor": token_hash(TOKEN)}))
    add_RewardServiceServicer_to_server(scorer, server.server)
    add_ReferenceServiceServicer_to_server(reference, server.server)
    await server.start()
    entry = await asyncio.wait_for(found, 60)
    assert (entry.index, failures, scoring.state.first_answers.waiting_for(-1.0)) == (0, [], "")
    assert (scorer.asked, len(reference.asked)) == ({"0.0": 1, "0.1": 1}, 2)
    await scoring.close()
    await server.stop()


@pytest.mark.parametrize("way", ["forget", "close"])
async def test_what_nobody_wants_any_more_is_not_asked_for_again(clients, run_id, record, scorer, group, way):
    scoring = await failing(clients, run_id, record, scorer, group)
    if way == "forget":
        scoring.forget([0])
        assert scoring.state.failing == {}
    else:
        await scoring.close()
    await asyncio.sleep(1.0)  # what was under way arrives
    asked = dict(scorer.asked)
    await asyncio.sleep(1.0)
    assert scorer.asked == asked
    await scoring.close()


async def test_a_service_that_takes_small_calls_alone_gets_small_ones(judged, scorer, group):
    scorer.most = 16
    await judged(*(group(index) for index in range(300)))
    assert scorer.refused < 40, "as many as are asked at once, halved until they fit, and one more now and then to see"


async def test_a_call_holds_few_groups_whose_rows_are_long(clients, run_id, record, scorer, group):
    sizes, found = [], asyncio.Event()
    scorer.hangs = lambda ids, _number: sizes.append(len(ids))
    scoring = Scoring(clients, run_id, record().spec, GroupTraces(run_id, 0.0), lambda _: found.set())
    scoring.submit([(group(index), f'{{"row": "{"x" * 2_000_000}"}}') for index in range(6)])
    await asyncio.wait_for(found.wait(), 60)
    await scoring.close()
    assert max(sizes) == 4, "two groups of two samples have 8,000,000 characters"


def test_a_call_is_halved_by_failure_and_grows_by_success_alone():
    assert scoring_module._next_batch_size(128, 40, any_judged=False) == 20
    assert scoring_module._next_batch_size(4, 40, any_judged=False) == 4, "another call has found that out already"
    assert scoring_module._next_batch_size(1, 2, any_judged=False) == 1
    assert scoring_module._next_batch_size(128, 1, any_judged=False) == 128, "no smaller call can be made of one group"
    assert scoring_module._next_batch_size(4, 4, any_judged=True) == 5
    assert scoring_module._next_batch_size(4, 3, any_judged=True) == 4, "that it takes less was known"
    assert scoring_module._next_batch_size(128, 128, any_judged=True) == 128
