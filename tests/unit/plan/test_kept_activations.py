"""The elements that a plan takes a layer to keep are those that autograd keeps."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from plan_lab import model_config

from gradbus.plan import ModelSize
from gradbus_kernels.models.decoder import CausalLM

TOKENS = 300
SMALL = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}


class Row(NamedTuple):
    """A prompt and a response."""

    prompt_ids: np.ndarray
    token_ids: np.ndarray


def kept(config):
    """Elements that a forward keeps for its backward pass, each memory once and no parameter."""
    torch.manual_seed(0)
    model = CausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = (storage.nbytes() // tensor.element_size(), storage)
        return tensor

    ids = np.arange(TOKENS, dtype=np.int32) % 60
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model(model.pack([Row(ids[: TOKENS // 3], ids[TOKENS // 3 :])]))
    assert hidden.requires_grad
    return sum(elements for elements, _ in storages.values())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {"num_key_value_heads": 4, "intermediate_size": 64},
    ],
)
def test_a_layer_keeps_what_the_plan_says(tmp_path, fields):
    few, many = (model_config(tmp_path, **SMALL | fields | {"num_hidden_layers": layers}) for layers in (2, 6))
    sizes = ModelSize.of(many)
    found = (kept(many) - kept(few)) / 4
    planned = (sizes.kept_by_all / sizes.layers) * TOKENS + sizes.joined / sizes.layers
    assert planned == pytest.approx(found, rel=0.1)
