"""Reward models from folders, beside transformers' own."""

import copy
import json

import numpy as np
import pytest
import torch
from family_lab import FAMILIES, SIZES, Row, gradients_of, rows, save, stored
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from gradbus.errors import ModelError
from gradbus.formats.reward_model import REWARD_ARCHITECTURES
from gradbus_kernels.models.reward.model import load_reward_model


def make(model_type, folder, dtype=torch.float32):
    """A random reward model of a family's odd configuration, in `folder`."""
    torch.manual_seed(0)
    fields = copy.deepcopy({**SIZES, **FAMILIES[model_type], "num_labels": 1})
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(model_type, **fields), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "sinks", "score.weight")):
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.2)
    save(model.to(dtype), folder)
    return folder


def theirs(folder, dtype=torch.float32):
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    model.config._experts_implementation = "eager"
    return model


def scores_of(model, sequences):
    """Scores by transformers, each sequence alone."""
    ids = (torch.from_numpy(np.concatenate((row.prompt_ids, row.token_ids))).long()[None] for row in sequences)
    return torch.cat([model(one).logits[:, 0] for one in ids])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make("llama", tmp_path_factory.mktemp("reward"))


def rewrite(folder, target, change):
    """A copy of the folder whose tensors `change` gets."""
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize("model_type", REWARD_ARCHITECTURES)
def test_scores_and_gradients_are_those_of_transformers(model_type, tmp_path):
    folder = make(model_type, tmp_path)
    ours, other = load_reward_model(folder), theirs(folder)
    found, expected = ours(rows()), scores_of(other, rows())
    assert found.shape == (len(rows()),)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5)
    factors = torch.linspace(-1.0, 1.0, len(found))
    found.dot(factors).backward()
    gradients = stored(other, tmp_path / "gradients", gradients_of(expected.dot(factors), other))
    assert gradients.keys() == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert float((parameter.grad - gradients[name]).norm()) <= 1e-4 * float(gradients[name].norm()), name


def test_the_classes_are_transformers_own():
    assert {name: MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[name] for name in REWARD_ARCHITECTURES} == REWARD_ARCHITECTURES


@torch.no_grad()
def test_sequences_packed_together_score_what_each_scores_alone(folder):
    model = load_reward_model(folder)
    alone = torch.cat([model([row]) for row in rows()])
    torch.testing.assert_close(model(rows()), alone, rtol=0.0, atol=1e-5)


@torch.no_grad()
def test_a_score_is_that_of_the_last_token_whatever_it_is(folder):
    """Not of the last token that is no padding, which a response may end with as well as with any other."""
    model, prompt = load_reward_model(folder), np.array([3, 4, 5], np.int32)
    for response in ([0], [7, 0], [7, 0, 0], [7, 8, 1]):
        row = Row(prompt, np.array(response, np.int32))
        torch.testing.assert_close(model([row]), scores_of(theirs(folder), [row]), rtol=0.0, atol=1e-5)
    split = Row(prompt[:1], prompt[1:])
    torch.testing.assert_close(model([split]), model([Row(prompt, prompt[:0])]), rtol=0.0, atol=1e-6)


def test_in_bfloat16_the_head_stays_float32(tmp_path):
    folder = make("qwen2", tmp_path, torch.bfloat16)
    with torch.no_grad():
        model = load_reward_model(folder, torch.bfloat16)
        exact = scores_of(theirs(folder, torch.bfloat16).double(), rows())
        error, their_error = (model(rows()) - exact).abs(), (scores_of(theirs(folder, torch.bfloat16), rows()) - exact).abs()
    assert model.score.weight.dtype == torch.float32
    assert error.mean() <= 2.0 * their_error.mean()


def test_weights_that_are_not_finite_are_refused(folder, tmp_path):
    def spoil(tensors):
        tensors["score.weight"][0, 3] = torch.nan

    with pytest.raises(ModelError, match=r"score.weight holds values that are not finite"):
        load_reward_model(rewrite(folder, tmp_path, spoil))


def test_a_folder_of_a_policy_is_refused(folder, tmp_path):
    rewrite(folder, tmp_path, lambda _: None)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ModelError, match="which are no reward model; use one of LlamaForSequenceClassification"):
        load_reward_model(tmp_path)
