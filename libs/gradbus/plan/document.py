"""A plan as JSON: what `gradbus plan --json` prints and `POST /v1/plans` answers. Memory in bytes, times in seconds."""

from __future__ import annotations

from typing import Any

from gradbus.plan.memory import Tenant
from gradbus.plan.plan import Division, Plan

_PHASES = ("step", "generate", "train", "export", "load", "switch")


def plan_document(plan: Plan) -> dict[str, Any]:
    """The whole plan."""
    bill, card = plan.bill, plan.card
    tenants = (tenant for tenant in (bill.trainer, bill.engine, bill.reference) if tenant is not None)
    return {
        "object": "plan",
        "card": {"name": card.name, "memory": card.memory, "count": plan.cards, "cores": card.cores},
        "model": {"architecture": bill.size.architecture, "parameters": bill.size.parameters, "trained": bill.trained},
        "workload": {
            "prompt_tokens": bill.workload.prompt,
            "longest_prompt_tokens": bill.workload.longest,
            "response_tokens": bill.workload.response,
            "packed_tokens": bill.packed,
        },
        "tenants": [_tenant(tenant) for tenant in tenants],
        "divisions": [_division(division) for division in plan.divisions],
        "changes": [{"setting": change.setting, "tenant": change.tenant.name, "bytes": change.tenant.bytes} for change in plan.changes],
    }


def _tenant(tenant: Tenant) -> dict[str, Any]:
    return {"name": tenant.name, "bytes": tenant.bytes, "parts": [part._asdict() for part in tenant.parts]}


def _division(division: Division) -> dict[str, Any]:
    return {
        "placement": division.placement,
        "trainers": division.trainers,
        "rollouts": division.rollouts,
        "fits": division.fits,
        "rooms": [
            {"tenants": [one.name for one in room.tenants], "needed": room.needed, "available": room.available} for room in division.rooms
        ],
        "seconds": {name: getattr(division.times, name) for name in _PHASES},
        "bottleneck": division.times.bottleneck,
    }
