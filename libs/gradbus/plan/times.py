"""The seconds of a step's phases by rooflines (Williams et al. 2009), with the speeds of a card or of this machine's cores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from gradbus.plan import embedded_cache
from gradbus.plan.cards import WIDTH, Card, Speeds
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
    cores: float = 0.0
    """What all phases take if every core of the machine computes; 0 where each has a device."""

    @property
    def step(self) -> float:
        """Seconds of a step."""
        if self.overlapped:
            return max(self.generate + self.load, self.train + self.export, self.cores)
        return self.generate + self.train + self.export + self.load + self.switch

    @property
    def bottleneck(self) -> str:
        """The phase that more cards would help."""
        return "generation" if self.generate > self.train else "training"


def step_times(bill: Bill, card: Card, rollouts: int, placement: str) -> StepTimes:
    """Of a run with so many cards for rollouts, and the bill's for the trainer; or on a CPU, with the threads of the spec."""
    spec, version = bill.spec, bill.trained * bill.version_width
    moved = 12 * bill.trained + bill.version_width * bill.size.parameters
    generate, train = 0.0 if spec.trains_given else _generate(bill, card, rollouts), _train(bill, card.speeds)
    sampling, training = (min(card.cores, threads) if card.cores else 1 for threads in (spec.rollout.threads, spec.trainer.threads))
    return StepTimes(
        generate=generate / sampling,
        train=train / (speed_of_ranks(bill.ranks) * training),
        export=version / (_EXPORT * spec.publish_every),
        load=0.0 if spec.trains_given else version / _LOAD,
        switch=2 * moved / _OFFLOAD if placement == "timed" else 0.0,
        overlapped=placement == "separate" and (spec.schedule.mode == "free" or spec.schedule.max_staleness > 0),
        cores=(generate + train) / card.cores if card.cores else 0.0,
    )


def speed_of_ranks(ranks: int) -> float:
    """How many times as fast so many ranks are taken to be as one."""
    return ranks * math.pow(_RANKS, math.log2(ranks))


class Operations(NamedTuple):
    """Of a training step."""

    layers: float
    """FLOP of the products of layers."""
    pairs: float
    """FLOP of attention: twelve for each pair of tokens that attend, element of a head, head and layer."""
    logits: float
    """FLOP of the logits: two for each weight of the head and response token."""
    head: float
    """FLOP of their gradients."""
    kept: float
    """Elements that the forward passes keep."""
    of_logits: float
    """Logits."""
    fresh: float
    """Elements that get their memory from the system: of a step with checkpointing those of two forward passes and the gradients."""


def training_operations(bill: Bill) -> Operations:
    """Six FLOP for each weight and token, the head's for responses alone, and those of attention.

    Frozen weights have no gradient, which saves two of the six. With checkpointing each layer's forward pass is computed twice.
    """
    size, members, lora = bill.size, bill.group_size, bill.spec.trainer.lora
    groups, prompt, response = bill.spec.schedule.groups_per_step, bill.workload.prompt, bill.workload.response
    packed, drawn = groups * (prompt + members * response), groups * members * response
    pairs = groups * (prompt**2 / 2 + members * (prompt * response + response**2 / 2))
    passes = 4.0 if bill.spec.trainer.gradient_checkpointing else 3.0
    of_weights = 2.0 * size.active * (passes - (lora is not None))
    of_adapters, added = (0, 0) if lora is None else (size.adapter_parameters(lora), sum(layer.outputs for layer in size.adapted(lora)))
    return Operations(
        layers=packed * (of_weights + 2.0 * passes * of_adapters),
        pairs=4.0 * passes * size.attention * pairs,
        logits=2.0 * bill.head * drawn,
        head=(4.0 if lora is None else 2.0) * bill.head * drawn,
        kept=packed * (size.kept_by_all + size.layers * added) * passes / 3.0,
        of_logits=bill.head / size.hidden * drawn,
        fresh=3.0 * packed * size.kept_by_all if bill.spec.trainer.gradient_checkpointing else 0.0,
    )


def _train(bill: Bill, speeds: Speeds) -> float:
    found, dtype = training_operations(bill), bill.spec.trainer.dtype
    products = (found.layers + found.head) / speeds.products[dtype] + found.logits / speeds.logits[dtype]
    others = found.pairs / speeds.paired[dtype] + found.kept / speeds.kept[dtype] + found.of_logits / speeds.kept["fp32"]
    others += WIDTH[dtype] * found.fresh / speeds.fresh
    critic = 2 if (critic := bill.spec.trainer.critic) is not None and critic.kind != "head" else 1
    return (products + others) * bill.spec.trainer.inner.epochs * critic


def _generate(bill: Bill, card: Card, rollouts: int) -> float:
    """Of the card with most samples: a response's tokens come one after the other, so more cards only make its batches smaller."""
    spec, size, workload, dtype, speeds = bill.spec, bill.size, bill.workload, bill.engine_dtype, card.speeds
    samples, groups = (math.ceil(count / rollouts) for count in (spec.samples_per_step, spec.schedule.groups_per_step))
    rows = min(spec.rollout.slots, samples)
    batches = math.ceil(samples / rows)
    if card.cores and spec.rollout.traits.embedded:  # it computes all slots and all lanes, with or without a sample
        rows, lanes = spec.rollout.slots, embedded_cache.lanes(spec.rollout.slots)
        groups = math.ceil(groups / lanes) * lanes
    read = (size.read_by(rows) + size.embedding) / speeds.read[dtype]
    products = 2.0 * (size.active + size.embedding) * rows / speeds.decoded[dtype]
    cached = size.cached * rows * _positions(bill, card) / speeds.attended[dtype]
    decode_step = max(read, products) + cached + rows * size.vocabulary / speeds.drawn + speeds.layer * size.layers
    return batches * workload.response * decode_step + 2.0 * size.active * groups * workload.prompt / speeds.prompts[dtype]


def _positions(bill: Bill, card: Card) -> float:
    """Whose keys and values a decode step reads for each sample, in the mean."""
    first, count = bill.workload.prompt, bill.workload.response
    if not card.cores:
        return first + count / 2
    return sum(embedded_cache.paged(first + drawn) for drawn in range(1, count + 1)) / count
