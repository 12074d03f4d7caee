"""The loss methods of TRL's trainers on the same random numbers: value and gradient, in float64.

A trainer's method gets log-probabilities in place of a model's; what it reads of its trainer is in `trainer`. Its training loop never runs.
TRL holds SAPO's temperatures in float32, so these are sums of powers of two.
"""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import trl

from gradbus_kernels.operators import Curves, PolicySettings, PolicyTokens, policy_loss, token_weights

LENGTHS, LONGEST = (6, 2, 1, 4), 6
MASK = (torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]).double()
ADVANTAGES = torch.tensor([1.0, -0.5, 0.3, -1.2], dtype=torch.float64)


def drawn(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda scale: torch.randn(len(LENGTHS), LONGEST, generator=generator, dtype=torch.float64) * scale


def trainer(logprobs, entropies, **given):
    accelerator = SimpleNamespace(
        num_processes=1, sync_gradients=True, gather=lambda t: t, gather_for_metrics=lambda t: t, reduce=lambda t, reduction: t
    )
    arguments = {"delta": None, "use_bias_correction_kl": False, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    arguments |= {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
    state = {
        "loss_type": "dapo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.0,
        "off_policy_mask_threshold": None,
    }
    assert set(given) <= set(arguments) | set(state)
    return SimpleNamespace(
        **state | {name: value for name, value in given.items() if name in state},
        args=SimpleNamespace(
            **arguments | {name: value for name, value in given.items() if name in arguments},
            steps_per_generation=1,
        ),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, entropies, None),
        get_off_policy_mask=trl.GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=trl.GRPOTrainer.get_gamma_weights,
        top_entropy_quantile=1.0,
        use_vllm=False,
        aux_loss_enabled=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        accelerator=accelerator,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )


def batch(behaviour, reference):
    ids = torch.zeros(len(LENGTHS), LONGEST, dtype=torch.int64)
    return {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": ids,
        "completion_mask": MASK,
        "advantages": ADVANTAGES,
        "old_per_token_logps": behaviour,
        "old_logps": (behaviour * MASK).sum(1),
        "ref_per_token_logps": reference,
        "num_items_in_batch": MASK.sum(),
    }


def compare(kind, aggregate, settings, given, divisor=1):
    draw = drawn(4)
    base = draw(0.5) - 2.0
    behaviour, reference = base + draw(0.4), base + draw(0.3)
    theirs, ours = base.clone().requires_grad_(), base.clone().requires_grad_()
    expected = kind._compute_loss(trainer(theirs, torch.zeros_like(base), **given), None, batch(behaviour, reference)) / divisor
    expected.backward()

    weights = torch.tensor(token_weights(LENGTHS, aggregate, LONGEST), dtype=torch.float64)[:, None] * MASK
    rows = behaviour, ADVANTAGES[:, None].expand_as(MASK), weights, MASK / MASK.sum(), reference
    tokens = PolicyTokens(*(part.flatten() for part in rows), torch.arange(len(LENGTHS)).repeat_interleave(LONGEST))
    entropies = torch.zeros(MASK.numel(), dtype=torch.float64)
    loss = policy_loss(ours.flatten(), entropies, tokens, settings)
    loss.total.backward()
    if settings.dual or settings.off_policy_mask:  # they act on this batch
        assert loss.policy != policy_loss(ours.flatten(), entropies, tokens, replace(settings, dual=None, off_policy_mask=None)).policy
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-12, abs=1e-14)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-14)
    return loss


@pytest.mark.parametrize(
    ("aggregate", "settings", "given"),
    [
        ("sequence", PolicySettings(kl=0.04), {"loss_type": "grpo", "beta": 0.04}),
        ("token", PolicySettings(high=0.28), {"epsilon_high": 0.28}),
        ("constant", PolicySettings(), {"loss_type": "dr_grpo"}),
        ("token", PolicySettings(trust_region="cap", low=1.0, high=0.3), {"loss_type": "cispo", "epsilon_high": 1.3}),
        (
            "sequence",
            PolicySettings(trust_region="soft", curves=Curves(temperatures=(1.25, 1.75))),
            {"loss_type": "sapo"} | {"sapo_temperature_pos": 1.25, "sapo_temperature_neg": 1.75},
        ),
        (
            "sequence",
            PolicySettings(low=0.03, high=0.04, ratio="sequence"),
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.03, "epsilon_high": 0.04},
        ),
        ("token", PolicySettings(dual=1.3), {"delta": 1.3}),
        ("token", PolicySettings(kl=0.1, kl_estimator="unbiased"), {"beta": 0.1, "use_bias_correction_kl": True}),
        ("token", PolicySettings(off_policy_mask=0.05), {"off_policy_mask_threshold": 0.05}),
        (
            "sequence",
            PolicySettings(dual=1.5, off_policy_mask=0.1, kl=0.1, kl_estimator="unbiased"),
            {"loss_type": "grpo", "delta": 1.5, "off_policy_mask_threshold": 0.1, "beta": 0.1, "use_bias_correction_kl": True},
        ),
    ],
    ids=["grpo", "dapo", "dr_grpo", "cispo", "sapo", "gspo", "delta", "unbiased-kl", "off-policy-mask", "deepseek-v3.2"],
)
def test_every_variant_of_trls_grpo(aggregate, settings, given):
    compare(trl.GRPOTrainer, aggregate, settings, given)


def test_trls_rloo_clips_the_product_of_a_sequences_ratios():
    loss = compare(
        trl.RLOOTrainer, "sequence", PolicySettings(ratio="product", low=0.3, high=0.4), {"epsilon_low": 0.3, "epsilon_high": 0.4}
    )
    assert loss.ratio.clipped_low + loss.ratio.clipped_high > 0.0
    compare(trl.RLOOTrainer, "sequence", PolicySettings(ratio="product", trust_region="none"), {"epsilon_low": 1.0, "epsilon_high": 1e9})


def test_trls_luspo_is_the_sum_of_a_sequences_tokens_which_ours_divides_by_the_longest():
    given = {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon_low": 0.03, "epsilon_high": 0.04}
    loss = compare(trl.GRPOTrainer, "constant", PolicySettings(low=0.03, high=0.04, ratio="sequence"), given, divisor=LONGEST)
    assert loss.ratio.clipped_low + loss.ratio.clipped_high > 0.0


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.1), (0.1, 0.05)])
def test_trls_gmpo_bounds_tokens_before_it_takes_their_geometric_mean(low, high):
    settings = PolicySettings(trust_region="log_clip", ratio="sequence", low=low, high=high, kl=0.04)
    from trl.experimental.gmpo import GMPOTrainer

    loss = compare(GMPOTrainer, "sequence", settings, {"epsilon_low": low, "epsilon_high": high, "beta": 0.04})
    assert loss.ratio.clipped_low > 0.0
    assert loss.ratio.clipped_high > 0.0


@pytest.mark.parametrize(
    "given", [{}, {"vespo_k_pos": 1.5, "vespo_lambda_pos": 0.5, "vespo_k_neg": 0.25, "vespo_lambda_neg": 4.0, "beta": 0.04}]
)
def test_trls_vespo_weighs_each_tokens_log_probability_by_its_sequences_product_of_ratios(given):
    pairs = [(given.get(f"vespo_k_{sign}"), given.get(f"vespo_lambda_{sign}")) for sign in ("pos", "neg")]
    curves = Curves(gamma=tuple(pairs)) if given else Curves()
    settings = PolicySettings(trust_region="gamma", ratio="product", curves=curves, kl=given.get("beta", 0.0))
    compare(trl.GRPOTrainer, "token", settings, {"loss_type": "vespo", **given})
