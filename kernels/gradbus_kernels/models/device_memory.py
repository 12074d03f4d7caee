"""Memory of a device that several processes use: at the same time, each with a share, or in turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from gradbus.errors import SettingsError, first_line
from gradbus_kernels.models.loading import return_device_memory


@contextmanager
def device_in_use(device: str) -> Iterator[None]:
    """Raises SettingsError if torch cannot use the device, for what the first use of it inside the block raises."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:  # AssertionError: torch was built without such devices
        raise SettingsError(f"torch cannot use device {device} ({first_line(error)}); set GRADBUS_DEVICE to one that is here") from error


def limit_memory_share(device: str, share: float) -> None:
    """Lets torch allocate at most this share of a GPU's memory in this process; on a CPU it does nothing. Raises SettingsError."""
    with device_in_use(device):
        chosen = torch.device(device)
        if chosen.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(share, chosen.index or 0)


class OffDevice:
    """Tensors whose memory is given away for a while. They stay the same tensors, and views of them stay views.

    Only whole storages move, so each storage counts once, however many tensors share it.
    """

    def __init__(self, kept: Iterable[torch.Tensor], dropped: Iterable[torch.Tensor] = ()) -> None:
        """Copies `kept` to the host, pinned if the device is a GPU, and frees the memory of all of them."""
        storages = _storages(kept)
        self._kept = [(storage, _to_host(storage)) for storage in storages.values()]
        others = [storage for pointer, storage in _storages(dropped).items() if pointer not in storages]
        # A CPU's tensor that numpy has seen cannot give its memory away, and need not: only a device's is short.
        self._sizes = [(storage, storage.nbytes()) for storage in [*storages.values(), *others] if storage.resizable()]
        for storage, _ in self._sizes:
            storage.resize_(0)
        return_device_memory()

    def reload(self) -> None:
        """Allocates all of the memory again. `kept` tensors have their bits; the content of `dropped` ones is undefined."""
        for storage, size in self._sizes:
            storage.resize_(size)
        for storage, copy in self._kept:
            _as_bytes(storage).copy_(copy)


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    """The tensors' storages that have memory, by address."""
    found = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage for storage in found if storage.nbytes()}


def _to_host(storage: torch.UntypedStorage) -> torch.Tensor:
    content = _as_bytes(storage)
    copy = torch.empty(content.shape, dtype=torch.uint8, pin_memory=content.is_cuda)
    return copy.copy_(content)


def _as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
