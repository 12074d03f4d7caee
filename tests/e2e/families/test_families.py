"""Families beyond Llama's decoder go through the whole stack, and so do tensors that nobody trains."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

FROZEN = {"mtp.layers.0.weight": torch.arange(6.0).view(2, 3).bfloat16(), "visual.patch.weight": torch.full((5,), -0.0)}
SIZE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "initializer_range": 0.1,
}

TRAINED = ("qwen3", "gemma3_text", "glm4_moe", "gpt_oss")
EXPERTS = {
    "glm4_moe": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "use_qk_norm": True},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """Folders of families, with tensors that a text decoder has no place for."""
    root = tmp_path_factory.mktemp("families")
    torch.manual_seed(0)
    for model_type in TRAINED:
        folder = root / model_type
        config = AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **SIZE | EXPERTS.get(model_type, {}))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors") | FROZEN
        if config.tie_word_embeddings:  # stored all the same, as some published folders do
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return root


def exported(gradbus, run, target):
    """Tensors of an exported folder, which transformers loads with its frozen tensors left out."""
    done = gradbus("export", run["id"], target)
    assert done.returncode == 0, done.stderr
    tensors = {name: tensor for file in target.glob("*.safetensors") for name, tensor in load_file(file).items()}
    AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).save_pretrained(target / "again")
    loaded = load_file(target / "again" / "model.safetensors")
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in tensors.items() if name not in FROZEN)
    return tensors


def assert_frozen_are_carried(tensors):
    for name, tensor in FROZEN.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name].view(torch.uint8), tensor.view(torch.uint8))


@pytest.fixture(scope="module")
def penalised(lab, spec, folders):
    """The run of each family under a penalty: submitted at once, so that the reference service starts once."""
    changes = {"weights": {"transport": "delta", "anchor_every": 3}, "trainer": {"dtype": "bf16"}}
    return {
        family: lab.submit(
            spec(model={"path": str(folders / family)}, algorithm={"kl": 0.05}, **changes if family in {"qwen3", "gpt_oss"} else {})
        )
        for family in TRAINED
    }


@pytest.mark.parametrize("family", TRAINED)
def test_a_family_learns_under_a_penalty_and_its_export_has_every_name_of_the_folder(lab, penalised, folders, gradbus, tmp_path, family):
    run = lab.ends(penalised[family])
    assert lab.learned(run)
    tensors = exported(gradbus, run, tmp_path / "out")
    base = load_file(folders / family / "model.safetensors")
    if family == "gemma3_text":
        del base["lm_head.weight"]  # tied: the embedding has it
    assert tensors.keys() == base.keys()
    assert_frozen_are_carried(tensors)
    assert any(not torch.equal(tensor.float(), base[name].float()) for name, tensor in tensors.items())


def test_with_adapters_the_merged_export_carries_them_too(lab, spec, folders, gradbus, tmp_path):
    run = lab.train(spec(model={"path": str(folders / "qwen3")}, trainer={"lora": {"rank": 2}, "learning_rate": 1e-2}))
    assert lab.learned(run)
    assert_frozen_are_carried(exported(gradbus, run, tmp_path / "out"))


def test_qwen3s_recorded_log_probabilities_are_the_trainers_bit_for_bit(lab, spec, folders):
    run = lab.train(
        spec(
            numerics="batch_invariant",
            model={"path": str(folders / "qwen3")},
            schedule={"max_staleness": 0, "steps": 2},
            rollout={"max_new_tokens": 30, "temperature": 0.8},
        )
    )
    assert [step["logprob_diff"] for step in lab.events(run["id"], "metrics")] == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_a_family_that_transformers_computes_learns_from_given_responses(lab, rows, gradbus, tokenizer, tmp_path, kind):
    size = {name: value for name, value in SIZE.items() if name != "head_dim"}  # which StableLM computes
    config = AutoConfig.for_model("stablelm", vocab_size=len(tokenizer), **size)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    pairs = rows({"prompt": f"{word} and", "chosen": word, "rejected": "no"} for word in ("red", "green", "blue", "black"))
    columns = {"completion": "chosen"} if kind == "sft" else {}
    schedule = {"groups_per_step": 2, "steps": 2}
    given = {"name": "given", "kind": kind, "model": {"path": str(tmp_path / "model")}, "data": {"train": pairs} | columns}
    run = lab.train(given | {"schedule": schedule, "trainer": {"learning_rate": 1e-3}})
    assert lab.learned(run)
    assert exported(gradbus, run, tmp_path / "out").keys() == load_file(tmp_path / "model" / "model.safetensors").keys()
