"""A plan: what fits on which card, how long a step takes, how to divide cards, and which setting would help."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any, Final, Literal, get_args

from gradbus.errors import SpecError
from gradbus.plan.cards import Card
from gradbus.plan.memory import Bill, Tenant
from gradbus.plan.model_size import ModelSize
from gradbus.plan.times import StepTimes, step_times
from gradbus.plan.workload import Workload
from gradbus.spec import LoraSpec, RunSpec, parse_spec
from gradbus.spec.rollout_faults import placement_faults

Placement = Literal["separate", "shared", "timed"]
_BEST: Final = 3
"""Divisions of a placement that a plan has."""
_CHANGES: Final[Mapping[str, dict[str, Any]]] = {
    'trainer.dtype = "bf16"': {"dtype": "bf16"},
    "trainer.gradient_checkpointing = true": {"gradient_checkpointing": True},
}
_DEEPSPEED_CHANGES: Final[Mapping[str, dict[str, Any]]] = {
    "trainer.deepspeed.zero_stage = 3": {"deepspeed": {"zero_stage": 3}},
    'trainer.deepspeed.offload = "optimizer"': {"deepspeed": {"zero_stage": 2, "offload": "optimizer"}},
}


@dataclass(frozen=True, slots=True)
class Room:
    """A card with its tenants."""

    tenants: tuple[Tenant, ...]
    needed: int
    """Bytes."""
    available: int

    @property
    def fits(self) -> bool:
        """Whether there is room for all."""
        return self.needed <= self.available


@dataclass(frozen=True, slots=True)
class Division:
    """How cards are divided."""

    placement: Placement | Literal["together"]
    """`together`: all processes on one machine without a card."""
    trainers: int
    rollouts: int
    rooms: tuple[Room, ...]
    """One of each kind of card."""
    times: StepTimes

    @property
    def fits(self) -> bool:
        """Whether every card has room."""
        return all(room.fits for room in self.rooms)


@dataclass(frozen=True, slots=True)
class Change:
    """The memory of a tenant with one other setting, where that is less."""

    setting: str
    tenant: Tenant


@dataclass(frozen=True, slots=True)
class Plan:
    """Of a spec, a model and some cards of one kind."""

    bill: Bill
    """With the trainer's cards of the first division."""
    card: Card
    cards: int
    divisions: tuple[Division, ...]
    """The best few of each placement: the fastest that fits first, then those that do not fit."""
    changes: tuple[Change, ...]


def make_plan(spec: RunSpec, size: ModelSize, workload: Workload, card: Card, cards: int = 1) -> Plan:
    """The plan for `cards` of one kind; every placement that the spec allows is tried."""
    bill = Bill.of(spec, size, workload, card.process)
    divisions = sorted(_divisions(bill, card, cards), key=_rank)
    if divisions:
        bill = replace(bill, ranks=divisions[0].trainers)
    return Plan(bill, card, cards, tuple(divisions), tuple(_changes(bill)))


def _divisions(bill: Bill, card: Card, cards: int) -> Iterator[Division]:
    """The best few of each placement."""
    if card.cores:
        tenants = tuple(tenant for tenant in (bill.trainer, bill.reference, bill.engine) if tenant is not None)
        room = Room(tenants, sum(tenant.bytes for tenant in tenants), card.memory)
        yield Division("together", 1, int(bill.engine is not None), (room,), step_times(bill, card, 1, "separate"))
        return
    for placement in get_args(Placement):
        if not _allows(bill.spec, placement):
            continue
        shares = _shares(bill, placement, cards)
        yield from nsmallest(_BEST, (_division(bill, card, placement, *share) for share in shares), key=_rank)


def _rank(division: Division) -> tuple[bool, float]:
    return not division.fits, division.times.step


def _division(bill: Bill, card: Card, placement: Placement, trainers: int, rollouts: int) -> Division:
    bill = replace(bill, ranks=trainers)
    times = step_times(bill, card, max(1, rollouts), placement)
    return Division(placement, trainers, rollouts, tuple(_rooms(bill, card, placement)), times)


def _shares(bill: Bill, placement: Placement, cards: int) -> Iterator[tuple[int, int]]:
    """Cards of the trainer and of rollouts. One run has one trainer; several ranks need DeepSpeed."""
    ranks = cards if bill.spec.trainer.backend == "deepspeed" else 1
    if bill.spec.trains_given:
        yield from ((trainers, 0) for trainers in range(1, ranks + 1) if placement == "separate")
    elif placement == "separate":
        yield from ((trainers, cards - trainers) for trainers in range(1, ranks + 1) if cards > trainers)
    else:
        yield 1, 1


def _rooms(bill: Bill, card: Card, placement: Placement) -> Iterator[Room]:
    """The reference service is beside the trainer, or its first rank."""
    engine, rollout = bill.engine, bill.spec.rollout.model_copy(update={"placement": placement})
    trainers = tuple(tenant for tenant in (bill.trainer, bill.reference) if tenant is not None)
    needed = sum(tenant.bytes for tenant in trainers)
    if placement == "timed" and engine is not None:
        yield Room((*trainers, engine), max(needed, engine.bytes), card.memory)
        return
    shared = placement == "shared"
    yield Room(trainers, needed, int(rollout.trainer_memory * card.memory) if shared else card.memory)
    if engine is not None:
        yield Room((engine,), engine.bytes, int((rollout.engine_memory or 0.0) * card.memory) if shared else card.memory)


def _allows(spec: RunSpec, placement: Placement) -> bool:
    fraction = None if placement == "separate" else spec.rollout.memory_fraction
    sections = dict(spec) | {"rollout": spec.rollout.model_copy(update={"placement": placement, "memory_fraction": fraction})}
    return not any(placement_faults(sections))


def _changes(bill: Bill) -> Iterator[Change]:
    rollout, body = bill.spec.rollout, bill.spec.model_dump(mode="json", exclude_unset=True)
    for setting, update in _trainer_changes(bill):
        try:
            changed = parse_spec(body | {"trainer": body.get("trainer", {}) | update})
        except SpecError:
            continue  # the run would be refused with it
        other = replace(bill, spec=changed)
        if other.trainer.bytes < bill.trainer.bytes:
            yield Change(setting, other.trainer)
    slots = max(4, rollout.slots // 2)
    engine = replace(bill, spec=bill.spec.model_copy(update={"rollout": rollout.model_copy(update={"slots": slots})})).engine
    if engine is not None and slots < rollout.slots:
        yield Change(f"rollout.slots = {slots}", engine)


def _trainer_changes(bill: Bill) -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings, and the fields of [trainer] that they change."""
    trainer = bill.spec.trainer
    yield from _CHANGES.items()
    if trainer.lora is None and bill.size.linears:
        yield _with_adapters(tuple(layer.name for layer in bill.size.linears))
    if trainer.backend == "deepspeed":
        yield from _DEEPSPEED_CHANGES.items()
    halved = max(1, trainer.micro_batch_tokens // 2)
    yield f"trainer.micro_batch_tokens = {halved}", {"micro_batch_tokens": halved}


def _with_adapters(names: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Adapters beside all layers with these names, which the section has by default or has to state."""
    if set(names) == set(LoraSpec().target_modules):
        return "[trainer.lora]", {"lora": {}}
    return f"trainer.lora.target_modules = {json.dumps(names)}", {"lora": {"target_modules": names}}
