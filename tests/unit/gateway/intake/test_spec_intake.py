"""Submission refuses a spec over an algorithm that its groups or rewards do not suit, or a model family that lacks something."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from gradbus.errors import SpecError
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.objects import ObjectStore
from gradbus.spec import MAX_FAULTS, PRESETS, RolloutSpec
from gradbus.spec.presets import CRITICS
from gradbus_gateway.intake.spec.faults import replay_faults
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.settings import GatewaySettings

GROWING = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1}


@pytest.fixture
def body(tmp_path, write_model):
    """A spec whose model and rows lie under a root of the gateway."""
    write_model(tmp_path / "roots" / "model")
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
def refused(tmp_path, fork_server):
    """Submits a spec in this process, and returns the faults as text."""
    settings = GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "cache")

    async def submit(body):
        try:
            await SpecIntake(ObjectStore.open(f"file://{tmp_path}/objects"), fork_server, settings, None).accept(body, "key")
        except SpecError as error:
            return [str(fault) for fault in error.faults]
        return []

    return submit


async def test_the_spec_is_accepted_with_the_registries_as_they_are(refused, body):
    assert await refused(body) == []


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"reinforce_pp", "gdpo", "opd", *CRITICS}))
async def test_a_preset_with_a_baseline_needs_two_samples_of_a_prompt(refused, body, name):
    body["algorithm"], body["rollout"]["group_size"] = {"name": name, "centering": None}, 1
    [fault] = await refused(body)
    assert fault.startswith("rollout.group_size: advantage =")
    assert 'at least 2, or algorithm.advantage = "reinforce"' in fault
    body["rollout"]["group_size"] = 2
    assert await refused(body) == []


async def test_a_greedy_sample_is_one_of_the_two(refused, body):
    body["algorithm"], body["rollout"]["group_size"] = {"name": "remax"}, 1
    [fault] = await refused(body)
    assert "from 2 valid samples on, one of them greedy, as the others' baseline" in fault


async def test_one_sample_of_a_prompt_is_enough_without_a_baseline(refused, body):
    body["algorithm"], body["rollout"]["group_size"] = {"name": "reinforce_pp"}, 1
    assert await refused(body) == []


async def test_a_step_of_one_sample_cannot_be_whitened(refused, body):
    body["algorithm"], body["rollout"]["group_size"], body["schedule"]["groups_per_step"] = {"name": "reinforce_pp"}, 1, 1
    [fault] = await refused(body)
    assert fault.startswith("algorithm.whiten: the only sample of a step would have an advantage of 0")


async def test_gdpo_needs_a_reward_with_components(refused, body):
    body["algorithm"] = {"name": "gdpo"}
    [fault] = await refused(body)
    assert fault.startswith("algorithm.advantage: normalises each component of a reward, and this string_check grader has one")
    exact = body["reward"]["grader"]
    body["reward"]["grader"] = {"type": "multi", "graders": {"one": exact}, "calculate_output": "one"}
    assert len(await refused(body)) == 1
    body["reward"]["grader"] = {"type": "multi", "graders": {"one": exact, "two": exact}, "calculate_output": "one + two"}
    assert await refused(body) == []


async def test_an_embedded_engine_is_refused_for_a_family_that_it_does_not_compute(refused, body, monkeypatch):
    able = MODEL_FAMILIES["llama"]
    without = dataclasses.replace(able, capabilities=able.capabilities - {"embedded_engine"})
    monkeypatch.setitem(MODEL_FAMILIES, "llama", without)
    [fault] = await refused(body)
    assert fault.startswith("rollout.engine: this engine runs in the worker's process and does not compute LlamaForCausalLM; given torch")
    others = [family.architecture for name, family in MODEL_FAMILIES.items() if name != "llama"]
    assert fault.endswith(f"a model of one of: {', '.join(others)}")
    body["rollout"]["engine"], body["schedule"]["mode"], body["deterministic"] = "sglang", "free", False
    assert await refused(body) == []


async def test_a_model_that_transformers_computes_needs_a_server_and_the_plain_trainer(refused, body, tmp_path):
    config = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 16, "max_position_embeddings": 64}
    (tmp_path / "roots" / "model" / "config.json").write_text(json.dumps(config))
    [fault] = await refused(body)
    assert "rollout.engine: this engine runs in the worker's process and does not sample OPTForCausalLM, which transformers" in fault
    assert fault.endswith('given torch; allowed: an engine that is a server and serves the model: "sglang"')
    body["rollout"]["engine"], body["schedule"]["mode"], body["deterministic"] = "sglang", "free", False
    assert await refused(body) == []
    [fault] = await refused(body | {"trainer": {"backend": "deepspeed"}})
    assert fault.startswith("trainer.backend: does not train OPTForCausalLM, which transformers computes; given deepspeed; allowed: torch")
    [fault] = await refused(body | {"trainer": {"lora": {"rank": 2}}})
    assert fault.startswith("trainer.lora: adapters are not trained beside OPTForCausalLM")


async def test_routes_are_replayed_in_mixtures_of_experts_alone(refused, body, tmp_path):
    replaying = body | {"rollout": body["rollout"] | {"engine": "sglang", "pause": "abort", "routing_replay": True}, "deterministic": False}
    [fault] = await refused(replaying)
    assert "rollout.routing_replay: LlamaForCausalLM has no experts that Gradbus's own decoder computes" in fault
    assert "or a model of one of: MixtralForCausalLM, Qwen3MoeForCausalLM, Glm4MoeForCausalLM, GptOssForCausalLM" in fault
    config = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 16, "max_position_embeddings": 64}
    (tmp_path / "roots" / "model" / "config.json").write_text(json.dumps(config))
    [fault] = await refused(replaying)
    assert fault.startswith("rollout.routing_replay: OPTForCausalLM has no experts that Gradbus's own decoder computes")


@pytest.mark.parametrize(("experts", "taken"), [(256, True), (257, False)])
def test_the_routes_of_a_group_fit_into_the_buffer(experts, taken):
    sizes = {"layers": range(48), "count": experts, "chosen": 8}
    info = SimpleNamespace(context_length=1 << 17, family=None)
    model = SimpleNamespace(config=SimpleNamespace(experts=SimpleNamespace(**sizes)), info=info)
    found = list(replay_faults(model, RolloutSpec(max_new_tokens=5000, max_prompt_tokens=5000, group_size=32, routing_replay=True)))
    assert (found == []) is taken
    if found:
        assert found[0].given.startswith("126720000 bytes: 768 for each token of a prompt and of 32 responses")


@pytest.mark.parametrize(
    ("family", "changed", "served"),
    [
        ("mistral", {"sliding_window": 32}, 32),
        ("qwen3", {"sliding_window": 32, "use_sliding_window": False}, None),
        ("qwen3", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 0}, 32),
        ("ministral3", {"rope_parameters": GROWING}, 16),
        ("gemma3_text", {"sliding_window": 8}, None),
    ],
)
async def test_samples_longer_than_sglang_computes_as_the_trainer_does_are_refused(
    refused, body, tmp_path, write_model, family, changed, served
):
    architecture = MODEL_FAMILIES[family].architecture
    write_model(tmp_path / "roots" / "model", model_type=family, architectures=[architecture], head_dim=2, **changed)
    assert await refused(body) == []
    body["rollout"]["engine"], body["schedule"]["mode"], body["deterministic"] = "sglang", "free", False
    if served is None:
        assert await refused(body) == []
        return
    [fault] = await refused(body)
    assert fault.startswith(
        f"rollout.max_prompt_tokens: beyond {served} tokens SGLang leaves out what the trainer computes for {architecture}"
    )
    assert fault.endswith(f"given 56 + 8; allowed: at most {served} with rollout.max_new_tokens")
    body["rollout"]["max_prompt_tokens"] = served - 7
    assert len(await refused(body)) == 1
    body["rollout"]["max_prompt_tokens"] = served - 8
    assert await refused(body) == []


async def test_a_model_whose_biases_sglang_leaves_out_is_refused(refused, body, tmp_path, write_model):
    write_model(tmp_path / "roots" / "model", mlp_bias=True)
    body["rollout"]["engine"], body["schedule"]["mode"], body["deterministic"] = "sglang", "free", False
    [fault] = await refused(body)
    assert fault.startswith("rollout.engine: it leaves out the biases of LlamaForCausalLM's feed-forward part")


async def test_a_model_with_what_the_torch_engine_or_batch_invariant_lacks_is_refused(refused, body, tmp_path, write_model):
    write_model(tmp_path / "roots" / "model", mlp_bias=True)
    [fault] = await refused(body)
    assert fault.startswith("rollout.engine: this engine runs in the worker's process and does not compute mlp_bias")
    write_model(tmp_path / "roots" / "model", attention_bias=True)
    assert await refused(body) == []
    [fault] = await refused(body | {"numerics": "batch_invariant"})
    assert fault == "numerics: is not computed for a model with attention_bias; given batch_invariant; allowed: fast"


async def test_adapters_wider_than_the_model_are_refused(refused, body):
    [fault] = await refused(body | {"trainer": {"lora": {"rank": 5}}})
    assert fault.startswith("trainer.lora.rank: an adapter is smaller than its matrix; given 5; allowed: at most 4")
    assert await refused(body | {"trainer": {"lora": {"rank": 4}}}) == []


async def test_stop_tokens_that_the_model_does_not_have_are_refused(refused, body):
    body["rollout"]["stop_token_ids"] = [3, 16, 99]
    [fault] = await refused(body)
    assert fault == "rollout.stop_token_ids: the model has no such tokens; given 16, 99; allowed: ids below 16"


async def test_a_group_whose_rows_do_not_fit_into_a_call_is_refused(refused, body, tmp_path):
    row = {"prompt": "1+1=", "answer": "2", "context": "x" * 1_000_000}
    (tmp_path / "roots" / "train.jsonl").write_text(json.dumps(row))
    body["rollout"]["group_size"] = 17
    [fault] = await refused(body)
    assert fault.startswith("data.train: the samples of a group, each with its row, do not fit into a call of the scorer; given 17 samples")
    body["rollout"]["group_size"] = 16
    assert await refused(body) == []


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b'{"prompt": "a", "answer": "\\ud800"}', "answer has half of a surrogate pair"),
        (b'{"prompt": "\\ud800", "answer": "2"}', "prompt has half of a surrogate pair"),
        (b'{"prompt": [{"role": "user", "content": "\\udfff"}], "answer": "2"}', "prompt.0.content has half of a surrogate pair"),
        (b'{"prompt": "a", "answer": 1e999}', "64-bit floats"),
    ],
)
async def test_a_row_that_could_not_be_sent_on_is_refused_with_its_line(refused, body, tmp_path, row, words):
    (tmp_path / "roots" / "train.jsonl").write_bytes(b'{"prompt": "1+1=", "answer": "2"}\n' + row)
    [fault] = await refused(body)
    assert fault.startswith("data.train: line 2 ")
    assert words in fault


async def test_faults_of_a_grader_over_wide_rows_are_few_and_short(refused, body, tmp_path):
    (tmp_path / "roots" / "train.jsonl").write_text(json.dumps({"prompt": "a"} | {f"{'wide' * 50}{n}": 0 for n in range(900)}))
    body["reward"]["grader"]["reference"] = "".join(f"{{{{item.x{n}}}}}" for n in range(4000))
    faults = await refused(body)
    assert len(faults) == MAX_FAULTS
    assert max(map(len, faults)) < 6000


async def test_a_dataset_beyond_the_limit_is_refused_unread(body, tmp_path, fork_server):
    path = tmp_path / "roots" / "train.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    settings = GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "cache")
    with pytest.raises(SpecError, match=f"the dataset has {1 << 40} bytes"):
        await SpecIntake(ObjectStore.open(f"file://{tmp_path}/objects"), fork_server, settings, None).accept(body, "key")
