"""Packed attention against softmax with an explicit mask."""

import pytest
import torch

from gradbus_kernels.packed_attention import packed_attention, packed_attention_reference
from gradbus_kernels.packing import Run

# Two roots of 3 tokens, one of 5; then branches: two of 2 tokens on the first roots, one of 4 on the longer root.
RUNS = (Run(2, 3), Run(1, 5), Run(3, 2, 0, torch.tensor([1, 0, 1])), Run(1, 4, 1, torch.tensor([0])))
ANCESTRY = [[(0, 3)], [(3, 6)], [(6, 11)], [(3, 6), (11, 13)], [(0, 3), (13, 15)], [(3, 6), (15, 17)], [(6, 11), (17, 21)]]
TOKENS = 21


def visible(window):
    """bool [N, N] written out from the ancestry of each sequence."""
    mask = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    for stretches in ANCESTRY:
        path = [token for first, last in stretches for token in range(first, last)]
        for depth, token in enumerate(path):
            mask[token, path[max(0, depth + 1 - window) : depth + 1]] = True
    return mask


@pytest.mark.parametrize("window", [None, 3], ids=["full", "window"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_values_and_gradients_equal_masked_softmax(kv_heads, window):
    torch.manual_seed(0)
    shapes = [(1, heads, TOKENS, 8) for heads in (4, kv_heads, kv_heads)]
    packed = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    plain = [tensor.detach().clone().requires_grad_() for tensor in packed]
    ours = packed_attention(*packed, RUNS, 0.3, window)
    reference = packed_attention_reference(*plain, visible(window or TOKENS), 0.3)
    torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-10)
    upstream = torch.randn_like(ours)
    ours.backward(upstream)
    reference.backward(upstream)
    for one, other in zip(packed, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-10)


def test_no_sequence_sees_another():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, TOKENS, 8) for _ in range(3))
    before = packed_attention(query, key, value, RUNS, 0.3)
    value[:, :, 0:3] += 1.0  # the first root: only its one branch may notice
    changed = (packed_attention(query, key, value, RUNS, 0.3) != before).any(dim=(0, 2, 3))
    assert changed.nonzero().flatten().tolist() == [0, 1, 2, 13, 14]
