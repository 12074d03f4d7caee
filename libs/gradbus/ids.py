"""Names, digests and seeds. A sample's seed is a pure function of the run's seed and the sample's position."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from pathlib import Path
from typing import IO, Final

from gradbus.errors import SettingsError

_PIECE_BYTES: Final = 1 << 18

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def checked_name(value: str, what: str) -> str:
    """`value` if it is safe as a path, subject and key; SettingsError otherwise."""
    if not _NAME.fullmatch(value):
        raise SettingsError(f"{what} {value!r} is not a name; use 1 to 63 of a-z, 0-9 and '-', starting with a letter or digit")
    return value


def is_digest(value: str) -> bool:
    """Whether `value` reads `sha256:<64 hex digits>`."""
    return _DIGEST.fullmatch(value) is not None


def digests_in(record: bytes) -> frozenset[str]:
    """Every digest that occurs in a stored record, e.g. the files that a run's spec names."""
    return frozenset(_DIGEST.findall(record.decode(errors="replace")))


def digest_of(data: bytes | memoryview) -> str:
    """`sha256:<hex>` of `data`: the name of a blob."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of_json(value: object) -> str:
    """`sha256:<hex>` of a value's JSON, whatever the order of its keys."""
    return digest_of(json.dumps(value, sort_keys=True).encode())


def digest_of_file(path: Path) -> str:
    """`sha256:<hex>` of a file, read in pieces. Raises OSError."""
    with path.open("rb") as file:
        return digest_of_stream(file)


def digest_of_stream(file: IO[bytes]) -> str:
    """`sha256:<hex>` of an open file from where it is, read in pieces. Raises OSError."""
    digest = hashlib.sha256()
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
    return "sha256:" + digest.hexdigest()


def new_run_id() -> str:
    """A run id that sorts by time of creation."""
    return f"run-{int(time.time() * 1000):012x}-{secrets.token_hex(3)}"


def sample_id(index: int, n: int) -> str:
    """Id of sample `n` of group `index`, unique in a run."""
    return f"{index}.{n}"


def sample_seed(run_seed: int, purpose: str, index: int, n: int) -> int:
    """Seed of a sample, 63 bits. `purpose` keeps training and evaluation apart."""
    text = f"gradbus:{run_seed}:{purpose}:{index}:{n}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def turn_seed(seed: int, turn: int) -> int:
    """Seed of a turn of an episode, 63 bits; the first turn has the sample's."""
    return seed if turn == 0 else sample_seed(seed, "turn", turn, 0)


def asked_turn_seed(seed: int, prompt_digest: str, occurrence: int) -> int:
    """Seed of a turn that an agent asks for, 63 bits: of what it asks, so that its sub-agents may ask in any order.

    `occurrence` counts the turns of the episode that were drawn from the same prompt before.
    """
    return sample_seed(seed, f"asked {prompt_digest}", occurrence, 0)


def environment_seed(run_seed: int, purpose: str, index: int) -> int:
    """Seed of a group's world, 63 bits: its samples meet the same one, for their rewards are compared."""
    return sample_seed(run_seed, f"{purpose} environment", index, 0)
