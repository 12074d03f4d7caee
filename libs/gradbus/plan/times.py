"""The seconds of a step's phases by rooflines (Williams et al. 2009), with shares that were measured on an H100 (docs/gpu.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gradbus.plan.cards import Card
from gradbus.plan.memory import Bill

_EXPORT, _LOAD, _OFFLOAD = 3.3e9, 3.7e9, 50e9
"""Bytes/s at which versions are exported and loaded, and at which a process leaves a card for host memory."""
_RANKS: Final = 0.9
"""What each doubling of ranks leaves of their speed, an assumption: no machine with two GPUs has been measured."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the phases of one step."""

    generate: float
    train: float
    export: float
    """Of a version, by the trainer."""
    load: float
    """Of the version, by the engine."""
    switch: float
    """`timed`: a process leaves the card and the other comes, twice."""
    overlapped: bool
    """Whether a step is generated while another is trained."""

    @property
    def step(self) -> float:
        """Seconds of a step."""
        if self.overlapped:
            return max(self.generate + self.load, self.train + self.export)
        return self.generate + self.train + self.export + self.load + self.switch

    @property
    def bottleneck(self) -> str:
        """The phase that more cards would help."""
        return "generation" if self.generate > self.train else "training"


def step_times(bill: Bill, card: Card, rollouts: int, placement: str) -> StepTimes:
    """Of a run with so many cards for rollouts, and the bill's for the trainer."""
    spec, version = bill.spec, bill.trained * bill.version_width
    moved = 12 * bill.trained + bill.version_width * bill.size.parameters
    return StepTimes(
        generate=0.0 if spec.trains_given else _generate(bill, card, rollouts),
        train=_train(bill, card) / speed_of_ranks(bill.ranks),
        export=version / (_EXPORT * spec.publish_every),
        load=0.0 if spec.trains_given else version / _LOAD,
        switch=2 * moved / _OFFLOAD if placement == "timed" else 0.0,
        overlapped=placement == "separate" and (spec.schedule.mode == "free" or spec.schedule.max_staleness > 0),
    )


def speed_of_ranks(ranks: int) -> float:
    """How many times as fast so many ranks are taken to be as one."""
    return ranks * math.pow(_RANKS, math.log2(ranks))


def training_operations(bill: Bill) -> float:
    """FLOP of a step: six for each weight and token, the head's for responses alone, and 12 for each pair of tokens that attend."""
    size, members = bill.size, bill.group_size
    groups, prompt, response = bill.spec.schedule.groups_per_step, bill.workload.prompt, bill.workload.response
    packed, drawn = groups * (prompt + members * response), groups * members * response
    pairs = groups * (prompt**2 / 2 + members * (prompt * response + response**2 / 2))
    return 6.0 * size.active * packed + 6.0 * bill.head * drawn + 12.0 * size.attention * pairs


def _train(bill: Bill, card: Card) -> float:
    seconds = training_operations(bill) / (card.shares.training * _product(bill, card))
    inner = bill.spec.trainer.inner.epochs
    critic = 2 if (critic := bill.spec.trainer.critic) is not None and critic.kind == "full" else 1
    return seconds * inner * critic


def _generate(bill: Bill, card: Card, rollouts: int) -> float:
    """Of the card with most samples: a response's tokens come one after the other, so more cards only make its batches smaller."""
    spec, size, workload = bill.spec, bill.size, bill.workload
    samples = math.ceil(spec.samples_per_step / rollouts)
    rows, width = min(spec.rollout.slots, samples), bill.version_width
    cached = size.cached * rows * (workload.prompt + workload.response / 2)
    moved = width * (size.read_by(rows) + size.embedding + cached)
    product = _product(bill, card)
    operations = 2.0 * (size.active + size.embedding) * rows
    decode_step = max(moved / (card.shares.copy * card.bandwidth), operations / product) + card.shares.layer_seconds * size.layers
    prompts = 2.0 * size.active * math.ceil(spec.schedule.groups_per_step / rollouts) * workload.prompt
    return math.ceil(samples / rows) * workload.response * decode_step + prompts / (card.shares.prefill * product)


def _product(bill: Bill, card: Card) -> float:
    """FLOP/s of a large matrix product in the run's dtype."""
    return card.shares.product * card.flops * (1.0 if bill.spec.trainer.dtype == "bf16" else card.shares.float32)
