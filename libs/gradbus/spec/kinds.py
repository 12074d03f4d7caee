"""The kinds of run that train on given responses: supervised fine-tuning, and preference learning on pairs or on labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from gradbus.spec.data import DataSpec
from gradbus.spec.sections import Number, Section

Kind = Literal["rl", "sft", "dpo", "ipo", "simpo", "orpo", "kto", "reward_model"]
PAIR_KINDS: Final = ("dpo", "ipo", "simpo", "orpo", "reward_model")
"""Trained on pairs of a chosen and a rejected response."""
PREFERENCE_KINDS: Final = (*PAIR_KINDS, "kto")
"""Trained on what a dataset says of its responses: their order in a pair, or a label of each."""

DATA_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sft": ("completion", "messages"),
    "kto": ("completion", "messages", "label"),
    **dict.fromkeys(PAIR_KINDS, ("chosen", "rejected")),
}
"""Fields of `data` that a kind reads beside the prompt; responses in the order of a group's samples."""
_OF_RESPONSES: Final = ("completion", "chosen", "rejected")

GIVEN_RESPONSES: Final[Mapping[str, Any]] = {
    "advantage": "reinforce",
    "normalize_std": False,
    "filter": "none",
    "importance": "none",
    "trust_region": "none",
}
"""The algorithm of a run on given responses: -log pi of each token, weighted by its sample's label, without a ratio."""

_PAPERS: Final[Mapping[str, Mapping[str, float]]] = {"simpo": {"beta": 2.0, "margin": 1.0}}
"""The numbers of a kind's paper where they are not those of DPO: SimPO (arXiv:2405.14734)."""


class PreferenceSpec(Section):
    """The loss on pairs or on labelled responses, with `kind` `dpo`, `ipo`, `simpo`, `orpo`, `kto` or `reward_model`."""

    beta: Annotated[Number, Field(gt=0.0, le=1e3)] = Field(
        0.1, description="Factor of the difference between the responses; `orpo`: weight of the odds ratio; `kto`: factor of the log-ratio."
    )
    margin: Annotated[Number, Field(ge=0.0, le=1e3)] = Field(0.0, description="`simpo`: the margin that a pair should reach.")
    label_smoothing: Annotated[Number, Field(ge=0.0, lt=0.5)] = Field(0.0, description="`dpo`: part of the pairs whose order is wrong.")
    desirable_weight: Annotated[Number, Field(ge=0.0, le=1e3)] = Field(1.0, description="`kto`: weight of the desirable responses.")
    undesirable_weight: Annotated[Number, Field(ge=0.0, le=1e3)] = Field(1.0, description="`kto`: weight of the undesirable responses.")
    center: Annotated[Number, Field(ge=0.0, le=1e3)] = Field(
        0.0, description="`reward_model`: weight of the squared sum of a pair's scores, which keeps them around 0."
    )


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a dataset that a run reads."""

    prompt: str = "prompt"
    responses: tuple[str, ...] = ()
    """Responses that the run trains on, if the dataset gives them."""
    conversation: str | None = None
    """A whole conversation, in place of prompt and response: the response begins with its first message of the assistant."""
    label: str | None = None
    """Whether the response is a desirable one: true or false."""
    whole_row: bool = False
    """Workers get all columns, for an environment reads them."""


def columns_of(kind: Kind, data: DataSpec) -> RowColumns:
    """The columns of the dataset that a run of this kind reads."""
    read = DATA_FIELDS.get(kind, ())
    responses = tuple(getattr(data, field) for field in read if field in _OF_RESPONSES)
    return RowColumns(data.prompt, responses, data.messages if "messages" in read else None, data.label if "label" in read else None)


def with_kind(given: Any) -> Any:
    """The fields of a spec with the sections that its kind decides. Anything without a known kind is returned as it is."""
    if not isinstance(given, Mapping) or given.get("kind") not in get_args(Kind)[1:]:
        return given
    given = {"algorithm": GIVEN_RESPONSES, **given}
    preference = given.get("preference") or {}
    if given["kind"] not in PREFERENCE_KINDS or not isinstance(preference, Mapping):
        return given
    return {**given, "preference": {**_PAPERS.get(given["kind"], {}), **preference}}
