"""A run that holds too much of the buffer ends, and gives its part back."""

import dataclasses

import pytest

from gradbus.buffer import keys
from gradbus.bus import Buckets
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import LogEntry
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_conductor.groups.order import DataOrder

MOST = 1 << 20


@pytest.fixture
async def small(stage):
    """A run whose quota is a megabyte, and its trainer."""
    stage.clients = dataclasses.replace(stage.clients, run_buffer_bytes=MOST)
    await stage.trainer()
    return stage


async def assert_ended_by_itself(stage):
    await stage.drive()
    status = await stage.status()
    assert status.state == "failed"
    assert "holds more of the buffer, which all runs share, than the 1.0 MiB that one run may hold" in status.reason
    left = [key async for key in stage.clients.buffer.scan_iter(match=keys.everything(stage.run_id))]
    assert [key.decode() for key in left] in ([], [keys.term(stage.run_id)])
    return status


async def test_a_log_that_no_checkpoint_covers_counts(small):
    """The first entries are short: what they take says nothing about the others."""
    log = ExperienceLog(small.clients.buffer, small.run_id)
    await log.append(1, {index: LogEntry(index=index) for index in range(64)})
    await log.append(1, {64 + index: LogEntry(index=64 + index, group=bytes(MOST // 2)) for index in range(4)})
    status = await assert_ended_by_itself(small)
    assert "2.0 MiB in the log" in status.reason


async def test_groups_that_wait_for_the_scorer_count(small, group, scorer):
    scorer.answer = lambda _sample, _attempt: None
    heads = await small.clients.bus.bucket(Buckets.HEADS)
    await heads.put(f"{small.run_id}.version", WeightManifest(term=1, step=0, digest="sha256:" + "0" * 64).SerializeToString())
    order = DataOrder(small.record.spec.data.train, 2, 0)
    sampled = [group(index, tokens=MOST // 12) for index in range(2)]
    for one in sampled:
        one.row = order.row(one.index)
    await GroupStore(small.clients.buffer, small.run_id).put(sampled)
    status = await assert_ended_by_itself(small)
    assert "1.3 MiB sampled and not in the log" in status.reason


async def test_journals_of_episodes_that_are_played_count(small):
    body = small.record.spec.model_dump() | {"environment": {"service": "http://127.0.0.1:1/"}}
    small.record = small.record.model_copy(update={"spec": RunSpec.model_validate(body)})
    heads = await small.clients.bus.bucket(Buckets.HEADS)
    await heads.put(f"{small.run_id}.version", WeightManifest(term=1, step=0, digest="sha256:" + "0" * 64).SerializeToString())
    await small.clients.buffer.hset(keys.journal(small.run_id, 1), "0.0.1", bytes(2 * MOST))
    status = await assert_ended_by_itself(small)
    assert "2.0 MiB in journals of episodes that are played" in status.reason


async def test_what_is_within_the_quota_goes_on(small):
    log = ExperienceLog(small.clients.buffer, small.run_id)
    await log.append(1, {index: LogEntry(index=index, group=bytes(MOST // 4)) for index in range(3)})
    await small.request("cancelled")
    await small.drive()
    assert (await small.status()).state == "cancelled"
