"""The losses of TRL's trainers on the same random numbers: value, gradient and statistics, in float64.

A trainer's method gets logits in place of a model's; what it reads of its trainer is in a namespace. Its training loop never runs.
"""

import importlib
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import trl
from torch.nn.functional import pad

from gradbus_kernels.operators import PairTokens, PreferenceSettings, preference_loss

LENGTHS = [(5, 3), (1, 7), (4, 4), (2, 6)]
VOCABULARY, PROMPT = 11, 3
ACCELERATOR = SimpleNamespace(device="cpu", gather=lambda part: part, gather_for_metrics=lambda part: part)


class Double(torch.Tensor):
    """Stays float64 where TRL's ORPO converts to float32."""

    def float(self):
        return self if self.is_floating_point() else self.double()


def drawn(lengths, seed=0):
    """Ids of the responses, chosen ones first as TRL has them, and logits of every place of prompt and response, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    responses = [torch.randint(VOCABULARY, (pair[side],), generator=generator) for side in (0, 1) for pair in lengths]
    width = PROMPT + max(map(len, responses))
    return responses, torch.randn(len(responses), width, VOCABULARY, generator=generator, dtype=torch.float64)


def packed(responses, logits):
    """Our order of the same: log-probabilities of the response tokens, pair by pair, and their sequences."""
    pairs = len(responses) // 2
    order = [row for pair in range(pairs) for row in (pair, pair + pairs)]
    places = [logits[row, PROMPT - 1 : PROMPT - 1 + len(responses[row])] for row in order]
    logprobs = [place.log_softmax(-1).gather(-1, responses[row][:, None])[:, 0] for place, row in zip(places, order, strict=True)]
    sequences = torch.arange(len(order)).repeat_interleave(torch.tensor([len(part) for part in logprobs]))
    return torch.cat(logprobs), sequences


def ours(responses, logits, settings, reference=None):
    logprobs, sequences = packed(responses, logits)
    trained = torch.ones_like(sequences, dtype=torch.bool)
    return preference_loss(logprobs, PairTokens(sequences, trained, len(responses) // 2, reference), settings)


def agree(mine, theirs, mine_at, theirs_at):
    assert mine.item() == pytest.approx(theirs.item(), rel=1e-12)
    mine.backward()
    theirs.backward()
    torch.testing.assert_close(mine_at.grad, theirs_at.grad, rtol=1e-10, atol=1e-14)
    assert mine_at.grad.abs().max() > 1e-3


def trls_dpo(responses, logits, reference, settings):
    """Loss and metrics of DPOTrainer, whose model gives log-probabilities; prompt and padding have 0 there."""
    width = logits.shape[1]
    ids = torch.stack([pad(part, (PROMPT, width - PROMPT - len(part))) for part in responses])
    mask = torch.stack([pad(torch.ones_like(part), (PROMPT, width - PROMPT - len(part))) for part in responses])
    tables = [table[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0] * mask[:, 1:] for table in (logits, reference)]
    zeros = torch.zeros_like(tables[0])
    model = lambda **_: SimpleNamespace(log_probs=tables[0], entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())  # noqa: E731
    ref_chosen, ref_rejected = tables[1].sum(1).chunk(2)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=ACCELERATOR,
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=[{"dpo": "sigmoid", "ipo": "ipo"}[settings.loss]],
        loss_weights=[1.0],
        beta=settings.beta,
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {"input_ids": ids, "attention_mask": mask, "completion_mask": mask}
    inputs |= {"ref_chosen_logps": ref_chosen, "ref_rejected_logps": ref_rejected}
    loss = trl.DPOTrainer._compute_loss(trainer, model, inputs, return_outputs=False)
    return loss, {name: values[0] for name, values in trainer._metrics["train"].items() if isinstance(values, list)}


@pytest.mark.parametrize("settings", [PreferenceSettings("dpo", 0.3), PreferenceSettings("ipo", 0.3)], ids=["dpo", "ipo"])
def test_dpo_and_ipo_are_those_of_trls_dpo_trainer(settings):
    responses, logits = drawn(LENGTHS)
    _, reference = drawn(LENGTHS, 1)
    mine_at, theirs_at = (logits.clone().requires_grad_() for _ in range(2))
    theirs, metrics = trls_dpo(responses, theirs_at, reference, settings)
    mine = ours(responses, mine_at, settings, packed(responses, reference)[0])
    agree(mine.total, theirs, mine_at, theirs_at)
    assert mine.chosen_logprob.item() == pytest.approx(metrics["logps/chosen"], rel=1e-12)
    assert mine.rejected_logprob.item() == pytest.approx(metrics["logps/rejected"], rel=1e-12)
    if settings.loss == "dpo":  # TRL shows rewards of sums for IPO too, though its loss compares means
        assert mine.margin.item() == pytest.approx(metrics["rewards/margins"], rel=1e-12)
        assert mine.accuracy.item() == metrics["rewards/accuracies"]


def test_conservative_dpo_is_cpos_smoothed_loss_of_the_log_ratios():
    """TRL's DPOTrainer has no smoothing for its sigmoid loss; its CPOTrainer has, of any two scores."""
    responses, logits = drawn(LENGTHS)
    _, reference = drawn(LENGTHS, 1)
    settings = PreferenceSettings("dpo", 0.3, label_smoothing=0.15)
    mine_at, theirs_at = (logits.clone().requires_grad_() for _ in range(2))
    of_reference, sequences = packed(responses, reference)
    ratios = torch.zeros(len(responses), dtype=torch.float64).index_add(0, sequences, packed(responses, theirs_at)[0] - of_reference)
    trainer = SimpleNamespace(alpha=0.0, accelerator=ACCELERATOR, beta=0.3, label_smoothing=0.15, loss_type="sigmoid")
    losses, *_ = experimental("cpo").cpo_loss(trainer, ratios[::2], ratios[1::2])
    agree(ours(responses, mine_at, settings, of_reference).total, losses.mean(), mine_at, theirs_at)


def experimental(name):
    """TRL's CPOTrainer or ORPOTrainer."""
    return getattr(importlib.import_module(f"trl.experimental.{name}"), f"{name.upper()}Trainer")


def without_reference(kind, responses, logits, settings):
    """Loss and metrics of CPOTrainer or ORPOTrainer. Their NLL is over the prompt too, so its one token here is none's target."""
    pairs = len(responses) // 2
    batch = {}
    for name, parts in (("chosen", responses[:pairs]), ("rejected", responses[pairs:])):
        width = 1 + max(map(len, parts))
        filled = {"input_ids": (0, 0), "attention_mask": (1, 0), "labels": (-100, -100)}
        for column, (prompt, padding) in filled.items():
            rows = [torch.ones_like(part) if column == "attention_mask" else part for part in parts]
            rows = [pad(pad(part, (1, 0), value=prompt), (0, width - 1 - len(part)), value=padding) for part in rows]
            batch[f"{name}_{column}"] = torch.stack(rows)
    trainer = SimpleNamespace(
        accelerator=ACCELERATOR,
        is_encoder_decoder=False,
        aux_loss_enabled=False,
        pad_token_id=0,
        padding_value=0,
        beta=settings.beta,
        alpha=0.0,
        label_smoothing=0.0,
        cpo_alpha=0.0,
        loss_type="simpo",
        simpo_gamma=settings.margin,
        concatenated_inputs=kind.concatenated_inputs,
        get_batch_logps=kind.get_batch_logps,
    )
    for name in ("concatenated_forward", "cpo_loss", "odds_ratio_loss"):
        if hasattr(kind, name):
            setattr(trainer, name, getattr(kind, name).__get__(trainer))
    model = lambda *_, **__: SimpleNamespace(logits=logits[:, PROMPT - 1 :].as_subclass(Double))  # noqa: E731
    return kind.get_batch_loss_metrics(trainer, model, batch)


@pytest.mark.parametrize(
    ("kind", "settings", "lengths"),
    [
        ("cpo", PreferenceSettings("simpo", 2.0, 0.8), LENGTHS),
        ("cpo", PreferenceSettings("simpo", 0.3, 0.0), LENGTHS),
        ("orpo", PreferenceSettings("orpo", 0.4), [(4, 3), (4, 7), (4, 1)]),
        ("orpo", PreferenceSettings("orpo", 1.5), [(3, 5)]),
    ],
    ids=["simpo", "simpo-without-margin", "orpo", "orpo-one-pair"],
)
def test_simpo_and_orpo_are_those_of_trls_trainers(kind, settings, lengths):
    """ORPO with chosen responses of one length."""
    responses, logits = drawn(lengths)
    mine_at, theirs_at = (logits.clone().requires_grad_() for _ in range(2))
    theirs, metrics = without_reference(experimental(kind), responses, theirs_at, settings)
    mine = ours(responses, mine_at, settings)
    agree(mine.total, theirs, mine_at, theirs_at)
    assert mine.margin.item() == pytest.approx(metrics["rewards/margins"], rel=1e-12)
    assert mine.accuracy.item() == metrics["rewards/accuracies"]


def test_orpo_weighs_pairs_equally_where_trl_weighs_tokens():
    """With chosen responses of several lengths the NLL is all that differs: TRL's is the mean over the tokens of the batch."""
    responses, logits = drawn(LENGTHS)
    settings = PreferenceSettings("orpo", 0.4)
    theirs, metrics = without_reference(experimental("orpo"), responses, logits, settings)
    logprobs, sequences = packed(responses, logits)
    by_chosen = [logprobs[sequences == row] for row in range(0, len(responses), 2)]
    by_pair = -torch.stack([part.mean() for part in by_chosen]).mean()
    assert metrics["nll_loss"] == pytest.approx(-torch.cat(by_chosen).mean().item(), rel=1e-12)
    assert metrics["nll_loss"] != pytest.approx(by_pair.item(), rel=1e-3)
    expected = theirs.item() - metrics["nll_loss"] + by_pair.item()
    assert ours(responses, logits, settings).total.item() == pytest.approx(expected, rel=1e-12)
