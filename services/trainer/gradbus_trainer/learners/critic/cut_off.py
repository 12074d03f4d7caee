"""The value after an answer that was cut off: the policy would have gone on, so its return does not end with the last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from gradbus_kernels.models.packing import OWN_CHOICE
from gradbus_trainer.step.batch import TrainSample


def continued(samples: Sequence[TrainSample]) -> list[TrainSample]:
    """The samples, of which those that were cut off have one token more: its value is read before it, whatever it is."""
    return [_with_one_more(sample) if sample.marks.cut_off else sample for sample in samples]


def apart(values: Sequence[Tensor], samples: Sequence[TrainSample]) -> tuple[list[Tensor], list[float]]:
    """From the values of `continued` samples those of their own trainable tokens, and the value after each sample: 0 after a true end."""
    cuts = [sample.marks.cut_off for sample in samples]
    own = [part[:-1] if cut else part for part, cut in zip(values, cuts, strict=True)]
    return own, [float(part[-1].detach()) if cut else 0.0 for part, cut in zip(values, cuts, strict=True)]


def _with_one_more(sample: TrainSample) -> TrainSample:
    routes = sample.routes
    if routes is not None:
        routes = np.concatenate([routes, np.full_like(routes[-1:], OWN_CHOICE)])
    token_ids, trainable = np.append(sample.token_ids, sample.token_ids[-1:]), np.append(sample.trainable, True)
    return replace(sample, token_ids=token_ids, trainable=trainable, routes=routes)
