"""The decoder in the engine's arithmetic: the same function as the fast one, and no token's bits depend on its packing."""

import pytest
import torch

from gradbus.errors import ModelError
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_kernels.models.invariant_decoder import invariant_packed_logprobs
from gradbus_kernels.operators import using


@pytest.fixture
def sequences(make_tokens):
    """Shared prompts, single ones, one token, several lengths, beyond a page."""
    shared = [make_tokens(20, length, 1, seed) for seed, length in enumerate((1, 3, 3, 6))]
    return [*shared, make_tokens(1, 1, 2), make_tokens(30, 12, 3), make_tokens(40, 20, 4, 9)]


def test_it_is_the_fast_decoder_but_for_rounding_gradients_too(any_model_folder, sequences):
    model = load_causal_lm(any_model_folder)
    if "batch_invariant" not in model.config.family.capabilities or model.config.invariant_lacks:
        with pytest.raises(ModelError, match="choose another model"):
            invariant_packed_logprobs(model, sequences, 0.8)
        return
    gradients = []
    for forward in (packed_logprobs, invariant_packed_logprobs):
        model.zero_grad()
        logprobs, entropy = forward(model, sequences, 0.8)
        (logprobs.sum() + 0.3 * entropy.sum()).backward()
        gradients.append([logprobs.detach(), entropy.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for fast, invariant in zip(*gradients, strict=True):
        torch.testing.assert_close(invariant, fast, atol=3e-4, rtol=3e-4)


def test_a_tokens_bits_do_not_depend_on_what_it_is_packed_with(qwen2_folder, sequences):
    model = load_causal_lm(qwen2_folder)
    together, _ = invariant_packed_logprobs(model, sequences, 0.8)
    alone = torch.cat([invariant_packed_logprobs(model, [sequence], 0.8)[0] for sequence in sequences])
    assert torch.equal(together, alone)
    fast = torch.cat([packed_logprobs(model, [sequence], 0.8)[0] for sequence in sequences])
    assert not torch.equal(packed_logprobs(model, sequences, 0.8)[0], fast)  # else this would prove little


def test_gradients_of_equal_calls_are_equal(qwen2_folder, sequences):
    model = load_causal_lm(qwen2_folder)

    def gradients():
        model.zero_grad()
        invariant_packed_logprobs(model, sequences, 1.0)[0].sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    for once, again in zip(gradients(), gradients(), strict=True):
        assert torch.equal(once, again)


def test_checkpoints_keep_less_and_change_no_bit(qwen2_folder, sequences):
    found = []
    for checkpointing in (False, True):
        model = load_causal_lm(qwen2_folder)
        model.model.checkpointing = checkpointing
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, kept=kept: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            logprobs, _ = invariant_packed_logprobs(model, sequences, 0.8)
        with using("reference"):
            logprobs.sum().backward()
        found.append((sum(kept), logprobs.detach(), *(parameter.grad for parameter in model.parameters())))
    (all_kept, *plain), (less, *again) = found
    assert less < all_kept / 2
    assert all(torch.equal(*pair) for pair in zip(plain, again, strict=True))


def test_its_bits_are_the_engines_whatever_implementation_is_asked_for(qwen2_folder, sequences):
    model = load_causal_lm(qwen2_folder)
    expected, _ = invariant_packed_logprobs(model, sequences, 0.8)
    with using("reference"):
        assert torch.equal(invariant_packed_logprobs(model, sequences, 0.8)[0], expected)
