"""The loss of KTO: the paper's formula in plain numbers, TRL's trainer, and what does not change it."""

import math
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import trl
from torch.nn.functional import pad

from gradbus_kernels.operators import KtoSettings, PairTokens, kto_loss

LENGTHS = [(5, 3), (1, 7), (4, 4), (2, 6), (3, 1)]
LABELS = torch.tensor([True, False, False, True, True])
SETTINGS = KtoSettings(0.3, desirable_weight=1.4, undesirable_weight=0.7)
PROMPT, VOCABULARY = 3, 11
SEEDS = (0, 2)


def parts(values, tokens):
    """Sums over the trained tokens of each sequence, in plain numbers."""
    rows = zip(values.tolist(), tokens.sequences.tolist(), tokens.trained.tolist(), strict=True)
    found = [0.0] * (2 * tokens.pairs)
    for value, sequence, trained in rows:
        found[sequence] += value if trained else 0.0
    return found


def plain(logprobs, tokens, labels, settings):
    """Loss, z, and the derivative by each response's log-probability."""
    ratios = [now - base for now, base in zip(parts(logprobs, tokens), parts(tokens.reference_logprobs, tokens), strict=True)]
    z = max(0.0, sum(ratios[1::2]) / tokens.pairs)
    total, slopes = 0.0, []
    for ratio, desirable in zip(ratios[::2], labels.tolist(), strict=True):
        sign, weight = (1.0, settings.desirable_weight) if desirable else (-1.0, settings.undesirable_weight)
        value = 1.0 / (1.0 + math.exp(-sign * settings.beta * (ratio - z)))
        total += weight * (1.0 - value) / tokens.pairs
        slopes.append(-sign * settings.beta * weight * value * (1.0 - value) / tokens.pairs)
    return total, z, slopes


@pytest.mark.parametrize("shift", [0.0, 1.0, -2.0], ids=["mixed", "far", "nearer than the reference"])
def test_it_is_the_papers_formula(make_pairs, shift):
    logprobs, tokens = make_pairs(LENGTHS)
    logprobs = (logprobs + shift).requires_grad_()
    found = kto_loss(logprobs, tokens, LABELS, SETTINGS)
    total, z, slopes = plain(logprobs, tokens, LABELS, SETTINGS)
    assert (found.total.item(), found.kl.item()) == (pytest.approx(total, rel=1e-12), pytest.approx(z, abs=1e-12))
    assert (z == 0.0) == (shift < 0.0)
    found.total.backward()
    expected = torch.tensor([slope for slope in slopes for slope in (slope, 0.0)], dtype=torch.float64)[tokens.sequences]
    torch.testing.assert_close(logprobs.grad, torch.where(tokens.trained, expected, 0.0), rtol=1e-11, atol=1e-16)


def test_a_policy_that_equals_its_reference_loses_one_half(make_pairs):
    logprobs, tokens = make_pairs(LENGTHS)
    tokens = PairTokens(tokens.sequences, tokens.trained, tokens.pairs, logprobs)
    found = kto_loss(logprobs, tokens, LABELS, KtoSettings())
    assert (found.total.item(), found.kl.item(), found.desirable.item(), found.undesirable.item()) == (0.5, 0.0, 0.0, 0.0)


def test_a_mean_of_no_response_is_no_number_and_leaves_the_loss_alone(make_pairs):
    logprobs, tokens = make_pairs(LENGTHS)
    found = kto_loss(logprobs, tokens, torch.ones(5, dtype=torch.bool), SETTINGS)
    assert found.undesirable.isnan()
    assert found.total.isfinite()
    assert found.desirable.isfinite()


def test_what_is_far_away_is_finite_and_keeps_its_gradient():
    logprobs = torch.tensor([-4000.0, -1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    tokens = PairTokens(torch.arange(2), torch.ones(2, dtype=torch.bool), 1, reference)
    found = kto_loss(logprobs, tokens, torch.tensor([False]), KtoSettings())
    assert 0.0 < found.total.item() < 1e-170
    found.total.backward()
    assert logprobs.grad[0].item() == pytest.approx(0.1 * found.total.item(), rel=1e-12)


def test_what_does_not_fit_is_named(make_pairs):
    logprobs, tokens = make_pairs(LENGTHS)
    with pytest.raises(ValueError, match=r"desirable: is torch\.bool"):
        kto_loss(logprobs, tokens, LABELS[:4], SETTINGS)
    with pytest.raises(ValueError, match="whole update"):
        kto_loss(logprobs, PairTokens(tokens.sequences, tokens.trained, 9, tokens.reference_logprobs), LABELS, SETTINGS)
    with pytest.raises(ValueError, match="reference_logprobs: are missing"):
        kto_loss(logprobs, PairTokens(tokens.sequences, tokens.trained, 5), LABELS, SETTINGS)
    with pytest.raises(ValueError, match="desirable_weight"):
        KtoSettings(desirable_weight=-1.0)
    with pytest.raises(ValueError, match="beta"):
        KtoSettings(beta=0.0)


def drawn(counts, seed):
    """Ids of responses, padded after their prompt, their mask, and logits of every place."""
    generator = torch.Generator().manual_seed(seed)
    width = PROMPT + max(counts)
    responses = [torch.randint(VOCABULARY, (count,), generator=generator) for count in counts]
    ids = torch.stack([pad(part, (PROMPT, width - PROMPT - len(part))) for part in responses])
    mask = torch.stack([pad(torch.ones_like(part), (PROMPT, width - PROMPT - len(part))) for part in responses])
    return ids, mask, torch.randn(len(counts), width, VOCABULARY, generator=generator, dtype=torch.float64)


def table(ids, mask, logits):
    """Log-probabilities of all tokens but the first, 0 where the mask is: what TRL's models give."""
    return logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0] * mask[:, 1:]


def trls(own, mismatched, references, labels, settings):
    """Loss and metrics of KTOTrainer, whose model is asked about the mismatched responses first."""
    tables = iter([table(*mismatched), table(*own)])

    def model(**_):
        logprobs = next(tables)
        return SimpleNamespace(log_probs=logprobs, entropy=torch.zeros_like(logprobs), mean_logits=torch.zeros_like(logprobs))

    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(device="cpu", gather_for_metrics=lambda part: part),
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        calculate_KL=True,
        loss_type="kto",
        beta=settings.beta,
        desirable_weight=settings.desirable_weight,
        undesirable_weight=settings.undesirable_weight,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    trainer._compute_kl_logps = trl.KTOTrainer._compute_kl_logps.__get__(trainer)
    (ids, mask, _), (kl_ids, kl_mask, _) = own, mismatched
    inputs = {"input_ids": ids, "attention_mask": mask, "completion_mask": mask, "label": labels.tolist()}
    inputs |= {"KL_input_ids": kl_ids, "KL_attention_mask": kl_mask, "KL_completion_mask": kl_mask}
    inputs |= {"ref_logps": references[0].sum(1), "ref_KL_logps": references[1].sum(1), "label": labels}
    loss = trl.KTOTrainer._compute_loss(trainer, model, inputs, return_outputs=False)
    return loss, {name: values[0] for name, values in trainer._metrics["train"].items() if isinstance(values, list)}


@pytest.mark.parametrize("settings", [KtoSettings(), SETTINGS], ids=["defaults", "weights"])
def test_it_is_the_loss_of_trls_kto_trainer(settings):
    own, mismatched = (drawn([lengths[side] for lengths in LENGTHS], seed) for side, seed in enumerate(SEEDS))
    of_reference = [table(ids, mask, drawn(mask.sum(1).tolist(), 9)[2]) for ids, mask, _ in (own, mismatched)]
    given = [[logits.clone().requires_grad_() for *_, logits in (own, mismatched)] for _ in range(2)]
    theirs, metrics = trls(
        *((ids, mask, of) for (ids, mask, _), of in zip((own, mismatched), given[0], strict=True)), of_reference, LABELS, settings
    )
    logprobs = [table(ids, mask, of) for (ids, mask, _), of in zip((own, mismatched), given[1], strict=True)]

    def packed(tables):
        """Response and mismatched response of each row in turn."""
        rows = [(side, row) for row in range(len(LENGTHS)) for side in (0, 1)]
        return torch.cat([tables[side][row, PROMPT - 1 : PROMPT - 1 + LENGTHS[row][side]] for side, row in rows])

    counts = torch.tensor(LENGTHS).flatten()
    sequences = torch.arange(len(counts)).repeat_interleave(counts)
    tokens = PairTokens(sequences, torch.ones_like(sequences, dtype=torch.bool), len(LENGTHS), packed(of_reference))
    mine = kto_loss(packed(logprobs), tokens, LABELS, settings)
    assert mine.total.item() == pytest.approx(theirs.item(), rel=1e-12)
    assert mine.kl.item() == pytest.approx(metrics["kl"], rel=1e-12)
    assert metrics["kl"] > 0.0
    assert settings.beta * mine.desirable.item() == pytest.approx(metrics["rewards/chosen"], rel=1e-12)
    assert settings.beta * mine.undesirable.item() == pytest.approx(metrics["rewards/rejected"], rel=1e-12)
    mine.total.backward()
    theirs.backward()
    torch.testing.assert_close(given[1][0].grad, given[0][0].grad, rtol=1e-10, atol=1e-14)
    assert given[0][0].grad.abs().max() > 1e-3
    assert given[0][1].grad is None
    assert not given[1][1].grad.any()
