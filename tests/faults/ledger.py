"""An independent checker. It reads the log, its archive and the checkpoint manifests, and shares no code with the services.

Only the generated message classes are taken from the product; records, digests, order and staleness are worked out here.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import redis

from gradbus.v1.group_pb2 import Group, LogEntry, LogSegment, Verdict
from gradbus.v1.record_pb2 import StoredRecord
from gradbus.v1.weights_pb2 import CheckpointManifest


@dataclass
class Ledger:
    """Everything that is stored about a run."""

    entries: dict[int, LogEntry] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    """Indexes in the order of the log."""
    checkpoints: list[CheckpointManifest] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def read_ledger(state: Path, run_id: str) -> Ledger:
    """Reads a finished run of the stack that lives in `state`."""
    ledger = Ledger()
    folder = state / "objects" / "runs" / run_id
    rows: dict[tuple[int, int], bytes] = {}
    for path in (folder / "log").glob("*"):
        for item in LogSegment.FromString(_payload(path.read_bytes(), path.name, ledger)).entries:
            _add(rows, item.stream_id, item.record, ledger)
    for stream_id, record in _live_log(state, run_id):
        _add(rows, stream_id, record, ledger)
    for position in sorted(rows):
        entry = LogEntry.FromString(_payload(rows[position], f"entry {position}", ledger))
        if entry.index in ledger.entries:
            ledger.faults.append(f"index {entry.index} is in the log twice")
            continue
        ledger.entries[entry.index] = entry
        ledger.digests[entry.index] = hashlib.sha256(StoredRecord.FromString(rows[position]).payload).hexdigest()
        ledger.order.append(entry.index)
    for path in (folder / "checkpoints").glob("*"):
        ledger.checkpoints.append(CheckpointManifest.FromString(_payload(path.read_bytes(), path.name, ledger)))
    ledger.checkpoints.sort(key=lambda manifest: (manifest.step, manifest.term))
    return ledger


def check(ledger: Ledger, groups_per_step: int, steps: int, max_staleness: int, *, fixed_lag: bool, dynamic: bool = False) -> list[str]:
    """What is wrong with a run that succeeded; empty when every index was trained once or left with a reason.

    `dynamic`: filtered groups were replaced, and no step found too few.
    """
    faults = list(ledger.faults)
    faults += _indexes(ledger)
    faults += _trained_once(ledger)
    if dynamic:
        faults += _full_steps(ledger, groups_per_step, steps, max_staleness)
    else:
        faults += _steps(ledger, groups_per_step, steps, max_staleness, fixed_lag=fixed_lag)
    if not ledger.checkpoints or ledger.checkpoints[-1].step != steps:
        faults.append(f"the last checkpoint is not of step {steps}")
    return faults


def _indexes(ledger: Ledger) -> list[str]:
    expected = set(range(max(ledger.entries, default=-1) + 1))
    faults = [f"index {index} is in no entry" for index in sorted(expected - set(ledger.entries))]
    for index, entry in ledger.entries.items():
        if entry.verdict != Verdict.VERDICT_TRAIN and not entry.reason:
            faults.append(f"index {index} was left out without a reason")
    return faults


def _trained_once(ledger: Ledger) -> list[str]:
    """Checkpoints of the surviving chain together name each index once, with the digest the log has."""
    faults = []
    seen: dict[int, int] = {}
    chain: list[CheckpointManifest] = []
    for manifest in ledger.checkpoints:  # of one step the newest term counts: sorted last
        if chain and chain[-1].step == manifest.step:
            chain.pop()
        chain.append(manifest)
    for manifest in chain:
        for index, digest in manifest.trained.items():
            if index in seen:
                faults.append(f"index {index} was trained by checkpoint {seen[index]} and again by {manifest.step}")
            seen[index] = manifest.step
            if ledger.digests.get(index) != digest:
                faults.append(f"index {index} was trained with other content than the log has")
    if chain:
        covered = set(range(chain[-1].frontier.below)) | set(chain[-1].frontier.above)
        faults += [f"index {index} is in the last frontier and in no checkpoint's list" for index in sorted(covered - set(seen))]
        faults += [f"index {index} was trained and is not in the last frontier" for index in sorted(set(seen) - covered)]
        left = [index for index in ledger.entries if index not in covered and ledger.entries[index].verdict == Verdict.VERDICT_TRAIN]
        faults += [f"index {index} is in the log and was never trained" for index in left]
    return faults


def _steps(ledger: Ledger, size: int, steps: int, max_staleness: int, *, fixed_lag: bool) -> list[str]:
    faults = []
    trained = [index for index in ledger.order if ledger.entries[index].verdict == Verdict.VERDICT_TRAIN]
    if fixed_lag and set(ledger.entries) != set(range(size * steps)):
        faults.append(f"the log holds {len(ledger.entries)} indexes, the run has {size * steps}")
    if not fixed_lag and len(trained) != size * steps:
        faults.append(f"the log holds {len(trained)} trainable groups, the run trains {size * steps}")
    for place, index in enumerate(trained):
        step = index // size if fixed_lag else place // size
        for sample in Group.FromString(ledger.entries[index].group).samples:
            versions = {span.version for span in sample.spans if span.trainable}
            if fixed_lag and versions != {max(0, step - max_staleness)}:
                faults.append(f"sample {sample.sample_id} of step {step} was drawn by {versions}")
            if step - min(versions) > max_staleness:
                faults.append(f"sample {sample.sample_id} of step {step} is {step - min(versions)} versions old")
    return faults


def _full_steps(ledger: Ledger, size: int, steps: int, max_staleness: int) -> list[str]:
    """In order of index, each step has `size` groups that can be trained, none too old and none from the future."""
    faults = []
    trained = sorted(index for index, entry in ledger.entries.items() if entry.verdict == Verdict.VERDICT_TRAIN)
    if len(trained) != size * steps:
        faults.append(f"the log holds {len(trained)} trainable groups, the run trains {size * steps}")
    for place, index in enumerate(trained):
        step = place // size
        versions = {span.version for sample in Group.FromString(ledger.entries[index].group).samples for span in sample.spans}
        if len(versions) > 1 or not step - max_staleness <= min(versions) <= step:
            faults.append(f"group {index} of step {step} was drawn by {versions}")
    return faults


def open_buffer(state: Path, role: str = "conductor") -> redis.Redis:
    """The buffer of the stack that lives in `state`, with the rights of a role."""
    lines = (state / "buffer" / "buffer.conf").read_text().splitlines()
    port = int(next(line.split()[1] for line in lines if line.startswith("port ")))
    password = (state / "secrets" / role / "gradbus_buffer_password").read_text().strip()
    return redis.Redis(port=port, username=role, password=password, protocol=2)


def _live_log(state: Path, run_id: str) -> list[tuple[str, bytes]]:
    with open_buffer(state) as client:
        found = client.xread({f"{{{run_id}}}:experience": "0-0"})
    return [(stream_id.decode(), fields[b"r"]) for _, rows in found for stream_id, fields in rows]


def _add(rows: dict[tuple[int, int], bytes], stream_id: str, record: bytes, ledger: Ledger) -> None:
    milliseconds, _, serial = stream_id.partition("-")
    position = (int(milliseconds), int(serial))
    if rows.setdefault(position, record) != record:
        ledger.faults.append(f"log and archive differ at {stream_id}")


def _payload(record: bytes, what: str, ledger: Ledger) -> bytes:
    stored = StoredRecord.FromString(record)
    if hashlib.sha256(stored.payload).digest() != stored.digest:
        ledger.faults.append(f"{what} does not match its digest")
    return stored.payload


if __name__ == "__main__":
    import sys

    found = read_ledger(Path(sys.argv[1]), sys.argv[2])
    size, count, lag = (int(value) for value in sys.argv[3:6])
    print("\n".join(check(found, size, count, lag, fixed_lag=os.environ.get("MODE", "fixed_lag") == "fixed_lag")) or "whole")
