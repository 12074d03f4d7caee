"""Names of all subjects, streams and buckets."""

from __future__ import annotations

from typing import Final

PROMPTS_STREAM: Final = "PROMPTS"
EVENTS_STREAM: Final = "EVENTS"


class Buckets:
    """Key-value buckets."""

    RUNS: Final = "runs"
    """`<run>.spec`, `<run>.desired`, `<run>.scorers_wanted`, `<run>.annotations` (gateway);
    `<run>.status`, `<run>.evaluations`, `<run>.scorers` (conductor)."""
    WORKERS: Final = "workers"
    """`<worker>`: presence, written by each worker; expires after `WORKER_TTL_SECONDS` without a heartbeat."""
    ASSIGNMENTS: Final = "assignments"
    """`<worker>`: the run a worker serves, written by conductors with compare-and-set."""
    LEASES: Final = "leases"
    """`conductor.<run>`, `trainer.<run>`, `device.<device>`, and `wanted.<device>`: who waits for that device."""
    PROBES: Final = "probes"
    """`<run>`: digest of a fixed probe, created by the run's first rollout worker."""
    HEADS: Final = "heads"
    """`<run>.version` (WeightManifest), `<run>.checkpoint` (CheckpointHead) and `<run>.term`; only the weight store writes."""
    CONDEMNED: Final = "condemned"
    """`<hex of the digest>`: a blob that no run names and that the weight store deletes after a while, unless somebody keeps it."""
    SESSIONS: Final = "sessions"
    """`code.<hash>` and `session.<hash>`: users signed in to the web UI; expire after `SESSION_TTL_SECONDS`."""


WORKER_TTL_SECONDS: Final = 6.0
LEASE_TTL_SECONDS: Final = 10.0
SESSION_TTL_SECONDS: Final = 12 * 3600.0
MARKER_TTL_SECONDS: Final = 3600.0
"""How long a purged or expired key leaves a marker: longer than any view goes without reading the whole bucket."""


def template(subject: str) -> str:
    """The subject without its run, for metrics: a run id is no label."""
    return f"{subject.partition('.')[0]}.*"


def inbox(user: str) -> str:
    """Prefix of the subjects on which a user receives replies. Each user has its own, so that no other user can read them."""
    return f"_INBOX_{user}" if user else "_INBOX"


def prompts(run_id: str) -> str:
    """Work queue of a run's tasks."""
    return f"prompts.{run_id}"


def groups(run_id: str) -> str:
    """Announces sampled groups in the buffer."""
    return f"groups.{run_id}"


def broadcasts(run_id: str) -> str:
    """Announces broadcasts of versions."""
    return f"broadcasts.{run_id}"


def missing(run_id: str) -> str:
    """Requests for groups that the trainer lacks."""
    return f"missing.{run_id}"


def events(run_id: str) -> str:
    """A run's history."""
    return f"events.{run_id}"
