"""The KL to a teacher's rows: a float64 loop, TRL's divergence where a row is whole, finite differences, and what changes nothing."""

import math

import pytest
import torch

from gradbus_kernels.operators import (
    Softcapped,
    TeacherRows,
    linear_distillation_loss,
    linear_distillation_loss_reference,
    linear_teacher_rows,
)
from gradbus_kernels.operators.distillation_loss import api, tiles

VOCABULARY, WIDTH, POSITIONS = 13, 6, 9


def made(dtype=torch.float64, positions=POSITIONS, seed=0):
    """Hidden states, head, sampled ids and weights of a policy; hidden states and head of a teacher."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    hidden, weight = normal(positions, WIDTH).requires_grad_(), normal(VOCABULARY, WIDTH).requires_grad_()
    ids = torch.randint(VOCABULARY, (positions,), generator=generator)
    weights = torch.rand(positions, generator=generator, dtype=torch.float64)
    return hidden, weight, ids, weights.to(dtype), normal(positions, WIDTH + 2), normal(VOCABULARY, WIDTH + 2)


def taught(count, dtype=torch.float64, temperature=1.0, seed=0):
    hidden, weight, ids, weights, of_teacher, head = made(dtype, seed=seed)
    return hidden, weight, ids, linear_teacher_rows(of_teacher, head, ids, count, temperature=temperature).rows, weights


def gradients(loss, *inputs):
    return torch.autograd.grad(loss.total, inputs)


def loop(logits, row_ids, row_logprobs):
    """The KL of one position, by outcome: each token of the row, then all others."""
    top = max(logits)
    total = sum(math.exp(z - top) for z in logits)
    policy = [math.exp(z - top) / total for z in logits]
    outcomes = [policy[token] for token in row_ids] + [sum(p for token, p in enumerate(policy) if token not in row_ids)]
    return sum(q * (math.log(q) - t) for q, t in zip(outcomes, row_logprobs, strict=True))


@pytest.mark.parametrize("count", [1, 4, VOCABULARY - 1])
@pytest.mark.parametrize("temperature", [1.0, 0.7, Softcapped(0.7, 2.0)])
def test_it_is_the_sum_over_outcomes_of_a_loop(count, temperature):
    hidden, weight, ids, taught_rows, weights = taught(count, temperature=temperature)
    loss = linear_distillation_loss(hidden, weight, ids, taught_rows, weights, temperature=temperature)
    scale, cap = Softcapped.of(temperature)
    expected = 0.0
    for n in range(POSITIONS):
        raw = (weight @ hidden[n]).tolist()
        logits = [(z if cap is None else cap * math.tanh(z / cap)) / scale for z in raw]
        expected += weights[n].item() * loop(logits, taught_rows.ids[n].tolist(), taught_rows.logprobs[n].tolist())
        own = logits[ids[n]] - math.log(sum(map(math.exp, logits)))
        assert loss.logprobs[n].item() == pytest.approx(own, rel=1e-12)
    assert loss.total.item() == pytest.approx(expected, rel=1e-12)
    plain = linear_distillation_loss_reference(hidden, weight, ids, taught_rows, weights, temperature=temperature)
    torch.testing.assert_close(loss.entropies, plain.entropies)
    for found, other in zip(gradients(loss, hidden, weight), gradients(plain, hidden, weight), strict=True):
        torch.testing.assert_close(found, other, rtol=1e-10, atol=1e-13)


def test_finite_differences_give_the_gradient():
    hidden, weight, ids, taught_rows, weights = taught(4)

    def loss():
        return linear_distillation_loss(hidden, weight, ids, taught_rows, weights, temperature=0.7)

    step = 1e-6
    for inputs, slopes in zip((hidden, weight), gradients(loss(), hidden, weight), strict=True):
        flat = inputs.data.view(-1)
        for at in range(0, len(flat), 7):
            value, around = flat[at].item(), []
            for moved in (value + step, value - step):
                flat[at] = moved
                around.append(loss().total.item())
            flat[at] = value
            assert (around[0] - around[1]) / (2 * step) == pytest.approx(slopes.view(-1)[at].item(), rel=1e-6, abs=1e-9)


def test_with_all_tokens_but_one_it_is_the_reverse_kl_of_trl():
    """A row of V - 1 tokens leaves one as the rest, so that nothing is summed up."""
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    hidden, weight, ids, weights, of_teacher, head = (part.float() if part.is_floating_point() else part for part in made())
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    whole = linear_teacher_rows(of_teacher, head, ids, VOCABULARY - 1, temperature=0.7).rows
    ours = linear_distillation_loss(hidden, weight, ids, whole, weights, temperature=0.7)
    theirs, entropies = ChunkedDivergenceFunction.apply(hidden, weight, None, of_teacher, head, None, 1.0, 0.7, 1.0, None, 1.0, None)
    torch.testing.assert_close(ours.total, (theirs * weights).sum(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.entropies, entropies, rtol=1e-5, atol=1e-6)
    expected = torch.autograd.grad((theirs * weights).sum(), (hidden, weight))
    for found, other in zip(gradients(ours, hidden, weight), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-6)


def test_more_outcomes_see_more_of_the_divergence():
    hidden, weight, ids, weights, of_teacher, head = made()
    found = [
        linear_distillation_loss(hidden, weight, ids, linear_teacher_rows(of_teacher, head, ids, k).rows, weights).total.item()
        for k in (1, 2, 4, 8, VOCABULARY - 1)
    ]
    assert found == sorted(found)
    assert found[0] > 0.0


def test_a_policy_that_is_its_teacher_has_neither_loss_nor_gradient():
    hidden, weight, ids, weights, *_ = made()
    same = linear_teacher_rows(hidden, weight, ids, 4).rows
    loss = linear_distillation_loss(hidden, weight, ids, same, weights)
    assert loss.total.item() == pytest.approx(0.0, abs=1e-14)
    assert all(part.abs().max() < 1e-14 for part in gradients(loss, hidden, weight))


def test_mass_that_leaves_the_row_costs():
    """A policy that takes all mass from the teacher's tokens: without the rest as an outcome, its KL would be 0."""
    weight = torch.eye(3, dtype=torch.float64)
    hidden = torch.tensor([[0.0, 0.0, 50.0]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, dtype=torch.float64)
    row = TeacherRows(torch.tensor([[0, 1]]), torch.tensor([[0.6, 0.39, 0.01]], dtype=torch.float64).log())
    loss = linear_distillation_loss(hidden, weight, torch.tensor([2]), row, one)
    assert loss.total.item() == pytest.approx(math.log(100), rel=1e-9)


@pytest.mark.parametrize("bytes_of_logits", [1, 8 * VOCABULARY * 4, 1 << 20])
def test_tiles_change_nothing(monkeypatch, bytes_of_logits):
    expected = linear_distillation_loss(*(inputs := taught(4)))
    slopes = gradients(expected, *inputs[:2])
    monkeypatch.setattr(tiles, "WORKSPACE", bytes_of_logits)
    again = taught(4)
    torch.testing.assert_close(again[3].logprobs, inputs[3].logprobs)
    found = linear_distillation_loss(*again)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-13, atol=0.0)
    for part, other in zip(gradients(found, *again[:2]), slopes, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-12, atol=1e-14)


def test_parts_add_up_to_the_whole():
    hidden, weight, ids, taught_rows, weights = taught(4)
    whole = linear_distillation_loss(hidden, weight, ids, taught_rows, weights).total
    parts = [
        linear_distillation_loss(hidden[s], weight, ids[s], TeacherRows(*(part[s] for part in taught_rows)), weights[s]).total
        for s in (slice(0, 4), slice(4, POSITIONS))
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-13, atol=0.0)


def test_positions_without_a_weight_may_hold_anything():
    hidden, weight, ids, taught_rows, weights = taught(4)
    kept = weights.clone()
    kept[2] = 0.0
    expected = linear_distillation_loss(hidden, weight, ids, taught_rows, kept)
    slopes = gradients(expected, weight)
    spoiled, wild = hidden.detach().clone(), TeacherRows(taught_rows.ids.clone(), taught_rows.logprobs.clone())
    spoiled[2], wild.ids[2], wild.logprobs[2] = torch.nan, -1, torch.nan
    found = linear_distillation_loss(spoiled.requires_grad_(), weight, ids.index_fill(0, torch.tensor([2]), 99), wild, kept)
    assert found.total == expected.total
    assert (found.logprobs[2], found.entropies[2]) == (0.0, 0.0)
    torch.testing.assert_close(gradients(found, weight), slopes, rtol=0.0, atol=0.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_narrow_inputs_are_near_wide_ones(dtype, tolerance):
    hidden, weight, ids, weights, of_teacher, head = made(dtype)
    weights = weights.float()
    row = linear_teacher_rows(of_teacher, head, ids, 4).rows
    found = linear_distillation_loss(hidden, weight, ids, row, weights)
    wide = [part.detach().double().requires_grad_() for part in (hidden, weight)]
    expected = linear_distillation_loss(*wide, ids, TeacherRows(row.ids, row.logprobs.double()), weights.double())
    assert found.total.dtype == torch.float32
    assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-5)
    for part, other in zip(gradients(found, hidden, weight), gradients(expected, *wide), strict=True):
        assert part.dtype == dtype
        torch.testing.assert_close(part.double(), other, rtol=tolerance, atol=tolerance)


def test_a_teachers_row_has_its_most_likely_tokens_and_the_mass_of_the_others():
    *_, ids, _, of_teacher, head = made()[1:]
    found = linear_teacher_rows(of_teacher, head, ids, 4, temperature=0.7)
    table = (of_teacher @ head.T / 0.7).log_softmax(-1)
    torch.testing.assert_close(found.logprobs, table.gather(1, ids[:, None]).squeeze(1))
    values, tokens = table.topk(4)
    assert torch.equal(found.rows.ids, tokens)
    torch.testing.assert_close(found.rows.logprobs[:, :-1], values)
    torch.testing.assert_close(found.rows.logprobs.exp().sum(1), torch.ones(POSITIONS, dtype=torch.float64))


def test_a_rest_that_float32_cannot_hold_is_the_least_mass():
    head, hidden = torch.eye(3), torch.tensor([[500.0, 0.0, 0.0]])
    found = linear_teacher_rows(hidden, head, torch.tensor([0]), 2)
    assert found.rows.logprobs[0].tolist() == [0.0, api.LEAST_LOGPROB, api.LEAST_LOGPROB]
    loss = linear_distillation_loss(hidden.requires_grad_(), head, torch.tensor([0]), found.rows, torch.ones(1))
    assert loss.total.item() == 0.0
    assert gradients(loss, hidden)[0].isfinite().all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"row_ids": torch.zeros(POSITIONS, VOCABULARY, dtype=torch.int64)}, "rows.ids: has 13 tokens a row"),
        ({"row_ids": torch.full((POSITIONS, 4), VOCABULARY)}, "rows.ids: holds 13"),
        ({"logprobs": torch.zeros(POSITIONS, 4, dtype=torch.float64)}, "rows.logprobs: has shape"),
        ({"weights": torch.zeros(3, dtype=torch.float64)}, "weights: has shape"),
        ({"ids": torch.full((POSITIONS,), -1)}, "ids: holds -1"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change, words):
    hidden, weight, ids, taught_rows, weights = taught(4)
    row = TeacherRows(change.get("row_ids", taught_rows.ids), change.get("logprobs", taught_rows.logprobs))
    with pytest.raises(ValueError, match=words):
        linear_distillation_loss(hidden, weight, change.get("ids", ids), row, change.get("weights", weights))


@pytest.mark.parametrize("count", [0, VOCABULARY])
def test_a_row_has_a_token_and_leaves_one_out(count):
    hidden, weight, ids, *_ = made()
    with pytest.raises(ValueError, match="count: is"):
        linear_teacher_rows(hidden, weight, ids, count)


def test_without_a_gradient_there_is_a_loss():
    hidden, weight, ids, taught_rows, weights = taught(4)
    expected = linear_distillation_loss(hidden, weight, ids, taught_rows, weights).total
    with torch.no_grad():
        assert linear_distillation_loss(hidden, weight, ids, taught_rows, weights).total == expected
