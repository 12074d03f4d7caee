"""Every number, text and list of a spec is bounded, and whatever a spec holds, the answer is a spec or its faults."""

import copy
import json
import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gradbus.errors import SpecError
from gradbus.spec import MAX_FAULTS, RunSpec, parse_spec

BODY = {
    "name": "sums",
    "model": {"path": "model"},
    "data": {"train": "train.jsonl"},
    "rollout": {"group_size": 8},
    "reward": {
        "grader": {
            "type": "multi",
            "graders": {"exact": {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}},
            "calculate_output": "exact",
        }
    },
    "algorithm": {"clip": [0.2, 0.2]},
    "schedule": {"steps": 4},
    "trainer": {"lora": {"rank": 4}},
    "weights": {},
    "checkpoint": {},
    "evaluation": {},
}
SEVENTY_BILLION = {
    "name": "seventy-billion",
    "model": {"path": "owner/name", "revision": "0123456789abcdef0123456789abcdef01234567"},
    "data": {"train": "train.jsonl", "eval": "eval.jsonl"},
    "rollout": {"engine": "sglang", "slots": 1024, "group_size": 64, "max_new_tokens": 65_536, "max_prompt_tokens": 65_536},
    "reward": {"service": "grpc://scorer:50051", "timeout_seconds": 3600},
    "schedule": {"mode": "free", "max_staleness": 16, "groups_per_step": 256, "steps": 100_000, "group_deadline_seconds": 86_400},
    "trainer": {"backend": "deepspeed", "deepspeed": {"zero_stage": 3}, "micro_batch_tokens": 262_144, "warmup_steps": 1000},
    "checkpoint": {"every": 1000, "keep": 20},
    "evaluation": {"every": 1000, "samples": 20_000},
}


def set_at(path, value, body=BODY):
    """A copy of `body` with `value` at the dotted path."""
    changed = copy.deepcopy(body)
    *parents, last = path.split(".")
    place = changed
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = value
    return changed


def faults(body):
    with pytest.raises(SpecError) as refused:
        parse_spec(body)
    assert all(fault.path and str(fault).encode() for fault in refused.value.faults)
    return {fault.path: str(fault) for fault in refused.value.faults}


BOUNDS = {
    "integer": {"maximum", "exclusiveMaximum"},
    "number": {"maximum", "exclusiveMaximum"},
    "string": {"maxLength", "pattern"},
    "array": {"maxItems"},
}


def unbounded(schema, path="spec"):
    """Paths of the schemas that allow values without end."""
    needed = BOUNDS.get(schema.get("type"), {"maxProperties"} if isinstance(schema.get("additionalProperties"), dict) else set())
    if needed and not (needed | {"enum", "const"}) & schema.keys():
        yield path
    named = {**schema.get("properties", {}), **schema.get("$defs", {})}
    parts = [*(schema.get(key) for key in ("items", "additionalProperties")), *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    for name, inner in [*named.items(), *(("*", part) for part in (*parts, *schema.get("prefixItems", ())))]:
        if isinstance(inner, dict):
            yield from unbounded(inner, f"{path}.{name}")


def test_every_number_text_list_and_object_has_a_bound():
    assert list(unbounded(RunSpec.model_json_schema())) == []


def test_the_search_for_bounds_finds_what_has_none():
    schema = {"properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"type": "string"}]}, "c": {"type": "array", "items": {}}}}
    assert list(unbounded(schema)) == ["spec.a", "spec.b.*", "spec.c"]


def test_runs_of_the_largest_models_stay_below_the_bounds():
    assert parse_spec(SEVENTY_BILLION).schedule.groups_per_step == 256
    assert parse_spec(BODY).schedule.steps == 4


@pytest.mark.parametrize(
    ("path", "changes", "product"),
    [
        ("rollout.max_new_tokens", {"rollout": {"group_size": 1024, "max_new_tokens": 4097}}, "group_size · max_new_tokens"),
        ("rollout.slots", {"rollout": {"slots": 129, "max_new_tokens": 131_072}}, "slots · max_new_tokens"),
        ("schedule.groups_per_step", {"rollout": {"group_size": 17}, "schedule": {"steps": 1, "groups_per_step": 65_536}}, "group_size"),
        ("schedule.groups_per_step", {"schedule": {"steps": 1, "groups_per_step": 65_536}, "rollout": {"max_new_tokens": 4096}}, "tokens"),
        ("schedule.groups_per_step", {"schedule": {"steps": 1, "groups_per_step": 65_536, "max_staleness": 1}}, "(max_staleness + 2)"),
        ("schedule.steps", {"schedule": {"steps": 10_000_000, "groups_per_step": 27}}, "groups_per_step · dynamic_sampling · steps"),
    ],
)
def test_a_product_of_allowed_sizes_is_bounded(path, changes, product):
    found = faults(BODY | changes)
    assert product in found[path]
    assert "at most" in found[path]


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb"])
@pytest.mark.parametrize(
    "path",
    [
        *("name", "model.path", "data.train", "data.prompt", "reward.service", "reward.grader.calculate_output", "evaluation.metric"),
        "reward.grader.graders.exact.input",
    ],
)
def test_half_of_a_surrogate_pair_is_refused_with_its_path(path, value):
    assert faults(set_at(path, value))[path].startswith(f"{path}: has half of a surrogate pair")


def test_a_name_of_a_field_may_hold_anything():
    assert "a name with half of a surrogate pair" in faults(set_at("rollout.\ud800", 1))["rollout.\\ud800"]
    assert len(faults(BODY | {"x" * 1_000_000: 1})) == 1


EXTREMES = {
    "a hexadecimal number of TOML": 1 << 100_000,
    "far below zero": -(1 << 4000),
    "infinity": float("inf"),
    "no number": float("nan"),
    "the largest float": 1e308,
    "negative": -1,
    "2^62": 2**62,
    "digits": "7" * 5000,
    "a list": [[]],
    "an object": {},
    "nul": "\0",
}


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("path", ["schedule.steps", "rollout.group_size", "trainer.learning_rate", "trainer.lora.rank", "algorithm.kl"])
def test_a_number_beyond_its_range_is_a_fault_of_its_field(path, extreme):
    assert path in faults(set_at(path, EXTREMES[extreme]))


@pytest.mark.parametrize("service", ["http://a b/", "http://a/\n", "grpc://a:1\r\nx: y", "http://a/\0", "http://\u202ea/"])
def test_an_address_is_printable(service):
    body = BODY | {"reward": {"service": service}}
    assert "not the address of a scorer" in faults(body)["reward.service"]


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_deep_body_is_refused_by_its_depth():
    [words] = faults(set_at("rollout", nested(900))).values()
    assert "more than 64 lists and objects inside each other" in words


CROWDS = {
    "fields": lambda: {f"unknown{number}": number for number in range(50_000)},
    "graders": lambda: set_at("reward.grader.graders", {f"g{number}": {} for number in range(20_000)}),
    "elements": lambda: set_at("rollout.stop_token_ids", [-1] * 100_000),
    "a long word": lambda: set_at("rollout.engine", "x" * 1_000_000),
    "a long tag": lambda: set_at("reward.grader.type", "x" * 1_000_000),
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_many_faults_are_summed_up(crowd):
    body = CROWDS[crowd]()
    tracemalloc.start()
    found = faults(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) <= 2 * MAX_FAULTS
    assert len(str(found)) < 100_000
    assert peak < 256 << 20


PATHS = ["", *BODY, *(f"{section}.{name}" for section, part in BODY.items() if isinstance(part, dict) for name in (*part, "x"))]
PATHS += [f"{name}.{field}" for name in ("rollout", "schedule", "trainer") for field in RunSpec.model_fields[name].annotation.model_fields]
TEXT = st.text(st.characters(codec=None), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.just(1 << 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(changes=st.dictionaries(st.sampled_from(PATHS), VALUES, min_size=1, max_size=3))
def test_any_spec_is_taken_or_refused_with_faults(changes):
    body = copy.deepcopy(BODY)
    for path, value in changes.items():
        try:
            body = set_at(path, value, body) if path else body
        except (AttributeError, TypeError):
            body = value  # the parent was replaced
            break
    try:
        spec = parse_spec(body)
    except SpecError:
        assert faults(body)
        return
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert json.dumps(spec.model_dump(mode="json"), ensure_ascii=False, allow_nan=False).encode()
