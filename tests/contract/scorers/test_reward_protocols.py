"""Reward servers of other frameworks: what each is asked, and that no answer however odd becomes a reward (R6)."""

import asyncio
import json
import math
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from scorer_lab import ERROR, IDS, INVALID, OK, REQUEST, SETTINGS, raw_http_service, scored, write_json

from gradbus.user_services.keys import ServiceKeys
from gradbus.v1 import reward_pb2
from gradbus_reward.graders.base import Capacity
from gradbus_reward.scorers.factory import ScorerSettings, create_scorer


@asynccontextmanager
async def server(answer, path="/get_reward"):
    """Answers each request by `answer` of its body. The bodies and heads are in the list."""
    seen = []

    async def respond(head, body, writer):
        seen.append((head.decode().lower(), json.loads(body)))
        await write_json(writer, answer(json.loads(body)))

    async with raw_http_service(respond) as url:
        yield url.removesuffix("/score") + path, seen


# By protocol: the path, fields of the section, the size of a call, and an answer that gives the i-th sample of a call the i-th of `values`.
def of_openrlhf(values):
    return {"rewards": values, "scores": values, "extra_logs": {"length": [2.0 for _ in values]}}


def of_data(field):
    return lambda values: {"data": [{"index": n, field: value} for n, value in reversed(list(enumerate(values)))]}


PEERS = {
    "openrlhf": ("openrlhf+", "/get_reward", {"label": "answer"}, of_openrlhf),
    "sglang": ("sglang+", "/classify", {}, lambda values: [{"embedding": [value], "meta_info": {}} for value in values]),
    "sglang score": ("sglang+", "/v1/score", {"label_token_ids": [9, 8]}, lambda values: {"scores": [[value, 0.5] for value in values]}),
    "vllm": ("vllm+", "/classify", {"served_model": "rm"}, lambda values: of_data("probs")([[0.0, value] for value in values])),
    "vllm score": ("vllm+", "/score", {"served_model": "rm"}, of_data("score")),
    "slime": ("slime+", "/rm", {}, lambda values: values[0]),
    "slime key": ("slime+", "/rm", {"reward_key": "r"}, lambda values: {"r": values[0], "length": 2.0}),
    "nemo-gym": ("nemo-gym+", "/verify", {}, lambda values: {"reward": values[0], "mask_sample": False, "failure_kind": None}),
}
BY_INDEX = ("vllm", "vllm score")
ALONE = ("slime", "slime key", "nemo-gym")
"""Protocols with a call for each sample."""


def asked_of(body):
    """How many samples a request asks about."""
    return next((len(body[name]) for name in ("query", "items", "text", "input", "text_2") if isinstance(body.get(name), list)), 1)


@asynccontextmanager
async def peer(name, values):
    """A server of the protocol that gives the i-th sample of a call, or the i-th call, the i-th of `values`; and the section for it."""
    prefix, path, more, form = PEERS[name]
    left = list(values)

    def answer(body):
        count = asked_of(body)
        given, left[:count] = left[:count], []
        return form(given)

    async with server(answer, path) as (url, seen):
        yield {"service": prefix + url, **more}, seen


@pytest.mark.parametrize("name", PEERS)
async def test_every_sample_gets_its_own_reward_in_whatever_order_it_comes(name):
    async with peer(name, [0.25, -3.0, 2]) as (section, _):
        answers = await scored(section)
    assert [answer.status for answer in answers] == [OK] * 3
    rewards = [answer.reward for answer in answers]
    assert (sorted(rewards) if name in ALONE else rewards) == ([-3.0, 0.25, 2.0] if name in ALONE else [0.25, -3.0, 2.0])


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize(
    ("value", "status"), [(math.nan, ERROR), (math.inf, ERROR), (1e7, ERROR), ("1", ERROR), (True, ERROR), ([], ERROR), (None, INVALID)]
)
async def test_what_is_no_number_spoils_its_own_sample(name, value, status):
    async with peer(name, [1.0, value, 1.0]) as (section, _):
        answers = await scored(section)
    found = sorted(answer.status for answer in answers)
    assert found == sorted([OK, OK, status])
    assert all(answer.permanent for answer in answers if answer.status == ERROR)


@pytest.mark.parametrize("name", [name for name in PEERS if name not in ALONE])
@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0], []])
async def test_a_list_of_another_length_says_nothing_about_any_sample(name, values):
    prefix, path, more, form = PEERS[name]
    async with server(lambda _body: form(values), path) as (url, _):
        answers = await scored({"service": prefix + url, **more})
    statuses = [answer.status for answer in answers]
    if name in BY_INDEX:
        assert statuses == [OK] * min(3, len(values)) + [ERROR] * max(0, 3 - len(values))
    else:
        assert statuses == [ERROR] * 3
    assert all(answer.permanent for answer in answers if answer.status == ERROR)


async def test_an_index_that_comes_twice_is_an_error_of_its_sample():
    data = [{"index": 0, "score": 1.0}, {"index": 1, "score": 1.0}, {"index": 1, "score": 1.0}, {"index": 2, "score": 1.0}]
    async with server(lambda _body: {"data": data}, "/score") as (url, _):
        answers = await scored({"service": f"vllm+{url}", "served_model": "rm"})
    assert [answer.status for answer in answers] == [OK, ERROR, OK]


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("document", [None, "text", 3.5, [], {}, {"rewards": 1, "data": 1, "scores": 1, "r": {}, "reward": {}}])
async def test_an_answer_of_another_form_is_no_reward(name, document):
    prefix, path, more, _ = PEERS[name]
    async with server(lambda _body: document, path) as (url, _):
        answers = await scored({"service": prefix + url, **more})
    if name == "slime" and document == 3.5:
        assert [answer.reward for answer in answers] == [3.5] * 3
    else:
        assert {answer.status for answer in answers} <= {ERROR, INVALID}


@pytest.mark.parametrize("name", PEERS)
async def test_a_server_that_never_responds_runs_into_the_deadline(name):
    prefix, path, more, _ = PEERS[name]

    async def never(_head, _body, _writer):
        await asyncio.sleep(60)

    async with raw_http_service(never) as url:
        answers = await scored({"service": prefix + url.removesuffix("/score") + path, **more}, seconds=0.5)
    assert {(answer.status, answer.permanent) for answer in answers} == {(ERROR, False)}


@pytest.mark.parametrize("status", ["500 Oops", "422 No", "302 Found"])
async def test_a_status_other_than_200_is_an_error_of_its_call_alone(status):
    turns = iter([status, "200 OK", "200 OK"])

    async def respond(_head, _body, writer):
        await write_json(writer, 1.0, next(turns))

    async with raw_http_service(respond) as url:
        answers = await scored({"service": f"slime+{url}"})
    assert sorted(answer.status for answer in answers) == sorted([OK, OK, ERROR])


async def test_openrlhf_is_asked_as_by_its_trainer_and_its_logs_are_components():
    async with peer("openrlhf", [1.0, 2.0, 3.0]) as (section, seen):
        first, *_ = await scored(section)
    assert seen[0][1] == {"query": ["7+5=12"] * 3, "prompts": ["7+5="] * 3, "labels": [12] * 3}
    assert dict(first.components) == {"scores": 1.0, "length": 2.0}


async def test_slime_is_asked_a_sample_a_call():
    async with peer("slime key", [1.0, 2.0, 3.0]) as (section, seen):
        first, *_ = await scored(section)
    assert [body for _, body in seen] == [{"prompt": "7+5=", "response": "12", "label": 12}] * 3
    assert dict(first.components) == {"length": 2.0}


async def test_nemo_gym_gets_the_row_and_a_response():
    async with peer("nemo-gym", [1.0, 2.0, 3.0]) as (section, seen):
        await scored(section)
    body = seen[0][1]
    assert body["answer"] == 12
    assert body["responses_create_params"] == {"input": [{"role": "user", "content": "7+5="}]}
    assert body["response"]["output"][0]["content"][0]["text"] == "12"


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        ({"reward": 0.0, "mask_sample": True, "failure_reason": "no"}, INVALID, "masks the sample: no"),
        ({"reward": 0.0, "mask_sample": False, "failure_kind": "sandbox"}, ERROR, "the server failed: sandbox"),
    ],
)
async def test_a_failure_of_nemo_gym_is_no_reward_of_zero(said, status, reason):
    async with server(lambda _body: said, "/verify") as (url, _):
        answers = await scored({"service": f"nemo-gym+{url}"})
    assert {(answer.status, answer.permanent) for answer in answers} == {(status, False)}
    assert reason in answers[0].reason


BODIES = {
    "sglang": {"model": "", "text": ["7+5=12"] * 3},
    "sglang score": {
        "model": "",
        "query": "7+5=",
        "items": ["12"] * 3,
        "label_token_ids": [9, 8],
        "apply_softmax": True,
        "item_first": False,
    },
    "vllm": {"model": "rm", "input": ["7+5=12"] * 3, "use_activation": False},
    "vllm score": {"model": "rm", "text_1": ["7+5="] * 3, "text_2": ["12"] * 3},
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_served_model_is_asked_for_its_raw_score(name):
    async with peer(name, [1.0, 2.0, 3.0]) as (section, seen):
        await scored(section)
    assert [body for _, body in seen] == [BODIES[name]]


async def test_samples_with_one_id_and_text_have_results_of_their_own():
    samples = [reward_pb2.ScoreSample(sample_id=name, prompt="p", response="r", item_json="{}") for name in IDS]
    async with peer("openrlhf", [1.0, 2.0, 3.0]) as (section, seen):
        scorer = create_scorer(json.dumps(section), SETTINGS, Capacity())
        answers = await scorer.score(reward_pb2.ScoreRequest(samples=samples), 5.0)
        await scorer.close()
    assert [answer.reward for answer in answers] == [1.0, 2.0, 3.0]
    assert seen[0][1]["labels"] == [None] * 3


@pytest.mark.parametrize(("host", "sent"), [("127.0.0.1", True), ("other.example", False)])
async def test_a_key_goes_to_its_own_origin_alone(host, sent):
    async with peer("openrlhf", [1.0, 2.0, 3.0]) as (section, seen):
        port = urlsplit(section["service"]).port
        settings = ScorerSettings(addresses=SETTINGS.addresses, service_keys=ServiceKeys({f"http://{host}:{port}": "sk-1"}))
        scorer = create_scorer(json.dumps(section), settings, Capacity())
        await scorer.score(REQUEST, 5.0)
        await scorer.close()
    assert ("authorization: bearer sk-1" in seen[0][0]) is sent


async def test_addresses_are_checked_behind_the_protocol_too():
    answers = await scored({"service": "openrlhf+http://169.254.169.254/get_reward"}, seconds=2.0)
    assert {answer.status for answer in answers} == {ERROR}
    assert "no scorer may use" in answers[0].reason
