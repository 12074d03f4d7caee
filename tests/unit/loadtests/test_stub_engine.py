"""The stub's own promises beyond the engine contract: time as calibrated hardware would pass it."""

import asyncio

import pytest
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from gradbus.plan.loop import makespan
from gradbus_load.calibration import EngineTiming, response_tokens
from gradbus_load.stub_engine import StubEngine
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngineConfig

STOPS = frozenset({0})
MOST = 200


class Clock:
    """In the place of the event loop's: only what is asked for passes."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: self.now)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    size = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(**size, max_position_embeddings=512, tie_word_embeddings=True)).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture
async def start(folder):
    engines = []

    async def begin(timing, slots=4):
        config = TorchEngineConfig(slots=slots, max_new_tokens=MOST, stop_token_ids=STOPS)
        engines.append(StubEngine(folder, config, timing))
        await engines[-1].load([folder / "model.safetensors"], 0)
        return engines[-1]

    yield begin
    for engine in engines:
        await engine.close()


def lengths(seeds, timing):
    return [response_tokens(seed, timing.median_tokens, MOST) for seed in seeds]


async def test_samples_end_with_a_stop_token_at_the_length_of_their_seed(start):
    timing = EngineTiming(step_seconds=0.0, median_tokens=40.0)
    engine = await start(timing)
    seeds = tuple(range(300))
    completions = (await engine.generate([PromptGroup("a", (1, 2), seeds)]))[0].completions
    assert [len(one.token_ids) for one in completions] == lengths(seeds, timing)
    assert {one.finish for one in completions} == {"stop", "length"}
    assert all((one.token_ids[-1] in STOPS) == (one.finish == "stop") == (len(one.token_ids) < MOST) for one in completions)
    assert all(not STOPS & set(one.token_ids[:-1]) and len(one.logprobs) == 4 * len(one.token_ids) for one in completions)


async def test_other_weights_and_other_seeds_give_other_tokens(start, folder, tmp_path):
    engine = await start(EngineTiming(step_seconds=0.0))
    group = PromptGroup("a", (1, 2), (7, 8))
    before = await engine.generate([group])
    assert before[0].completions[0].token_ids != before[0].completions[1].token_ids
    save_file({name: tensor + 1 for name, tensor in load_file(folder / "model.safetensors").items()}, tmp_path / "next")
    await engine.load([tmp_path / "next"], 1)
    after = await engine.generate([group])
    assert [one.token_ids[0] for one in before[0].completions] != [one.token_ids[0] for one in after[0].completions]
    await engine.load([folder / "model.safetensors"], 0)
    assert await engine.generate([group]) == before


async def test_the_last_sample_ends_when_calibrated_slots_would_be_done(start):
    """The engine is asked at the end alone: a process that wakes up late changes nothing."""
    timing = EngineTiming(step_seconds=1.0, prefill_seconds=0.5, median_tokens=20.0)
    engine = await start(timing, slots=4)
    seeds = tuple(range(40))
    expected = makespan([timing.seconds(2, length) for length in lengths(seeds, timing)], 4)
    running = asyncio.create_task(engine.generate([PromptGroup("a", (1, 2), seeds)]))
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    engine._advance(began + expected - 0.5)
    assert engine._calls, "the last is still running"
    engine._advance(began + expected + 0.5)
    assert not engine._calls
    await running


async def test_a_load_splits_what_is_running_at_the_token_of_that_moment(start, folder, monkeypatch):
    engine = await start(EngineTiming(step_seconds=1.0, prefill_seconds=1.0, median_tokens=1e9))
    clock = Clock(monkeypatch)
    running = asyncio.ensure_future(engine.generate([PromptGroup("a", (1, 2), (5,))]))
    await asyncio.sleep(0)
    clock.now = 12.5  # two seconds of prefill, then ten tokens and a half
    await engine.load([folder / "model.safetensors"], 1)
    clock.now = 20.5
    await engine.load([folder / "model.safetensors"], 2)
    engine._advance(2.0 + MOST)
    spans = (await running)[0].completions[0].spans
    assert [(span.start, span.end, span.version) for span in spans] == [(0, 10, 0), (10, 18, 1), (18, MOST, 2)]
