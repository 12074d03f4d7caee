"""From samples to the tensors of the policy loss."""

import pytest
import torch

from gradbus_kernels.operators import PolicySettings, policy_loss
from gradbus_trainer.learners.loss_inputs import policy_tokens
from gradbus_trainer.step.batch import TokenTotals


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        (PolicySettings(), False),
        (PolicySettings(ratio="sequence"), True),
        (PolicySettings(ratio="product"), True),
        (PolicySettings(sequence_mask=(0.5, 2.0)), True),
        (PolicySettings(off_policy_mask=0.1), True),
    ],
    ids=["token", "sequence", "product", "sequence-mask", "negative-mask"],
)
def test_tokens_have_their_samples_number_where_the_settings_need_it(make_batch, settings, needed):
    samples = make_batch(seed=3).samples
    lengths = [len(sample.token_ids) for sample in samples]
    tokens = policy_tokens(samples, [0.1] * len(samples), TokenTotals(sum(lengths)), settings, torch.device("cpu"))
    tokens.check(sum(lengths), settings, torch.zeros(1))
    expected = [number for number, length in enumerate(lengths) for _ in range(length)]
    assert (tokens.sequences.tolist() if needed else tokens.sequences) == (expected if needed else None)
    assert not needed or tokens.sequences.dtype == torch.int64


def test_a_sequences_ratio_does_not_depend_on_the_samples_beside_it(make_batch):
    """A sample is never split over micro-batches, so its statistics are its own."""
    settings, samples = PolicySettings(ratio="sequence", low=0.1, high=0.1, sequence_mask=(0.3, 3.0)), make_batch(seed=3).samples
    total = sum(len(sample.token_ids) for sample in samples)

    def loss(part):
        tokens = policy_tokens(part, [0.1] * len(part), TokenTotals(total), settings, torch.device("cpu"))
        logprobs = tokens.behaviour_logprobs.double() * 0.9
        return policy_loss(logprobs, torch.zeros_like(logprobs), tokens, settings).total

    torch.testing.assert_close(loss(samples), sum(loss([sample]) for sample in samples), rtol=1e-6, atol=1e-7)
