"""Parameters of every list."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query

INT64_END: Final = 1 << 63
"""Above every number that a parameter may have."""
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on a page.")]
