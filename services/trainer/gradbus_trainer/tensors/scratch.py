"""Files between a learner and object storage."""

from __future__ import annotations

import mmap
import secrets
import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from gradbus.errors import StorageError
from gradbus_kernels.weights.digest_tree import WeightsDigest
from gradbus_kernels.weights.piece_reader import PieceReader
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.safetensors_stream import TensorLayout, size_of, write_safetensors


@dataclass(frozen=True, eq=False)
class TensorFile:
    """A safetensors file. Its last user removes it; if a fault ends the use earlier, it goes with the last reference to this object."""

    path: Path
    names: tuple[str, ...]
    size_bytes: int

    def mapped(self) -> memoryview:
        """Its bytes, mapped into memory."""
        with self.path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def remove(self) -> None:
        """Frees its space on the disk; mappings stay valid."""
        self.path.unlink(missing_ok=True)


class Scratch:
    """A folder that one trainer process alone uses."""

    def __init__(self, folder: Path) -> None:
        """Removes the files of a killed trainer."""
        self._folder = folder
        self._reader = PieceReader()  # its buffers serve all files
        shutil.rmtree(folder, ignore_errors=True)

    def new(self) -> Path:
        """Path of a new file. Raises StorageError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot use the cache folder ({error.strerror}); set GRADBUS_CACHE_DIR to a writable one") from error
        return self._folder / f"{secrets.token_hex(8)}.safetensors"

    def write(
        self,
        tensors: LazyTensors,
        dtype: torch.dtype = torch.float32,
        metadata: Mapping[str, str] | None = None,
        digest: WeightsDigest | None = None,
    ) -> TensorFile:
        """See `write_safetensors`. Raises StorageError, and leaves no file, when the disk is full."""
        size = f"{size_of(tensors.shapes, dtype) / 1e6:,.0f} MB of weights or moments"
        layout = TensorLayout(dtype, metadata)
        return self.write_file(tuple(sorted(tensors)), lambda file: write_safetensors(file, tensors, layout, self._reader, digest), size)

    def write_file(self, names: tuple[str, ...], write: Callable[[BinaryIO], None], what: str = "weights") -> TensorFile:
        """A new file with these tensors, which `write` fills. Raises StorageError, and leaves no file, when the disk is full."""
        path = self.new()
        try:
            with path.open("x+b") as file:
                write(file)
            written = TensorFile(path, names, path.stat().st_size)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StorageError(
                f"cannot write {what} into the cache folder: {error.strerror}; free space there, or set "
                "GRADBUS_CACHE_DIR to a folder on a larger disk"
            ) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        weakref.finalize(written, path.unlink, missing_ok=True)
        return written
