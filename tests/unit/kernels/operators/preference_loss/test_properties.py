"""What holds for every loss, whatever the pairs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as search
from hypothesis import strategies as st

from gradbus_kernels.operators import PairTokens, PreferenceSettings, preference_loss


def rows_of(tokens, pairs):
    """The places of these pairs' tokens, in the order of `pairs`, and the sequences numbered anew."""
    places = [(tokens.sequences == sequence).nonzero().flatten() for pair in pairs for sequence in (2 * pair, 2 * pair + 1)]
    return torch.cat(places), torch.cat([torch.full_like(part, number) for number, part in enumerate(places)])


def at(tokens, rows, sequences):
    """The tokens at `rows`, as tokens of these sequences."""
    return PairTokens(sequences, tokens.trained[rows], tokens.pairs, tokens.reference_logprobs[rows])


def part_of(logprobs, tokens, pairs):
    rows, sequences = rows_of(tokens, pairs)
    return logprobs[rows], at(tokens, rows, sequences)


def gradient_of(loss, logprobs):
    return torch.autograd.grad(loss.total, logprobs)[0]


def close(found, expected):
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-11, atol=1e-13)


@search(deadline=None, max_examples=60)
@given(st.data())
def test_the_losses_of_micro_batches_add_up_to_the_updates(any_pairs, any_preference, data):
    logprobs, tokens, lengths = data.draw(any_pairs)
    settings, order = data.draw(any_preference), data.draw(st.permutations(range(len(lengths))))
    cut = data.draw(st.integers(1, len(lengths)))
    logprobs.requires_grad_()
    whole = preference_loss(logprobs, tokens, settings)
    parts = [preference_loss(*part_of(logprobs, tokens, pairs), settings) for pairs in (order[:cut], order[cut:]) if pairs]
    close([sum(part) for part in zip(*parts, strict=True)], list(whole))
    shares = sum(gradient_of(part, logprobs) for part in parts)
    torch.testing.assert_close(shares, gradient_of(whole, logprobs), rtol=1e-11, atol=1e-13)


@search(deadline=None, max_examples=60)
@given(st.data())
def test_a_pair_that_is_swapped_has_the_negative_margin(any_pairs, any_preference, data):
    logprobs, tokens, _ = data.draw(any_pairs)
    settings = data.draw(any_preference)
    rows = torch.argsort(tokens.sequences ^ 1, stable=True)
    swapped = at(tokens, rows, tokens.sequences[rows] ^ 1)
    loss, other = preference_loss(logprobs, tokens, settings), preference_loss(logprobs[rows], swapped, settings)
    close([-other.margin, 1.0 - other.accuracy], [loss.margin, loss.accuracy])
    assert (other.chosen_logprob, other.rejected_logprob) == (loss.rejected_logprob, loss.chosen_logprob)


@search(deadline=None, max_examples=60)
@given(st.data())
def test_tokens_that_are_not_trained_may_be_anything_or_missing(any_pairs, any_preference, data):
    logprobs, tokens, _ = data.draw(any_pairs)
    settings, rubbish = data.draw(any_preference), data.draw(st.sampled_from([float("nan"), float("inf"), -float("inf"), 7.0]))
    kept = tokens.trained
    spoilt = torch.where(kept, logprobs, rubbish).requires_grad_()
    clean = logprobs[kept].requires_grad_()
    loss = preference_loss(spoilt, replace(tokens, reference_logprobs=torch.where(kept, tokens.reference_logprobs, rubbish)), settings)
    bare = preference_loss(clean, at(tokens, kept, tokens.sequences[kept]), settings)
    assert [part.item() for part in loss] == [part.item() for part in bare]
    gradient = gradient_of(loss, spoilt)
    assert torch.equal(gradient[kept], gradient_of(bare, clean))
    assert not gradient[~kept].any()


@search(deadline=None, max_examples=60)
@given(st.data())
def test_the_gradient_raises_the_chosen_and_lowers_the_rejected_response(any_pairs, any_preference, data):
    """All but IPO, which pulls a pair back that is beyond its target, and smoothing, which does the same."""
    logprobs, tokens, _ = data.draw(any_pairs)
    settings = replace(data.draw(any_preference), label_smoothing=0.0)
    logprobs.requires_grad_()
    gradient = gradient_of(preference_loss(logprobs, tokens, settings), logprobs)[tokens.trained]
    chosen = tokens.sequences[tokens.trained] % 2 == 0
    if settings.loss != "ipo":
        assert (gradient[chosen] <= 0.0).all()
        assert (gradient[~chosen] >= 0.0).all()


@pytest.mark.parametrize("name", ["simpo", "orpo"])
def test_a_loss_without_a_reference_does_not_read_one(make_pairs, name):
    logprobs, tokens = make_pairs([(3, 2), (2, 2)])
    given_one, none = (replace(tokens, reference_logprobs=part) for part in (tokens.reference_logprobs, None))
    assert preference_loss(logprobs, given_one, PreferenceSettings(name)) == preference_loss(logprobs, none, PreferenceSettings(name))


@pytest.mark.parametrize("poisoned", ["logprobs", "reference"])
def test_nan_of_a_trained_token_is_never_hidden(make_pairs, loss_name, poisoned):
    logprobs, tokens = make_pairs([(3, 2), (2, 2)])
    settings = PreferenceSettings(loss_name)
    first = tokens.trained.nonzero()[0]
    (logprobs if poisoned == "logprobs" else tokens.reference_logprobs)[first] = torch.nan
    assert preference_loss(logprobs, tokens, settings).total.isnan() == (poisoned == "logprobs" or settings.needs_reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_gradient_has_the_inputs_dtype_and_the_scalars_are_float64(make_pairs, loss_name, dtype):
    logprobs, tokens = make_pairs([(9, 4), (3, 8)])
    logprobs, reference = logprobs.to(dtype).requires_grad_(), tokens.reference_logprobs.to(dtype)
    loss = preference_loss(logprobs, replace(tokens, reference_logprobs=reference), PreferenceSettings(loss_name))
    same = logprobs.detach().double().requires_grad_()
    exact = preference_loss(same, replace(tokens, reference_logprobs=reference.double()), PreferenceSettings(loss_name))
    assert {part.dtype for part in loss} == {torch.float64}
    assert [part.item() for part in loss] == [part.item() for part in exact]
    assert torch.equal(gradient_of(loss, logprobs), gradient_of(exact, same).to(dtype))
