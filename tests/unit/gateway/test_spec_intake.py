"""Submission refuses a spec over an algorithm or a model family that lacks something, as planted in the registries."""

import dataclasses
import json

import pytest

from gradbus.algorithms import ALGORITHMS, Needs
from gradbus.errors import SpecError
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.objects import ObjectStore
from gradbus_gateway.intake.spec_intake import SpecIntake
from gradbus_gateway.settings import GatewaySettings


@pytest.fixture
def body(tmp_path):
    """A spec whose model and rows lie under a root of the gateway."""
    folder = tmp_path / "roots" / "model"
    folder.mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 64, "vocab_size": 16}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "roots" / "train.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    grader = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}", "operation": "eq"}
    return {
        "name": "sums",
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "rollout": {"max_new_tokens": 8, "group_size": 4},
        "reward": {"grader": grader},
        "schedule": {"steps": 4, "groups_per_step": 2},
    }


@pytest.fixture
def refused(tmp_path):
    """Submits a spec in this process, and returns the faults as text."""
    settings = GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "cache")

    async def submit(body):
        try:
            await SpecIntake(ObjectStore.open(f"file://{tmp_path}/objects"), settings).accept(body)
        except SpecError as error:
            return [str(fault) for fault in error.faults]
        return []

    return submit


@pytest.fixture
def plant_needs(monkeypatch):
    """Puts an algorithm with other needs in the place of GRPO."""

    def plant(**changed):
        @dataclasses.dataclass(frozen=True)
        class Planted:
            spec: object
            needs = Needs(**{"reference": False, "values": False, "valid_samples": 2} | changed)

        monkeypatch.setitem(ALGORITHMS, "grpo", Planted)

    return plant


async def test_the_spec_is_accepted_with_the_registries_as_they_are(refused, body):
    assert await refused(body) == []


async def test_an_algorithm_that_needs_a_critic_is_refused(refused, body, plant_needs):
    plant_needs(values=True)
    [fault] = await refused(body)
    assert fault.startswith("algorithm.name: needs a critic's values, which no learner computes")
    assert "an algorithm without a critic" in fault


async def test_an_algorithm_that_needs_more_samples_than_a_group_has_is_refused(refused, body, plant_needs):
    plant_needs(valid_samples=4)
    assert await refused(body) == []
    plant_needs(valid_samples=5)
    [fault] = await refused(body)
    assert fault.startswith("rollout.group_size: grpo trains a group from 5 valid samples on")
    assert "at least 5" in fault


async def test_an_algorithm_without_a_critic_is_named_where_there_is_one(refused, body, plant_needs, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "plain", ALGORITHMS["grpo"])
    plant_needs(values=True)
    [fault] = await refused(body)
    assert "plain" in fault


async def test_an_embedded_engine_is_refused_for_a_family_that_it_does_not_compute(refused, body, monkeypatch):
    able = MODEL_FAMILIES["llama"]
    without = dataclasses.replace(able, capabilities=able.capabilities - {"embedded_engine"})
    monkeypatch.setitem(MODEL_FAMILIES, "llama", without)
    [fault] = await refused(body)
    assert fault.startswith("rollout.engine: this engine runs in the worker's process and does not compute LlamaForCausalLM; given torch")
    assert fault.endswith("a model of one of: Qwen2ForCausalLM")
    body["rollout"]["engine"], body["schedule"]["mode"], body["deterministic"] = "sglang", "free", False
    assert await refused(body) == []
