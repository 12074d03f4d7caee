"""The fused loss against the same in plain torch at float64, by autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as search
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gradbus_kernels.operators import (
    PolicySettings,
    PolicyTokens,
    Softcapped,
    linear_grpo_loss,
    linear_grpo_loss_reference,
    linear_logprob,
    linear_logprob_reference,
    provenance,
)
from gradbus_kernels.operators.base.attached import Attached

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
FACTOR = 2.0
TEMPERATURE = 0.8


@pytest.fixture(autouse=True)
def small_tiles(small_head_tiles):
    """Several tiles in every direction, none of them full."""


def inputs(count, dtype=torch.float64, seed=0, width=5, vocabulary=17):
    """Hidden states, head, ids, and tokens of which a fifth is not used and holds NaN."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    hidden, weight = draw(count, width).to(dtype), draw(vocabulary, width).to(dtype)
    ids = torch.randint(vocabulary, (count,), generator=generator)
    logprobs = linear_logprob_reference(hidden.double(), weight.double(), ids, temperature=TEMPERATURE).logprobs
    used = torch.rand(count, generator=generator) < 0.8
    weights = torch.where(used, draw(count).abs() + 0.1, 0.0)
    share = torch.where(used, 1.0 / max(1, int(used.sum())), 0.0).double()
    known = [torch.where(used, part, torch.nan) for part in (logprobs + 0.3 * draw(count), draw(count), logprobs + 0.3 * draw(count))]
    behaviour, advantages, reference = known
    imitated = torch.where(torch.arange(count) % 2 == 0, share, 0.0)
    return hidden, weight, ids, PolicyTokens(behaviour, advantages, weights, share, reference, torch.arange(count) // 3, None, imitated)


def test_a_backward_pass_reads_nothing_back_from_its_device():
    """On torch's `meta` device nothing can be read back, so a read raises."""
    hidden, weight = (torch.empty(3, 2, device="meta", requires_grad=True) for _ in range(2))
    total = torch.empty((), device="meta")
    attached = Attached.apply(hidden, weight, total, [torch.empty_like(hidden), torch.empty_like(weight)])
    attached.backward()
    assert hidden.grad.shape == weight.grad.shape == (3, 2)


def loss_and_gradients(operator, hidden, weight, ids, tokens, settings, temperature=TEMPERATURE):
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = operator(hidden, weight, ids, tokens, settings, temperature=temperature)
    (2.0 * loss.total).backward()
    return loss.total.detach(), loss.policy, loss.kl, loss.entropy, hidden.grad, weight.grad


@search(deadline=None, max_examples=60)
@given(st.integers(0, 24), st.integers(0, 99), st.data())
def test_float64_agrees_for_all_settings(any_settings, count, seed, data):
    *others, tokens = inputs(count, seed=seed)
    settings, proximal = data.draw(any_settings), data.draw(st.sampled_from([None, tokens.reference_logprobs + 0.1]))
    given_inputs = [*others, replace(tokens, proximal_logprobs=proximal)]
    found = [loss_and_gradients(operator, *given_inputs, settings) for operator in (linear_grpo_loss, linear_grpo_loss_reference)]
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("temperature", [TEMPERATURE, Softcapped(TEMPERATURE, 2.0)], ids=["plain", "softcap"])
@pytest.mark.parametrize(
    "settings",
    [PolicySettings(), PolicySettings(importance="decoupled", kl=0.1, entropy=0.02), PolicySettings(ratio="sequence")],
    ids=["clip", "decoupled-kl-entropy", "sequence"],
)
def test_loss_and_gradients_are_as_exact_as_plain_torchs(implementation, dtype, settings, temperature):
    hidden, weight, *others = inputs(9, dtype)
    exact = loss_and_gradients(linear_grpo_loss_reference, hidden.double(), weight.double(), *others, settings, temperature)
    plain = loss_and_gradients(linear_grpo_loss_reference, hidden, weight, *others, settings, temperature)
    ours = loss_and_gradients(linear_grpo_loss, hidden, weight, *others, settings, temperature)
    for value, naive, right in zip(ours, plain, exact, strict=True):
        error, allowed = (value.double() - right).abs().amax(), (naive.double() - right).abs().amax()
        assert error <= FACTOR * allowed + TOLERANCE[dtype] * (1.0 + right.abs().amax())
    assert provenance()["linear_grpo_loss"].implementation == implementation


def test_the_gradient_is_that_of_finite_differences():
    hidden, weight, ids, tokens = inputs(7)
    settings = PolicySettings(low=0.9, high=9.0, kl=0.1, drift=0.1, nll=0.1, entropy=0.02)  # nothing is clipped: a kink has no derivative
    *_, grad_hidden, grad_weight = loss_and_gradients(linear_grpo_loss, hidden, weight, ids, tokens, settings)
    step, direction = 1e-6, [torch.randn_like(tensor) for tensor in (hidden, weight)]

    def moved(by):
        parts = (tensor + by * towards for tensor, towards in zip((hidden, weight), direction, strict=True))
        return 2.0 * linear_grpo_loss(*parts, ids, tokens, settings, temperature=TEMPERATURE).total

    slope = (moved(step) - moved(-step)) / (2.0 * step)
    torch.testing.assert_close((grad_hidden * direction[0]).sum() + (grad_weight * direction[1]).sum(), slope, rtol=1e-6, atol=1e-8)


def test_tokens_without_weight_cost_nothing_and_may_be_anything(implementation):
    hidden, weight, ids, tokens = inputs(9, torch.float32)
    unused = ~tokens.used
    assert unused.any()
    spoilt = (torch.where(unused[:, None], torch.nan, hidden), weight, torch.where(unused, -100, ids), tokens)
    clean = loss_and_gradients(linear_grpo_loss, hidden, weight, ids, tokens, PolicySettings(kl=0.1))
    dirty = loss_and_gradients(linear_grpo_loss, *spoilt, PolicySettings(kl=0.1))
    assert all(torch.equal(*pair) for pair in zip(clean, dirty, strict=True))
    loss = linear_grpo_loss(*spoilt, PolicySettings())
    assert (loss.logprobs[unused].tolist(), loss.ratios[unused].tolist()) == ([0.0] * int(unused.sum()), [1.0] * int(unused.sum()))
    torch.testing.assert_close(loss.logprobs[tokens.used], linear_logprob(hidden, weight, ids).logprobs[tokens.used])


def test_tokens_none_of_which_is_used_have_a_loss_of_zero(implementation):
    hidden, weight, ids, tokens = inputs(4, torch.float32)
    nothing = replace(tokens, weights=torch.zeros(4), entropy_weights=torch.zeros(4))
    total, *_, grad_hidden, grad_weight = loss_and_gradients(linear_grpo_loss, hidden, weight, ids, nothing, PolicySettings())
    assert total == 0.0
    assert not grad_hidden.any()
    assert not grad_weight.any()


@pytest.mark.parametrize("frozen", ["hidden", "weight", "both"])
def test_what_is_frozen_leaves_the_rest_as_it_is(frozen):
    hidden, weight, ids, tokens = inputs(9, torch.float32)
    both = loss_and_gradients(linear_grpo_loss, hidden, weight, ids, tokens, PolicySettings())
    hidden.requires_grad_(frozen == "weight")
    weight.requires_grad_(frozen == "hidden")
    loss = linear_grpo_loss(hidden, weight, ids, tokens, PolicySettings(), temperature=TEMPERATURE)
    torch.testing.assert_close(loss.total.detach(), both[0])
    assert loss.total.requires_grad == (frozen != "both")
    if frozen != "both":
        (2.0 * loss.total).backward()
        assert torch.equal(hidden.grad if frozen == "weight" else weight.grad, both[4 if frozen == "weight" else 5])


def test_the_losses_of_micro_batches_add_up():
    hidden, weight, ids, tokens = inputs(12)
    whole = loss_and_gradients(linear_grpo_loss, hidden, weight, ids, tokens, PolicySettings(kl=0.1))
    parts = [
        loss_and_gradients(linear_grpo_loss, hidden[rows], weight, ids[rows], tokens.at(rows), PolicySettings(kl=0.1))
        for rows in (slice(0, 7), slice(7, 12))
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole[0])
    torch.testing.assert_close(parts[0][5] + parts[1][5], whole[5])


def test_a_second_backward_pass_is_refused():
    hidden, weight, ids, tokens = inputs(3)
    loss = linear_grpo_loss(hidden.requires_grad_(), weight, ids, tokens, PolicySettings())
    loss.total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="given away by its first backward pass; call its operator again"):
        loss.total.backward()


def test_nan_is_reported_by_the_argument_that_holds_it(implementation):
    hidden, weight, ids, tokens = inputs(4, torch.float32)
    poisoned = replace(tokens, advantages=torch.full((4,), torch.nan))
    with pytest.raises(ValueError, match=r"tokens\.advantages: row 0 holds NaN"):
        linear_grpo_loss(hidden, weight, ids, poisoned, PolicySettings())
    with pytest.raises(ValueError, match=r"hidden · weightᵀ: row 0 holds NaN"):
        linear_grpo_loss(hidden * torch.nan, weight, ids, tokens, PolicySettings())
    assert linear_grpo_loss(hidden, weight, ids, poisoned, PolicySettings(allow_nan=True)).total.isnan()


def test_what_does_not_fit_is_refused_under_its_name():
    hidden, weight, ids, tokens = inputs(4)
    for changed, words in (
        ((hidden, weight[:, 1:], ids, tokens), "weight: has shape"),
        ((hidden, weight, ids + 99, tokens), "ids: holds"),
        ((hidden, weight, ids, tokens.at(slice(0, 3))), r"tokens\.behaviour_logprobs: has shape"),
        ((hidden, weight, ids, replace(tokens, weights=tokens.weights.int())), r"tokens\.weights: is torch.int32"),
    ):
        with pytest.raises(ValueError, match=words):
            linear_grpo_loss(*changed, PolicySettings())


class _Largest(TorchDispatchMode):
    """Notes the most elements of any tensor that an operation makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


@pytest.mark.parametrize("settings", [{}, {"ratio": "sequence"}, {"sequence_mask": (0.9, 1.1)}], ids=["token", "sequence", "mask"])
@pytest.mark.parametrize("group", [4, 16, 64])
def test_no_tensor_made_on_the_way_grows_with_group_times_vocabulary(settings, group):
    hidden, weight, ids, tokens = inputs(group * 6, torch.float32)
    rows = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    with _Largest() as largest:
        linear_grpo_loss(*rows, ids, tokens, PolicySettings(kl=0.1, entropy=0.01, **settings)).total.backward()
    tile = 5 * weight.shape[0]
    assert largest.elements <= max(5 * len(ids), hidden.numel(), weight.numel(), 4 * tile)
    assert largest.elements < ids.numel() * len(weight)
