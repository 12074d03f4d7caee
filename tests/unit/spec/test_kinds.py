"""The kinds of run on given responses: what their specs hold, and what they refuse."""

import pytest

from gradbus.errors import SpecError
from gradbus.spec import AlgorithmSpec, RunSpec, parse_spec

PAIRS = ("dpo", "ipo", "simpo", "orpo")
GIVEN = ("sft", "kto", *PAIRS)


def body(kind, **changes):
    return {"name": "given", "kind": kind, "model": {"path": "m"}, "data": {"train": "t.jsonl"}, "schedule": {"steps": 3}} | changes


def faults(kind, **changes):
    with pytest.raises(SpecError) as raised:
        parse_spec(body(kind, **changes))
    return [fault.path for fault in raised.value.faults]


@pytest.mark.parametrize("kind", GIVEN)
def test_a_stored_spec_is_a_spec_again(kind):
    spec = parse_spec(body(kind))
    assert parse_spec(spec.model_dump(mode="json")) == spec
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("kind", GIVEN)
def test_a_run_on_given_responses_has_no_ratio_and_is_deterministic(kind):
    spec = parse_spec(body(kind))
    assert (spec.algorithm.importance, spec.algorithm.trust_region, spec.algorithm.filter) == ("none", "none", "none")
    assert spec.trains_given
    assert spec.is_deterministic


def test_the_columns_of_responses_are_those_of_the_kind():
    data = {"train": "t.jsonl", "chosen": "better"}
    assert parse_spec(body("sft")).columns.responses == ("completion",)
    assert parse_spec(body("dpo", data=data)).columns.responses == ("better", "rejected")
    kto = parse_spec(body("kto", data={"train": "t.jsonl", "messages": "turns", "label": "good"})).columns
    assert (kto.responses, kto.conversation, kto.label) == (("completion",), "turns", "good")
    assert (parse_spec(body("sft")).columns.label, parse_spec(body("dpo")).columns.conversation) == (None, None)
    assert parse_spec(body("rl", reward={"service": "grpc://scorer:1"})).columns.responses == ()


def test_pairs_have_the_numbers_of_their_paper_unless_they_are_given():
    assert parse_spec(body("dpo")).preference.beta == 0.1
    assert (parse_spec(body("simpo")).preference.beta, parse_spec(body("simpo")).preference.margin) == (2.0, 1.0)
    given = parse_spec(body("simpo", preference={"margin": 0.3})).preference
    assert (given.beta, given.margin) == (2.0, 0.3)
    assert parse_spec(body("sft")).preference is None
    kto = parse_spec(body("kto", preference={"undesirable_weight": 0.0})).preference
    assert (kto.beta, kto.desirable_weight, kto.undesirable_weight) == (0.1, 1.0, 0.0)


@pytest.mark.parametrize(("every", "groups", "expected"), [(50, 32, 50), (1000, 32, 128), (3, 4, 3), (10, 8192, 1)])
def test_a_version_follows_each_checkpoint_and_a_bounded_number_of_groups(every, groups, expected):
    spec = parse_spec(body("sft", schedule={"steps": 3, "groups_per_step": groups}, checkpoint={"every": every}))
    assert spec.publish_every == expected
    assert spec.steps_ahead == expected + 1


def test_a_version_is_evaluated_every_so_often_and_at_the_end():
    given = {"data": {"train": "t.jsonl", "eval": "e.jsonl"}, "evaluation": {"every": 3}, "schedule": {"steps": 7}}
    spec = parse_spec(body("dpo", **given))
    assert [step for step in range(8) if spec.evaluates(step)] == [0, 3, 6, 7]
    assert not parse_spec(body("dpo")).evaluates(0)


def test_given_responses_are_under_version_0_at_every_step():
    spec = parse_spec(body("sft"))
    assert [spec.oldest_allowed_version(step) for step in (0, 1, 100)] == [0, 0, 0]


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"rollout": {"slots": 8}}, "rollout"),
        ({"reward": {"service": "grpc://scorer:1"}}, "reward"),
        ({"algorithm": {"name": "dapo"}}, "algorithm"),
        ({"data": {"train": "t.jsonl", "eval": "e.jsonl"}, "evaluation": {"metric": "exact"}}, "evaluation.metric"),
        ({"weights": {"transport": "delta"}}, "weights"),
        ({"schedule": {"steps": 3, "mode": "free"}}, "schedule.mode"),
        ({"schedule": {"steps": 3, "max_staleness": 0}}, "schedule.max_staleness"),
        ({"schedule": {"steps": 3, "dynamic_sampling": 2}}, "schedule.dynamic_sampling"),
        ({"trainer": {"critic": {}}}, "trainer.critic"),
        ({"trainer": {"inner": {"epochs": 2}}}, "trainer.inner"),
    ],
)
def test_what_a_run_on_given_responses_does_not_read_is_refused(kind, changes, path):
    assert path in faults(kind, **changes)


@pytest.mark.parametrize(
    ("kind", "changes", "path"),
    [
        ("sft", {"preference": {}}, "preference"),
        ("rl", {"preference": {}, "reward": {"service": "grpc://scorer:1"}}, "preference"),
        ("rl", {}, "reward"),
        ("rl", {"reward": {"service": "grpc://scorer:1"}, "data": {"train": "t", "completion": "c"}}, "data.completion"),
        ("dpo", {"data": {"train": "t", "completion": "c"}}, "data.completion"),
        ("sft", {"data": {"train": "t", "rejected": "c"}}, "data.rejected"),
        ("dpo", {"preference": {"margin": 1.0}}, "preference.margin"),
        ("simpo", {"preference": {"label_smoothing": 0.1}}, "preference.label_smoothing"),
        ("dpo", {"preference": {"label_smoothing": 0.5}}, "preference.label_smoothing"),
        ("dpo", {"preference": {"beta": 0.0}}, "preference.beta"),
        ("reward_model", {"trainer": {"backend": "deepspeed", "lora": {}}}, "trainer.lora"),
        ("reward_model", {"trainer": {"backend": "deepspeed", "dtype": "bf16", "deepspeed": {"zero_stage": 2}}}, "trainer.dtype"),
        ("sft", {"data": {"train": "t", "messages": "m", "completion": "c"}}, "data.completion"),
        ("dpo", {"data": {"train": "t", "messages": "m"}}, "data.messages"),
        ("sft", {"data": {"train": "t", "label": "good"}}, "data.label"),
        ("kto", {"data": {"train": "t", "chosen": "c"}}, "data.chosen"),
        ("kto", {"data": {"train": "t", "messages": "m", "prompt": "p"}}, "data.prompt"),
        ("kto", {"preference": {"center": 1.0}}, "preference.center"),
        ("kto", {"preference": {"desirable_weight": -1.0}}, "preference.desirable_weight"),
        ("kto", {"preference": {"desirable_weight": 0.0, "undesirable_weight": 0.0}}, "preference.desirable_weight"),
        ("dpo", {"preference": {"undesirable_weight": 2.0}}, "preference.undesirable_weight"),
        ("distil", {}, "kind"),
        (["sft"], {}, "kind"),
        ("dpo", {"preference": 3}, "preference"),
    ],
)
def test_what_a_kind_lacks_or_does_not_know_is_named(kind, changes, path):
    assert path in faults(kind, **changes)


def test_a_wrong_field_elsewhere_brings_no_false_fault_of_the_algorithm():
    assert faults("sft", name="No Name") == ["name"]
    assert faults("dpo", name="No Name") == ["name"]


@pytest.mark.parametrize("trainer", [{"critic": {}}, {"inner": {"epochs": 2}}, {"inner": {"stop_kl": 0.1}}], ids=str)
@pytest.mark.parametrize("kind", ["sft", "reward_model"])
def test_nothing_is_said_of_an_algorithm_that_nobody_chose(kind, trainer):
    assert faults(kind, trainer=trainer) == [f"trainer.{next(iter(trainer))}"]


def test_deepspeed_trains_every_kind_and_weights_may_be_rounded():
    for kind in ("sft", "dpo", "ipo", "simpo", "orpo", "kto", "reward_model"):
        assert parse_spec(body(kind, trainer={"backend": "deepspeed"})).trainer.backend == "deepspeed"
    assert parse_spec(body("sft", weights={"dtype": "bf16"})).version_dtype == "bf16"


def test_the_default_algorithm_of_other_runs_is_what_it_was():
    assert parse_spec(body("rl", reward={"service": "grpc://scorer:1"})).algorithm == AlgorithmSpec()


def test_a_stored_spec_of_another_kind_gets_the_preference_of_its_new_kind():
    stored = parse_spec(body("sft")).model_dump(mode="json")
    assert stored["preference"] is None
    assert parse_spec(stored | {"kind": "simpo"}).preference.beta == 2.0


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("sft", {"completion": "prompt"}),
        ("dpo", {"chosen": "same", "rejected": "same"}),
        ("dpo", {"prompt": "rejected"}),
        ("kto", {"label": "completion"}),
        ("kto", {"messages": "label"}),
    ],
)
def test_two_fields_of_one_column_are_refused(kind, data):
    assert [path.split(".")[0] for path in faults(kind, data={"train": "t"} | data)] == ["data"]


@pytest.mark.parametrize("kind", GIVEN)
def test_numerics_of_a_rollout_are_refused_where_there_is_none(kind):
    assert faults(kind, numerics="batch_invariant", trainer={"threads": 2}) == ["numerics"]
