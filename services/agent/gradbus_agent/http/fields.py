"""Fields of claims and ends."""

from __future__ import annotations

from typing import Final

from gradbus.algorithms import MAX_REWARD
from gradbus.sandbox.bounds import MAX_COMPONENT, MAX_COMPONENTS, MAX_NAME, MAX_REASON
from gradbus_agent.contract import Document, RefusalError, Verdict

MAX_CAPACITY: Final = 256
MAX_WAIT_SECONDS: Final = 60.0


def claim_of(body: Document) -> tuple[str, int, float]:
    """Run, capacity and seconds to wait of a claim. Raises RefusalError."""
    run_id, capacity, seconds = body.get("run"), body.get("capacity", 1), body.get("wait_seconds", 20)
    if not isinstance(run_id, str) or not run_id or len(run_id) > MAX_NAME:
        raise _wrong("run is no id of a run; send the id that `gradbus run` printed")
    if isinstance(capacity, bool) or not isinstance(capacity, int) or not 1 <= capacity <= MAX_CAPACITY:
        raise _wrong(f"capacity is no integer of 1 to {MAX_CAPACITY}; send how many episodes you play at a time")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise _wrong(f"wait_seconds is no number of 0 to {MAX_WAIT_SECONDS:.0f}; send how long to wait for an episode")
    return run_id, capacity, float(seconds)


def verdict_of(body: Document, attempt: int) -> Verdict:
    """How an agent ended its episode. Raises RefusalError."""
    if body.get("attempt", attempt) != attempt:
        raise RefusalError(410, "episode_over", f"the key is that of attempt {attempt}; another attempt of the episode is over")
    reason = body.get("reason") or ""
    if not isinstance(reason, str):
        raise _wrong("reason is no text")
    reward, components = body.get("reward"), body.get("components") or {}
    if reward is not None:
        reward = _number("reward", reward, MAX_REWARD)
    if not isinstance(components, dict) or len(components) > MAX_COMPONENTS:
        raise _wrong(f"components is no object of at most {MAX_COMPONENTS} numbers")
    numbers = {_name(name): _number(f"the component {name[:80]!r}", value, MAX_COMPONENT) for name, value in components.items()}
    match body.get("status", "ok"):
        case "ok":
            if numbers and reward is None:
                raise _wrong("there are components without a reward; send both")
            return Verdict("ok", reason[:MAX_REASON], reward, numbers)
        case "invalid":
            return Verdict("invalid", reason[:MAX_REASON] or "the agent cannot judge this item")
        case "error":
            return Verdict("error", reason[:MAX_REASON] or "the agent failed and gave no reason")
    raise _wrong('status is none of "ok", "invalid" and "error"')


def _name(name: str) -> str:
    if len(name) > MAX_NAME:
        raise _wrong(f"a component has a name of more than {MAX_NAME} characters; shorten it")
    return name


def _number(what: str, value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
        raise _wrong(f"{what} is {str(value)[:80]}; send a number within ±{most:g}")
    return float(value)


def _wrong(message: str) -> RefusalError:
    return RefusalError(400, "invalid_request", message)
