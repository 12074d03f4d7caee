"""Tensors leave their device and come back as the same tensors; a GPU's memory is divided between processes."""

import pytest
import torch

from gradbus_kernels.models.device_memory import OffDevice, limit_memory_share


def test_kept_tensors_come_back_with_their_bits_and_their_views():
    whole = torch.arange(12.0).reshape(3, 4)
    view, scalar = whole.t()[1:], torch.tensor(2.5)
    bits = whole.clone(), scalar.clone()
    off = OffDevice([whole, view, scalar])
    assert whole.untyped_storage().nbytes() == scalar.untyped_storage().nbytes() == 0
    off.reload()
    assert torch.equal(whole, bits[0])
    assert torch.equal(view, bits[0].t()[1:])
    assert torch.equal(scalar, bits[1])
    whole[0, 1] = 7.0
    assert view[0, 0] == 7.0, "it is a view still"


def test_dropped_tensors_come_back_with_memory_alone_and_what_is_kept_too_is_kept():
    dropped, both = torch.ones(1 << 10), torch.full((4,), 3.0)
    off = OffDevice([both], [dropped, both])
    assert dropped.untyped_storage().nbytes() == 0
    off.reload()
    assert dropped.shape == (1 << 10,)
    dropped.fill_(5.0)
    assert both.tolist() == [3.0] * 4


def test_a_parameter_that_left_still_takes_gradients():
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    OffDevice([parameter]).reload()
    (parameter * parameter).sum().backward()
    assert parameter.grad.tolist() == [2.0, 4.0]


def test_a_tensor_that_numpy_has_seen_stays_where_it_is():
    tensor = torch.arange(3.0)
    array = tensor.numpy()
    OffDevice([tensor]).reload()
    assert tensor.tolist() == array.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_the_share_of_a_gpu_is_a_cap_for_torchs_allocator(monkeypatch, device, index):
    caps = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: caps.append((share, device)))
    limit_memory_share(device, 0.55)
    limit_memory_share("cpu", 0.55)
    assert caps == [(0.55, index)]
