"""The section that selects the algorithm: a preset, and the axes that it is made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gradbus.spec.presets import EstimatorName, PresetName, resolve
from gradbus.spec.sections import Flag, Integer, Number, Section

Bound = Annotated[Number, Field(ge=0.0, le=1e9)]
Coefficient = Annotated[Number, Field(ge=0.0, le=1000.0)]
GammaCurve = tuple[Annotated[Number, Field(ge=0.1, le=10.0)], Annotated[Number, Field(ge=0.1, le=10.0)]]
Whiten = Literal["none", "samples", "tokens"]


class KlControlSpec(Section):
    """Changes the weight of the KL from step to step, so that the KL comes near a target (Ziegler et al. 2019, arXiv:1909.08593)."""

    target: Annotated[Number, Field(gt=0.0, le=1e6)] = Field(description="Of the metric `kl`, nats a token.")
    horizon: Integer = Field(
        10_000, ge=1, le=10**12, description="Samples in which the weight grows by the KL's relative error, at most 0.2."
    )


class EntropyControlSpec(Section):
    """Changes the weight of the entropy bonus from step to step, and uses it only while the entropy is low (arXiv:2505.22312)."""

    target: Annotated[Number, Field(gt=0.0, le=1e3)] = Field(0.2, description="Of the metric `entropy`, nats a token.")
    delta: Annotated[Number, Field(gt=0.0, le=1e3)] = Field(0.005, description="What the weight gains or loses in a step.")
    max_coefficient: Annotated[Number, Field(gt=0.0, le=1e3)] = Field(1.0, description="The weight stays within 0 and this.")


class CovarianceClipSpec(Section):
    """Leaves out some of the tokens whose advantage and log-probability are large together, which lower the entropy most.

    Clip-Cov, arXiv:2505.22617.
    """

    share: Annotated[Number, Field(gt=0.0, le=1.0)] = Field(
        2e-4, description="Of the step's trainable tokens; at least one token, if one is within the bounds."
    )
    bounds: tuple[Bound, Bound] = Field((1.0, 5.0), description="Between which a token's covariance makes it one to choose from.")


class AdvantageSpec(Section):
    """From the rewards of a group to the advantages of its samples."""

    name: PresetName = "grpo"
    advantage: EstimatorName = Field("grpo", description="How a sample's advantage is estimated.")
    normalize_std: Flag = Field(True, description="Divides advantages by the standard deviation of the group's rewards.")
    whiten: Whiten = Field(
        "none", description="Gives the advantages of a step the mean 0 and the variance 1, over its samples or its tokens."
    )
    overlong_penalty: Coefficient = Field(0.0, description="What the reward of a sample of max_new_tokens tokens loses.")
    overlong_buffer: Number = Field(
        0.2, gt=0.0, le=1.0, description="Part of max_new_tokens, at its end, in which the penalty grows from 0 on."
    )
    filter: Literal["zero_variance", "none"] = "zero_variance"
    truncated: Literal["keep", "mask", "bootstrap"] = Field(
        "keep",
        description="Samples cut off at max_new_tokens: `mask` does not train them, `bootstrap` adds the critic's value after their end.",
    )

    @property
    def reads_rewards(self) -> bool:
        """Whether a scorer judges the samples that are trained; otherwise only a teacher does."""
        return self.advantage != "distill"


class TrustRegionSpec(Section):
    """What bounds the change of the policy, and in which ratio."""

    importance: Literal["behaviour", "decoupled", "none"] = Field(
        "behaviour", description="The ratio's denominator: the policy that sampled, or the policy before the step; `none`: no ratio."
    )
    ratio: Literal["token", "sequence", "product"] = Field(
        "token", description="One ratio a token, or one a sequence: the geometric mean or the product of its tokens'."
    )
    trust_region: Literal["clip", "log_clip", "cap", "band", "mass", "soft", "gamma", "none"] = Field(
        "clip", description="What bounds the change of the policy in a step."
    )
    clip: tuple[Bound, Bound] | None = Field((0.2, 0.2), description="Lower and upper bound of the trust region.")
    dual_clip: Annotated[Number, Field(gt=1.0, le=1e9)] | None = Field(
        None, description="`clip`: bound of the ratio where the advantage is negative."
    )
    soft_temperatures: tuple[Annotated[Number, Field(gt=0.0, le=1e3)], Annotated[Number, Field(gt=0.0, le=1e3)]] | None = Field(
        None, description="`soft`: steepness for positive and for other advantages."
    )
    gamma_curves: tuple[GammaCurve, GammaCurve] | None = Field(
        None, description="`gamma`: power and rate of the weight, for positive and for other advantages."
    )
    sequence_mask: tuple[Bound, Bound] | None = Field(
        None, description="A sequence whose geometric mean of ratios lies outside of these bounds does not move the policy."
    )
    off_policy_mask: Annotated[Number, Field(gt=0.0, le=1e3)] | None = Field(
        None, description="A sequence with a negative advantage whose log-probability fell by more than this a token is not trained."
    )
    second_moment: Annotated[Number, Field(gt=0.0, le=1e6)] | None = Field(
        None,
        description="Tokens of a step do not move the policy, those with the largest squared log-ratio first, until the mean of the rest "
        "is below this.",
    )
    covariance_clip: CovarianceClipSpec | None = Field(
        None,
        description="Some tokens of a step do not move the policy, chosen at random from those of a high covariance of advantage and "
        "log-probability.",
    )
    centering: Annotated[Integer, Field(ge=1, le=128)] | None = Field(
        None,
        description="Takes the mean of the score under the policy that sampled from each token's, by the sampler's so many most likely "
        "tokens at its position.",
    )


class AlgorithmSpec(TrustRegionSpec, AdvantageSpec):
    """An algorithm. `name` selects a preset; a field beside it replaces the preset's value.

    An instance always holds the value of every field, so a stored spec does not change with the presets.
    """

    aggregate: Literal["token", "sequence", "constant"] = "token"
    kl: Coefficient = Field(0.0, description="Weight of the KL to the base model.")
    kl_place: Literal["loss", "reward"] = Field(
        "loss", description="Adds the KL to the loss, or subtracts it from the reward as the rollout's log-probabilities tell it."
    )
    kl_control: KlControlSpec | None = Field(None, description="Changes `kl`, which is the first step's, from step to step.")
    kl_estimator: Literal["k2", "k3", "unbiased"] = Field("k3", description="Of a KL in the loss.")
    kl_reference_steps: Annotated[Integer, Field(ge=1, le=10_000_000)] | None = Field(
        None,
        description="The KL is to a version of the run, that of the last multiple of so many steps before a sample's. Unset: to the base "
        "model.",
    )
    drift: Coefficient = Field(0.0, description="Weight of the squared log-ratio of every token, those that the trust region bounds too.")
    nll: Coefficient = Field(
        0.0,
        description="Weight of the negative log-likelihood of a group's best samples, those with its largest reward, if that is above 0.",
    )
    entropy: Coefficient = Field(0.0, description="Weight of the entropy bonus.")
    entropy_control: EntropyControlSpec | None = Field(
        None, description="Changes the weight of the entropy bonus, which begins at `entropy`, from step to step."
    )

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        return resolve(given)
