"""Episodes of several sequences and turns, through the log of a real buffer."""

import asyncio

import numpy as np
import pytest

from gradbus.bus import EventLog
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.group_pb2 import Group
from gradbus.v1.sample_pb2 import Fork, Span

from .conftest import make_entry, until


def divided(entry):
    """Each sample but the first in two sequences: the second, a fork, goes on from the first one's tokens. The last has forks alone."""
    group = Group.FromString(entry.group)
    for sample in group.samples[1:]:
        cut = 4 * ((len(sample.token_ids) // 4 + 1) // 2)
        ids, logprobs, version = sample.token_ids, sample.logprobs, sample.spans[0].version
        parts = [(b"", ids[:cut], logprobs[:cut]), (ids[:cut], ids[cut:], logprobs[cut:])]
        forks = [
            Fork(
                prompt_ids=group.prompt_ids + before,
                token_ids=part,
                logprobs=of_part,
                spans=[Span(start=0, end=len(part) // 4, version=version, trainable=True)],
            )
            for before, part, of_part in parts
        ]
        is_last = sample.n == len(group.samples) - 1
        sample.ClearField("spans")
        sample.token_ids, sample.logprobs = (b"", b"") if is_last else parts[0][1:]
        if not is_last:
            sample.spans.extend(forks.pop(0).spans)
        sample.forks.extend(fork for fork in forks if fork.token_ids)
    entry.group = group.SerializeToString()
    return entry


def with_turns(entry, early):
    """Each token a turn; `early`: what the first one earns of the sample's reward."""
    group = Group.FromString(entry.group)
    for sample, reward in zip(group.samples, entry.rewards, strict=True):
        length = len(sample.token_ids) // 4
        for at in range(length):
            paid = reward.reward - early if at == length - 1 else 0.0
            sample.episode.turns.add(start=at, end=at + 1, reward=paid + (early if at == 0 else 0.0))
    entry.group = group.SerializeToString()
    return entry


async def write(run, indexes, change=lambda entry: entry):
    await run.log.append(1, {index: change(make_entry(index)) for index in indexes})


async def digest(run):
    return (await run.stub.GetCheckpoint(pb.GetCheckpointRequest(run_id=run.run_id))).manifest.weights.digest


async def metrics_of(run):
    steps = {event.data["step"]: event.data for event in await EventLog(run.bus, run.run_id).read() if event.type == "metrics"}
    return [[steps[step][name] for name in ("grad_norm", "tokens", "response_length", "reward")] for step in sorted(steps)]


@pytest.mark.parametrize("name", ["grpo", "gspo", "ppo"])
async def test_a_run_whose_episodes_are_divided_trains_the_same_and_comes_back_to_the_same_bits(new_run, make_spec, name):
    critic = {"critic": {"learning_rate": 1e-2, "warmup_steps": 0}} if name == "ppo" else {}
    spec = make_spec(algorithm={"name": name}, trainer={"learning_rate": 1e-2, "micro_batch_tokens": 20, **critic})
    plain, forked, killed = [await new_run(spec) for _ in range(3)]
    await write(plain, range(12))
    await write(forked, range(12), divided)
    await plain.train()
    await forked.train()
    for one, other in zip(await metrics_of(plain), await metrics_of(forked), strict=True):
        assert other == pytest.approx(one, rel=2e-2)
    await write(killed, range(7), divided)
    first = asyncio.create_task(killed.train())

    async def is_committed():
        return (await killed.stub.GetHeads(pb.GetHeadsRequest(run_id=killed.run_id))).heads.checkpoint_step >= 2

    await until(is_committed)
    first.cancel()
    await asyncio.wait({first})
    await write(killed, range(7, 12), divided)
    await killed.train()
    assert await digest(killed) == await digest(forked)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
async def test_credit_of_turns_has_the_bits_of_episodes_if_rewards_come_at_the_end_and_others_if_not(new_run, make_spec, name):
    def spec(credit):
        return make_spec(algorithm={"name": name}, environment={"service": "http://world:1", "credit": credit})

    found = {}
    for credit, early in (("episode", 0.0), ("turn", 0.0), ("episode", 0.5), ("turn", 0.5)):
        run = await new_run(spec(credit))
        await write(run, range(12), lambda entry, early=early: with_turns(entry, early * np.float64(entry.index % 3)))
        await run.train()
        found[credit, early] = await digest(run)
    assert found["turn", 0.0] == found["episode", 0.0] == found["episode", 0.5]
    assert found["turn", 0.5] != found["episode", 0.5]
