"""Pieces of tensors on their way from and to a device; where there is no GPU, the CPU plays the device."""

import threading
import time
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.weights import host_buffers, piece_reader, threads
from gradbus_kernels.weights.piece_reader import PieceReader
from gradbus_kernels.weights.piece_sender import PieceSender

PIECE = 64


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(host_buffers, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(threads, "SMALL_BYTES", 16)


@pytest.fixture(params=["host", "device"])
def place(request, monkeypatch):
    monkeypatch.setattr(piece_reader, "on_host", lambda tensor: request.param == "host")
    return request.param


def read(reader, tensor, dtype):
    futures = reader.submit(tensor, dtype, lambda begin, piece: (begin, bytes(piece)))
    return [future.result() for future in futures]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (16,), (33,), (7, 40)])
def test_every_piece_arrives_cast_with_its_place(place, shape, dtype):
    tensor = torch.randn(shape)
    found = read(PieceReader(), tensor, dtype)
    content = bytes(tensor.to(dtype).reshape(-1).view(torch.uint8).tolist())
    assert found == [(begin, content[begin : begin + PIECE]) for begin in range(0, len(content), PIECE)]


def test_a_turned_tensor_is_read_by_rows(place):
    tensor = torch.arange(60.0).reshape(6, 10).T
    assert b"".join(piece for _, piece in read(PieceReader(), tensor, torch.float32)) == tensor.contiguous().numpy().tobytes()


def test_a_devices_piece_is_not_overwritten_while_a_thread_works_on_it(monkeypatch):
    monkeypatch.setattr(piece_reader, "on_host", lambda tensor: False)
    reader = PieceReader()
    most = reader._buffers.count
    held, begun = threading.Event(), []

    def work(begin, piece):
        begun.append(begin)
        assert held.wait(20)
        return bytes(piece)

    submitted = []

    def submit_all():
        tensors = (torch.full((PIECE // 4,), float(number)) for number in range(2 * most))
        submitted.extend(reader.submit(tensor, torch.float32, work) for tensor in tensors)

    thread = threading.Thread(target=submit_all)
    thread.start()
    while len(submitted) < most:
        time.sleep(0.01)
    assert thread.is_alive()
    assert len(submitted) == most  # all buffers are in use, and the next piece waits
    held.set()
    thread.join(20)
    found = [future.result() for futures in submitted for future in futures]
    assert found == [torch.full((PIECE // 4,), float(number)).numpy().tobytes() for number in range(2 * most)]
    assert reader._buffers._made == most


def test_a_large_tensor_of_the_host_is_let_go_before_the_next(monkeypatch):
    reader, tensor = PieceReader(), torch.ones(3 * PIECE)
    alive = weakref.ref(tensor)
    reader.submit(tensor, torch.float32, lambda _, piece: len(piece))
    del tensor
    assert alive() is None


def test_what_work_raises_is_its_futures_and_the_reader_goes_on(place):
    def broken(begin, piece):
        raise OSError(28, "No space left on device")

    reader = PieceReader()
    for future in reader.submit(torch.ones(PIECE), torch.bfloat16, broken):
        with pytest.raises(OSError, match="No space left"):
            future.result()
    reader.finish()
    assert len(read(reader, torch.ones(PIECE), torch.bfloat16)) == 2


def test_pieces_before_one_that_fails_are_waited_for(monkeypatch):
    monkeypatch.setattr(piece_reader, "on_host", lambda tensor: False)
    reader, held, worked = PieceReader(), threading.Event(), []
    take, pieces = reader._buffers.take, iter([True, True])

    def take_two(pinned):
        if next(pieces, False):
            return take(pinned)
        raise RuntimeError("cannot pin memory")

    def work(begin, piece):
        assert held.wait(20)
        worked.append(begin)

    monkeypatch.setattr(reader._buffers, "take", take_two)
    with pytest.raises(RuntimeError, match="cannot pin"):
        reader.submit(torch.ones(3 * PIECE // 4), torch.float32, work)
    threading.Timer(0.2, held.set).start()
    reader.finish()
    assert sorted(worked) == [0, PIECE]


@pytest.mark.parametrize("failing", ["empty", "event_after"])
def test_buffers_that_cannot_be_made_or_filled_are_not_waited_for_later(monkeypatch, failing):
    def fail(*_, **__):
        raise RuntimeError("no memory")

    monkeypatch.setattr(piece_reader, "on_host", lambda tensor: False)
    reader = PieceReader()
    with monkeypatch.context() as broken:
        broken.setattr(torch if failing == "empty" else piece_reader, failing, fail)
        for _ in range(2 * reader._buffers.count):
            with pytest.raises(RuntimeError, match="no memory"):
                reader.submit(torch.ones(PIECE // 4), torch.float32, lambda _, piece: bytes(piece))
            reader.finish()
    assert len(read(reader, torch.ones(5 * PIECE), torch.float32)) == 20


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 150), max_size=30), st.sampled_from([torch.float32, torch.bfloat16]))
def test_tensors_arrive_at_the_device_and_their_ends_come_in_order(sizes, dtype):
    sources = [torch.randn(size).to(dtype) for size in sizes]
    targets = [torch.full((size,), torch.nan, dtype=dtype) for size in sizes]
    sender, ended = PieceSender(), []
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):

        def end(number=number, source=source, target=target):
            assert torch.equal(target, source)
            ended.append(number)

        sender.send(source, target, end)
    sender.finish()
    assert ended == list(range(len(sizes)))


def test_a_sender_may_be_used_again():
    sender = PieceSender()
    for value in (1.0, 2.0):
        target = torch.zeros(100, 3)
        sender.send(torch.full((100, 3), value), target, lambda: None)
        sender.finish()
        assert torch.equal(target, torch.full((100, 3), value))
