"""What the model said, and how it was judged."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query

from gradbus.spec import ScheduleSpec
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import FinishReason, Sample
from gradbus_gateway.auth import READ
from gradbus_gateway.experience import read_experience
from gradbus_gateway.problems import ProblemError
from gradbus_gateway.resources import Page, SampleResource, SpanResource
from gradbus_gateway.routes.runs import Limit
from gradbus_gateway.state import Gateway, Here

router = APIRouter(prefix="/runs/{run_id}/samples", tags=["runs"], dependencies=[READ])
Found = tuple[str, SampleResource]


@router.get("", summary="Samples of a run")
async def list_samples(
    run_id: str,
    gateway: Here,
    step: Annotated[int | None, Query(ge=0, description="Only what this step trains (`fixed_lag`).")] = None,
    index: Annotated[int | None, Query(ge=0, description="Only this group.")] = None,
    after: Annotated[str, Query(pattern=r"^(\d{1,18}-\d{1,18}\.\d{1,9})?$", description="`next_after` of the page before.")] = "",
    limit: Limit = 20,
) -> Page[SampleResource]:
    """Completions in the order in which their groups entered the experience log, archived ones among them."""
    schedule = (await gateway.runs.get(run_id)).record.spec.schedule
    if step is not None and schedule.mode != "fixed_lag":
        raise ProblemError(422, "invalid-request", "in a `free` schedule no step owns a group; leave `step` out and page with `after`")
    wanted = _indexes(schedule, step, index)
    found: list[Found] = []
    async with aclosing(_samples(gateway, run_id, schedule, after, wanted)) as samples:
        async for sample in samples:
            found.append(sample)
            if len(found) > limit:
                break
    return Page[SampleResource].of(found, limit)


def _indexes(schedule: ScheduleSpec, step: int | None, index: int | None) -> range | None:
    """Group indexes that may be shown; None for all."""
    of_step = range(step * schedule.groups_per_step, (step + 1) * schedule.groups_per_step) if step is not None else None
    if index is None:
        return of_step
    return range(index, index + 1) if of_step is None or index in of_step else range(0)


async def _samples(gateway: Gateway, run_id: str, schedule: ScheduleSpec, after: str, wanted: range | None) -> AsyncGenerator[Found, None]:
    stream_id, _, n = after.rpartition(".")
    if stream_id:
        # The group the page before ended in is read once more, for its other samples.
        milliseconds, serial = map(int, stream_id.split("-"))
        behind = f"{milliseconds}-{serial - 1}" if serial else f"{milliseconds - 1}-{2**63 - 1}"
    else:
        behind = "0-0"
    left = len(wanted) if wanted is not None else -1
    if left == 0:
        return
    async with aclosing(read_experience(gateway.buffer, gateway.objects, run_id, behind)) as entries:
        async for entry_id, entry in entries:
            if wanted is not None and entry.index not in wanted:
                continue
            for sample in _of_entry(entry, schedule):
                if entry_id != stream_id or sample[0] > int(n):
                    yield f"{entry_id}.{sample[0]}", sample[1]
            left -= 1
            if left == 0:
                return


def _of_entry(entry: LogEntry, schedule: ScheduleSpec) -> list[tuple[int, SampleResource]]:
    group = Group.FromString(entry.group)
    rewards = {reward.sample_id: reward for reward in entry.rewards}
    step = entry.index // schedule.groups_per_step if schedule.mode == "fixed_lag" else None
    return [(sample.n, _resource(entry, group, sample, rewards.get(sample.sample_id), step)) for sample in group.samples]


def _resource(entry: LogEntry, group: Group, sample: Sample, reward: SampleReward | None, step: int | None) -> SampleResource:
    judged = reward is not None and reward.status == RewardStatus.REWARD_STATUS_OK
    return SampleResource(
        id=sample.sample_id,
        index=entry.index,
        row_index=group.row,
        step=step,
        prompt=group.prompt_text,
        text=sample.text,
        finish_reason=_word(FinishReason.Name(sample.finish_reason), "FINISH_REASON_"),
        reward=reward.reward if reward and judged else None,
        components=dict(reward.components) if reward else {},
        reward_status=_word(RewardStatus.Name(reward.status), "REWARD_STATUS_") if reward else "none",
        reason=(reward.reason if reward else "") or entry.reason,
        verdict=_word(Verdict.Name(entry.verdict), "VERDICT_"),
        versions=[SpanResource(start=span.start, end=span.end, version=span.version, trainable=span.trainable) for span in sample.spans],
        worker=group.worker,
    )


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
