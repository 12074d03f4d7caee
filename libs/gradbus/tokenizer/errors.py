"""How a tokenizer fails: by a file of the model, or because this machine cannot run its process."""

from __future__ import annotations

from typing import Final

from gradbus.errors import ModelError, RestartNeededError
from gradbus.tokenizer.limits import MEMORY_BYTES

SHOWN: Final = 300
"""Characters of an error's text that are passed on: the text may be the user's."""


class ModelFileError(ModelError):
    """A file of the model folder cannot be used; `file` is its name, `text` the message without it."""

    def __init__(self, file: str, message: str) -> None:
        self.file = file
        self.text = message
        super().__init__(f"{file}: {message}")


class TokenizerProcessError(RestartNeededError):
    """This service cannot run a tokenizer's process, whatever the model."""


def described(error: BaseException) -> str:
    """The error's kind and the first line of its text, and the next one if that only announces it; shortened."""
    first, _, rest = f"{type(error).__name__}: {error}".partition("\n")
    cause = rest.strip().partition("\n")[0]
    return encodable((f"{first} {cause}".rstrip() if first.endswith(":") else first)[:SHOWN])


def cause_of(error: BaseException) -> str:
    """What a tokenizer or a template raised, in words."""
    return f"it needs more than {MEMORY_BYTES >> 20} MiB" if isinstance(error, MemoryError) else described(error)


def encodable(text: str) -> str:
    """`text` with half a surrogate pair written as an escape: a template may raise any text, and no service could pass it on."""
    return text.encode("utf-8", "backslashreplace").decode()
