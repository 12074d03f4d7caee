"""The problem of a quota."""

from __future__ import annotations

from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.refusals import count_refusal


def quota_exceeded(key_id: str, detail: str) -> ProblemError:
    """The problem 403: waiting does not help. `detail` says what the key has, and ends with what to do."""
    count_refusal("quota", f"key {key_id}")
    return ProblemError(403, "quota-exceeded", detail)
