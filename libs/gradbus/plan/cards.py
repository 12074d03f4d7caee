"""The cards that plans are made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradbus.errors import SettingsError
from gradbus.nearest import nearest_name

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Shares:
    """What programs reach of a datasheet's figures. The defaults were measured on an H100 (docs/gpu.md)."""

    product: float = 0.75
    """Of FLOP/s, a large matrix product: 743 of 989 TFLOP/s."""
    float32: float = 52 / 743
    """Of a product's FLOP/s in bfloat16, that in float32."""
    training: float = 0.5
    """Of a product's FLOP/s, a training step: 0.49 and 0.54."""
    prefill: float = 0.6
    """The same of prompts: 0.56 to 0.73."""
    copy: float = 0.88
    """Of bytes/s, a copy: 2.96 of 3.35 TB/s."""
    layer_seconds: float = 42e-6
    """What a decode step takes for each layer beyond its roofline: 43 and 41 microseconds with 24 and 28 layers."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of a process beside what follows from the run."""

    context: int = int(0.8 * GIB)
    """CUDA, its libraries and compiled kernels."""
    logits: int = 2 * GIB
    """Of the logits that the trainer has at a time, at most."""


ON_GPU: Final = ProcessMemory()
_OF_H100: Final = Shares()


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, as its datasheet has it."""

    name: str
    memory: int
    """Bytes that the driver gives to programs."""
    flops: float
    """Dense bfloat16 FLOP/s with sums in float32."""
    bandwidth: float
    """Bytes/s of its memory."""
    shares: Shares = _OF_H100
    process: ProcessMemory = ON_GPU


_FIGURES: Final = (
    ("rtx3090", 23.6, 71e12, 936e9),
    ("rtx4090", 23.6, 165e12, 1008e9),
    ("rtx5090", 31.4, 210e12, 1792e9),
    ("l4", 22.0, 121e12, 300e9),
    ("a10", 22.0, 125e12, 600e9),
    ("l40s", 44.4, 362e12, 864e9),
    ("a100-40gb", 39.4, 312e12, 1555e9),
    ("a100", 79.2, 312e12, 2039e9),
    ("h100", 79.2, 989e12, 3350e9),
    ("h200", 139.8, 989e12, 4800e9),
    ("b200", 178.4, 2250e12, 7700e9),
)
"""Name, GiB, FLOP/s, bytes/s."""
CARDS: Final = {name: Card(name, int(memory * GIB), flops, bandwidth) for name, memory, flops, bandwidth in _FIGURES}


def card_of(name: str) -> Card:
    """The card with this name. Raises SettingsError."""
    found = CARDS.get(name.lower())
    if found is None:
        nearest = nearest_name(name.lower(), CARDS)
        hint = f"did you mean {nearest}? " if nearest else ""
        raise SettingsError(f"no card is called {name!r}; {hint}known are {', '.join(CARDS)}")
    return found
