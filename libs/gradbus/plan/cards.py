"""The cards that plans are made for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gradbus.errors import SettingsError
from gradbus.nearest import nearest_name

GIB: Final = 1 << 30
WIDTH: Final = {"fp32": 4, "bf16": 2}
"""Bytes of an element by dtype."""


_PRODUCT: Final = 0.75
"""Of FLOP/s, a large matrix product: 743 of 989 TFLOP/s. This and what follows was measured on an H100 (docs/gpu.md)."""
_FLOAT32: Final = 52 / 743
"""Of a product's FLOP/s in bfloat16, that in float32."""
_PREFILL: Final = 0.6
"""Of a product's FLOP/s, prompts: 0.56 to 0.73."""
_COPY: Final = 0.88
"""Of bytes/s, a copy: 2.96 of 3.35 TB/s."""
_MOVES: Final = 7.7
"""Times that an element which a forward pass keeps is moved until its backward pass is over: 8.1 and 7.2 with 0.5 and 1.7 billion."""
_LAYER_SECONDS: Final = 42e-6
"""What a decode step takes for each layer beyond its roofline: 43 and 41 microseconds with 24 and 28 layers."""
ByDtype = Mapping[str, float]
"""By `trainer.dtype`."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a device, or one core of a CPU, reaches."""

    products: ByDtype
    """FLOP/s of large matrix products."""
    logits: ByDtype
    """The same of the product of the head that makes a training step's logits."""
    paired: ByDtype
    """FLOP/s of the attention of a training step."""
    prompts: ByDtype
    """FLOP/s of prompts."""
    decoded: ByDtype
    """FLOP/s of a decode step's products, whose rows are few."""
    kept: ByDtype
    """Elements/s that a forward pass keeps, from there to the end of the backward pass: all that is no product."""
    attended: ByDtype
    """Elements/s of keys and values."""
    read: ByDtype
    """Weights/s, however few rows they are multiplied by."""
    drawn: float
    """Logits/s from which tokens are drawn."""
    fresh: float
    """Bytes/s of memory that comes from the system, beside what it takes to write it."""
    layer: float
    """Seconds of a decode step for each layer, beside all this."""

    @classmethod
    def of_gpu(cls, flops: float, bandwidth: float) -> Speeds:
        """From a datasheet: dense bfloat16 FLOP/s and bytes/s."""
        products, copy = {"bf16": _PRODUCT * flops, "fp32": _PRODUCT * flops * _FLOAT32}, _COPY * bandwidth
        return cls(
            products=products,
            logits=products,
            paired=products,
            prompts={dtype: _PREFILL * speed for dtype, speed in products.items()},
            decoded=products,
            kept={dtype: copy / (_MOVES * width) for dtype, width in WIDTH.items()},
            attended={dtype: copy / width for dtype, width in WIDTH.items()},
            read={dtype: copy / width for dtype, width in WIDTH.items()},
            drawn=math.inf,
            fresh=math.inf,
            layer=_LAYER_SECONDS,
        )


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of a process beside what follows from the run."""

    context: int = int(0.8 * GIB)
    """CUDA, its libraries and compiled kernels; on a CPU, the products' compiled code and the threads' stacks."""
    logits: int = 2 * GIB
    """Of the logits that the trainer has at a time, at most."""
    rows: int | None = None
    """Tokens whose logits the trainer has at a time; None: as many as `logits` has room for."""
    on_cpu: bool = False
    widens: bool = False
    """A CPU without instructions for bfloat16: the embedded engine computes in float32."""


ON_GPU: Final = ProcessMemory()
ON_CPU: Final = ProcessMemory(context=48 << 20, logits=256 << 20, rows=512, on_cpu=True)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as its datasheet has it, or the cores of a CPU."""

    name: str
    memory: int
    """Bytes that the driver gives to programs, or of the machine."""
    flops: float
    """Dense bfloat16 FLOP/s with sums in float32."""
    bandwidth: float
    """Bytes/s of its memory."""
    speeds: Speeds
    """Of a CPU, those of one core."""
    process: ProcessMemory = ON_GPU
    cores: int = 0
    """Of a CPU; 0: a GPU."""


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
CARDS: Final = {
    name: Card(name, int(memory * GIB), flops, bandwidth, Speeds.of_gpu(flops, bandwidth)) for name, memory, flops, bandwidth in _FIGURES
}
DEFAULT_CARD: Final = "h100"
MOST_CARDS: Final = 1024
"""Of one plan."""


def card_of(name: str) -> Card:
    """The card with this name. Raises SettingsError."""
    found = CARDS.get(name.lower())
    if found is None:
        nearest = nearest_name(name.lower(), CARDS)
        hint = f"did you mean {nearest}? " if nearest else ""
        raise SettingsError(f"no card is called {name!r}; {hint}known are {', '.join(CARDS)}")
    return found
