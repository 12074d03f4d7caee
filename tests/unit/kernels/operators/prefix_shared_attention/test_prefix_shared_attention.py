"""Prefix-shared attention against a float64 softmax over all tokens, every implementation alike."""

from __future__ import annotations

import pytest
import torch

from gradbus_kernels.operators import (
    PrefixLayout,
    Softcapped,
    prefix_shared_attention,
    prefix_shared_attention_reference,
    provenance,
    using,
)

NONE = None


LAYOUTS = {
    "groups": PrefixLayout.of_lengths([3, 17, 2, 2, 19], [NONE, NONE, 0, 0, 1]),
    "any_order": PrefixLayout.of_lengths([2, 7, 0, 2, 0, 6], [1, NONE, 1, NONE, NONE, 4]),
    "siblings": PrefixLayout.of_lengths([10, 8, 8, 5], [NONE, 0, 0, 0]),
    "short_and_long": PrefixLayout.of_lengths([5, 40, 2, 50, 7, 3, 3, 20], [NONE, NONE, 0, 1, NONE, 0, 1, 1]),
    "no_groups": PrefixLayout.of_lengths([4, 4, 18], [NONE] * 3),
    "one_token": PrefixLayout.of_lengths([1], [NONE]),
    "no_tokens": PrefixLayout.of_lengths([], []),
}
ALWAYS = ("short_and_long", "no_tokens")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Over a naive same-dtype error: of the largest value, and for the key's gradient of the query, of which it is a sum."""


def draw(layout, heads, head_dim, dtype, seed=0, factor=1.0):
    """Query, key, value and the output's gradient."""
    torch.manual_seed(seed)
    drawn = [torch.randn(layout.tokens, count, head_dim, dtype=torch.float64) for count in (*heads, heads[1], heads[0])]
    return [drawn[0].mul(factor).to(dtype), *(tensor.to(dtype) for tensor in drawn[1:])]


def results(tensors, layout, dtype, window=None, operator=prefix_shared_attention, scale=0.3):
    """Output and the three gradients, in float64."""
    *inputs, upstream = (tensor.detach().to(dtype).clone() for tensor in tensors)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    output = operator(*inputs, layout, scale, window)
    output.backward(upstream)
    return [output.detach().double(), *(tensor.grad.double() for tensor in inputs)]


def held_to_the_oracle(tensors, layout, dtype, window=None, scale=0.3):
    """The error against float64 is at most twice the naive one, and a tolerance."""
    exact = results(tensors, layout, torch.float64, window, prefix_shared_attention_reference, scale)
    naive = results(tensors, layout, dtype, window, prefix_shared_attention_reference, scale)
    ours = results(tensors, layout, dtype, window, scale=scale)
    for name, truth, plain, found in zip(("output", "query", "key", "value"), exact, naive, ours, strict=True):
        assert torch.isfinite(found).all(), name
        if truth.numel():
            size = max(1.0, truth.abs().max().item(), tensors[0].abs().max().item() if name == "key" else 0.0)
            allowed = 2 * (plain - truth).abs().max() + TOLERANCE[dtype] * size
            assert (found - truth).abs().max() <= allowed, name


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("name", ALWAYS)
def test_values_and_gradients_are_the_masked_softmax(name, dtype):
    held_to_the_oracle(draw(LAYOUTS[name], (2, 1), 16, dtype), LAYOUTS[name], dtype)


IN_THE_OTHERS = [torch.float32, *(pytest.param(low, marks=pytest.mark.slow) for low in (torch.bfloat16, torch.float16))]
"""The usual tests have the low precisions in one layout alone."""


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", IN_THE_OTHERS)
@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - ALWAYS))
def test_values_and_gradients_are_the_masked_softmax_in_the_other_layouts(name, dtype):
    held_to_the_oracle(draw(LAYOUTS[name], (2, 1), 16, dtype), LAYOUTS[name], dtype)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("groups", 1),
        ("groups", 4),
        ("groups", 19),
        ("any_order", 2),
        ("any_order", 400),
        ("siblings", 20),
        ("short_and_long", 6),
        ("short_and_long", 70),
    ],
)
def test_a_window_hides_what_is_further_back(name, window):
    held_to_the_oracle(draw(LAYOUTS[name], (1, 1), 16, torch.float32), LAYOUTS[name], torch.float32, window)


CAPPED = {
    "short_blocks": ("siblings", None),
    "long_segments": pytest.param("short_and_long", None, marks=pytest.mark.slow),
    "a_narrow_window": ("short_and_long", 6),
    "a_window_in_short_blocks": ("groups", 4),
}


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", [torch.bfloat16, *(pytest.param(one, marks=pytest.mark.slow) for one in (torch.float32, torch.float16))])
def test_a_softcap_bounds_the_scaled_scores(dtype):
    layout = LAYOUTS["short_and_long"]
    held_to_the_oracle(draw(layout, (2, 1), 16, dtype), layout, dtype, 70, Softcapped(0.9, 2.5))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", IN_THE_OTHERS)
@pytest.mark.parametrize(("name", "window"), CAPPED.values(), ids=CAPPED)
def test_a_softcap_bounds_the_scaled_scores_in_the_other_layouts(name, window, dtype):
    layout = LAYOUTS[name]
    held_to_the_oracle(draw(layout, (2, 1), 16, dtype), layout, dtype, window, Softcapped(0.9, 2.5))


def test_its_reference_is_the_formula_of_a_softcap():
    query, key = torch.tensor([[[2.0]], [[3.0]]]), torch.tensor([[[1.0]], [[-4.0]]])
    found = prefix_shared_attention_reference(
        query, key, torch.tensor([[[0.0]], [[1.0]]]), PrefixLayout((0, 2), (NONE,)), Softcapped(0.5, 2.0)
    )
    scores = 2.0 * torch.tanh(torch.tensor([1.5, -6.0]) / 2.0)
    torch.testing.assert_close(found[:, 0, 0], torch.stack((torch.tensor(0.0), scores.softmax(0)[1])))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", IN_THE_OTHERS)
def test_scores_of_ten_thousands_have_the_weight_of_their_bound(dtype):
    layout = LAYOUTS["short_and_long"]
    # Without a window, which the other softcapped long segments have.
    held_to_the_oracle(draw(layout, (2, 1), 16, dtype, factor=1e3), layout, dtype, None, Softcapped(0.3, 5.0))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("scale", [pytest.param(1e-6, marks=pytest.mark.slow), 1e-3, pytest.param(0.1, marks=pytest.mark.slow)])
def test_scores_far_below_the_softcap_are_as_exact_as_without_one(scale):
    layout = LAYOUTS["short_and_long"]
    tensors = draw(layout, (2, 1), 16, torch.float32)
    capped, plain = (results(tensors, layout, torch.float32, scale=bound) for bound in (Softcapped(scale, 1e5), scale))
    for one, other in zip(capped, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(("heads", "head_dim"), [((2, 2), 8), ((4, 2), 20), ((3, 1), 64), ((1, 1), 256), ((1, 1), 1)])
def test_heads_of_any_number_and_size(heads, head_dim):
    held_to_the_oracle(draw(LAYOUTS["any_order"], heads, head_dim, torch.float32), LAYOUTS["any_order"], torch.float32)


@pytest.mark.usefixtures("implementation")
def test_scores_of_ten_thousands_overflow_nothing(dtype):
    layout = LAYOUTS["any_order"]
    factor = 2e3 if dtype == torch.float16 else 1e4  # the naive float16 score overflows beyond
    held_to_the_oracle(draw(layout, (2, 1), 16, dtype, factor=factor), layout, dtype)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dims", [(0, 1), (1, 2)], ids=["heads_first", "dims_before_heads"])
def test_tensors_need_not_be_contiguous(dims):
    layout = LAYOUTS["any_order"]
    tensors = draw(layout, (2, 1), 16, torch.float32)
    apart = [tensor.transpose(*dims).contiguous().transpose(*dims) for tensor in tensors]
    expected = results(tensors, layout, torch.float32)
    inputs = [tensor.requires_grad_() for tensor in apart[:3]]
    output = prefix_shared_attention(*inputs, layout, 0.3)
    output.backward(apart[3])
    for found, truth in zip([output, *(tensor.grad for tensor in inputs)], expected, strict=True):
        torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("implementation")
def test_no_sequence_sees_another():
    layout = LAYOUTS["groups"]
    query, key, value, _ = draw(layout, (2, 1), 16, torch.float32)
    before = prefix_shared_attention(query, key, value, layout)
    value[0:3] += 1.0  # the first root: it and its two branches may notice
    changed = (prefix_shared_attention(query, key, value, layout) != before).any(dim=(1, 2))
    assert changed.nonzero().flatten().tolist() == [*range(3), *range(20, 24)]


def test_what_is_not_a_number_stays_in_its_group(implementation):
    if implementation == "reference":
        pytest.skip("its softmax is over all tokens")
    layout = LAYOUTS["groups"]
    group = [0, 1, 2, 20, 21, 22, 23]
    for position, seen_from in ((1, [1, 2, 20, 21, 22, 23]), (21, [21])):
        query, key, value, _ = draw(layout, (2, 1), 16, torch.float32)
        value[position] = torch.nan
        found = prefix_shared_attention(query, key, value, layout).isnan().any(dim=(1, 2)).nonzero().flatten().tolist()
        assert set(seen_from) <= set(found) <= set(group)


def test_a_group_of_many_responses():
    for responses in (8, 16):  # a short group, and one that is not
        layout = PrefixLayout.of_lengths([9, *[1, 4, 0, 2] * responses], [None, *[0] * (4 * responses)])
        for operator in ("reference", "cpu"):
            with using(operator):
                held_to_the_oracle(draw(layout, (2, 1), 16, torch.float32), layout, torch.float32)


def alone(layout, tensors, segments):
    """The output of some segments, a root first, when there are no others; and the tokens that they are."""
    indices = torch.cat([torch.arange(*layout.offsets[one : one + 2]) for one in segments])
    kept = PrefixLayout.of_lengths([layout.lengths[one] for one in segments], [None, *[0] * (len(segments) - 1)])
    return prefix_shared_attention(*(tensor[indices] for tensor in tensors), kept), indices


@pytest.mark.parametrize("heads", [pytest.param((1, 1), marks=pytest.mark.slow), (2, 1)])
def test_the_bits_of_a_long_sequence_depend_on_itself_and_its_root_alone(implementation, dtype, heads):
    if implementation == "reference":
        pytest.skip("its softmax is over all tokens")
    layout = PrefixLayout.of_lengths([30, 110, 17, 2, 70, 19, 70], [NONE, NONE, NONE, 0, 0, 1, 0])
    tensors = draw(layout, heads, 32, dtype)[:3]
    together = prefix_shared_attention(*tensors, layout)
    for segment, parent in enumerate(layout.parents):
        if parent is None or sum(layout.lengths[one] for one in (parent, segment)) > 96:
            output, indices = alone(layout, tensors, [segment] if parent is None else [parent, segment])
            assert torch.equal(output, together[indices]), segment


@pytest.mark.usefixtures("implementation")
def test_the_same_call_gives_the_same_bits():
    layout = LAYOUTS["any_order"]
    tensors = draw(layout, (2, 1), 16, torch.float32)
    once, again = (results(tensors, layout, torch.float32) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))


def test_long_prompts_and_windows_that_hide_whole_blocks_of_them():
    layout = PrefixLayout.of_lengths([1100, 70, 600], [None, 0, 0])
    for window in (None, 80, 700):
        held_to_the_oracle(draw(layout, (2, 1), 16, torch.float32), layout, torch.float32, window)


def test_what_is_kept_for_the_backward_pass_grows_with_packed_tokens_alone():
    layout = PrefixLayout.of_lengths([500, *[10] * 20], [None, *[0] * 20])
    kept = []

    def keep(tensor):
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    inputs = [tensor.requires_grad_() for tensor in draw(layout, (4, 2), 16, torch.float32)[:3]]
    with using("cpu"), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        prefix_shared_attention(*inputs, layout)
    assert sum(kept) == 4 * layout.tokens * (2 * 4 * 16 + 2 * 2 * 16 + 4)  # in and out, keys and values, log-sum-exps


def test_a_tensor_on_the_cpu_runs_the_cpu_implementation_and_says_so():
    layout = LAYOUTS["one_token"]
    prefix_shared_attention(*draw(layout, (2, 1), 16, torch.float32)[:3], layout)
    assert provenance()["prefix_shared_attention"].implementation == "cpu"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": torch.ones(4, 4, 8)}, r"query: has shape \(4, 4, 8\); pass \(3, any, any\)"),
        ({"query": torch.ones(3, 32)}, r"query: has shape \(3, 32\)"),
        ({"query": torch.ones(3, 4, 8).int()}, "query: is torch.int32"),
        ({"query": torch.ones(3, 5, 8)}, "key: has 2 heads; pass a number that divides the 5 of the query"),
        ({"query": torch.ones(3, 4, 257)}, r"key: has shape \(3, 2, 8\); pass \(3, any, 257\)"),
        ({"key": torch.ones(3, 0, 8), "value": torch.ones(3, 0, 8)}, "key: has 0 heads"),
        ({"key": torch.ones(3, 2, 8).bfloat16()}, "key: is torch.bfloat16; pass torch.float32"),
        ({"key": torch.ones(3, 2, 8, device="meta")}, "key: is on meta; pass it on cpu"),
        ({"value": torch.ones(3, 1, 8)}, r"value: has shape \(3, 1, 8\); pass \(3, 2, 8\)"),
        ({"value": torch.ones(3, 2, 8).half()}, "value: is torch.float16; pass torch.float32"),
        ({"window": 0}, "window: is 0; pass at least 1"),
        ({"scale": float("nan")}, "scale: is nan; pass a finite number"),
        ({"scale": Softcapped(float("nan"), 30.0)}, "scale: is nan; pass a finite number"),
        ({"scale": Softcapped(0.5, 0.0)}, "scale: has softcap 0.0; pass a positive number, or None"),
    ],
)
def test_bad_input_is_refused_under_its_name(change, words):
    given = {"query": torch.ones(3, 4, 8), "key": torch.ones(3, 2, 8), "value": torch.ones(3, 2, 8), "window": None}
    with pytest.raises(ValueError, match=words):
        prefix_shared_attention(**given | change, layout=PrefixLayout.of_lengths([3], [None]))


def test_float64_has_no_triton_kernel():
    tensors = draw(LAYOUTS["one_token"], (2, 1), 16, torch.float64)[:3]
    with using("triton"), pytest.raises(ValueError, match="prefix_shared_attention has no implementation 'triton'"):
        prefix_shared_attention(*tensors, LAYOUTS["one_token"])


def test_heads_beyond_256_are_refused():
    wide = torch.ones(1, 1, 257)
    with pytest.raises(ValueError, match="query: has heads of 257; pass 1 to 256"):
        prefix_shared_attention(wide, wide, wide, LAYOUTS["one_token"])
