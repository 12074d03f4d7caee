"""Links that sign a browser in."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field


class SignInResource(BaseModel):
    """A link that signs a browser in, once."""

    object: Literal["sign_in"] = "sign_in"
    path: str = Field(description="Path of the link, below the gateway's address.")
    expires_at: datetime
