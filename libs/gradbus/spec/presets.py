"""The presets: named algorithms as values of the axes of `AlgorithmSpec`, with the numbers of their papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

PresetName = Literal[
    "grpo",
    "dapo",
    "dr_grpo",
    "gspo",
    "cispo",
    "sapo",
    "dppo",
    "icepop",
    "m2po",
    "score_centering",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "opo",
    "gpg",
    "maxrl",
    "pass_k",
    "gdpo",
    "ppo",
    "vapo",
    "sao",
    "opd",
]
_Values = Mapping[str, Any]

PRESETS: Final[Mapping[str, _Values]] = {
    # arXiv:2402.03300; the mean over tokens is that of DAPO, as in TRL and verl.
    "grpo": {},
    # arXiv:2503.14476.
    "dapo": {"clip": (0.2, 0.28), "overlong_penalty": 1.0},
    # arXiv:2503.20783.
    "dr_grpo": {"normalize_std": False, "aggregate": "constant", "filter": "none"},
    # arXiv:2507.18071.
    "gspo": {"ratio": "sequence", "clip": (3e-4, 4e-4), "aggregate": "sequence"},
    # arXiv:2506.13585: no lower bound.
    "cispo": {"trust_region": "cap", "clip": (1.0, 4.0)},
    # arXiv:2511.20347.
    "sapo": {"trust_region": "soft", "soft_temperatures": (1.0, 1.05), "aggregate": "sequence"},
    # arXiv:2602.04879; the drift is that of prime-rl, whose default loss it is.
    "dppo": {"normalize_std": False, "trust_region": "mass", "clip": (0.2, 0.2), "drift": 1e-3},
    # arXiv:2510.18855.
    "icepop": {"trust_region": "band", "clip": (0.5, 4.0)},
    # arXiv:2510.01161.
    "m2po": {"trust_region": "none", "second_moment": 0.04},
    # arXiv:2609.20807, of the importance sampling that is truncated at 2.
    "score_centering": {"trust_region": "cap", "clip": (1.0, 1.0), "centering": 64},
    # arXiv:2402.14740.
    "rloo": {
        "advantage": "rloo",
        "normalize_std": False,
        "filter": "none",
        "ratio": "product",
        "trust_region": "none",
        "aggregate": "sequence",
        "kl": 0.05,
        "kl_place": "reward",
    },
    # arXiv:2501.03262.
    "reinforce_pp": {
        "advantage": "reinforce",
        "normalize_std": False,
        "whiten": "tokens",
        "filter": "none",
        "kl": 0.01,
        "kl_place": "reward",
    },
    # Of the same paper.
    "reinforce_pp_baseline": {"normalize_std": False, "whiten": "tokens", "kl": 0.01, "kl_estimator": "k2", "filter": "none"},
    # arXiv:2505.23585.
    "opo": {"advantage": "opo", "normalize_std": False, "clip": (0.2, 0.28), "filter": "none"},
    # arXiv:2504.02546.
    "gpg": {"normalize_std": False, "importance": "none", "trust_region": "none"},
    # arXiv:2602.02710.
    "maxrl": {"advantage": "maxrl", "normalize_std": False, "clip": (0.2, 0.28), "filter": "none"},
    # arXiv:2503.19595.
    "pass_k": {"advantage": "pass_k", "normalize_std": False, "clip": (0.2, 0.28), "filter": "none"},
    # arXiv:2601.05242.
    "gdpo": {"advantage": "gdpo", "normalize_std": False, "whiten": "samples", "clip": (0.2, 0.28), "filter": "none"},
    # arXiv:1707.06347.
    "ppo": {"advantage": "gae", "normalize_std": False, "whiten": "tokens", "filter": "none", "kl_place": "reward"},
    # arXiv:2504.05118.
    "vapo": {"advantage": "gae", "normalize_std": False, "whiten": "tokens", "filter": "none", "clip": (0.2, 0.28), "nll": 0.1},
    # arXiv:2607.07508, the bounds of its runs on mathematics.
    "sao": {"advantage": "gae", "normalize_std": False, "filter": "none", "trust_region": "band", "clip": (0.3, 5.0)},
    # arXiv:2306.13649, by token; the trust region is that of arXiv:2602.04879.
    "opd": {"advantage": "distill", "normalize_std": False, "filter": "none", "trust_region": "mass", "clip": (0.2, 0.2)},
}
"""By name; what a preset leaves out is as in GRPO."""

CRITICS: Final[Mapping[str, _Values]] = {
    "ppo": {},
    "vapo": {"learning_rate": 2e-6, "warmup_steps": 50, "length_alpha": 0.05},
    "sao": {"learning_rate": 5e-6, "updates": 2, "warmup_steps": 10, "length_alpha": 1.5, "freeze": "attention"},
}
"""Of the presets with a critic: the fields of `[trainer.critic]`, with the numbers of the same papers."""

_UNREAD: Final[_Values] = {"clip": None, "dual_clip": None, "soft_temperatures": None}
_BOUNDS: Final[Mapping[str, _Values]] = {
    "clip": {"clip": (0.2, 0.2)},
    "cap": {"clip": (1.0, 4.0)},
    "band": {"clip": (0.5, 4.0)},
    "mass": {"clip": (0.2, 0.2)},
    "soft": {"soft_temperatures": (1.0, 1.05)},
    "none": {},
}
"""The bounds of each trust region where neither the spec nor its preset sets them."""


def with_critic(given: Any) -> Any:
    """The fields of a run spec with the critic that its algorithm's preset has. Anything without such a preset is returned as it is.

    A field of `[trainer.critic]` replaces the preset's value. A spec that says that it has no critic, or estimates its advantages without
    one, gets none.
    """
    algorithm, trainer = (given.get(name, {}) for name in ("algorithm", "trainer")) if isinstance(given, Mapping) else (None, None)
    if not isinstance(algorithm, Mapping) or not isinstance(trainer, Mapping):
        return given
    name, critic = algorithm.get("name"), trainer.get("critic", {})
    if not isinstance(name, str) or name not in CRITICS or algorithm.get("advantage", "gae") != "gae" or not isinstance(critic, Mapping):
        return given
    return {**given, "trainer": {**trainer, "critic": {**CRITICS[name], **critic}}}


def resolve(given: Any) -> Any:
    """The fields of an algorithm section with those of its preset filled in.

    The bounds of a preset count only for its own trust region. Anything that is no section with a known preset is returned as it is,
    for its fault to be found.
    """
    if not isinstance(given, Mapping):
        return given
    name = given.get("name", "grpo")
    if not isinstance(name, str) or name not in PRESETS:
        return given
    preset = PRESETS[name]
    own = preset.get("trust_region", "clip")
    chosen = given.get("trust_region", own)
    if not isinstance(chosen, str) or chosen not in _BOUNDS:
        return {**preset, **given}
    if chosen != own:
        preset = {field: value for field, value in preset.items() if field not in _UNREAD}
    return {**_UNREAD, **_BOUNDS[chosen], **preset, **given}
