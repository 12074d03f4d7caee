"""Keys that are written by compare-and-set, on a real NATS."""

import pytest

from gradbus.bus import Buckets, Conflict, OwnedKey
from gradbus.errors import FencedError


@pytest.fixture
async def bucket(bus):
    return await bus.bucket(Buckets.RUNS)


async def test_a_writer_goes_on_from_what_it_read(bucket, unique):
    first = OwnedKey(bucket, unique)
    assert await first.read() is None
    await first.write(b"1")
    await first.write(b"2")
    second = OwnedKey(bucket, unique)
    assert await second.read() == b"2"
    await second.write(b"3")
    assert (await bucket.get(unique)).value == b"3"


async def test_a_writer_that_was_replaced_is_refused(bucket, unique):
    first, second = OwnedKey(bucket, unique), OwnedKey(bucket, unique)
    await first.write(b"1")
    await second.read()
    await second.write(b"2")
    with pytest.raises(FencedError, match=unique):
        await first.write(b"3")
    assert (await bucket.get(unique)).value == b"2"


async def test_a_writer_that_has_not_read_the_key_replaces_nothing(bucket, unique):
    first, second = OwnedKey(bucket, unique), OwnedKey(bucket, unique)
    await first.write(b"1")
    with pytest.raises(FencedError):
        await second.write(b"2")


async def test_a_key_that_others_change_is_refreshed_and_replaced(bucket, unique):
    first, second = OwnedKey(bucket, unique), OwnedKey(bucket, unique)
    assert not await first.refresh()
    await first.replace(b"1")
    assert (await second.refresh(), await second.refresh(), second.value) == (True, False, b"1")
    await second.replace(b"2")
    with pytest.raises(Conflict, match="read it again"):
        await first.replace(b"3")
    assert (first.value, await first.refresh(), first.value) == (b"1", True, b"2")
    await first.replace(b"3")
    assert (await bucket.get(unique)).value == b"3"


async def test_a_touch_keeps_the_value_and_refuses_whoever_has_not_seen_it(bucket, unique):
    first, second = OwnedKey(bucket, unique), OwnedKey(bucket, unique)
    await first.touch()
    assert await bucket.get(unique) is None, "there is nothing to touch"
    await first.replace(b"1")
    await second.refresh()
    await first.touch()
    assert (await bucket.get(unique)).value == b"1"
    with pytest.raises(Conflict):
        await second.replace(b"2")
