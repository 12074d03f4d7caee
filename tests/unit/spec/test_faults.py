"""All faults of a wrong spec are reported at once; a valid spec survives every serialisation."""

import contextlib
import copy
import tomllib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gradbus.algorithms import learner_computes_reference, needs_reference_logprobs, needs_reference_service
from gradbus.errors import SpecError
from gradbus.spec import RunSpec, parse_spec

TOML = """
name = "counting"
deterministic = false

[model]
path = "model"

[data]
train = "train.jsonl"

[reward.grader]
type = "multi"
calculate_output = "0.5 * exact + 0.5 * near"

[reward.grader.graders.exact]
type = "string_check"
input = "{{ sample.output_text }}"
reference = "{{ item.answer }}"

[reward.grader.graders.near]
type = "text_similarity"
input = "{{ sample.output_text }}"
reference = "{{ item.answer }}"

[schedule]
mode = "free"
steps = 3
"""


def body(**sections):
    return copy.deepcopy(tomllib.loads(TOML)) | sections


def faults(spec):
    with pytest.raises(SpecError) as caught:
        parse_spec(spec)
    return {fault.path: fault for fault in caught.value.faults}


def test_a_spec_survives_toml_json_and_python():
    spec = parse_spec(tomllib.loads(TOML))
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert parse_spec(spec.model_dump(mode="json")) == spec


def test_a_required_form_is_described_in_words():
    assert str(faults(body(name="Not A Name"))["name"]).endswith("allowed: a-z, 0-9 and '-'; at most 63 characters")


@pytest.mark.parametrize(
    ("sections", "path", "allowed"),
    [
        ({"rollout": {"slots": "8"}}, "rollout.slots", "a whole number, without quotation marks"),
        ({"rollout": {"slots": True}}, "rollout.slots", "a whole number"),
        ({"rollout": {"slots": 8.0}}, "rollout.slots", "a whole number"),
        ({"rollout": {"max_prompt_tokens": "8"}}, "rollout.max_prompt_tokens", "a whole number, without quotation marks"),
        ({"rollout": {"stop_token_ids": ["8"]}}, "rollout.stop_token_ids.0", "a whole number, without quotation marks"),
        ({"rollout": {"temperature": "1"}}, "rollout.temperature", "a number, without quotation marks"),
        ({"rollout": {"temperature": True}}, "rollout.temperature", "a number"),
        ({"algorithm": {"clip": ["0.1", 0.2]}}, "algorithm.clip.0", "a number, without quotation marks"),
        ({"algorithm": {"normalize_std": "yes"}}, "algorithm.normalize_std", "true or false, without quotation marks"),
        ({"algorithm": {"normalize_std": 1}}, "algorithm.normalize_std", "true or false"),
        (
            {"reward": {"grader": {"type": "math", "reference": "1"}, "cache": "yes"}},
            "reward.cache",
            "true or false, without quotation marks",
        ),
        ({"reward": {"model": {"path": "m", "offload": 1}}}, "reward.model.offload", "true or false"),
        ({"seed": "1"}, "seed", "a whole number, without quotation marks"),
    ],
)
def test_a_value_of_another_type_is_refused_and_not_converted(sections, path, allowed):
    assert faults(body(**sections))[path].allowed == allowed


def test_a_field_for_any_number_takes_a_whole_one():
    spec = parse_spec(body(rollout={"temperature": 1}, algorithm={"clip": (0.5, 1)}))
    assert (spec.rollout.temperature, spec.algorithm.clip) == (1.0, (0.5, 1.0))


def test_all_faults_come_at_once_with_the_message_naming_each():
    wrong = body(name="Not A Name", roll_out={}, schedule={"mode": "fre", "stpes": 2}, rollout={"top_p": 0.9, "top_k": 5})
    found = faults(wrong)
    assert found.keys() == {"name", "roll_out", "schedule.mode", "schedule.stpes", "schedule.steps", "rollout.top_p", "rollout.top_k"}
    with pytest.raises(SpecError) as caught:
        parse_spec(wrong)
    assert all(path in str(caught.value) for path in found)


@pytest.mark.parametrize(
    ("sections", "path", "nearest"),
    [
        ({"roll_out": {}}, "roll_out", "rollout"),
        ({"rollout": {"slot": 64}}, "rollout.slot", "slots"),
        ({"schedule": {"steps": 1, "mode": "fixed-lag"}}, "schedule.mode", "fixed_lag"),
        ({"trainer": {"lr_schedule": "cosin"}}, "trainer.lr_schedule", "cosine"),
        ({"trainer": {"lora": {"target_modules": ["v_proj", "q_prj"]}}}, "trainer.lora.target_modules.1", "q_proj"),
        ({"trainer": {"lora": {"lora_alpha": 16}}}, "trainer.lora.lora_alpha", "alpha"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(sections, path, nearest):
    assert faults(body(**sections))[path].nearest == nearest


def test_a_fault_in_a_nested_grader_is_named_by_its_own_path():
    spec = body()
    spec["reward"]["grader"]["graders"] = {"python": {"type": "string_check", "input": "a", "reference": "b", "opration": "eq"}}
    fault = faults(spec)["reward.grader.graders.python.opration"]
    assert fault.nearest == "operation"


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"deterministic": True}, "deterministic"),
        ({"deterministic": "true"}, "deterministic"),
        ({"reward": {}}, "reward"),
        ({"reward": {"service": "ftp://scorer"}}, "reward.service"),
        ({"reward": {"grader": {"type": "python"}}}, "reward.grader"),
        ({"rollout": {"top_p": 0.9}}, "rollout.top_p"),
        ({"rollout": {"top_k": 1}}, "rollout.top_k"),
        ({"trainer": {"betas": [0.9, 1.0]}}, "trainer.betas"),
        ({"trainer": {"deepspeed": {"zero_stage": 3}}}, "trainer.deepspeed"),
        ({"trainer": {"backend": "deepspeed", "dtype": "bf16", "deepspeed": {"zero_stage": 0}}}, "trainer.dtype"),
        ({"trainer": {"dtype": "bf16"}, "weights": {"dtype": "fp32"}}, "weights.dtype"),
        ({"trainer": {"backend": "deepspeed", "deepspeed": {"zero_stage": 0, "offload": "optimizer"}}}, "trainer.deepspeed.offload"),
        ({"trainer": {"backend": "deepspeed", "deepspeed": {"zero_stage": 2, "offload": "all"}}}, "trainer.deepspeed.offload"),
        ({"trainer": {"backend": "deepspeed", "deepspeed": {"optimizer": "cpu_adam"}}}, "trainer.deepspeed.optimizer"),
        ({"trainer": {"lora": {"rank": 0}}}, "trainer.lora.rank"),
        ({"trainer": {"lora": {"alpha": 0.0}}}, "trainer.lora.alpha"),
        ({"trainer": {"lora": {"target_modules": []}}}, "trainer.lora.target_modules"),
        ({"trainer": {"lora": {"target_modules": ["q_proj", "q_proj"]}}}, "trainer.lora.target_modules"),
        ({"trainer": {"lora": {"modules_to_save": ["lm_head"]}}}, "trainer.lora.modules_to_save"),
        ({"trainer": {"lora": {"bias": "all"}}}, "trainer.lora.bias"),
        ({"trainer": {"lora": {"lora_dropout": 0.1}}}, "trainer.lora.lora_dropout"),
        ({"trainer": {"lora": {"adapter_path": "trained/before"}}}, "trainer.lora.adapter_path"),
        ({"schedule": {"steps": 1, "mode": "free", "dynamic_sampling": 2}}, "schedule.dynamic_sampling"),
        ({"rollout": {"placement": "timed", "engine": "torch"}, "schedule": {"steps": 1, "mode": "free"}}, "rollout.placement"),
        ({"rollout": {"placement": "timed"}, "schedule": {"steps": 1, "max_staleness": 2}}, "schedule.max_staleness"),
        ({"rollout": {"placement": "timed"}, "algorithm": {"kl": 0.1}}, "algorithm.kl"),
        ({"rollout": {"placement": "timed"}, "algorithm": {"kl": 0.1, "kl_reference_steps": 5}, "trainer": {"lora": {}}}, "algorithm.kl"),
        ({"rollout": {"placement": "timed"}, "algorithm": {"name": "score_centering"}}, "algorithm.centering"),
        ({"rollout": {"placement": "timed", "engine": "sglang"}, "trainer": {"lora": {}}}, "trainer.lora"),
        ({"rollout": {"placement": "timed"}, "weights": {"transport": "broadcast"}}, "weights.transport"),
        ({"rollout": {"placement": "shared"}, "weights": {"transport": "broadcast"}}, "weights.transport"),
        (
            {"rollout": {"placement": "timed"}, "trainer": {"backend": "deepspeed", "deepspeed": {"offload": "optimizer"}}},
            "trainer.deepspeed.offload",
        ),
        ({"rollout": {"memory_fraction": 0.5}}, "rollout.memory_fraction"),
        ({"rollout": {"placement": "shared", "memory_fraction": 0.95}}, "rollout.memory_fraction"),
        ({"algorithm": {"clip": [0.0, 0.2]}}, "algorithm.clip"),
        ({"algorithm": {"clip": [1.01, 0.2]}}, "algorithm.clip"),
    ],
)
def test_rules_that_join_fields(sections, path):
    assert path in faults(body(**sections))


def test_a_joint_rule_is_checked_although_another_section_is_wrong():
    found = faults(body(deterministic=True, trainer={"threads": 0}))
    assert found.keys() == {"deterministic", "trainer.threads"}


def test_trainer_and_engine_may_be_on_one_device():
    fixed = {"schedule": {"steps": 1, "max_staleness": 1}}
    timed = parse_spec(body(rollout={"placement": "timed"}, **fixed)).rollout
    assert (timed.engine_memory, timed.trainer_memory) == (None, 1.0)
    shared = parse_spec(body(rollout={"placement": "shared"}, schedule={"steps": 1, "mode": "free"})).rollout
    assert (shared.engine_memory, shared.trainer_memory) == (0.4, pytest.approx(0.55))
    assert parse_spec(body(rollout={"placement": "shared", "memory_fraction": 0.25})).rollout.trainer_memory == pytest.approx(0.7)
    parse_spec(body(rollout={"placement": "timed"}, algorithm={"kl": 0.1}, trainer={"lora": {}}, **fixed))


@pytest.mark.parametrize(
    ("changes", "path", "message", "allowed"),
    [
        ({"kind": "ppo"}, "kind", "is an algorithm, of runs that sample", 'no `kind`, with algorithm.name = "ppo"'),
        ({"algorithm": {"name": "dpo"}}, "algorithm.name", "is a kind of run, on given responses", 'no [algorithm], with kind = "dpo"'),
        ({"algorithm": "ppo"}, "algorithm", "has fields of its own", "a table with some of advantage, aggregate"),
        (
            {"trainer": {"critic": [1]}, "algorithm": {"name": "ppo"}},
            "trainer.critic",
            "has fields of its own",
            "a table with some of freeze",
        ),
        (
            {"algorithm": {"clip": [0.1, 0.2, 0.3]}},
            "algorithm.clip",
            "The list should have at most 2 items, not 3",
            "Lower and upper bound",
        ),
        ({"algorithm": {"clip": 0.2}}, "algorithm.clip", "Input should be a list", "Lower and upper bound of the trust region"),
        ({"algorithm": {"normalize_std": 7}}, "algorithm.normalize_std", "Input should be a valid boolean", "true or false"),
    ],
    ids=str,
)
def test_what_a_field_takes_is_said_in_the_words_of_the_spec(changes, path, message, allowed):
    found = faults(body(**changes))[path]
    assert found.message.startswith(message)
    assert found.allowed.startswith(allowed)
    assert not found.nearest


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_numbers_are_finite_for_json_knows_no_others(number):
    assert "trainer.learning_rate" in faults(body(trainer={"learning_rate": number}))
    assert "algorithm.clip.1" in faults(body(algorithm={"clip": [0.2, number]}))


@pytest.mark.parametrize(("mode", "given", "expected"), [("fixed_lag", None, True), ("free", None, False), ("fixed_lag", False, False)])
def test_determinism_is_the_default_where_it_is_possible(mode, given, expected):
    sections = body(schedule={"mode": mode, "steps": 1})
    del sections["deterministic"]
    spec = parse_spec(sections | ({} if given is None else {"deterministic": given}))
    assert spec.is_deterministic is expected


@pytest.mark.parametrize(
    ("kl", "trainer", "asked", "shared"),
    [(0.0, {}, False, False), (0.1, {}, True, False), (0.0, {"lora": {}}, False, False), (0.1, {"lora": {}}, False, True)],
)
def test_a_run_with_adapters_is_its_own_reference(kl, trainer, asked, shared):
    spec = parse_spec(body(algorithm={"kl": kl}, trainer=trainer))
    assert (needs_reference_logprobs(spec), learner_computes_reference(spec)) == (asked, shared)
    assert needs_reference_service(spec) is asked


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_a_reward_model_needs_the_reference_service_also_without_a_penalty(kl):
    spec = parse_spec(body(algorithm={"kl": kl}, reward={"model": {"path": "scorer"}}))
    assert (needs_reference_service(spec), needs_reference_logprobs(spec)) == (True, kl > 0)


@pytest.mark.parametrize("kind", ["sft", "simpo", "reward_model"])
def test_a_held_out_loss_needs_the_reference_service_and_a_held_out_reward_does_not(kind):
    held_out = {"train": "t", "eval": "e"}
    given = {"name": "given", "kind": kind, "model": {"path": "m"}, "schedule": {"steps": 1}}
    asked = [needs_reference_service(parse_spec(given | {"data": data})) for data in (held_out, {"train": "t"})]
    assert asked == [True, False]
    assert not needs_reference_service(parse_spec(body(data=held_out)))


@pytest.mark.parametrize(
    ("sources", "given"), [(("grader", "model"), "grader and model"), (("service", "model"), "service and model"), ((), "none of them")]
)
def test_a_reward_has_one_source(sources, given):
    exact = {"type": "string_check", "input": "a", "reference": "b"}
    all_sources = {"grader": exact, "service": "grpc://scorer:1", "model": {"path": "scorer"}}
    found = faults(body(reward={name: all_sources[name] for name in sources}))
    assert f"given {given}; allowed: exactly one of `grader`, `service` and `model`" in str(found["reward"])
    assert parse_spec(body(reward={"model": all_sources["model"]})).reward.model.path == "scorer"


def test_a_layer_that_has_no_adapter_is_answered_with_those_that_can():
    assert "'down_proj'" in str(faults(body(trainer={"lora": {"target_modules": ["lm_head"]}}))["trainer.lora.target_modules.0"])


def test_the_oldest_version_that_a_step_may_train_on():
    spec = parse_spec(body(schedule={"steps": 5, "max_staleness": 2, "groups_per_step": 3}))
    assert [spec.oldest_allowed_version(step) for step in range(5)] == [0, 0, 0, 1, 2]
    assert spec.total_groups == 15


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
sections = st.dictionaries(st.sampled_from([*RunSpec.model_fields, "other"]), json_values)


@given(sections | json_values)
def test_whatever_is_sent_the_answer_is_a_spec_or_its_faults(sent):
    with contextlib.suppress(SpecError):
        spec = parse_spec(body(**sent) if isinstance(sent, dict) else sent)
        assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_sglang_engine_is_not_deterministic_and_says_so_when_asked_to_be():
    sections = {"rollout": {"engine": "sglang", "pause": "abort"}, "schedule": {"steps": 1, "mode": "fixed_lag"}}
    assert not parse_spec(body(**sections, deterministic=None)).is_deterministic
    fault = faults(body(**sections, deterministic=True))["deterministic"]
    assert "samples beside it" in fault.message
    assert "rollout.engine = torch" in fault.allowed


def test_anchors_belong_to_deltas():
    assert "weights.transport" in faults(body(weights={"anchor_every": 4}))["weights.anchor_every"].allowed
    assert parse_spec(body(weights={"transport": "delta", "anchor_every": 4})).weights.anchor_every == 4
    assert faults(body(weights={"transport": "deltas", "dtype": "fp16"})).keys() == {"weights.transport", "weights.dtype"}


def test_versions_have_the_dtype_of_the_passes_unless_they_are_rounded():
    def dtype(**sections):
        return parse_spec(body(**sections)).version_dtype

    assert dtype() == "fp32"
    assert dtype(trainer={"dtype": "bf16"}) == "bf16"
    assert dtype(trainer={"dtype": "bf16"}, weights={"dtype": "bf16"}) == "bf16"
    assert dtype(weights={"dtype": "bf16"}) == "bf16"


def test_routes_are_replayed_only_where_they_are_those_of_the_log_probabilities():
    fits = {"engine": "sglang", "pause": "abort", "routing_replay": True}
    assert parse_spec(body(rollout=fits)).rollout.routing_replay
    assert parse_spec(body(rollout=fits | {"pause": "in_place"})).rollout.routing_replay
    retracted = faults(body(rollout=fits | {"pause": "retract"}))["rollout.pause"]
    assert "new routes beside its old log-probabilities" in retracted.message
    assert retracted.allowed == '"abort" or "in_place", or rollout.routing_replay = false'
    assert faults(body(rollout={"engine": "sglang", "routing_replay": True})).keys() == {"rollout.pause"}  # its default
    refused = [
        {"rollout": {"routing_replay": True}},
        {"rollout": fits, "numerics": "batch_invariant"},
    ]
    found = [faults(body(**sections))["rollout.routing_replay"] for sections in refused]
    assert [fault.allowed for fault in found] == [
        'false, or rollout.engine = "sglang"',
        'false, or numerics = "fast"',
    ]


def test_all_settings_that_keep_rollout_and_trainer_from_equal_bits_are_reported():
    body = {"name": "equal", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://s:1"}, "schedule": {"steps": 1}}
    assert parse_spec(body | {"numerics": "batch_invariant"}).numerics == "batch_invariant"
    wrong = {"rollout": {"engine": "sglang"}, "trainer": {"backend": "deepspeed", "dtype": "bf16", "lora": {}, "threads": 3}}
    wrong["weights"] = {"dtype": "bf16"}
    assert parse_spec(body | wrong).numerics == "fast"
    with pytest.raises(SpecError) as refused:
        parse_spec(body | wrong | {"numerics": "batch_invariant"})
    assert [fault.path for fault in refused.value.faults] == ["numerics"] * 6
    assert all('"fast", or' in fault.allowed for fault in refused.value.faults)
