"""Pieces of tensors on their way into host memory; where there is no GPU, the CPU plays the device."""

import pytest
import torch

from gradbus_trainer.tensors import device_reader
from gradbus_trainer.tensors.device_reader import DeviceReader

VALUES = [torch.arange(4.0), torch.arange(2.0) + 10, torch.arange(4.0) + 20, torch.zeros(0)]


@pytest.fixture(params=["host", "device"])
def place(request, monkeypatch):
    monkeypatch.setattr(device_reader, "_is_on_host", lambda piece: request.param == "host")
    return request.param


def test_every_piece_arrives_cast_and_in_order(place):
    pieces = ((str(number), value) for number, value in enumerate(VALUES))
    found = [(name, elements.clone()) for name, elements in DeviceReader(torch.bfloat16, 4).on_host(pieces)]
    assert [name for name, _ in found] == ["0", "1", "2", "3"]
    for (_, elements), value in zip(found, VALUES, strict=True):
        assert elements.dtype == torch.bfloat16
        assert torch.equal(elements, value.bfloat16())


def test_one_piece_of_a_device_is_on_its_way_while_the_last_is_used_and_none_of_the_host(place):
    made = []

    def pieces():
        for number in range(4):
            made.append(number)
            yield str(number), torch.full((4,), float(number))

    ahead = {"host": 0, "device": 1}[place]
    for number, (_, elements) in enumerate(DeviceReader(torch.float32, 4).on_host(pieces())):
        assert made[-1] == min(3, number + ahead)
        assert elements.tolist() == [float(number)] * 4  # not overwritten by the piece that is on its way


def test_a_devices_pieces_take_turns_in_two_buffers(monkeypatch):
    monkeypatch.setattr(device_reader, "_is_on_host", lambda piece: False)
    pieces = ((str(number), torch.zeros(3)) for number in range(6))
    places = [elements.data_ptr() for _, elements in DeviceReader(torch.float32, 4).on_host(pieces)]
    assert places == places[:2] * 3
    assert places[0] != places[1]


def test_pieces_of_both_places_keep_their_order(monkeypatch):
    monkeypatch.setattr(device_reader, "_is_on_host", lambda piece: float(piece[0]) % 2 == 0)
    pieces = ((str(number), torch.full((3,), float(number))) for number in range(5))
    found = [(name, elements.tolist()) for name, elements in DeviceReader(torch.float32, 3).on_host(pieces)]
    assert found == [(str(number), [float(number)] * 3) for number in range(5)]
