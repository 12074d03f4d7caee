"""The trainer's end of broadcasts, before any is opened."""

import pytest

from gradbus.errors import SettingsError
from gradbus_trainer.broadcast.publisher import BroadcastPublisher


@pytest.mark.parametrize(("backend", "device"), [("gloo", "cpu"), ("gloo", "cuda"), ("nccl", "cuda"), ("nccl", "cuda:1")])
def test_the_backend_fits_the_device(monkeypatch, backend, device):
    monkeypatch.setenv("GRADBUS_BROADCAST_BACKEND", backend)
    BroadcastPublisher(None, None, "run", 1, device)


def test_nccl_without_a_gpu_is_refused_before_anybody_waits(monkeypatch):
    monkeypatch.setenv("GRADBUS_BROADCAST_BACKEND", "nccl")
    with pytest.raises(SettingsError, match="GRADBUS_DEVICE is cpu; set GRADBUS_DEVICE=cuda, or the backend to gloo"):
        BroadcastPublisher(None, None, "run", 1, "cpu")
