"""The KL to the base model as a part of the reward, and to a teacher as a part of the advantage: pure functions of a log entry."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import sub

from gradbus.algorithms.sequences import joined
from gradbus.formats.tokens import unpack_logprobs
from gradbus.v1.sample_pb2 import Sample

TokenKls = Sequence[Sequence[float]]
"""k1 of each sample's tokens, those of all its sequences: G times `[T]`, in nats."""


def token_kls(samples: Sequence[Sample], references: Sequence[bytes]) -> TokenKls:
    """k1 = log mu - log pi_ref of each token, 0.0 of those that the policy did not choose (Schulman 2020, "Approximating KL Divergence").

    `references` has the packed log-probabilities of each sample's tokens under the base model or a teacher. Raises ValueError if some
    are missing.
    """
    wholes = [joined(sample) for sample in samples]
    if [len(whole.logprobs) for whole in wholes] != list(map(len, references)):
        raise ValueError(
            "a group lacks log-probabilities of the base model or of the teacher, which its run needs of each token; judge it again"
        )
    return [_token_kl(whole, reference) for whole, reference in zip(wholes, references, strict=True)]


def returns_to_go(reward: float, kl: Sequence[float], beta: float) -> array[float]:
    """R - beta · (sum of k1 from a token on), the sum of the rewards that a token and those after it get; float32 `[T]`.

    A token's own reward is -beta · k1, to which the last one adds R (Ouyang et al. 2022, arXiv:2203.02155, with gamma 1).
    """
    sums = list(accumulate(reversed(kl)))
    return array("f", [reward - beta * later for later in reversed(sums)])


def add_teacher(advantages: array[float], kl: Sequence[float], weight: float) -> None:
    """Adds weight · (log pi_T - log mu) to the advantages, float32 `[T]`; `kl` is log mu - log pi_T.

    No token is paid for those after it, whose divergence it decides too (gamma 0). So what the policy expects of a token at a given
    prefix is the gradient of the reverse KL to the teacher there.
    """
    for at, nats in enumerate(kl):
        advantages[at] -= weight * nats


def _token_kl(sample: Sample, reference: bytes) -> Sequence[float]:
    behaviour, base = unpack_logprobs(sample.logprobs), unpack_logprobs(reference)
    found = [0.0] * len(behaviour)
    for span in sample.spans:
        if span.trainable:
            found[span.start : span.end] = map(sub, behaviour[span.start : span.end], base[span.start : span.end])
    return found
