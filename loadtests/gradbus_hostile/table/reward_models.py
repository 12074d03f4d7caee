"""Reward models."""

from __future__ import annotations

from typing import Any, Final

from gradbus_hostile.damage import Damage, fields, tensors, tokenizer
from gradbus_hostile.table.submission import FAILED, HARMLESS, REFUSED, Submission


def _scorer(name: str, damage: Damage, ends: frozenset[Any] = REFUSED) -> Submission:
    return Submission(f"reward model: {name}", lambda material: material.scorer(damage), ends)


def _head(value: float) -> Damage:
    return tensors(lambda found: found["score.weight"].fill_(value))


def _of_labels(count: int) -> Damage:
    return tensors(lambda found: found.update({"score.weight": found["score.weight"].repeat(count, 1)}))


REWARD_MODELS: Final = (
    _scorer("a good one", lambda _: None, HARMLESS),
    _scorer("no head", tensors(lambda found: found.pop("score.weight"))),
    _scorer("two labels", _of_labels(2)),
    _scorer("as many labels as the int64 has numbers", fields("config.json", num_labels=2**63)),
    _scorer("a policy", fields("config.json", architectures=["LlamaForCausalLM"])),
    _scorer("code", fields("config.json", architectures=["EvilForSequenceClassification"], auto_map={"AutoModel": "evil.Evil"})),
    _scorer("another vocabulary", tokenizer("added_tokens", [])),
    _scorer("a head that is NaN", _head(float("nan")), FAILED),
    _scorer("scores beyond every reward", _head(3e38), FAILED),
)
