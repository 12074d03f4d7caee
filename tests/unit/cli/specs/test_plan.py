"""`gradbus plan`: no gateway, no files but the spec and config.json."""

import json

import pytest
from plan_lab import SIZES
from typer.testing import CliRunner

from gradbus.cli.__main__ import app
from gradbus.errors import GradbusError, ModelError, SettingsError, SpecError
from gradbus.plan import MOST_CARDS

SPEC = """
name = "my-run"
[model]
path = "base"
[data]
train = "train.jsonl"
[reward.grader]
type = "python"
file = "grader.py"
[schedule]
steps = 200
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text(json.dumps(SIZES))
    (tmp_path / "grader.py").write_text("def grade(sample, item):\n    return 1.0\n")
    path = tmp_path / "run.toml"
    path.write_text(SPEC)
    return path


def planned(*arguments):
    """Standard output; raises the command's error."""
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    if isinstance(result.exception, GradbusError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_plan_is_a_page_of_text(spec):
    text = planned(spec, "--gpu", "h200", "--gpus", 2)
    assert "Qwen2ForCausalLM, 494 million parameters" in text
    assert "32 x 8 samples a step, 256 + 64 tokens each (means)" in text
    assert "keys and values of 64 samples" in text
    assert "2 x h200" in text
    assert "separate  1 for training, 1 for rollouts: " in text
    assert "[trainer.lora]" in text


def test_a_plan_is_json_with_bytes_and_seconds(spec):
    found = json.loads(planned(spec, "--json", "--set", "trainer.dtype=bf16", "--response-tokens", 100, "--prompt-tokens", 50))
    assert found["workload"]["prompt_tokens"] == 50
    assert found["workload"]["response_tokens"] == 100
    assert found["card"] == {"name": "h100", "memory": 85_040_352_460, "count": 1, "cores": 0}
    assert [tenant["name"] for tenant in found["tenants"]] == ["trainer", "engine"]
    for tenant in found["tenants"]:
        assert tenant["bytes"] == sum(part["bytes"] for part in tenant["parts"])
    assert {division["placement"] for division in found["divisions"]} == {"shared", "timed"}
    assert found["divisions"][0]["seconds"]["step"] > found["divisions"][0]["seconds"]["train"] > 0.0


def test_many_cards_are_divided_in_a_few_lines(spec):
    text = planned(spec, "--gpus", 64, "--set", "trainer.backend=deepspeed", "--set", "trainer.dtype=bf16")
    assert [line.split()[0] for line in text.splitlines() if " for training" in line] == ["separate"] * 3


def test_too_few_cards_are_told(spec):
    assert "too few cards" in planned(spec, "--set", "weights.transport=broadcast")
    assert "1 for training, 1 for rollouts" in planned(spec, "--set", "weights.transport=broadcast", "--gpus", 2)


def test_more_cards_than_a_plan_has_are_refused(spec):
    assert f"{MOST_CARDS} x h100" in planned(spec, "--gpus", MOST_CARDS)
    with pytest.raises(SettingsError, match=f"at most {MOST_CARDS} cards"):
        planned(spec, "--gpus", MOST_CARDS + 1)


def test_what_does_not_fit_says_how_much_is_lacking(spec):
    assert "does not fit, " in planned(spec, "--gpu", "l4", "--set", "rollout.slots=1024", "--set", "rollout.max_new_tokens=8192")


def test_the_models_folder_may_be_elsewhere(spec, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "base/config.json").rename(tmp_path / "other/config.json")
    assert "494 million" in planned(spec, "--model", tmp_path / "other")
    with pytest.raises(SettingsError, match="download that file of the model"):
        planned(spec)


def test_what_cannot_be_planned_says_why(spec, tmp_path):
    with pytest.raises(SettingsError, match="no card is called 'h1'"):
        planned(spec, "--gpu", "h1")
    with pytest.raises(SpecError, match=r"trainer\.dtype"):
        planned(spec, "--set", "trainer.dtype=fp8")
    (tmp_path / "grader.py").unlink()
    with pytest.raises(SpecError, match=r"reward\.grader\.file"):
        planned(spec)


def test_a_model_from_another_run_needs_its_folder(spec, tmp_path):
    spec.write_text(SPEC.replace('path = "base"', 'run = "sft"'))
    with pytest.raises(SettingsError, match="the model comes from another run"):
        planned(spec)
    assert "494 million" in planned(spec, "--model", tmp_path / "base")


def test_a_model_that_transformers_computes_is_planned_by_what_its_config_states(spec, tmp_path):
    shape = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256}
    sizes = shape | {"intermediate_size": 5632, "vocab_size": 151_936, "model_type": "qwen3_5_text"}
    (tmp_path / "base/config.json").write_text(json.dumps(sizes | {"architectures": ["Qwen3_5ForCausalLM"]}))
    assert "Qwen3_5ForCausalLM, 1.9" in planned(spec, "--set", "rollout.engine=sglang")
    mamba = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280}
    (tmp_path / "base/config.json").write_text(json.dumps(mamba))
    with pytest.raises(ModelError, match="states no number of heads"):
        planned(spec)


def test_what_the_models_family_does_not_take_has_no_plan(spec, tmp_path):
    opt = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072}
    (tmp_path / "base/config.json").write_text(json.dumps(opt | {"num_attention_heads": 12, "vocab_size": 50272}))
    with pytest.raises(SpecError, match=r"rollout\.engine.*does not sample OPTForCausalLM"):
        planned(spec)
    with pytest.raises(SpecError, match=r"trainer\.lora.*adapters are not trained beside OPTForCausalLM"):
        planned(spec, "--set", "rollout.engine=sglang", "--set", "trainer.lora.rank=8")
    phi = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": 0}
    (tmp_path / "base/config.json").write_text(json.dumps(SIZES | phi))
    with pytest.raises(SpecError, match=r"trainer\.lora\.target_modules.*has no such layers"):
        planned(spec, "--set", "trainer.lora.rank=8")
    (offered,) = (line.split("]")[0] + "]" for line in planned(spec).splitlines() if "trainer.lora" in line)
    assert "of them trained" in planned(spec, "--set", offered.strip().replace(" = ", "="))


@pytest.mark.slow  # half a minute where bf16 is slow; tests/unit/plan/test_cpu.py has what is made of the rates
def test_this_machine_is_measured_in_place_of_a_card(spec):
    found = json.loads(planned(spec, "--cpu", "--json"))
    assert found["card"]["name"] == "cpu"
    assert found["card"]["cores"] >= 1
    assert [division["placement"] for division in found["divisions"]] == ["together"]
    assert found["divisions"][0]["seconds"]["train"] > 0.0
    assert "unused in the heap" in {part["name"] for part in found["tenants"][0]["parts"]}


@pytest.mark.parametrize("card", [("--gpus", 2), ("--gpu", "a100"), ("--gpu", "h100")])
def test_this_machine_is_no_card(spec, card):
    with pytest.raises(SettingsError, match="--cpu is one machine and no card"):
        planned(spec, "--cpu", *card)
