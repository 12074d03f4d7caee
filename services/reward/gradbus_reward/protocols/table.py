"""The protocol that a `[reward]` section names before its URL."""

from __future__ import annotations

from urllib.parse import urlsplit

from gradbus.spec import ScorerSpec
from gradbus_reward.protocols.base import RewardProtocol
from gradbus_reward.protocols.nemo_gym import NemoGym
from gradbus_reward.protocols.openrlhf import OpenRlhf
from gradbus_reward.protocols.served_models import SglangClassify, SglangScore, VllmClassify, VllmScore
from gradbus_reward.protocols.slime import Slime


def protocol_of(spec: ScorerSpec) -> tuple[RewardProtocol, str] | None:
    """The protocol and the URL of a service that has a known one before its URL."""
    name, _, url = (spec.service or "").partition("+")
    model, is_score = spec.served_model or "", urlsplit(url).path.endswith("/score")
    match name:
        case "openrlhf":
            return OpenRlhf(spec.label), url
        case "slime":
            return Slime(spec.label, spec.reward_key), url
        case "nemo-gym":
            return NemoGym(), url
        case "sglang":
            return SglangScore(model, spec.label_token_ids) if is_score else SglangClassify(model), url
        case "vllm":
            return VllmScore(model) if is_score else VllmClassify(model), url
    return None
