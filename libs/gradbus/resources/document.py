"""A resource as JSON."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Json = dict[str, Any]


def document(resource: BaseModel) -> Json:
    """The resource as the gateway sent it, with the fields of a newer release that its model does not have."""
    found: Json = _completed(resource, resource.model_dump(mode="json"))
    return found


def _completed(value: object, dumped: Any) -> Any:
    """`dumped` with the fields that its models do not have, which pydantic leaves out."""
    if isinstance(value, BaseModel):
        known = {name: _completed(getattr(value, name), part) for name, part in dumped.items()}
        return known | (value.__pydantic_extra__ or {})
    if isinstance(value, list | tuple):
        return [_completed(*pair) for pair in zip(value, dumped, strict=True)]
    if isinstance(value, dict):
        return {name: _completed(part, dumped[name]) for name, part in value.items()}
    return dumped
