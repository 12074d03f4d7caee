"""Pagination: every list comes in pages, each with the cursor of the next."""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal, Self, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

Item = TypeVar("Item")
INT64_END: Final = 1 << 63
"""Above every number that a parameter may have."""
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on a page.")]


class Page(BaseModel, Generic[Item]):
    """One page of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool = False
    next_after: str | None = Field(None, description="Send as `?after=` for the next page.")

    @classmethod
    def of(cls, found: list[tuple[str, Item]], limit: int) -> Self:
        """The first `limit` of `found`, a list of (cursor, item). Read `limit + 1` items, so that it shows whether there are more."""
        shown = found[:limit]
        has_more = len(found) > limit
        return cls(data=[item for _, item in shown], has_more=has_more, next_after=shown[-1][0] if has_more else None)
