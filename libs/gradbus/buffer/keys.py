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


def journal(run_id: str, index: int) -> str:
    """The journals of a group's episodes, until the group is in the log: a hash."""
    return f"{{{run_id}}}:journal:{index}"


def before_the_log(run_id: str, index: int, *, journaled: bool) -> tuple[str, ...]:
    """What there is of a group until it is in the log, and is removed then."""
    return (assembly(run_id, index), journal(run_id, index)) if journaled else (assembly(run_id, index),)


def evaluation_journal(run_id: str, version: int, index: int) -> str:
    """The journal of a held-out row's episode: a hash."""
    return f"{{{run_id}}}:journal:evaluation:{version}:{index}"


def everything(run_id: str) -> str:
    """Pattern of all keys of a run."""
    return f"{{{run_id}}}:*"


def run_of(key: str) -> str:
    """The run id in `key`."""
    return key.partition("}")[0].removeprefix("{")
