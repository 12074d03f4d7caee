"""Which failures count against a run, and when they end it."""

import pytest
from grpc.aio import AioRpcError
from nats.errors import TimeoutError as NatsTimeoutError
from redis.exceptions import ConnectionError as BufferGoneError

from gradbus.control.failures import RunFailures, storable
from gradbus.errors import DiskError, EngineHungError, FencedError, ModelError, ObjectMissingError, StorageError


def failures(*errors):
    found = RunFailures("run")
    for error in errors:
        found.add(error)
    return found


def test_three_failures_of_one_kind_end_a_run():
    assert not failures(KeyError("a"), KeyError("a")).ends_run
    found = failures(KeyError("a"), KeyError("a"), KeyError("a"))
    assert found.ends_run
    assert found.cause == "KeyError: 'a'"


def test_addresses_and_numbers_make_no_other_kind():
    assert failures(*(TypeError(f"<object at {hex(number)}> has {number} items") for number in (10, 2000, 0xABCDEF))).ends_run


def test_failures_that_always_differ_end_a_run_later():
    letters = [ModelError(letter) for letter in "abcdefghi"]
    assert not failures(*letters[:8]).ends_run
    assert failures(*letters).ends_run


@pytest.mark.parametrize(
    "error",
    [
        *(StorageError("x"), ObjectMissingError("x"), DiskError("x"), FencedError("x"), EngineHungError("x")),
        *(NatsTimeoutError(), BufferGoneError(), AioRpcError(None, None, None), TimeoutError(), OSError(28, "full")),
    ],
)
def test_infrastructure_ends_no_run(error):
    assert failures(*[error] * 20).count == 0


def test_progress_clears_the_failures_and_a_repeated_way_does_not():
    found = failures(KeyError("a"), KeyError("a"))
    found.progressed(0)
    assert found.count == 0
    for _ in range(3):
        found.progressed(0)
        found.add(KeyError("a"))
    assert found.ends_run


def test_a_text_of_a_user_can_always_be_stored():
    assert storable("lone \ud800").encode() == b"lone ?"
    assert len(storable("x" * 10_000_000)) < 10_000
