"""Samples come from the archive and from the buffer as from one log."""

import struct
import time
from datetime import datetime

import pytest

from gradbus.experience import ExperienceLog
from gradbus.experience.records import seal
from gradbus.v1.group_pb2 import Group, LogEntry, LogSegment, SegmentEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span

GROUPS = 6


def entry(run_id, index):
    ids = [f"{index}.{n}" for n in range(2)]
    samples = [
        Sample(
            sample_id=name,
            n=n,
            text=f"text {name}",
            spans=[Span(start=0, end=3, version=index // 2, trainable=True)],
            token_ids=struct.pack("<3i", 5, 7, 1),
            logprobs=struct.pack("<3f", -0.5, -2.0, 0.0),
            finish_reason=FinishReason.FINISH_REASON_STOP,
        )
        for n, name in enumerate(ids)
    ]
    rewards = [
        SampleReward(sample_id=ids[0], status=RewardStatus.REWARD_STATUS_OK, reward=1.0, components={"exact": 1.0}),
        SampleReward(sample_id=ids[1], status=RewardStatus.REWARD_STATUS_INVALID, reason="cannot be judged"),
    ]
    trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
    group = Group(run_id=run_id, index=index, row=index % 4, prompt_text=f"prompt {index}", samples=samples, worker="w", traceparent=trace)
    references = [struct.pack("<3f", -1.0, -1.0, -1.0)] * 2
    entry = LogEntry(index=index, verdict=Verdict.VERDICT_TRAIN, group=group.SerializeToString(), rewards=rewards, version=index // 2)
    entry.reference_logprobs.extend(references)
    return entry


@pytest.fixture
async def run_id(submitted, buffer, objects):
    """Six groups of two; the first two archived and trimmed, the next two archived and still in the buffer."""
    run_id = submitted["id"]
    log = ExperienceLog(buffer, run_id)
    for index in range(GROUPS):
        await log.append(1, {index: entry(run_id, index)})
    stored = await log.read()
    for part in (stored[:2], stored[2:4]):
        first, last = part[0].stream_id, part[-1].stream_id
        entries = [SegmentEntry(stream_id=item.stream_id, record=item.record) for item in part]
        segment = LogSegment(run_id=run_id, first=first, last=last, entries=entries)
        await objects.put(f"runs/{run_id}/log/{first}_{last}", seal(segment.SerializeToString()))
    await log.trim(stored[1].stream_id)
    return run_id


@pytest.mark.parametrize("limit", [1, 3, 4, 100])
async def test_pages_give_each_sample_once_in_order(client, run_id, limit):
    found, after = [], ""
    while after is not None:
        page = client.samples(run_id, limit=limit, after=after)
        found += [sample["id"] for sample in page["data"]]
        after = page["next_after"]
    assert found == [f"{index}.{n}" for index in range(GROUPS) for n in range(2)]


async def test_a_sample_has_its_reward_and_verdict(client, run_id):
    first, second = client.samples(run_id, index=3)["data"]
    assert (first["prompt"], first["text"], first["step"], first["verdict"]) == ("prompt 3", "text 3.0", 1, "train")
    assert (first["reward"], first["components"], first["finish_reason"]) == (1.0, {"exact": 1.0}, "stop")
    assert first["versions"] == [{"start": 0, "end": 3, "version": 1, "trainable": True}]
    assert (second["reward"], second["reward_status"], second["reason"]) == (None, "invalid", "cannot be judged")


async def test_a_sample_tells_its_worker_and_when_it_was_admitted(client, run_id):
    sample = client.samples(run_id, index=3)["data"][0]
    assert (sample["dispatched_version"], sample["worker"], sample["trace_id"], sample["token_count"]) == (1, "w", "ab" * 16, 3)
    assert abs(datetime.fromisoformat(sample["admitted_at"]).timestamp() - time.time()) < 300
    assert sample["tokens"] is None


async def test_tokens_are_included_on_request(client, run_id):
    tokens = client.samples(run_id, index=3, include="tokens")["data"][0]["tokens"]
    assert tokens == {"ids": [5, 7, 1], "logprobs": [-0.5, -2.0, 0.0], "reference_logprobs": [-1.0] * 3}


async def test_a_row_selects_every_group_of_it(client, run_id):
    assert [sample["index"] for sample in client.samples(run_id, row=1)["data"]] == [1, 1, 5, 5]
    assert [sample["id"] for sample in client.samples(run_id, row=1, index=5)["data"]] == ["5.0", "5.1"]
    assert client.samples(run_id, row=9)["data"] == []


async def test_after_may_be_a_time(client, run_id):
    admitted = datetime.fromisoformat(client.samples(run_id, index=0)["data"][0]["admitted_at"]).timestamp() * 1000
    assert len(client.samples(run_id, limit=100, after=f"{round(admitted)}-0.0")["data"]) >= 2 * GROUPS - 1
    assert client.samples(run_id, after=f"{round(admitted) + 3_600_000}-0.0")["data"] == []


async def test_an_advantage_is_that_of_the_trainer(client, run_id, buffer):
    """Of two judged samples against their mean; a sample that could not be judged has none, nor has a group that is not trained."""
    judged, filtered = entry(run_id, GROUPS), entry(run_id, GROUPS + 1)
    for one in (judged, filtered):
        one.rewards[1].CopyFrom(SampleReward(sample_id=one.rewards[1].sample_id, status=RewardStatus.REWARD_STATUS_OK, reward=0.0))
    filtered.verdict = Verdict.VERDICT_FILTERED
    await ExperienceLog(buffer, run_id).append(1, {GROUPS: judged, GROUPS + 1: filtered})
    half = 0.5 / (0.5**0.5 + 1e-4)
    assert [one["advantage"] for one in client.samples(run_id, index=GROUPS)["data"]] == pytest.approx([half, -half])
    assert [one["advantage"] for one in client.samples(run_id, index=GROUPS + 1)["data"]] == [None, None]
    assert client.samples(run_id, index=0)["data"][1]["advantage"] is None


async def test_a_step_names_its_groups(client, run_id):
    assert [sample["index"] for sample in client.samples(run_id, step=2)["data"]] == [4, 4, 5, 5]
    assert client.samples(run_id, step=2, index=0)["data"] == []


async def test_a_corrupt_entry_is_left_out(client, run_id, buffer):
    key = f"{{{run_id}}}:experience"
    record = bytearray(seal(entry(run_id, GROUPS).SerializeToString()))
    record[10] ^= 1
    await buffer.xadd(key, {"i": GROUPS, "r": bytes(record)})
    assert len(client.samples(run_id, limit=100)["data"]) == 2 * GROUPS


async def test_a_run_without_samples_has_an_empty_page(client, submitted):
    assert client.samples(submitted["id"])["data"] == []
