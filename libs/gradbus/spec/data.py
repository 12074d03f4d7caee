"""The section `data`, and the faults of its fields together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from gradbus.errors import Fault
from gradbus.spec.sections import ColumnName, Integer, Number, Section

MAX_FILES: Final = 1024
_MAX_PATH: Final = 4096
_MAX_CHARACTERS: Final = 1 << 20
_MAX_ROWS: Final = 50_000_000
_Bound = Annotated[Number, Field(ge=-1e300, le=1e300)]


def _one_or_several(value: Any) -> Any:
    """One fault of a source, in place of one for each type that it may have."""
    parts = [value] if isinstance(value, str) else value
    is_list = isinstance(parts, list | tuple) and 0 < len(parts) <= MAX_FILES
    if is_list and all(isinstance(part, str) and 0 < len(part) <= _MAX_PATH for part in parts):
        return value
    expected = f"a path or a digest, or a list of 1 to {MAX_FILES} of them"
    raise PydanticCustomError("sources", "names no files", {"expected": expected})


_Source = Annotated[str, Field(max_length=_MAX_PATH)]
Sources = Annotated[_Source | Annotated[tuple[_Source, ...], Field(max_length=MAX_FILES)], BeforeValidator(_one_or_several)]
"""A file or a folder, or the digest of an uploaded file; or several, whose rows follow each other."""
ColumnNames = Annotated[dict[ColumnName, ColumnName], Field(max_length=256)]
"""Names that columns get, to those that they have in the files."""


class RowFilter(Section):
    """Rows that a run takes; the others are left out when it is submitted, of held-out rows too."""

    min_prompt_characters: Integer = Field(
        0, ge=0, le=_MAX_CHARACTERS, description="Of a shorter prompt the row is left out; of messages the text counts."
    )
    max_prompt_characters: Integer | None = Field(None, ge=1, le=_MAX_CHARACTERS, description="Of a longer prompt the row is left out.")
    max_response_characters: Integer | None = Field(
        None, ge=1, le=_MAX_CHARACTERS, description="With given responses: of a longer one the row is left out."
    )
    ranges: dict[ColumnName, tuple[_Bound, _Bound]] = Field(
        {}, max_length=64, description="Column to its least and its largest number, e.g. of a difficulty; a row without one is left out."
    )


class MixtureSpec(Section):
    """One of the datasets that a run draws from."""

    source: Sources | None = Field(None, description="As `data.train`. After submission its rows are a part of `data.train`.")
    weight: Number = Field(1.0, gt=0.0, le=1e6, description="Its share of the groups, relative to the other weights.")
    columns: ColumnNames = Field({}, description="As `data.columns`, of this dataset.")
    rows: Integer | None = Field(None, ge=1, le=_MAX_ROWS, description="Number of its rows. Filled in when the run is stored.")


class DataSpec(Section):
    """Rows of JSON Lines or Parquet."""

    train: Sources = Field("", description="Files or folders, or digests of uploaded files; or `mixture`.")
    eval: Sources | None = Field(None, description="Held-out rows, never trained on.")
    mixture: tuple[MixtureSpec, ...] = Field((), max_length=64, description="In place of `train`: several datasets with weights.")
    columns: ColumnNames = Field({}, description="Names that columns get, to those that they have in the files.")
    filter: RowFilter = Field(RowFilter(), description="Rows that are left out.")
    prompt: ColumnName = Field("prompt", description="Column with the prompt: text, or a list of chat messages.")
    completion: ColumnName = Field(
        "completion", description="`sft` and `kto`: column with the response to the prompt: text, or chat messages."
    )
    messages: ColumnName | None = Field(
        None,
        description="`sft` and `kto`: column with whole conversations, in place of prompt and completion. Every turn of the assistant is "
        "trained.",
    )
    chosen: ColumnName = Field("chosen", description="Pairs: column with the better response.")
    rejected: ColumnName = Field("rejected", description="Pairs: column with the worse response.")
    label: ColumnName = Field("label", description="`kto`: column with true for a desirable response and false for an undesirable one.")

    @property
    def digests(self) -> dict[str, str]:
        """Field to digest of each dataset, of a spec whose run is stored: each is one file."""
        return {field: value for field in ("train", "eval") if isinstance(value := getattr(self, field), str) and value}


def data_faults(data: DataSpec | None, kind: object) -> Iterator[Fault]:
    """A fault for each field of a valid section that does not fit the others. None for one that is not valid by itself."""
    if data is None:
        return
    yield from _source_faults(data)
    yield from _filter_faults(data.filter, kind)
    for path, names in {"data": data.columns, **{f"data.mixture.{at}": part.columns for at, part in enumerate(data.mixture)}}.items():
        for old, count in Counter(names.values()).items():
            if count > 1:
                yield Fault(f"{path}.columns", "one column gets several names", json.dumps(old), "each column of the files once")


def _source_faults(data: DataSpec) -> Iterator[Fault]:
    if not data.train and not data.mixture:
        yield Fault("data.train", "required field is missing", allowed="`train`, or a `mixture` of several datasets")
    stored = bool(data.train)
    for at, part in enumerate(data.mixture):
        path = f"data.mixture.{at}"
        if stored and part.source is not None:
            yield Fault(f"{path}.source", "`mixture` stands in place of `train`", json.dumps(part.source), "no `train`, or no `mixture`")
        elif stored and part.rows is None:
            yield Fault(f"{path}.rows", "a part of `train` has a number of rows", allowed="a source, without `train`")
        elif not stored and part.source is None:
            yield Fault(f"{path}.source", "required field is missing", allowed="a file, a folder or a digest")
        elif not stored and part.rows is not None:
            yield Fault(f"{path}.rows", "is filled in when the run is stored", str(part.rows), "none")


def _filter_faults(kept: RowFilter, kind: object) -> Iterator[Fault]:
    if kept.max_prompt_characters is not None and kept.min_prompt_characters > kept.max_prompt_characters:
        given, allowed = str(kept.min_prompt_characters), f"at most max_prompt_characters = {kept.max_prompt_characters}"
        yield Fault("data.filter.min_prompt_characters", "no prompt is so long and so short", given, allowed)
    if kind == "rl" and kept.max_response_characters is not None:
        message = "a run of kind rl samples its responses"
        yield Fault("data.filter.max_response_characters", message, str(kept.max_response_characters), "none, or rollout.max_new_tokens")
    for name, (lowest, highest) in kept.ranges.items():
        if lowest > highest:
            yield Fault(f"data.filter.ranges.{name}", "no number lies in it", f"[{lowest:g}, {highest:g}]", "the smaller number first")
