"""The decoder against transformers'."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_kernels.models.packing import pack

LENGTH = 60


@pytest.fixture
def sequence(make_tokens):
    """Well beyond the window and the contexts that the stretched kinds began with."""
    return make_tokens(LENGTH, 1)


def hidden_states(folder, sequence, dtype):
    """Ours and theirs, `[N, hidden]`."""
    ours = load_causal_lm(folder, dtype)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    ids = torch.from_numpy(sequence.prompt_ids.astype(np.int64))[None]
    return (ours, ours(pack([sequence], torch.device("cpu")))), (theirs, theirs.model(ids).last_hidden_state[0])


def test_hidden_states_and_gradients_are_those_of_transformers(any_model_folder, sequence):
    (ours, hidden), (theirs, expected) = hidden_states(any_model_folder, sequence, torch.float32)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=2e-5)
    upstream = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
    hidden.backward(upstream)
    expected.backward(upstream)
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    for (name, one), other in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        scale = float(other.grad.abs().max())
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=2e-5 * scale, msg=lambda text, name=name: f"{name}: {text}")


@torch.inference_mode()
def test_hidden_states_in_bfloat16_are_those_of_transformers(any_model_folder, sequence):
    (_, hidden), (_, expected) = hidden_states(any_model_folder, sequence, torch.bfloat16)
    _, (_, exact) = hidden_states(any_model_folder, sequence, torch.float32)
    assert hidden.dtype == torch.bfloat16
    assert float((hidden - expected).abs().mean()) < 0.02 * float(exact.abs().mean())
    assert float((hidden - exact).abs().mean()) < 1.2 * float((expected - exact).abs().mean())


def test_layers_computed_again_give_the_same_bits(any_model_folder, make_tokens):
    sequences = [make_tokens(9, response, 0, response) for response in (1, 3, 5)]
    results = []
    for checkpointing in (False, True):
        model = load_causal_lm(any_model_folder)
        model.model.checkpointing = checkpointing
        calls = []
        model.model.layers[0].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        logprobs, _ = packed_logprobs(model, sequences, 1.0)
        logprobs.sum().backward()
        assert len(calls) == 1 + checkpointing
        results.append([logprobs.detach(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_cast_to_bfloat16_leaves_positions_exact(any_model_folder, sequence):
    cast = load_causal_lm(any_model_folder).to(torch.bfloat16)
    with torch.inference_mode():
        batch = pack([sequence], torch.device("cpu"))
        assert torch.equal(cast(batch), load_causal_lm(any_model_folder, torch.bfloat16)(batch))
    assert not list(cast.buffers())
