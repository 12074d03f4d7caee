"""Checks of operators' arguments. Every message begins with the argument's name and says what to pass instead."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def require(condition: bool, argument: str, problem: str) -> None:
    """Raises ValueError about `argument` unless `condition` holds."""
    if not condition:
        raise ValueError(f"{argument}: {problem}")


def check_floats(argument: str, tensor: torch.Tensor, shape: Sequence[int | None], like: torch.Tensor | None = None) -> None:
    """Raises unless `tensor` is floating with this shape (None: any size) and, if given, on the device of `like`."""
    require(tensor.dtype in FLOATS, argument, f"is {tensor.dtype}; pass float32, bfloat16, float16 or float64")
    _check_shape(argument, tensor, shape)
    _check_device(argument, tensor, like)


def check_dtype(argument: str, tensor: torch.Tensor, named: str, like: torch.Tensor) -> None:
    """Raises unless `tensor` has the dtype of `like`, an argument called `named`."""
    require(tensor.dtype == like.dtype, argument, f"is {tensor.dtype}; pass {like.dtype} like {named}")


def check_head(hidden: torch.Tensor, weight: torch.Tensor, temperature: float = 1.0) -> None:
    """Raises unless these are hidden states `[N, H]` and the head `[V, H]` of one model, and a temperature."""
    check_floats("hidden", hidden, (None, None))
    check_floats("weight", weight, (None, hidden.shape[1]), hidden)
    check_dtype("weight", weight, "hidden", hidden)
    require(len(weight) > 0, "weight", "has an empty vocabulary; pass at least one row")
    require(temperature > 0.0, "temperature", f"is {temperature}; pass a positive number")


def check_ids(argument: str, ids: torch.Tensor, shape: Sequence[int | None], vocabulary: int, like: torch.Tensor) -> None:
    """Raises unless `ids` is int64 of this shape on the device of `like`, each in [0, vocabulary). Synchronises with a GPU."""
    require(ids.dtype == torch.int64, argument, f"is {ids.dtype}; pass int64")
    _check_shape(argument, ids, shape)
    _check_device(argument, ids, like)
    if ids.numel():
        low, high = (int(bound) for bound in torch.stack(torch.aminmax(ids)).tolist())
        require(low >= 0 and high < vocabulary, argument, f"holds {low if low < 0 else high}; pass ids in [0, {vocabulary})")


def check_finite(argument: str, outcome: torch.Tensor) -> None:
    """Raises if `outcome` `[N]`, one number for each row of `argument`, holds NaN."""
    broken = outcome.isnan()
    if bool(broken.any()):
        raise ValueError(f"{argument}: row {int(broken.nonzero()[0, 0])} holds NaN or +inf; look for what made it before this call")


def _check_shape(argument: str, tensor: torch.Tensor, shape: Sequence[int | None]) -> None:
    fits = tensor.dim() == len(shape) and all(want in (None, size) for want, size in zip(shape, tensor.shape, strict=True))
    wanted = ", ".join("any" if size is None else str(size) for size in shape)
    require(fits, argument, f"has shape {tuple(tensor.shape)}; pass ({wanted})")


def _check_device(argument: str, tensor: torch.Tensor, like: torch.Tensor | None) -> None:
    if like is not None:
        require(tensor.device == like.device, argument, f"is on {tensor.device}; pass it on {like.device}, where the others are")
