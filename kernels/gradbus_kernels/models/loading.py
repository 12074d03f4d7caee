"""What goes wrong while a model is loaded, as a ModelError: files of a user may make torch and this package raise anything."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from gradbus.errors import ModelError, OutOfMemoryError, first_line

_OF_THE_MODEL: Final = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
_NO_MEMORY: Final = ("allocate memory", "out of memory", "not enough memory")
_NO_DEVICE: Final = ("CUDA error", "CUDA driver", "NCCL")
"""Words of errors that say nothing about the model: the device is broken."""


@contextmanager
def loading() -> Iterator[None]:
    """Raises ModelError for whatever the files of a model make a loader raise, and OutOfMemoryError for an allocation that fails."""
    try:
        with enough_memory():
            yield
    except _OF_THE_MODEL as error:
        if any(words in str(error) for words in _NO_DEVICE):
            raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"the model cannot be loaded ({reason}); save it again with transformers") from error


@contextmanager
def enough_memory() -> Iterator[None]:
    """Raises OutOfMemoryError for an allocation that fails, whatever the library's own error is."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(memory_advice(error)) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch has a class of its own for that on a GPU only."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error).lower() for words in _NO_MEMORY)


def memory_advice(error: BaseException) -> str:
    """What could not be allocated, as far as the error says, and what to do."""
    return (
        f"this process has too little memory ({first_line(error) or 'an allocation failed'}); choose a smaller model, or lower slots, "
        "max_prompt_tokens, max_new_tokens or micro_batch_tokens; or raise the memory limit of this process, or change "
        "rollout.memory_fraction if trainer and engine share a device"
    )


def return_device_memory() -> None:
    """Returns the memory of a GPU that torch keeps for later tensors, which other processes may need now."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()
