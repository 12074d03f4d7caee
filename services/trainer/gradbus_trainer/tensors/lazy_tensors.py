"""Tensors that leave a learner one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch


class LazyTensors(Mapping[str, torch.Tensor]):
    """Named tensors, each made when it is asked for and not kept. Names and shapes are known before.

    A view: it reads the present values, also after a training step.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], make: Callable[[str], torch.Tensor]) -> None:
        self.shapes = shapes
        self._make = make

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> LazyTensors:
        """A view of tensors that exist already."""
        return cls({name: tensor.shape for name, tensor in tensors.items()}, lambda name: tensors[name].detach())

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __or__(self, other: LazyTensors) -> LazyTensors:
        """The union; the names are disjoint."""
        return LazyTensors({**self.shapes, **other.shapes}, lambda name: other[name] if name in other else self[name])
