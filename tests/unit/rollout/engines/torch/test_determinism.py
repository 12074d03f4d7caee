"""A sample's bits depend on (weights, prompt, seed) alone."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig

NEW = 24
CONFIG = {"slots": 8, "max_new_tokens": NEW, "stop_token_ids": frozenset({1, 2, 3})}
PROBE = PromptGroup("probe", tuple(range(3, 20)), (11, 12, 13))

prompts = st.lists(st.integers(0, 47), min_size=1, max_size=90).map(tuple)
groups = st.builds(
    PromptGroup, st.just("neighbour"), prompts, st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5).map(tuple), st.booleans()
)


async def probe_alone(start_engine, **config):
    engine = await start_engine(**CONFIG | config)
    return (await engine.generate([PROBE]))[0].completions


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.lists(groups, max_size=6), after=st.lists(groups, max_size=6), earlier=st.lists(groups, max_size=3))
def test_neighbours_slots_order_and_stale_cache_change_nothing(model_folder, before, after, earlier):
    async def scenario():
        engines = [TorchEngine.from_folder(model_folder, TorchEngineConfig(**CONFIG)) for _ in range(2)]
        for engine in engines:
            await engine.load([model_folder / "model.safetensors"], 0)
        alone, crowded = engines
        expected = (await alone.generate([PROBE]))[0]
        await crowded.generate(earlier)  # leaves junk in the cache
        found = (await crowded.generate([*before, PROBE, *after]))[len(before)]
        for engine in engines:
            await engine.close()
        assert found == expected

    asyncio.run(scenario())


@pytest.mark.parametrize("slots", [4, 5, 6, 16, 33, 64, 128])
async def test_the_number_of_slots_changes_nothing(start_engine, slots):
    assert await probe_alone(start_engine, slots=slots) == await probe_alone(start_engine)


async def test_a_sample_does_not_know_its_place_in_the_group(start_engine):
    engine = await start_engine(**CONFIG)
    mixed = await engine.generate([PromptGroup("mixed", PROBE.prompt_ids, (13, 99, 11, 12))])
    expected = await probe_alone(start_engine)
    assert [mixed[0].completions[n] for n in (2, 3, 0)] == list(expected)


@pytest.mark.parametrize("max_new_tokens", [1, NEW])
async def test_the_last_samples_of_a_group_can_be_greedy_and_the_others_are_as_without_them(start_engine, max_new_tokens):
    engine, prompt = await start_engine(**CONFIG | {"max_new_tokens": max_new_tokens}), PROBE.prompt_ids
    asked = [PROBE, PromptGroup("greedy", prompt, (1,), greedy=1), PromptGroup("mixed", prompt, (*PROBE.seeds, 1, 2), greedy=2)]
    drawn, alone, mixed = [list(group.completions) for group in await engine.generate(asked)]
    assert mixed == drawn + 2 * alone
    assert any(one != alone[0] for one in drawn), "a seed draws something else than the likeliest token"


async def test_admission_in_the_middle_of_others_changes_nothing(start_engine):
    engine = await start_engine(**CONFIG | {"slots": 4})
    crowd = asyncio.create_task(engine.generate([PromptGroup(str(i), (5,) * (1 + 13 * i), (i, i + 50)) for i in range(7)]))
    await asyncio.sleep(0.01)
    probe = (await engine.generate([PROBE]))[0].completions
    await crowd
    assert probe == await probe_alone(start_engine)


async def test_long_neighbours_change_nothing(start_engine):
    engine = await start_engine(**CONFIG)
    results = await engine.generate([PromptGroup("long", tuple(range(48)) * 15, (1,)), PROBE])
    assert results[1].completions == await probe_alone(start_engine)


async def test_a_sample_of_one_token_is_the_start_of_a_longer_one(start_engine):
    asked = [PromptGroup(str(i), (5,) * (1 + 3 * i), (i, i + 50, i + 100), greedy=i % 4) for i in range(9)]
    short, long = [await (await start_engine(slots=4, max_new_tokens=length)).generate(asked) for length in (1, NEW)]
    for cut, many in zip(short, long, strict=True):
        assert [one.token_ids for one in cut.completions] == [one.token_ids[:1] for one in many.completions]
        assert [one.logprobs for one in cut.completions] == [one.logprobs[:4] for one in many.completions]
        assert {one.finish for one in cut.completions} == {"length"}


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "glm4_moe", "gpt_oss"], indirect=True)
async def test_neighbours_who_go_to_other_experts_change_nothing(hf_model, tmp_path):
    found = []
    for neighbours in ([], [PromptGroup("neighbour", tuple(range(4 + n, 40)), (n, n + 1)) for n in range(6)]):
        engine = TorchEngine.from_folder(tmp_path / "model", TorchEngineConfig(**CONFIG))
        await engine.load([tmp_path / "model" / "model.safetensors"], 0)
        found.append((await engine.generate([*neighbours, PROBE]))[-1].completions)
        await engine.close()
    alone, crowded = ([(one.token_ids, one.logprobs) for one in completions] for completions in found)
    assert alone == crowded
