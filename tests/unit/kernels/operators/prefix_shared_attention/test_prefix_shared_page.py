"""The example of docs/kernels/prefix-shared-attention.md is run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from gradbus_kernels.operators import provenance

PAGE = Path(__file__).parents[5] / "docs/kernels/prefix-shared-attention.md"


@pytest.fixture(params=[None, 8], ids=["full", "window"])
def folder(request, tmp_path):
    torch.manual_seed(0)
    window = {} if request.param is None else {"use_sliding_window": True, "sliding_window": request.param, "max_window_layers": 1}
    config = Qwen2Config(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, initializer_range=0.3, **window,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def test_the_example_gives_each_rows_own_logprobs_and_gradients(folder):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    prompts = [torch.randint(50, (40,))] * 4 + [torch.randint(50, (7,))]
    responses = [torch.randint(50, (length,)) for length in (5, 1, 9, 5, 3)]
    names = {"folder": folder, "prompts": prompts, "responses": responses}
    exec(example, names)
    assert "prefix_shared" in AttentionInterface()
    assert provenance()["prefix_shared_attention"].implementation == "cpu"
    assert names["batch"].layout.lengths == (9, 40, 4, 4, 8)

    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    for prompt, response, found in zip(prompts, responses, names["logprobs"], strict=True):
        logits = plain(torch.cat((prompt, response))[None]).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(dim=-1).gather(1, response[:, None])[:, 0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        expected.sum().backward()
    sum(part.sum() for part in names["logprobs"]).backward()
    for (name, ours), theirs in zip(names["model"].named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3, msg=name)
