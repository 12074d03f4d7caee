"""Keys of a run. The braces are a hash tag: all keys of a run are on one node of a cluster."""

from __future__ import annotations


def experience(run_id: str) -> str:
    """The experience log: a stream."""
    return f"{{{run_id}}}:experience"


def admitted(run_id: str) -> str:
    """Bitmap of the group indexes that entered the log."""
    return f"{{{run_id}}}:admitted"


def term(run_id: str) -> str:
    """Newest conductor term that wrote to the log."""
    return f"{{{run_id}}}:term"


def assembly(run_id: str, index: int) -> str:
    """A sampled group that is not in the log yet."""
    return f"{{{run_id}}}:assembly:{index}"


def evaluation(run_id: str, version: int, index: int) -> str:
    """One held-out completion."""
    return f"{{{run_id}}}:evaluation:{version}:{index}"


def everything(run_id: str) -> str:
    """Pattern of all keys of a run."""
    return f"{{{run_id}}}:*"


def run_of(key: str) -> str:
    """The run id in `key`."""
    return key.partition("}")[0].removeprefix("{")
