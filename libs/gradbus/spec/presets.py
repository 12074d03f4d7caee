"""The presets: named algorithms as values of the axes of `AlgorithmSpec`, with the numbers of their papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

_Values = Mapping[str, Any]


class Preset(NamedTuple):
    """A named algorithm."""

    paper: str
    """Its number at arXiv."""
    purpose: str
    """When to take it, as Markdown of docs/algorithms.md."""
    values: _Values
    """What it leaves out is as in GRPO."""


ABOUT: Final[Mapping[str, Preset]] = {
    # The mean over tokens is that of DAPO, as in TRL and verl.
    "grpo": Preset("2402.03300", "the default; the mean is over tokens, as in TRL and verl", {}),
    "dapo": Preset(
        "2503.14476",
        "long answers: more room for rare tokens, less reward near the limit (1)",
        {"clip": (0.2, 0.28), "overlong_penalty": 1.0},
    ),
    "dr_grpo": Preset(
        "2503.20783",
        "no weight by length or by difficulty of the prompt",
        {"normalize_std": False, "aggregate": "constant", "filter": "none"},
    ),
    "gspo": Preset(
        "2507.18071",
        "models with experts, whose ratios of tokens are noisy",
        {"ratio": "sequence", "clip": (3e-4, 4e-4), "aggregate": "sequence"},
    ),
    "luspo": Preset(
        "2602.05261",
        "as `gspo`, without its preference for short answers (3)",
        {"ratio": "sequence", "clip": (2e-3, 2.5e-3), "aggregate": "constant"},
    ),
    "gmpo": Preset(
        "2507.20673",
        "one token's outlier neither stops nor drives its whole answer",
        {"ratio": "sequence", "trust_region": "log_clip", "clip": (0.4, 0.4), "aggregate": "sequence"},
    ),
    # No lower bound.
    "cispo": Preset("2506.13585", "every token keeps a gradient", {"trust_region": "cap", "clip": (1.0, 4.0)}),
    "sapo": Preset(
        "2511.20347", "a bound without a jump", {"trust_region": "soft", "soft_temperatures": (1.0, 1.05), "aggregate": "sequence"}
    ),
    "vespo": Preset(
        "2602.10693",
        "stale samples: the weight of a whole answer fades, without a jump, as its probability moves",
        {"ratio": "product", "trust_region": "gamma", "gamma_curves": ((2.0, 3.0), (3.0, 2.0))},
    ),
    # The drift is that of prime-rl, whose default loss it is.
    "dppo": Preset(
        "2602.04879",
        "rare tokens may change their ratio, if they move little probability",
        {"normalize_std": False, "trust_region": "mass", "clip": (0.2, 0.2), "drift": 1e-3},
    ),
    "icepop": Preset(
        "2510.18855",
        "stale samples, or an engine whose log-probabilities differ from the trainer's",
        {"trust_region": "band", "clip": (0.5, 4.0)},
    ),
    "m2po": Preset(
        "2510.01161",
        "samples that are many versions old: [only outliers are bounded](#outliers-of-a-step)",
        {"trust_region": "none", "second_moment": 0.04},
    ),
    # The wide clip is that of its runs.
    "clip_cov": Preset(
        "2505.22617",
        "long runs: [the few tokens that take the most entropy](#tokens-of-high-covariance) are left out at random",
        {"clip": (1.0, 1.0), "dual_clip": 10.0, "covariance_clip": {"share": 2e-4, "bounds": (1.0, 5.0)}},
    ),
    # Of the importance sampling that is truncated at 2.
    "score_centering": Preset(
        "2609.20807",
        "stale samples: [no drift of the whole distribution](#score-centring)",
        {"trust_region": "cap", "clip": (1.0, 1.0), "centering": 64},
    ),
    "rloo": Preset(
        "2402.14740",
        "an unbiased gradient from few samples a prompt (2)",
        {
            "advantage": "rloo",
            "normalize_std": False,
            "filter": "none",
            "ratio": "product",
            "trust_region": "none",
            "aggregate": "sequence",
            "kl": 0.05,
            "kl_place": "reward",
        },
    ),
    "reinforce_pp": Preset(
        "2501.03262",
        "one sample a prompt: `rollout.group_size` = 1 (2)",
        {
            "advantage": "reinforce",
            "normalize_std": False,
            "whiten": "tokens",
            "filter": "none",
            "kl": 0.01,
            "kl_place": "reward",
        },
    ),
    "reinforce_pp_baseline": Preset(
        "2501.03262",
        "rewards whose scale differs between prompts",
        {"normalize_std": False, "whiten": "tokens", "kl": 0.01, "kl_estimator": "k2", "filter": "none"},
    ),
    # With a ratio and a clip, as in verl: on-policy they are idle.
    "remax": Preset(
        "2310.10505",
        "two samples a prompt, `rollout.group_size` = 2: one is trained, [the other is its baseline](#a-greedy-baseline)",
        {"advantage": "remax", "normalize_std": False, "filter": "none"},
    ),
    "opo": Preset(
        "2505.23585",
        "answers of very different lengths",
        {"advantage": "opo", "normalize_std": False, "clip": (0.2, 0.28), "filter": "none"},
    ),
    "gpg": Preset(
        "2504.02546",
        "the plain policy gradient; on-policy samples (`schedule.max_staleness` = 0)",
        {"normalize_std": False, "importance": "none", "trust_region": "none"},
    ),
    # By token, as in Tinker, whose example has a beta of 0.05: the drift is half of it.
    "dro": Preset(
        "2405.19107",
        "stale samples: no ratio and no clip, but a quadratic pull back to the policy that sampled (4)",
        {"normalize_std": False, "filter": "none", "importance": "none", "trust_region": "none", "drift": 0.025},
    ),
    "qae": Preset(
        "2509.22611",
        "rewards of 0 and 1: learns from the rare answers of a prompt alone, which keeps the entropy",
        {"advantage": "quantile", "clip": (0.2, 0.28)},
    ),
    "maxrl": Preset(
        "2602.02710",
        "prompts that are hardly ever solved; rewards of 0 and more",
        {"advantage": "maxrl", "normalize_std": False, "clip": (0.2, 0.28), "filter": "none"},
    ),
    "pass_k": Preset(
        "2503.19595",
        "the best of k = `group_size` answers counts",
        {"advantage": "pass_k", "normalize_std": False, "clip": (0.2, 0.28), "filter": "none"},
    ),
    "gdpo": Preset(
        "2601.05242",
        "several rewards: at least two components of a grader or service",
        {"advantage": "gdpo", "normalize_std": False, "whiten": "samples", "clip": (0.2, 0.28), "filter": "none"},
    ),
    "ppo": Preset(
        "1707.06347",
        "[credit by token](#ppo), also with one sample a prompt",
        {"advantage": "gae", "normalize_std": False, "whiten": "tokens", "filter": "none", "kl_place": "reward"},
    ),
    "vapo": Preset(
        "2504.05118",
        "[long answers](#ppo), several a prompt",
        {"advantage": "gae", "normalize_std": False, "whiten": "tokens", "filter": "none", "clip": (0.2, 0.28), "nll": 0.1},
    ),
    # The bounds of its runs on mathematics.
    "sao": Preset(
        "2607.07508",
        "[stale samples](#ppo), one a prompt: `rollout.group_size` = 1",
        {"advantage": "gae", "normalize_std": False, "filter": "none", "trust_region": "band", "clip": (0.3, 5.0)},
    ),
    # By token; the trust region is that of arXiv:2602.04879.
    "opd": Preset(
        "2306.13649",
        "[learning from a teacher](#distillation) in place of rewards; needs `[teacher]`",
        {"advantage": "distill", "normalize_std": False, "filter": "none", "trust_region": "mass", "clip": (0.2, 0.2)},
    ),
}
"""By name. To add a preset: an entry. The names of presets and estimators that a spec may have, and the tables of docs/algorithms.md,
are made of it."""

PRESETS: Final[Mapping[str, _Values]] = {name: preset.values for name, preset in ABOUT.items()}
"""The values alone."""

if TYPE_CHECKING:
    PresetName = str
    EstimatorName = str
else:
    PresetName = Literal[tuple(PRESETS)]
    EstimatorName = Literal[tuple(dict.fromkeys(("grpo", *(values.get("advantage", "grpo") for values in PRESETS.values()))))]

CRITICS: Final[Mapping[str, _Values]] = {
    "ppo": {},
    "vapo": {"learning_rate": 2e-6, "warmup_steps": 50, "length_alpha": 0.05},
    "sao": {"learning_rate": 5e-6, "updates": 2, "warmup_steps": 10, "length_alpha": 1.5, "freeze": "attention"},
}
"""Of the presets with a critic: the fields of `[trainer.critic]`, with the numbers of the same papers."""

_UNREAD: Final[_Values] = {"clip": None, "dual_clip": None, "soft_temperatures": None, "gamma_curves": None}
_BOUNDS: Final[Mapping[str, _Values]] = {
    "clip": {"clip": (0.2, 0.2)},
    "log_clip": {"clip": (0.4, 0.4)},
    "cap": {"clip": (1.0, 4.0)},
    "band": {"clip": (0.5, 4.0)},
    "mass": {"clip": (0.2, 0.2)},
    "soft": {"soft_temperatures": (1.0, 1.05)},
    "gamma": {"gamma_curves": ((2.0, 3.0), (3.0, 2.0))},
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
