"""The section that selects the algorithm: a preset, and the axes that it is made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gradbus.spec.presets import PresetName, resolve
from gradbus.spec.sections import Flag, Number, Section

Bound = Annotated[Number, Field(ge=0.0, le=1e9)]
Coefficient = Annotated[Number, Field(ge=0.0, le=1000.0)]
EstimatorName = Literal["grpo", "rloo", "reinforce", "opo", "maxrl", "pass_k", "gdpo", "gae", "distill"]
Whiten = Literal["none", "samples", "tokens"]


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
    truncated: Literal["keep", "mask"] = Field("keep", description="`mask`: samples cut off at max_new_tokens are not trained.")

    @property
    def reads_rewards(self) -> bool:
        """Whether a scorer judges the samples that are trained; otherwise only a teacher does."""
        return self.advantage != "distill"


class AlgorithmSpec(AdvantageSpec):
    """An algorithm. `name` selects a preset; a field beside it replaces the preset's value.

    An instance always holds the value of every field, so a stored spec does not change with the presets.
    """

    importance: Literal["behaviour", "decoupled", "none"] = Field(
        "behaviour", description="The ratio's denominator: the policy that sampled, or the policy before the step; `none`: no ratio."
    )
    ratio: Literal["token", "sequence", "product"] = Field(
        "token", description="One ratio a token, or one a sequence: the geometric mean or the product of its tokens'."
    )
    trust_region: Literal["clip", "cap", "band", "mass", "soft", "none"] = Field(
        "clip", description="What bounds the change of the policy in a step."
    )
    clip: tuple[Bound, Bound] | None = Field((0.2, 0.2), description="Lower and upper bound of the trust region.")
    dual_clip: Annotated[Number, Field(gt=1.0, le=1e9)] | None = Field(
        None, description="`clip`: bound of the ratio where the advantage is negative."
    )
    soft_temperatures: tuple[Annotated[Number, Field(gt=0.0, le=1e3)], Annotated[Number, Field(gt=0.0, le=1e3)]] | None = Field(
        None, description="`soft`: steepness for positive and for other advantages."
    )
    sequence_mask: tuple[Bound, Bound] | None = Field(
        None, description="A sequence whose geometric mean of ratios lies outside of these bounds does not move the policy."
    )
    off_policy_mask: Annotated[Number, Field(gt=0.0, le=1e3)] | None = Field(
        None, description="A sequence with a negative advantage whose log-probability fell by more than this a token is not trained."
    )
    aggregate: Literal["token", "sequence", "constant"] = "token"
    kl: Coefficient = Field(0.0, description="Weight of the KL to the base model.")
    kl_place: Literal["loss", "reward"] = Field(
        "loss", description="Adds the KL to the loss, or subtracts it from the reward as the rollout's log-probabilities tell it."
    )
    kl_estimator: Literal["k2", "k3", "unbiased"] = Field("k3", description="Of a KL in the loss.")
    entropy: Coefficient = Field(0.0, description="Weight of the entropy bonus.")

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        return resolve(given)
