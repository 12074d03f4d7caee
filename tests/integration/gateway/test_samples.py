"""Samples come from the archive and from the buffer as from one log."""

import struct
import time
from datetime import datetime
from types import SimpleNamespace

import pytest

from gradbus.buffer import keys
from gradbus.client import document
from gradbus.experience import ExperienceLog
from gradbus.experience.records import seal
from gradbus.spec import parse_spec
from gradbus.v1.group_pb2 import Group, LogEntry, LogSegment, SegmentEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span
from gradbus_gateway.resources.sample_search import SampleSearch
from gradbus_gateway.routes import samples
from gradbus_gateway.routes.samples import SampleFilter

GROUPS = 6


def entry(run_id, index):
    ids = [f"{index}.{n}" for n in range(2)]
    samples = [
        Sample(
            sample_id=name,
            n=n,
            text=f"text {name}",
            spans=[Span(start=at, end=at + 3 - 2 * n, version=index // 2, trainable=True) for at in range(1 + 2 * n)],
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
    group.prompt_ids = struct.pack("<2i", 3, index)
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
        page = document(client.samples_page(run_id, limit=limit, after=after))
        found += [sample["id"] for sample in page["data"]]
        after = page["next_after"]
    assert found == [f"{index}.{n}" for index in range(GROUPS) for n in range(2)]


@pytest.mark.parametrize("long_prompt", [False, True], ids=["response", "prompt"])
async def test_a_page_of_long_samples_is_shorter_than_asked_and_the_next_goes_on(client, http, submitted, buffer, long_prompt):
    long = [entry(submitted["id"], index) for index in range(3)]
    for one in long:
        group = Group.FromString(one.group)
        if long_prompt:
            group.prompt_ids = bytes(4 * 60_000)
        for sample in [] if long_prompt else group.samples:
            sample.token_ids, sample.logprobs = bytes(4 * 60_000), bytes(4 * 60_000)
        one.group = group.SerializeToString()
        await ExperienceLog(buffer, submitted["id"]).append(1, {one.index: one})
    assert len(document(client.samples_page(submitted["id"], limit=100))["data"]) == 6, "without tokens they are short"
    found, after, sizes = [], "", []
    while after is not None:
        page = document(client.samples_page(submitted["id"], limit=100, after=after, include="tokens"))
        found += [sample["id"] for sample in page["data"]]
        sizes.append(len(page["data"]))
        after = page["next_after"]
    assert found == [f"{index}.{n}" for index in range(3) for n in range(2)]
    assert max(sizes) < 6


async def test_a_sample_has_its_reward_and_verdict(client, run_id):
    first, second = document(client.samples_page(run_id, index=3))["data"]
    assert (first["prompt"], first["text"], first["step"], first["verdict"]) == ("prompt 3", "text 3.0", 1, "train")
    assert (first["reward"], first["components"], first["finish_reason"]) == (1.0, {"exact": 1.0}, "stop")
    assert first["versions"] == [{"start": 0, "end": 3, "version": 1, "trainable": True, "sequence": 0, "author": "policy"}]
    assert first["episode"] is None
    assert (second["reward"], second["reward_status"], second["reason"]) == (None, "invalid", "cannot be judged")


async def test_the_command_names_each_version_of_a_sample_once(gradbus, run_id):
    lines = gradbus("samples", run_id, "--index", "5")[1].splitlines()
    assert [line.partition("  reward")[0].partition("version")[2] for line in lines if line.startswith("5.")] == [" 2", " 2"]


async def test_a_sample_tells_its_worker_and_when_it_was_admitted(client, run_id):
    sample = document(client.samples_page(run_id, index=3))["data"][0]
    assert (sample["dispatched_version"], sample["worker"], sample["trace_id"], sample["token_count"]) == (1, "w", "ab" * 16, 3)
    assert abs(datetime.fromisoformat(sample["admitted_at"]).timestamp() - time.time()) < 300
    assert sample["tokens"] is None


async def test_tokens_are_included_on_request(client, run_id):
    tokens = document(client.samples_page(run_id, index=3, include="tokens"))["data"][0]["tokens"]
    frozen = {"reference_logprobs": [-1.0] * 3, "teacher_logprobs": [], "forks": []}
    assert tokens == {"prompt_ids": [3, 3], "ids": [5, 7, 1], "logprobs": [-0.5, -2.0, 0.0]} | frozen


async def test_a_row_selects_every_group_of_it(client, run_id):
    assert [sample["index"] for sample in document(client.samples_page(run_id, row=1))["data"]] == [1, 1, 5, 5]
    assert [sample["id"] for sample in document(client.samples_page(run_id, row=1, index=5))["data"]] == ["5.0", "5.1"]
    assert document(client.samples_page(run_id, row=9))["data"] == []


async def test_after_may_be_a_time(client, run_id):
    admitted = datetime.fromisoformat(document(client.samples_page(run_id, index=0))["data"][0]["admitted_at"]).timestamp() * 1000
    assert len(document(client.samples_page(run_id, limit=100, after=f"{round(admitted)}-0.0"))["data"]) >= 2 * GROUPS - 1
    assert document(client.samples_page(run_id, after=f"{round(admitted) + 3_600_000}-0.0"))["data"] == []
    assert len(document(client.samples_page(run_id, limit=100, after="0-0.0"))["data"]) == 2 * GROUPS, "since 1970"


async def test_an_advantage_is_that_of_the_trainer(client, run_id, buffer):
    """Of two judged samples against their mean; a sample that could not be judged has none, nor has a group that is not trained."""
    judged, filtered = entry(run_id, GROUPS), entry(run_id, GROUPS + 1)
    for one in (judged, filtered):
        one.rewards[1].CopyFrom(SampleReward(sample_id=one.rewards[1].sample_id, status=RewardStatus.REWARD_STATUS_OK, reward=0.0))
    filtered.verdict = Verdict.VERDICT_FILTERED
    await ExperienceLog(buffer, run_id).append(1, {GROUPS: judged, GROUPS + 1: filtered})
    half = 0.5 / (0.5**0.5 + 1e-4)
    assert [one["advantage"] for one in document(client.samples_page(run_id, index=GROUPS))["data"]] == pytest.approx([half, -half])
    assert [one["advantage"] for one in document(client.samples_page(run_id, index=GROUPS + 1))["data"]] == [None, None]
    assert document(client.samples_page(run_id, index=0))["data"][1]["advantage"] is None


async def test_a_step_names_its_groups(client, run_id):
    assert [sample["index"] for sample in document(client.samples_page(run_id, step=2))["data"]] == [4, 4, 5, 5]
    assert document(client.samples_page(run_id, step=2, index=0))["data"] == []


async def test_a_run_without_samples_has_an_empty_page(client, submitted):
    assert document(client.samples_page(submitted["id"]))["data"] == []


def unreadable(page):
    return [(sample["index"], sample["id"]) for sample in page["data"] if sample["verdict"] == "unreadable"]


GARBAGE = {
    "no record": b"\xff",
    "a broken digest": seal(b"a")[:-1] + b"x",
    "no entry": seal(b"\xff\xff"),
    "no group": seal(LogEntry(index=9, group=b"\xff").SerializeToString()),
    "an unknown verdict": seal(LogEntry(index=9, verdict=77, group=Group(samples=[Sample()]).SerializeToString()).SerializeToString()),
}


@pytest.mark.parametrize("record", GARBAGE.values(), ids=GARBAGE)
async def test_an_entry_that_cannot_be_read_hides_no_other(client, run_id, buffer, record):
    entry_id = (await buffer.xadd(keys.experience(run_id), {"i": 9, "r": record})).decode()
    await ExperienceLog(buffer, run_id).append(1, {GROUPS: entry(run_id, GROUPS)})
    page = document(client.samples_page(run_id, limit=100))
    assert unreadable(page) == [(9, entry_id)]
    assert [sample["index"] for sample in page["data"]] == [index for index in range(GROUPS) for _ in range(2)] + [9, GROUPS, GROUPS]
    assert "cannot be read" in document(client.samples_page(run_id, index=9))["data"][0]["reason"]
    assert document(client.samples_page(run_id, row=1, limit=100))["data"]


async def test_a_sample_that_cannot_be_read_hides_none_before_it(client, submitted, buffer):
    damaged = entry(submitted["id"], 0)
    group = Group.FromString(damaged.group)
    group.samples[1].finish_reason = 77
    damaged.group = group.SerializeToString()
    await ExperienceLog(buffer, submitted["id"]).append(1, {0: damaged})
    found, after = [], ""
    while after is not None:
        page = document(client.samples_page(submitted["id"], limit=1, after=after))
        found += [sample["verdict"] for sample in page["data"]]
        after = page["next_after"]
    assert found == ["train", "unreadable"]


async def test_an_entry_without_its_fields_is_one_that_cannot_be_read(client, run_id, buffer):
    await buffer.xadd(keys.experience(run_id), {"other": 1})
    assert [index for index, _ in unreadable(document(client.samples_page(run_id, limit=100)))] == [-1]


async def test_a_segment_that_cannot_be_read_hides_no_other(client, run_id, buffer, objects):
    segments = sorted(await objects.list(f"runs/{run_id}/log"))
    await objects.put(segments[0], b"garbage")
    await objects.put(f"runs/{run_id}/log/no-segment", b"garbage")
    found = document(client.samples_page(run_id, limit=100))
    assert [sample["index"] for sample in found["data"]] == [-1] + [index for index in range(2, GROUPS) for _ in range(2)]
    assert len(unreadable(found)) == 1


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"name": "rloo", "kl": 0.5}, [1.25, -1.25]),
        ({"name": "rloo", "kl": 0.5, "whiten": "samples"}, [None, None]),
        ({"name": "reinforce_pp", "kl": 0.5, "whiten": "none"}, [None, None]),
    ],
    ids=["rloo", "whitened", "by token"],
)
async def test_an_advantage_with_a_kl_in_the_reward_is_the_one_that_is_trained_or_none(client, spec, tmp_path, buffer, algorithm, expected):
    """The first sample's k1 add up to -.5 and the second's to 0, the rewards are 1 and 0."""
    run_id = client.submit(spec | {"algorithm": algorithm}, tmp_path).id
    judged = entry(run_id, 0)
    judged.rewards[1].CopyFrom(SampleReward(sample_id="0.1", status=RewardStatus.REWARD_STATUS_OK, reward=0.0))
    judged.reference_logprobs[1] = struct.pack("<3f", -0.5, -2.0, 0.0)
    judged.reference_logprobs[0] = struct.pack("<3f", -0.5, -2.0, 0.5)
    await ExperienceLog(buffer, run_id).append(1, {0: judged})
    assert [one["advantage"] for one in document(client.samples_page(run_id))["data"]] == expected


async def test_a_sample_has_its_row_of_the_dataset_if_asked(client, http, run_id):
    first = document(client.samples_page(run_id, index=1, include="item"))["data"][0]
    assert (first["item"], first["tokens"]) == ({"prompt": "1+2=", "answer": "3"}, None)
    both = document(client.samples_page(run_id, index=1, include=["item", "tokens"]))["data"][0]
    assert (both["item"], len(both["tokens"]["ids"])) == (first["item"], 3)
    assert document(client.samples_page(run_id, index=1))["data"][0]["item"] is None, "nobody asked"
    assert document(client.samples_page(run_id, index=2, include="item"))["data"][0]["item"] is None, "the dataset has two rows"
    assert http.get(f"/v1/runs/{run_id}/samples?include=answer").status_code == 422
    assert http.get(f"/v1/runs/{run_id}/samples?include=item&include=item&include=item").status_code == 422


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"text": "TEXT 3."}, ["3.0", "3.1"]),
        ({"text": "prompt 2"}, ["2.0", "2.1"]),
        ({"text": "cannot be judged", "index": 4}, ["4.1"]),
        ({"text": "nowhere"}, []),
        ({"min_reward": 1.0, "max_reward": 1.0}, [f"{index}.0" for index in range(GROUPS)]),
        ({"min_reward": 0.0, "text": "5"}, ["5.0"]),
        ({"max_reward": 0.5}, []),
        ({"verdict": "filtered"}, []),
        ({"verdict": "train", "step": 2}, ["4.0", "4.1", "5.0", "5.1"]),
    ],
)
async def test_a_search_finds_what_meets_every_condition(client, run_id, query, found):
    page = document(client.samples_page(run_id, limit=100, **query))
    assert ([sample["id"] for sample in page["data"]], page["has_more"]) == (found, False)


async def test_a_search_goes_on_over_pages(client, run_id):
    found, after = [], ""
    while after is not None:
        page = document(client.samples_page(run_id, limit=2, after=after, min_reward=1.0))
        found += [sample["id"] for sample in page["data"]]
        after = page["next_after"]
    assert found == [f"{index}.0" for index in range(GROUPS)]


@pytest.mark.parametrize("query", ["text=" + "x" * 201, "verdict=judged", "min_reward=nan", "max_reward=much", "max_reward=inf"])
async def test_a_search_for_what_there_cannot_be_is_refused(http, run_id, query):
    assert http.get(f"/v1/runs/{run_id}/samples?{query}").status_code == 422


async def test_a_search_ends_its_page_after_so_many_groups_and_tells_where_to_go_on(run_id, submitted, buffer, objects, monkeypatch):
    monkeypatch.setattr(samples, "_SEARCHED_GROUPS", 4)
    gateway, spec = SimpleNamespace(buffer=buffer, objects=objects), parse_spec(submitted["spec"])
    selected = SampleFilter(None, None, with_tokens=False, search=SampleSearch(text="prompt 5"))
    [(cursor, nothing)] = [found async for found in samples._samples(gateway, run_id, spec, "", selected)]
    assert nothing is None
    found = [sample.id async for _, sample in samples._samples(gateway, run_id, spec, cursor, selected)]
    assert found == ["5.0", "5.1"]
