"""Every implementation against float64: its error is at most a small multiple of what plain torch's is in the same dtype."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.operators import (
    PolicySettings,
    PolicyTokens,
    Softcapped,
    linear_grpo_loss,
    linear_logprob,
    linear_logprob_reference,
    provenance,
    using,
)
from gradbus_kernels.operators.linear import product_dtype
from gradbus_kernels.operators.linear_logprob import cpu as linear_logprob_cpu

# Of the largest value. Sums in another order, and two roundings where plain torch has one.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
FACTOR = 2.0


@pytest.fixture(autouse=True)
def small_tiles(small_head_tiles):
    """Several tiles in every direction, none of them full."""


def inputs(tokens, width, vocabulary, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(tokens + 7 * vocabulary)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64) * scale
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    return hidden.to(dtype), weight.to(dtype), torch.randint(vocabulary, (tokens,), generator=generator)


def values_and_gradients(operator, hidden, weight, ids, temperature=1.0, entropy=True):
    """Outputs and the gradients of a weighted sum of them, so that every token's gradient differs."""
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    logprobs, entropies = operator(hidden, weight, ids, temperature=temperature)
    factors = torch.linspace(-1.0, 2.0, len(logprobs), dtype=logprobs.dtype)
    (logprobs.dot(factors) + (entropies.dot(factors.flip(0).sin()) if entropy else 0.0)).backward()
    return logprobs.detach(), entropies.detach(), hidden.grad, weight.grad


def assert_as_good_as_plain_torch(ours, plain, exact, dtype):
    for value, naive, right in zip(ours, plain, exact, strict=True):
        assert value.dtype == naive.dtype
        error, allowed = (value.double() - right).abs().amax(), (naive.double() - right).abs().amax()
        assert error <= FACTOR * allowed + TOLERANCE[dtype] * (1.0 + right.abs().amax())


@pytest.mark.parametrize("entropy", [True, False], ids=["entropy", "no-entropy"])
@pytest.mark.parametrize(("tokens", "width", "vocabulary"), [(1, 3, 20), (8, 9, 41)])
def test_values_and_gradients_are_as_exact_as_plain_torchs(implementation, dtype, tokens, width, vocabulary, entropy):
    hidden, weight, ids = inputs(tokens, width, vocabulary, dtype)
    exact = values_and_gradients(linear_logprob_reference, hidden.double(), weight.double(), ids, 0.8, entropy)
    plain = values_and_gradients(linear_logprob_reference, hidden, weight, ids, 0.8, entropy)
    ours = values_and_gradients(linear_logprob, hidden, weight, ids, 0.8, entropy)
    assert_as_good_as_plain_torch(ours, plain, exact, dtype)
    assert provenance()["linear_logprob"].implementation == implementation


@pytest.mark.parametrize("entropy", [True, False], ids=["entropy", "no-entropy"])
def test_logits_are_bounded_before_the_temperature(implementation, dtype, entropy):
    hidden, weight, ids = inputs(8, 9, 41, dtype)
    given_inputs, scaled = (hidden, weight, ids), Softcapped(0.8, 2.5)
    exact = values_and_gradients(linear_logprob_reference, hidden.double(), weight.double(), ids, scaled, entropy)
    plain = values_and_gradients(linear_logprob_reference, *given_inputs, scaled, entropy)
    assert_as_good_as_plain_torch(values_and_gradients(linear_logprob, *given_inputs, scaled, entropy), plain, exact, dtype)
    table = (2.5 * torch.tanh(hidden.double() @ weight.double().T / 2.5) / 0.8).log_softmax(1)
    torch.testing.assert_close(exact[0], table.gather(1, ids[:, None])[:, 0])


@pytest.mark.parametrize("scale", [1e-4, 30.0])
def test_logits_far_below_and_far_above_their_bound(implementation, scale):
    hidden, weight, ids = inputs(7, 4, 19, torch.float32, scale)
    found = [
        values_and_gradients(operator, hidden.to(wide), weight.to(wide), ids, Softcapped(0.5, 6.0))
        for operator, wide in ((linear_logprob, torch.float32), (linear_logprob_reference, torch.float32))
    ]
    exact = values_and_gradients(linear_logprob_reference, hidden.double(), weight.double(), ids, Softcapped(0.5, 6.0))
    assert_as_good_as_plain_torch(*found, exact, torch.float32)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 12), st.integers(1, 9), st.integers(1, 40), st.sampled_from([0.5, 1.0, 1.7, Softcapped(0.5, 3.0)]), st.booleans())
def test_float64_agrees_for_every_shape(tokens, width, vocabulary, temperature, entropy):
    given_inputs = inputs(tokens, width, vocabulary)
    found = [values_and_gradients(operator, *given_inputs, temperature, entropy) for operator in (linear_logprob, linear_logprob_reference)]
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


def test_the_gradient_is_that_of_finite_differences():
    hidden, weight, ids = inputs(6, 3, 11)
    hidden.requires_grad_()
    weight.requires_grad_()
    for operator in (linear_logprob, linear_logprob_reference):
        for temperature in (0.7, Softcapped(0.7, 2.0)):
            assert torch.autograd.gradcheck(
                lambda h, w, of=operator, by=temperature: tuple(of(h, w, ids, temperature=by)), (hidden, weight)
            )


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_extreme_logits(implementation, dtype, scale):
    hidden, weight, ids = inputs(7, 4, 19, dtype, scale)
    exact = linear_logprob_reference(hidden.double(), weight.double(), ids)
    plain = linear_logprob_reference(hidden, weight, ids)
    if plain.logprobs.isfinite().all():
        assert_as_good_as_plain_torch(linear_logprob(hidden, weight, ids), plain, exact, dtype)


def test_a_masked_token_of_the_vocabulary(implementation):
    hidden, weight = torch.ones(2, 1), torch.tensor([[0.0], [1.0], [-torch.inf]] * 5)
    logprobs, entropies = linear_logprob(hidden, weight, torch.tensor([0, 1]))
    plain = torch.tensor([0.0, 1.0] * 5).log_softmax(0)
    torch.testing.assert_close(logprobs, plain[:2])
    torch.testing.assert_close(entropies, -(plain.exp() * plain).sum().expand(2))


def test_without_entropies_log_probabilities_and_their_gradients_are_the_same(implementation, dtype):
    hidden, weight, ids = inputs(8, 9, 41, dtype)
    found = []
    for entropy in (True, False):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        outcome = linear_logprob(*leaves, ids, temperature=0.8, entropy=entropy)
        assert (outcome.entropies is not None) == entropy
        found.append((outcome.logprobs.detach(), *torch.autograd.grad(outcome.logprobs.sum(), leaves)))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_tokens_masked_in_a_whole_tile_of_the_vocabulary_weigh_nothing(implementation):
    hidden, weight = torch.ones(2, 1), torch.full((41, 1), -torch.inf)
    weight[30:33] = 0.5
    logprobs, entropies = linear_logprob(hidden, weight, torch.tensor([30, 3]))
    torch.testing.assert_close(logprobs, torch.tensor([-torch.tensor(3.0).log(), -torch.inf]))
    torch.testing.assert_close(entropies, torch.tensor(3.0).log().expand(2))


def test_no_tokens_at_all(implementation):
    hidden, weight = torch.ones(0, 3, requires_grad=True), torch.ones(5, 3, requires_grad=True)
    logprobs, entropies = linear_logprob(hidden, weight, torch.empty(0, dtype=torch.int64))
    assert logprobs.shape == entropies.shape == (0,)
    logprobs.sum().backward()
    assert hidden.grad.shape == (0, 3)
    assert torch.equal(weight.grad, torch.zeros(5, 3))


def test_a_certain_token_has_logprob_zero_no_entropy_and_no_gradient(implementation):
    hidden = torch.tensor([[1000.0]], requires_grad=True)
    logprobs, entropies = linear_logprob(hidden, torch.tensor([[1.0], [-1.0]]), torch.tensor([0]))
    logprobs.sum().backward()
    assert (logprobs.item(), entropies.item(), hidden.grad.item()) == (0.0, 0.0, 0.0)


def test_a_nearly_certain_token_keeps_the_precision_of_its_gradient(implementation, dtype):
    """1 - p = 0.0009 would be lost if p were rounded to bfloat16 first."""
    hidden, weight = torch.tensor([[7.0]], dtype=dtype, requires_grad=True), torch.tensor([[1.0], [0.0]], dtype=dtype)
    linear_logprob(hidden, weight, torch.tensor([0])).logprobs.sum().backward()
    assert hidden.grad.item() == pytest.approx(torch.tensor(-7.0).sigmoid().item(), rel=0.01)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen_leaves_the_other_gradient_as_it_is(implementation, frozen):
    hidden, weight, ids = inputs(6, 5, 11, torch.float32)
    both = values_and_gradients(linear_logprob, hidden, weight, ids)[2:]
    trained = weight if frozen == "hidden" else hidden
    trained.requires_grad_()
    logprobs, entropies = linear_logprob(hidden, weight, ids)
    factors = torch.linspace(-1.0, 2.0, 6)
    (logprobs.dot(factors) + entropies.dot(factors.flip(0).sin())).backward()
    assert torch.equal(trained.grad, both[frozen == "hidden"])
    assert (hidden if frozen == "hidden" else weight).grad is None


def test_the_same_call_has_the_same_bits(implementation):
    given_inputs = inputs(6, 9, 41, torch.float32)
    one, other = (values_and_gradients(linear_logprob, *given_inputs) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("workspace", [1, 41 * 8 * 3])
def test_a_vocabulary_that_fills_the_workspace_leaves_fewer_tokens_at_a_time(monkeypatch, workspace):
    given_inputs = inputs(8, 9, 41)
    expected = values_and_gradients(linear_logprob_reference, *given_inputs)
    monkeypatch.setattr(linear_logprob_cpu, "WORKSPACE", workspace)
    for ours, plain in zip(values_and_gradients(linear_logprob, *given_inputs), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_products_are_onednns(monkeypatch, dtype):
    given_inputs = inputs(13, 9, 41, dtype)
    torchs = values_and_gradients(linear_logprob, *given_inputs)
    monkeypatch.setattr(linear_logprob_cpu, "LEAST_ONEDNN", 0)
    for ours, other in zip(values_and_gradients(linear_logprob, *given_inputs), torchs, strict=True):
        torch.testing.assert_close(ours, other)


@pytest.mark.parametrize("native", [True, False])
def test_logits_of_bfloat16_inputs_are_float32(monkeypatch, implementation, native):
    if implementation == "reference":
        pytest.skip("plain torch rounds logits to the inputs' dtype")
    hidden, weight, ids = inputs(13, 9, 41, torch.bfloat16)
    monkeypatch.setattr(product_dtype, "_has_bfloat16", lambda: native)
    exact = linear_logprob_reference(hidden.float(), weight.float(), ids)
    found = linear_logprob(hidden, weight, ids)
    torch.testing.assert_close(found.logprobs, exact.logprobs)
    torch.testing.assert_close(found.entropies, exact.entropies)
    hidden.requires_grad_()
    one = torch.ones(len(ids))
    fused = linear_grpo_loss(hidden, weight, ids, PolicyTokens(exact.logprobs, one, one, one), PolicySettings())
    torch.testing.assert_close(fused.logprobs, exact.logprobs)


HIDDEN, WEIGHT, IDS = torch.ones(2, 3), torch.ones(5, 3), torch.tensor([0, 4])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((HIDDEN[0], WEIGHT, IDS), "hidden: has shape"),
        ((HIDDEN, WEIGHT.T, IDS), r"weight: has shape \(3, 5\); pass \(any, 3\)"),
        ((HIDDEN, WEIGHT.bfloat16(), IDS), "weight: is torch.bfloat16; pass torch.float32 like hidden"),
        ((HIDDEN, WEIGHT[:0], IDS), "weight: has an empty vocabulary"),
        ((HIDDEN, WEIGHT.to("meta"), IDS), "weight: is on meta"),
        ((HIDDEN, WEIGHT, IDS + 1), "ids: holds 5"),
        ((HIDDEN, WEIGHT, IDS.int()), "ids: is torch.int32"),
        ((HIDDEN, WEIGHT, IDS[:1]), "ids: has shape"),
        ((HIDDEN.int(), WEIGHT, IDS), "hidden: is torch.int32"),
        ((HIDDEN * torch.nan, WEIGHT, IDS), "hidden · weightᵀ: row 0 holds NaN"),
    ],
)
def test_what_does_not_fit_is_refused_under_its_name(implementation, arguments, words):
    with pytest.raises(ValueError, match=words):
        linear_logprob(*arguments)


def test_a_temperature_of_zero_and_a_negative_bound_are_refused():
    with pytest.raises(ValueError, match=r"temperature: has softcap -1\.0; pass a positive number, or None for none"):
        linear_logprob(HIDDEN, WEIGHT, IDS, temperature=Softcapped(1.0, -1.0))
    with pytest.raises(ValueError, match="temperature: is 0; pass a positive number"):
        linear_logprob(HIDDEN, WEIGHT, IDS, temperature=0)


def test_nan_comes_through_where_the_caller_looks_for_it_elsewhere(implementation):
    hidden = HIDDEN.clone()
    hidden[1] = torch.nan
    logprobs, _ = linear_logprob(hidden, WEIGHT, IDS, allow_nan=True)
    assert logprobs.isnan().tolist() == [False, True]


def test_float64_has_no_triton():
    with using("triton"), pytest.raises(ValueError, match="linear_logprob has no implementation 'triton'"):
        linear_logprob(HIDDEN.double(), WEIGHT.double(), IDS)
