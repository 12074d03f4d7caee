"""What users write on a run: tags and a note. They change nothing that the run computes."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from gradbus.control.runs import StoredModel

ANNOTATIONS: Final = "annotations"
MOST_TAGS: Final = 32
MOST_NOTE_CHARACTERS: Final = 4000
_TAG: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}$"


def _tag(text: str) -> str:
    if re.fullmatch(_TAG, text):
        return text
    rule = "a tag has up to 64 letters A to Z, digits and . _ : / -, and begins with a letter or a digit"
    raise PydanticCustomError("tag", rule)


Tag = Annotated[str, AfterValidator(_tag), Field(json_schema_extra={"pattern": _TAG})]


class AnnotationChange(BaseModel):
    """What is to change of a run's tags and note; what is left out stays. Two changes at a time lose nothing of each other's tags."""

    model_config = ConfigDict(extra="forbid")

    add_tags: Annotated[tuple[Tag, ...], Field(max_length=MOST_TAGS)] = ()
    remove_tags: Annotated[tuple[Tag, ...], Field(max_length=MOST_TAGS)] = ()
    """One that is added too is added."""
    note: str | None = Field(None, max_length=MOST_NOTE_CHARACTERS, description="Replaces the note; empty: none.")


class Annotations(StoredModel):
    """`<run>.annotations`, written by the gateway."""

    tags: tuple[str, ...] = ()
    """In the order of their characters."""
    note: str = ""

    @classmethod
    def parse(cls, value: bytes | None) -> Annotations:
        """Raises pydantic's ValidationError for a value that the gateway has not written."""
        return cls() if value is None else cls.model_validate_json(value)

    def changed(self, change: AnnotationChange) -> Annotations:
        """With a change."""
        tags = (set(self.tags) - set(change.remove_tags)) | set(change.add_tags)
        return Annotations(tags=tuple(sorted(tags)), note=self.note if change.note is None else change.note)
