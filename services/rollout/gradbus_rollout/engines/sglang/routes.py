"""The experts of one sample's tokens, reply by reply."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gradbus.errors import EngineError
from gradbus.formats.tokens import route_bytes, route_dtype
from gradbus_rollout.engines.base import RouteShape

_SERVERS: Final = "<i4"


class SampleRoutes:
    """The routes of the tokens from `start` on, of a sequence of a prompt and its response.

    A reply has one row a token but for the last token, which was not computed: the next request computes it, and its reply has the row.
    After a loss no row is taken: a later request computes the lost tokens again, and its rows would be beside older log-probabilities.
    """

    def __init__(self, shape: RouteShape, start: int) -> None:
        self._shape = shape
        self._token_bytes = route_bytes(len(shape.layers), shape.experts, shape.chosen)
        self._start = start
        self._content = bytearray()
        self._has_lost = False

    def fields(self) -> dict[str, Any]:
        """What a request asks for: the rows that are not here yet."""
        return {"return_routed_experts": True, "routed_experts_start_len": self._next}

    def take(self, meta: Mapping[str, Any], length: int) -> None:
        """Adds the rows of a reply after which the sequence has `length` tokens; rows may be missing.

        Raises EngineError for rows of another model.
        """
        if self._has_lost or not meta["completion_tokens"]:
            return
        # A sample that the server retracted was computed again.
        if (encoded := meta.get("routed_experts")) and not meta.get("num_retractions"):
            self._add(encoded, length)
        self._has_lost = self._next < length - 1

    def _add(self, encoded: str, length: int) -> None:
        shape = self._shape
        try:
            rows = np.frombuffer(base64.b64decode(encoded), _SERVERS).reshape(-1, shape.all_layers, shape.chosen)
        except ValueError as error:
            expected = f"[tokens, {shape.all_layers}, {shape.chosen}]"
            raise EngineError(
                "refused", f"the server's routes are not int32 {expected}: {error}; let it serve the run's own model"
            ) from error
        rows = rows[: max(0, length - 1 - self._next), list(shape.layers)]
        if rows.size and not 0 <= rows.min() <= rows.max() < shape.experts:
            found = f"{rows.min()} to {rows.max()}"
            raise EngineError("refused", f"the server's routes name experts {found} of {shape.experts}; let it serve the run's own model")
        self._content += rows.astype(route_dtype(shape.experts)).tobytes()

    def parts(self, prompt: int) -> tuple[bytes, bytes]:
        """The routes of a prompt of this many tokens, and those of the response."""
        end = max(0, prompt - self._start) * self._token_bytes
        return bytes(self._content[:end]), bytes(self._content[end:])

    @property
    def _next(self) -> int:
        """The first token without a row."""
        return self._start + len(self._content) // self._token_bytes
