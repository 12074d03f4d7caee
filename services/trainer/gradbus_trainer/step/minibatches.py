"""The minibatches of a step: what each of its updates trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from gradbus.ids import sample_seed
from gradbus.spec import InnerSpec
from gradbus_trainer.step.batch import Batch, prompt_groups


def minibatches(batch: Batch, inner: InnerSpec, seed: int) -> Iterator[Batch]:
    """`epochs` times the groups of a step, each time in `minibatches` parts of about equally many groups.

    A function of the rows, the run's seed, the step and the epoch. Several parts are cut from a permutation of the groups, and each
    has its groups in the order of the log; a single part is the step itself. A part without a token to train is left out.
    """
    parts = inner.minibatches
    if parts == 1:
        yield from [batch] * inner.epochs
        return
    groups = prompt_groups(batch.samples)
    for epoch in range(inner.epochs):
        order = permutation(len(groups), seed, batch.step, epoch)
        for part in range(parts):
            chosen = sorted(order[part * len(groups) // parts : (part + 1) * len(groups) // parts])
            found = Batch(batch.step, list(chain.from_iterable(groups[group] for group in chosen)))
            if found.has_weight:
                yield found


def permutation(count: int, seed: int, step: int, epoch: int) -> Sequence[int]:
    """The numbers below `count` in an order of their own for each run's seed, step and epoch: that of keys made by a hash."""
    return sorted(range(count), key=lambda number: sample_seed(seed, f"minibatches of epoch {epoch}", step, number))
