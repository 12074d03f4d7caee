"""A view of a bucket whose keys the test changes, as NATS would change them."""

from __future__ import annotations

from gradbus.bus import View
from gradbus.control.runs import WorkerPresence


def empty_view() -> View:
    """A view without a server."""
    return View(None, "bucket", ">")  # type: ignore[arg-type]


def change(view: View, key: str, value: bytes | None) -> None:
    """Gives the key another value, None: removes it. Listeners hear of it."""
    if value is None:
        view._entries.pop(key, None)
    else:
        view._entries[key] = value
    for listener in view._listeners:
        listener(key)


def beat(view: View, worker: str, role: str, incarnation: str = "1", **fields: object) -> WorkerPresence:
    """A heartbeat of the worker."""
    presence = WorkerPresence.model_validate({"worker": worker, "role": role, "incarnation": incarnation, **fields})
    change(view, worker, presence.to_bytes())
    return presence
