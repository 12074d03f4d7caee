"""Bytes from rank 0 to the others, in buckets; the members are threads of this process."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gradbus_kernels.weights.broadcast import BroadcastGroup, RankInfo, Rendezvous, bucket_sizes

SECONDS = 60.0


@pytest.fixture
def rendezvous():
    return Rendezvous.serve("127.0.0.1", 0, SECONDS)


@pytest.fixture
def threads():
    pool = ThreadPoolExecutor(4)
    yield pool
    pool.shutdown()


def rank_info(rank, size, group="g", stall=SECONDS):
    return RankInfo(group, rank, size, "127.0.0.1", stall_seconds=stall)


def later():
    return time.monotonic() + SECONDS


def received(rendezvous, rank, size, total, bucket_bytes):
    """What a member gets, in the pieces in which it comes."""
    pieces = []
    group = BroadcastGroup(Rendezvous.join(rendezvous.address, SECONDS), rank_info(rank, size))
    group.receive(lambda piece: pieces.append(bytes(piece)), total, bucket_bytes, later())
    return pieces


@pytest.mark.parametrize(("total", "sizes"), [(0, []), (1, [1]), (4, [4]), (5, [4, 1]), (12, [4, 4, 4])])
def test_buckets_are_full_but_the_last(total, sizes):
    assert bucket_sizes(total, 4) == sizes


@pytest.mark.parametrize("parts", [[b"0123456789"], [b"01", b"", b"2345678", b"9"], [b"012", b"3"]])
@pytest.mark.parametrize("bucket_bytes", [3, 64])
def test_every_member_gets_every_byte_in_order(rendezvous, threads, parts, bucket_bytes):
    whole = b"".join(parts)
    others = [threads.submit(received, rendezvous, rank, 3, len(whole), bucket_bytes) for rank in (1, 2)]
    BroadcastGroup(rendezvous, rank_info(0, 3)).send([memoryview(part) for part in parts], bucket_bytes, later())
    for other in others:
        pieces = other.result(SECONDS)
        assert b"".join(pieces) == whole
        assert [len(piece) for piece in pieces] == bucket_sizes(len(whole), bucket_bytes)


@pytest.fixture
def nccl(monkeypatch):
    """A stand-in for what torch for CPUs lacks: it notes the environment and the devices at its making."""
    made = SimpleNamespace(devices=[], environments=[])

    class ProcessGroupNCCL:
        Options = SimpleNamespace

        def __init__(self, *arguments):
            made.environments.append(dict(os.environ))

    monkeypatch.setattr("torch._C._distributed_c10d.ProcessGroupNCCL", ProcessGroupNCCL, raising=False)
    monkeypatch.setattr("torch.cuda.set_device", made.devices.append)
    return made


@pytest.mark.parametrize(("device", "chosen"), [("cuda", []), ("cuda:0", [0]), ("cuda:3", [3])])
def test_a_group_of_nccl_is_on_the_device_that_is_named(rendezvous, nccl, device, chosen):
    BroadcastGroup(rendezvous, RankInfo("g", 0, 2, "127.0.0.1", device, stall_seconds=SECONDS))
    assert nccl.devices == chosen  # torch refuses to set "cuda" without a number


def test_the_waits_of_nccl_have_deadlines_and_other_groups_keep_their_settings(rendezvous, nccl, monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")
    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
    BroadcastGroup(rendezvous, RankInfo("g", 0, 2, "127.0.0.1", "cuda", stall_seconds=SECONDS))
    (environment,) = nccl.environments
    assert (environment["TORCH_NCCL_BLOCKING_WAIT"], environment["TORCH_NCCL_ENABLE_MONITORING"]) == ("1", "0")
    assert (os.environ.get("TORCH_NCCL_BLOCKING_WAIT"), os.environ["TORCH_NCCL_ENABLE_MONITORING"]) == (None, "1")


def test_a_group_carries_one_stream_after_the_other_also_longer_ones(rendezvous, threads):
    streams = [b"a" * 5, b"b" * 50, b"c" * 7]

    def member():
        group = BroadcastGroup(Rendezvous.join(rendezvous.address, SECONDS), rank_info(1, 2))
        found = []
        for stream in streams:
            pieces = []
            group.receive(lambda piece, pieces=pieces: pieces.append(bytes(piece)), len(stream), 16, later())
            found.append(b"".join(pieces))
        return found

    other = threads.submit(member)
    group = BroadcastGroup(rendezvous, rank_info(0, 2))
    for stream in streams:
        group.send([memoryview(stream)], 16, later())
    assert other.result(SECONDS) == streams


def test_a_group_that_is_not_complete_is_given_up(rendezvous):
    with pytest.raises(RuntimeError):
        BroadcastGroup(rendezvous, rank_info(0, 2, stall=0.2))


def test_a_member_that_left_ends_the_wait_of_the_others(rendezvous, threads):
    other = threads.submit(lambda: BroadcastGroup(Rendezvous.join(rendezvous.address, SECONDS), rank_info(1, 2)).abort())
    group = BroadcastGroup(rendezvous, rank_info(0, 2, stall=5.0))
    other.result(SECONDS)
    with pytest.raises(RuntimeError):
        group.send([memoryview(bytes(1 << 24))], 1 << 22, later())
    group.abort()


def test_a_stream_that_takes_longer_than_its_deadline_is_given_up(rendezvous, threads):
    other = threads.submit(lambda: BroadcastGroup(Rendezvous.join(rendezvous.address, SECONDS), rank_info(1, 2)))
    group = BroadcastGroup(rendezvous, rank_info(0, 2))
    other.result(SECONDS)
    with pytest.raises(TimeoutError, match="GRADBUS_BROADCAST_SECONDS"):
        group.send([memoryview(b"late")], 16, time.monotonic())


def test_the_rendezvous_listens_on_its_own_address_alone(rendezvous):
    host, _, port = rendezvous.address.rpartition(":")
    assert host == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", int(port)), 1)


def test_receipts_are_taken_once_and_damage_is_none(rendezvous):
    member = Rendezvous.join(rendezvous.address, SECONDS)
    member.leave_receipt("a", good=True)
    member.leave_receipt("b", good=False)
    assert rendezvous.take_receipts(["a", "b", "c"], 0.1) == [True, False, False]
    assert rendezvous.take_receipts(["a", "b"], 0.0) == [False, False]


def test_a_rendezvous_that_nobody_serves_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RuntimeError):
        Rendezvous.join(f"127.0.0.1:{port}", 0.3)
