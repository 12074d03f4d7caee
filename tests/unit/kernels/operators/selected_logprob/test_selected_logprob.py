"""Every implementation against the reference in float64, and each row against itself in other company."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from covering import covering
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.operators import selected_logprob, selected_logprob_reference, using
from gradbus_kernels.operators.selected_logprob import cpu

IGNORED = -100


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch, request):
    """So that small shapes have many tiles, slices and blocks."""
    monkeypatch.setattr(cpu, "_TILE", 96)
    if "implementation" in request.fixturenames and request.getfixturevalue("implementation") == "triton":
        from gradbus_kernels.operators.selected_logprob import triton as gpu

        monkeypatch.setattr(gpu, "LAUNCH", replace(gpu.LAUNCH, slice=64, block=32, rows=4))


def inputs(rows, vocabulary, dtype=torch.float32, scale=4.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits, other = (torch.randn(2, rows, vocabulary, generator=generator) * scale).to(dtype).unbind()
    return logits, other, torch.randint(vocabulary, (rows,), generator=generator)


def values_and_gradient(operator, logits, *arguments):
    """Outputs that were asked for and the gradient of a weighted sum of them, so that every row's gradient differs."""
    logits = logits.detach().clone().requires_grad_()
    found = operator(logits, *arguments)
    loss = logits.new_zeros(())
    for number, part in enumerate(found[:3]):
        if part is not None:
            loss = loss + (part.to(logits.dtype) * torch.linspace(-1.0, 1.0 - number / 4, len(part)).to(logits.dtype)).sum()
    loss.backward()
    return [*(part.detach() for part in found if part is not None), logits.grad]


def assert_as_exact_as_naive(logits, ids, other=None, temperature=1.0, entropy=True, ignore=None):
    """Errors against float64 within twice those of plain torch in this dtype, plus one rounding of the dtype."""
    wide = None if other is None else other.double()
    exact = values_and_gradient(selected_logprob_reference, logits.double(), ids, temperature, entropy, wide, ignore)
    naive = values_and_gradient(selected_logprob_reference, logits, ids, temperature, entropy, other, ignore)
    ours = values_and_gradient(selected_logprob, logits, ids, temperature, entropy, other, ignore)
    for best, plain, found in zip(exact, naive, ours, strict=True):
        assert found.dtype == plain.dtype
        finite = best.isfinite()
        assert torch.equal(found.isfinite(), finite)
        one_rounding = torch.finfo(found.dtype).eps * largest(best[finite])
        allowed = 2 * largest((plain.double() - best)[finite]) + one_rounding + 2e-6 * max(1.0, largest(best[finite]))
        assert largest((found.double() - best)[finite]) <= allowed


def largest(values):
    return values.abs().max().item() if values.numel() else 0.0


SHAPES = [(1, 1), (1, 203), (7, 2), (9, 37), (5, 131)]


@pytest.mark.parametrize(("shape", "entropy", "second"), covering(SHAPES, [False, True], [False, True]))
def test_values_and_gradients_are_as_exact_as_plain_torch(implementation, dtype, shape, entropy, second):
    rows, vocabulary = shape
    logits, other, ids = inputs(rows, vocabulary, dtype)
    assert_as_exact_as_naive(logits, ids, other if second else None, 0.7 if rows == 7 else 1.0, entropy)


def test_no_rows_give_no_numbers(implementation):
    logits, other, ids = inputs(0, 11)
    *found, gradient = values_and_gradient(selected_logprob, logits, ids, 1.0, True, other)
    assert [part.shape for part in found] == [(0,)] * 4
    assert gradient.shape == (0, 11)


@pytest.mark.parametrize("offset", [1e4, -1e4, 300.0, -90.0])
def test_extreme_logits_stay_exact(implementation, offset):
    logits, other, ids = inputs(6, 77)
    logits[::2] += offset
    logits[1, 3] = offset
    for entropy in (False, True):
        assert_as_exact_as_naive(logits, ids, other + offset if entropy else None, 1.0, entropy)


def test_tokens_at_minus_infinity_are_out_of_the_vocabulary(implementation, dtype):
    logits, other, ids = inputs(5, 140, dtype)
    for masked in (logits, other):
        masked[:, 100:] = -math.inf
        masked[2, 1:] = -math.inf  # one token is left
    ids[:2], ids[2] = torch.tensor([5, 120]), 0
    assert_as_exact_as_naive(logits, ids, other)
    found = selected_logprob(logits, ids, 1.0, True, other)
    assert found.logprobs[1] == -math.inf
    assert (found.logprobs[2], found.entropy[2], found.kl[2]) == (0.0, 0.0, 0.0)


def test_a_token_that_only_the_second_model_masks_makes_the_divergence_infinite(implementation):
    logits, other, ids = inputs(2, 50)
    other[0, 9] = -math.inf
    found = selected_logprob(logits, ids, other_logits=other)
    assert found.kl[0] == math.inf
    assert found.kl[1].isfinite()


def test_a_model_does_not_diverge_from_itself(implementation, dtype):
    logits, _, ids = inputs(4, 90, dtype)
    *_, gradient = values_and_gradient(selected_logprob, logits, ids, 1.3, False, logits.clone())
    found = selected_logprob(logits, ids, 1.3, False, logits.clone())
    assert found.kl.tolist() == [0.0] * 4
    assert torch.equal(found.logprobs, found.other_logprobs)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("rows", "vocabulary", "entropy", "seed"), [(2, 5, False, 74), (4, 32, False, 57), (2, 51, True, 93), (1, 150, False, 77)]
)
def test_a_divergence_of_tens_of_nats_under_a_nearly_certain_token_keeps_its_gradient(implementation, rows, vocabulary, entropy, seed):
    logits, other, ids = inputs(rows, vocabulary, seed=seed)
    assert_as_exact_as_naive(logits, ids, other, 0.3, entropy)


def test_a_second_model_of_another_dtype_is_fine_and_gets_no_gradient(implementation):
    logits, other, ids = inputs(4, 45)
    other = other.bfloat16().requires_grad_()
    found = selected_logprob(logits.requires_grad_(), ids, other_logits=other)
    expected = selected_logprob_reference(logits, ids, other_logits=other.float())
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-6)
    (found.kl.sum() + found.logprobs.sum()).backward()
    assert other.grad is None
    assert not found.other_logprobs.requires_grad


def test_ignored_rows_count_nothing_whatever_they_hold(implementation, dtype):
    logits, other, ids = inputs(9, 37, dtype)
    ids[[0, 3, 4, 8]] = IGNORED
    assert_as_exact_as_naive(logits, ids, other, ignore=IGNORED)
    logits[3], other[4] = math.nan, math.inf
    *found, gradient = values_and_gradient(selected_logprob, logits, ids, 1.0, True, other, IGNORED)
    for part in (*found, gradient):
        assert not part[ids == IGNORED].any()
        assert part.isfinite().all()


def test_all_rows_may_be_ignored(implementation):
    logits, other, ids = inputs(3, 20)
    found = values_and_gradient(selected_logprob, logits, torch.full_like(ids, IGNORED), 1.0, True, other, IGNORED)
    assert all(not part.any() for part in found)


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_loss_of_one_output_alone_has_its_gradient(implementation, wanted):
    logits, other, ids = inputs(3, 70)
    gradients = []
    for operator in (selected_logprob, selected_logprob_reference):
        leaf = logits.clone().requires_grad_()
        operator(leaf, ids, 0.9, True, other)[wanted].sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, atol=5e-6, rtol=1e-5)


def test_float64_is_kept_and_differentiated_exactly():
    logits, other, ids = inputs(3, 11, torch.float64)
    with using("cpu"):
        assert selected_logprob(logits, ids).logprobs.dtype == torch.float64
        torch.autograd.gradcheck(lambda leaf: selected_logprob(leaf, ids, 0.8, True, other)[:3], logits.requires_grad_())


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 14), st.integers(1, 60), st.booleans(), st.booleans(), st.sampled_from([0.3, 1.0, 2.0]), st.integers(0, 99))
def test_any_shape_on_the_cpu(rows, vocabulary, entropy, second, temperature, seed):
    logits, other, ids = inputs(rows, vocabulary, seed=seed)
    with using("cpu"):
        assert_as_exact_as_naive(logits, ids, other if second else None, temperature, entropy)


@pytest.mark.parametrize("entropy", [False, True])
def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it(implementation, entropy):
    logits, other, ids = inputs(11, 83, torch.bfloat16)
    logits[4] *= 40  # its sum needs the shift, its neighbours' do not
    second = other if entropy else None
    factors = torch.linspace(-1.0, 2.0, 11)

    def run(rows):
        leaf = logits[rows].clone().requires_grad_()
        found = selected_logprob(leaf, ids[rows], 1.0, entropy, None if second is None else second[rows])
        sum((part * factors[rows]).sum() for part in found[:3] if part is not None).backward()
        return [*(part.detach() for part in found if part is not None), leaf.grad]

    whole = run(list(range(11)))
    for rows in ([4], [10, 4, 0, 5, 5]):
        assert all(torch.equal(part, beside[rows]) for part, beside in zip(run(rows), whole, strict=True))


@pytest.mark.parametrize("vocabulary", [cpu._ALONE - 1, cpu._ALONE + 9])
def test_long_rows_too_whatever_the_number_of_threads_is_fixed_to(vocabulary, monkeypatch):
    monkeypatch.setattr(cpu, "_TILE", 1 << 17)
    logits, other, ids = inputs(5, vocabulary)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with using("cpu"):
                whole = selected_logprob(logits, ids, 1.0, True, other)
                alone = selected_logprob(logits[3:4], ids[3:4], 1.0, True, other[3:4])
            assert all(torch.equal(one[0], many[3]) for one, many in zip(alone, whole, strict=True))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused_by_row(implementation, bad):
    logits, _, ids = inputs(4, 41)
    for entropy in (False, True):
        broken = logits.clone()
        broken[2, 40] = bad
        with pytest.raises(ValueError, match=r"^logits: row 2 holds NaN"):
            selected_logprob(broken, ids, 1.0, entropy)
        with pytest.raises(ValueError, match=r"^other_logits: row 2 holds NaN"):
            selected_logprob(logits, ids, 1.0, entropy, broken)


def test_a_row_with_no_token_left_is_refused(implementation):
    logits, _, ids = inputs(3, 41)
    logits[1] = -math.inf
    with pytest.raises(ValueError, match="logits: row 1"):
        selected_logprob(logits, ids)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"logits": torch.ones(3)}, "logits: has shape"),
        ({"logits": torch.ones(3, 5, dtype=torch.int64)}, "logits: is torch.int64"),
        ({"logits": torch.ones(3, 0)}, "logits: has an empty vocabulary"),
        ({"ids": torch.tensor([0, 1])}, r"ids: has shape \(2,\); pass \(3\)"),
        ({"ids": torch.tensor([0, 1, 5])}, r"ids: holds 5; pass ids in \[0, 5\)"),
        ({"ids": torch.tensor([0, -100, 1])}, "ids: holds -100"),
        ({"temperature": 0.0}, "temperature: is 0.0; pass a positive number"),
        ({"temperature": math.nan}, "temperature: is nan"),
        ({"other_logits": torch.ones(3, 6)}, "other_logits: has shape"),
        ({"other_logits": torch.ones(3, 5, device="meta")}, "other_logits: is on meta"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(changed, words):
    arguments = {"logits": torch.ones(3, 5), "ids": torch.tensor([0, 1, 2])} | changed
    with pytest.raises(ValueError, match=f"^{words}"):
        selected_logprob(**arguments)


def test_logits_that_are_a_part_of_others_are_fine(implementation):
    logits, _, ids = inputs(6, 40)
    part = logits.t().contiguous().t()[:, 5:30]
    ids = ids % 25
    torch.testing.assert_close(selected_logprob(part, ids), selected_logprob_reference(part, ids))
    torch.testing.assert_close(
        values_and_gradient(selected_logprob, part, ids), values_and_gradient(selected_logprob_reference, part, ids), atol=1e-6, rtol=1e-5
    )


def test_ids_that_are_a_column_of_others_are_fine(implementation):
    logits, ids = torch.randn(6, 37), torch.randint(37, (6, 3))
    assert torch.equal(selected_logprob(logits, ids[:, 1]).logprobs, selected_logprob(logits, ids[:, 1].clone()).logprobs)
    at_ids = torch.autograd.grad(selected_logprob(logits.requires_grad_(), ids[:, 1]).logprobs.sum(), logits)[0]
    assert torch.equal(at_ids.argmax(1), ids[:, 1])
