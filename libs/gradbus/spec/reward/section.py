"""The section `[reward]`."""

from __future__ import annotations

from pydantic import Field

from gradbus.spec.reward.graders import Grader
from gradbus.spec.sections import ModelSpec, Number, Section


class RewardModelSpec(ModelSpec):
    """A reward model, with the policy's tokenizer: Hugging Face's sequence classification with one label, read at the last token."""


class RewardSpec(Section):
    """Exactly one of `grader` (runs in Gradbus), `service` (your own scorer) and `model` (a reward model).

    A run on given responses has none. One whose samples only a teacher judges has one for its held-out rows, if it has these.
    """

    grader: Grader | None = None
    service: str | None = Field(None, max_length=2048, description="grpc://host:port or http(s)://host:port/path of your own scorer.")
    model: RewardModelSpec | None = Field(None, description="A reward model, which the reference service computes.")
    timeout_seconds: Number = Field(
        10.0, ge=0.1, le=3600.0, description="Deadline of one scorer call; a reward model has at least 120 s, for it may have to be loaded."
    )
