"""What `gradbus replay` asks of the trainer's process, and the lines of JSON with which that answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

REPLAY_MODULE: Final = "gradbus_trainer.replay"


class ReplayOrder(BaseModel):
    """Which run to train again, from where, and to which version."""

    run: str
    """Id or its beginning, name, or `last`."""
    start: int = 0
    """Step of the checkpoint to begin with; 0: the base model."""
    to: int | None = None
    """Step of the last version; None: that of the newest checkpoint."""
    anyway: bool = False
    """Whether to go on where torch, the CPU or the GPU are others than the run's."""


class ReplayedStep(BaseModel):
    """A version is made again. A version with another digest ends the replay."""

    kind: Literal["version"] = "version"
    step: int
    to: int
    compared: bool
    """Whether its digest is recorded, and so equal."""


class ReplayResult(BaseModel):
    """The end of a replay in the recorded digests."""

    kind: Literal["result"] = "result"
    run_id: str
    start: int
    to: int
    digest: str
    """Of the last version's weights."""
    versions: Sequence[int]
    """Steps of the versions whose digests were compared."""
    checkpoints: Sequence[int]
    """Steps of the checkpoints whose optimiser state and frontier were compared."""
    differences: Sequence[str] = ()
    """What differs between this machine and the run's trainer."""


class ReplayFailure(BaseModel):
    """Why there is no result, and what to do."""

    kind: Literal["failure"] = "failure"
    message: str


Line = ReplayedStep | ReplayResult | ReplayFailure
LINE: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])
