"""Renders the table as docs/access.md: `python -m gradbus.access > docs/access.md`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradbus.access.table import BUFFER, EVENTS, HINTS, KEYS, METHODS, PROMPTS, READERS, Roles

_HEAD = """\
# Permissions

Rendered from `libs/gradbus/access/table.py` by `python -m gradbus.access > docs/access.md`; change the table, not this page. NATS, the
buffer and the gRPC servers are configured from the same table. Each role has its own user and password on NATS and on the buffer, and
its own token for gRPC. In containers each also has its own [certificate](deploy.md#certificates): a gRPC server takes a token only
together with the certificate of the same role. Everything that is not listed is refused.
"""

_LIMITS = """\
## Limits

- All processes of a role share its user: one rollout worker could write another's presence.
- NATS checks the subject of a request and not its reply subject. A compromised role could make the server send a reply to a key
  that the role may not write. Readers validate what they read, so this can disturb a run but cannot forge a value.
- A role that may set a key of the buffer may overwrite it; the record's digest shows damage, not the writer.
- The members of a weight broadcast are admitted with tokens, but their own connections (a TCPStore, gloo or NCCL) require none. A
  process that reaches them can disturb a broadcast or read weights; bytes that do not match the digest are discarded.
- All roles share one set of credentials for object storage.
"""


def render_markdown() -> str:
    """The whole page."""
    keys = [(f"`{row.bucket}`", f"`{row.pattern}`", row.content, _roles(row.writers), _roles(row.removers)) for row in KEYS]
    buckets = [(f"`{bucket}`", _roles(roles)) for bucket, roles in READERS.items()]
    hints = [(f"`{hint.subject}`", hint.content, _roles(hint.senders), _roles(hint.hearers)) for hint in HINTS]
    streams = [
        (f"`{one.name}`", f"`{one.subject}`", _roles(one.writers), _roles(one.readers), _roles(one.removers)) for one in (PROMPTS, EVENTS)
    ]
    records = [(role, _code(keys), access, _code(one.commands)) for role, one in BUFFER.items() for keys, access in one.rights]
    methods = [
        (f"`{method.rpartition('.')[2]}`", server, _roles(roles)) for server, table in METHODS.items() for method, roles in table.items()
    ]
    sections = [
        _section("Keys of the bus", ("bucket", "keys", "content", "written by", "also removed by"), keys),
        _section("Buckets of the bus", ("bucket", "read by"), buckets),
        _section("Streams of the bus", ("stream", "subject", "written by", "read by", "removed by"), streams),
        _section("Hints", ("subject", "says", "sent by", "heard by"), hints),
        _section("Buffer, below `{<run>}:`", ("role", "keys", "access", "commands"), records),
        _section("gRPC", ("method", "served by", "called by"), methods),
    ]
    return "\n".join([_HEAD, *sections, _LIMITS])


def _section(title: str, heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return f"## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _roles(roles: Roles) -> str:
    return ", ".join(roles)


def _code(words: str) -> str:
    # A bar would end the table's cell.
    return " ".join(f"`{word}`" for word in words.replace("|", " ").split())
