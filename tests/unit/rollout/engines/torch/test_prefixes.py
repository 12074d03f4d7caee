"""What is kept of prompts changes no bit of a sample, is not kept across a load, and is bounded."""

import asyncio
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from gradbus_kernels.operators import using
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.engines.torch.gpu import cache as row_cache
from gradbus_rollout.engines.torch.gpu import prefill as packed
from gradbus_rollout.engines.torch.model import DecoderModel, read_supported_config
from gradbus_rollout.engines.torch.prefill import chunks, rounds

CONFIG = {"slots": 16, "max_new_tokens": 12, "stop_token_ids": frozenset({1, 2, 3})}
MANY = 1 << 24
TURNS, EPISODES = 7, 9


async def episode(engine, n):
    """Turn by turn; each prompt is all before it and a few tokens of somebody else. At the third turn it goes back to the first."""
    draw, found = random.Random(n), []
    context = first = tuple(draw.choices(range(4, 48), k=1 + 11 * n))
    for turn in range(TURNS):
        (group,) = await engine.generate([PromptGroup(f"{n}.{turn}", context, (97 * n + turn,), greedy=n == 4)])
        found.append(group.completions[0])
        context = first if turn == 2 else context + group.completions[0].token_ids
        context += tuple(draw.choices(range(4, 48), k=draw.randint(1, 30)))
    return found


async def played(engine):
    """Episodes at once, and how many chunks their prompts took."""
    before = engine._scheduler.prefilled_chunks
    found = await asyncio.gather(*(episode(engine, n) for n in range(EPISODES)))
    return found, engine._scheduler.prefilled_chunks - before


@pytest.mark.parametrize("numerics", ["fast", "batch_invariant"])
async def test_turns_have_the_same_bits_whatever_is_kept(start_engine, numerics):
    plain, computed = await played(await start_engine(**CONFIG, numerics=numerics))
    found, fewer = await played(await start_engine(**CONFIG, numerics=numerics, kept_bytes=MANY))
    assert found == plain
    assert fewer < computed / 1.5
    assert (await played(await start_engine(**CONFIG, numerics=numerics, kept_bytes=60_000)))[0] == plain, "it is too small for all"


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "qwen3_moe", "mistral"], indirect=True)
async def test_windows_sinks_and_experts_too(hf_model, tmp_path):
    found = []
    for kept in (0, MANY):
        engine = TorchEngine.from_folder(tmp_path / "model", TorchEngineConfig(**CONFIG, kept_bytes=kept))
        await engine.load([tmp_path / "model" / "model.safetensors"], 0)
        found.append((await played(engine))[0])
        await engine.close()
    assert found[0] == found[1]


async def test_the_path_of_a_gpu_too(model_folder, monkeypatch):
    monkeypatch.setattr(packed, "_CHUNK", 16)
    found, computed = [], []
    with using("reference"):
        for kept in (0, MANY, 60_000):
            decoder = DecoderModel(read_supported_config(model_folder), torch.empty(0), on_gpu=True)
            engine = TorchEngine(decoder, TorchEngineConfig(**CONFIG, kept_bytes=kept))
            await engine.load([model_folder / "model.safetensors"], 0)
            episodes, chunks_computed = await played(engine)
            await engine.close()
            found.append(episodes)
            computed.append(chunks_computed)
    assert found[0] == found[1] == found[2]
    assert computed[1] < computed[0] / 2


@pytest.mark.parametrize("of", [lambda scheduler: scheduler._cache, lambda scheduler: scheduler._prefill.cache], ids=["slots", "lanes"])
async def test_a_cache_that_finds_no_memory_to_grow_in_has_what_is_kept_freed(model_folder, monkeypatch, of):
    monkeypatch.setattr(packed, "_CHUNK", 16)
    grown, held = row_cache._grown, []
    with using("reference"):
        decoder = DecoderModel(read_supported_config(model_folder), torch.empty(0), on_gpu=True)
        engine = TorchEngine(decoder, TorchEngineConfig(**CONFIG, kept_bytes=MANY))
        await engine.load([model_folder / "model.safetensors"], 0)
        await engine.generate([PromptGroup("a", tuple(range(4, 44)), (1,))])
        scheduler = engine._scheduler

        def first_is_refused(like, kept, capacity):
            held.append(scheduler._kept._bytes)
            if len(held) == 1:
                raise torch.OutOfMemoryError("what is kept takes it")
            return grown(like, kept, capacity)

        monkeypatch.setattr(row_cache, "_grown", first_is_refused)
        with torch.inference_mode():
            of(scheduler).reserve(of(scheduler).capacity + 1)
        await engine.close()
    assert held[0] > 0
    assert held[1] == 0


branches = st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(4, 47), min_size=1, max_size=70)), min_size=1, max_size=6)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(branches, min_size=2, max_size=4), kept=st.sampled_from([20_000, MANY]))
def test_prompts_that_begin_as_any_earlier_ones_have_the_same_bits(model_folder, calls, kept):
    async def scenario():
        engines = [TorchEngine.from_folder(model_folder, TorchEngineConfig(**CONFIG, kept_bytes=size)) for size in (0, kept)]
        known = [(5, 6, 7)]
        for engine in engines:
            await engine.load([model_folder / "model.safetensors"], 0)
        for call in calls:
            known += [(known[after % len(known)] + tuple(more))[-900:] for after, more in call]
            groups = [PromptGroup(str(n), prompt, (n, n + 7)) for n, prompt in enumerate(known[-len(call) :])]
            plain, found = [await engine.generate(groups) for engine in engines]
            assert found == plain
        for engine in engines:
            await engine.close()

    asyncio.run(scenario())


async def test_nothing_is_kept_across_a_load_or_a_release(start_engine, model_folder, tmp_path):
    engine, fresh = [await start_engine(**CONFIG, kept_bytes=kept) for kept in (MANY, 0)]
    kept = engine._scheduler._kept
    await played(engine)
    assert 0 < kept._bytes <= MANY
    changed = {name: tensor * 1.25 for name, tensor in load_file(model_folder / "model.safetensors").items()}
    save_file(changed, tmp_path / "changed.safetensors")
    for one in (engine, fresh):
        await one.load([tmp_path / "changed.safetensors"], 1)
    assert (kept._bytes, len(kept._chunks)) == (0, 0)
    assert (await played(engine))[0] == (await played(fresh))[0]
    assert kept._bytes
    await engine.release()
    assert (kept._bytes, len(kept._chunks)) == (0, 0)


async def test_the_newest_is_kept_in_no_more_than_it_may_take(start_engine):
    engine = await start_engine(**CONFIG, kept_bytes=50_000)
    kept = engine._scheduler._kept
    await played(engine)
    assert kept._bytes == sum(entries.nbytes for entries in kept._chunks.values()) <= 50_000
    prompt = tuple(range(4, 44))  # 8, 8, 16 and eight tokens more
    await engine.generate([PromptGroup("last", prompt, (1,))])
    last = list(kept._chunks.values())[-3:]
    assert [entries.shape[3] for entries in last] == [16, 8, 8], "of a prompt its end goes first"


async def test_a_long_prompt_keeps_its_beginning_and_never_more_is_held(start_engine, monkeypatch):
    engine = await start_engine(**CONFIG, max_prompt_tokens=400, kept_bytes=50_000)
    kept, cache = engine._scheduler._kept, engine._scheduler._prefill.cache
    read, held = cache.read, []

    def measured(row, start, end):
        entries = read(row, start, end)
        assert entries.nbytes == cache.bytes_of(end - start)
        held.append(sum(one.nbytes for one in [*kept._chunks.values(), entries]))
        return entries

    monkeypatch.setattr(cache, "read", measured)
    others, long = tuple(range(4, 44)), tuple(range(4, 48)) * 8
    await engine.generate([PromptGroup("other", others[::-1], (1,))])
    await engine.generate([PromptGroup("long", long, (1,))])
    whole = [end - start for start, end in chunks(len(long)) if end <= len(long)]
    first = [entries.shape[3] for entries in kept._chunks.values()][::-1]
    assert first == whole[: len(first)], "what another prompt began with made room for it"
    assert 3 < len(first) < len(whole)
    await engine.generate([PromptGroup("other", others[::-1], (2,))])
    assert max(held) <= 50_000 < kept._bytes + cache.bytes_of(32)


def test_each_lane_computes_what_it_needs_in_order_and_equal_lengths_at_a_time():
    whole = list(chunks(150))
    needed = [whole, whole[-1:], [], whole[2:3], whole[4:]]
    found = list(rounds(needed))
    for at in found:
        assert len({end - start for start, end in at}) == 1
        assert len(at) == len(needed)
    for lane, spans in enumerate(needed):
        computed = list(dict.fromkeys(at[lane] for at in found))
        assert [span for span in computed if span in spans] == spans
    assert len(found) == len(whole), "no more than the longest lane needs"
