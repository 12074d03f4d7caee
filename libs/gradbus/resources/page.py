"""Pagination: every list comes in pages, each with the cursor of the next."""

from __future__ import annotations

from typing import Generic, Literal, Self, TypeVar

from pydantic import BaseModel, Field

Item = TypeVar("Item")


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
