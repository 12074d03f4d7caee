"""What is refused of a `[reward]` section at submission."""

import pytest

from gradbus.errors import SpecError
from gradbus.spec import parse_spec

BODY = {"name": "r", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 1}}
CODE = {"type": "code"}
LENGTH = {"type": "length", "full": 4, "zero": 8}


def faults(reward):
    try:
        parse_spec(BODY | {"reward": reward})
    except SpecError as error:
        return {fault.path: fault for fault in error.faults}
    return {}


GOOD = [
    {"type": "math", "reference": "{{ item.answer }}"},
    {"type": "regex", "pattern": "a"},
    {"type": "json_schema", "json_schema": {"type": "object"}},
    {"type": "json_schema", "json_schema": "{{ item.schema }}"},
    CODE,
    CODE | {"style": "call", "function": "f"},
    LENGTH,
    {"type": "tags"},
    {"type": "script"},
    {"type": "score_model", "url": "https://judge.example/v1", "model": "m", "input": "{{ sample.output_text }}"},
    {"type": "python", "interface": "verl", "source": "def compute_score(): ...", "label": "gold"},
    {"type": "python", "interface": "trl", "module": "trl.rewards:accuracy_reward"},
]


@pytest.mark.parametrize("grader", GOOD)
def test_a_grader_needs_few_fields_alone_and_as_a_part(grader):
    assert faults({"grader": grader}) == {}
    assert faults({"grader": {"type": "multi", "graders": {"a": grader}, "calculate_output": "a"}}) == {}


@pytest.mark.parametrize(
    ("grader", "field"),
    [
        ({"type": "math"}, "reference"),
        ({"type": "regex", "pattern": ""}, "pattern"),
        ({"type": "regex", "pattern": "a", "match": "some"}, "match"),
        (CODE | {"style": "call"}, "function"),
        (CODE | {"function": "f"}, "function"),
        (CODE | {"style": "call", "function": "f()"}, "function"),
        (CODE | {"memory_mib": 1}, "memory_mib"),
        ({"type": "tags", "tags": ["answer", "<think>"]}, "tags.1"),
        ({"type": "script", "script": "english"}, "script"),
        ({"type": "python", "source": "s", "module": "a:b"}, "module"),
        ({"type": "python", "module": "a.b"}, "module"),
        ({"type": "python", "module": "a:b", "function": "c"}, "function"),
        ({"type": "python", "source": "s", "label": "gold"}, "label"),
        ({"type": "python", "source": "s", "interface": "areal"}, "interface"),
    ],
)
def test_a_faulty_field_is_named_also_in_a_part(grader, field):
    assert set(faults({"grader": grader})) == {f"reward.grader.{field}"}
    joined = {"type": "multi", "graders": {"one": grader}, "calculate_output": "one"}
    assert set(faults({"grader": joined})) == {f"reward.grader.graders.one.{field}"}


@pytest.mark.parametrize(
    ("more", "field"), [({"url": "grpc://j:1"}, ".url"), ({"url": "http://j /"}, ".url"), ({"range": [1, 0]}, ""), ({"tries": 0}, ".tries")]
)
def test_a_judge_has_an_address_and_a_range(more, field):
    judge = {"type": "score_model", "url": "http://j/v1", "model": "m", "input": "i"}
    assert set(faults({"grader": judge | more})) == {f"reward.grader{field}"}


@pytest.mark.parametrize("lengths", [{"full": 8}, {"least": 5}, {"zero": 4}])
def test_lengths_out_of_order_say_their_order(lengths):
    fault = faults({"grader": LENGTH | lengths})["reward.grader"]
    assert "least ≤ full < zero" in str(fault)


def test_a_program_that_hangs_must_fit_the_deadline():
    assert set(faults({"grader": CODE | {"seconds": 3.0}})) == {"reward.timeout_seconds"}
    assert faults({"grader": CODE | {"seconds": 3.0}, "timeout_seconds": 13}) == {}


PEERS = [
    {"service": "openrlhf+http://s:5000/get_reward"},
    {"service": "openrlhf+http://s/get_reward", "label": "gold"},
    {"service": "slime+https://s/rm", "reward_key": "r"},
    {"service": "nemo-gym+http://s:9/verify"},
    {"service": "sglang+http://s/classify", "served_model": "m"},
    {"service": "sglang+http://s/v1/score", "label_token_ids": [1]},
    {"service": "vllm+http://s/classify", "served_model": "m"},
    {"service": "vllm+http://s/score", "served_model": "m"},
]


@pytest.mark.parametrize("reward", PEERS)
def test_a_peers_server_is_one_line(reward):
    assert faults(reward) == {}


@pytest.mark.parametrize(
    ("reward", "field"),
    [
        ({"service": "openrlhf+grpc://s:1"}, "service"),
        ({"service": "areal+http://s:1"}, "service"),
        ({"service": "openrlhf+http://s a"}, "service"),
        ({"service": "vllm+http://s/v1", "served_model": "m"}, "service"),
        ({"service": "vllm+http://s/score"}, "served_model"),
        ({"service": "sglang+http://s/score"}, "label_token_ids"),
        ({"service": "sglang+http://s/classify", "label_token_ids": [1]}, "label_token_ids"),
        ({"service": "http://s/score", "label": "gold"}, "label"),
        ({"service": "openrlhf+http://s/", "reward_key": "r"}, "reward_key"),
        ({"grader": LENGTH, "served_model": "m"}, "served_model"),
    ],
)
def test_a_field_that_a_server_does_not_read_or_lacks_is_a_fault(reward, field):
    assert set(faults(reward)) == {f"reward.{field}"}


def test_a_shadow_is_a_scorer_of_its_own():
    reward = {"grader": LENGTH, "shadow": {"peer": PEERS[0], "judge": {"grader": GOOD[0]}}}
    assert faults(reward) == {}


@pytest.mark.parametrize(
    ("shadow", "field"),
    [
        ({}, "shadow.s"),
        ({"grader": LENGTH, "service": "http://s"}, "shadow.s"),
        ({"service": "ftp://s"}, "shadow.s.service"),
        ({"service": "vllm+http://s/score"}, "shadow.s.served_model"),
        ({"grader": CODE | {"function": "f"}}, "shadow.s.grader.function"),
        ({"grader": {"type": "python"}}, "shadow.s.grader"),
        ({"grader": LENGTH, "timeout_seconds": 3}, "shadow.s.timeout_seconds"),
    ],
)
def test_a_faulty_shadow_is_named(shadow, field):
    assert set(faults({"grader": LENGTH, "shadow": {"s": shadow}})) == {f"reward.{field}"}


def test_a_reward_model_has_no_shadow():
    assert set(faults({"model": {"path": "scorer"}, "shadow": {"s": {"grader": LENGTH}}})) == {"reward.shadow"}
