"""Turns of episodes in the embedded engine, with and without keys and values that are kept between them, in turns on one thread.

    OMP_NUM_THREADS=1 python benchmarks/environments/turns.py [--sizes demo 5m 27m] [--turns 8] [--episodes 64] [--rounds 3]

Episodes at once as in a run: each draws a turn as soon as its world has answered, after 0 to 20 ms. A prompt of 96 tokens, 24 drawn ones a
turn, an answer of 24. Samples must be equal; CPU time of the process, without the first round.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generation import make_model, save

from gradbus_rollout.engines.base import Completion, PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig

PROMPT, NEW, ANSWER, SLOTS = 96, 24, 24, 32
KEPT: Final = 256 << 20


async def episode(engine: TorchEngine, number: int, turns: int, vocab: int) -> list[Completion]:
    """One episode, whose world is a function of its number."""
    draw, found = random.Random(number), list[Completion]()
    context = tuple(draw.randrange(vocab) for _ in range(PROMPT))
    for turn in range(turns):
        (group,) = await engine.generate([PromptGroup(f"{number}.{turn}", context, (number * turns + turn,))])
        found += group.completions
        context += (*group.completions[0].token_ids, *(draw.randrange(vocab) for _ in range(ANSWER)))
        await asyncio.sleep(draw.uniform(0.0, 0.02))
    return found


async def played(engine: TorchEngine, episodes: int, turns: int, vocab: int) -> tuple[float, float, list[list[Completion]]]:
    """CPU seconds, seconds and samples of all episodes."""
    cpu, began = time.process_time(), time.perf_counter()
    found = await asyncio.gather(*(episode(engine, number, turns, vocab) for number in range(episodes)))
    return time.process_time() - cpu, time.perf_counter() - began, found


async def measure(size: str, episodes: int, turns: int, rounds: int) -> None:
    """Prints a line for each number of turns."""
    with tempfile.TemporaryDirectory() as made:
        folder, model = Path(made), make_model(size)
        model.config.max_position_embeddings = PROMPT + turns * (NEW + ANSWER)
        save(model, folder)
        engines = []
        for kept in (0, KEPT):
            config = TorchEngineConfig(slots=SLOTS, max_new_tokens=NEW, kept_bytes=kept)
            engines.append(TorchEngine.from_folder(folder, config))
        times: list[list[tuple[float, float]]] = [[], []]
        for version in range(rounds + 1):
            samples = []
            for engine, of_engine in zip(engines, times, strict=True):
                await engine.load([folder / "model.safetensors"], version)  # a run's next version: nothing is kept across it
                cpu, seconds, found = await played(engine, episodes, turns, model.config.vocab_size)
                if version:
                    of_engine.append((cpu, seconds))
                samples.append([[one.token_ids, one.logprobs] for episode in found for one in episode])
            if samples[0] != samples[1]:
                raise AssertionError("what is kept changed a sample")
        for engine in engines:
            await engine.close()
    before, now = ([statistics.median(column) for column in zip(*of_engine, strict=True)] for of_engine in times)
    drawn = episodes * turns * NEW
    cells = [f"{part[0]:.2f} s, {drawn / part[0]:,.0f}" for part in (before, now)]
    print(f"| {size} | {turns} | {cells[0]} | {cells[1]} | {before[0] / now[0]:.2f} |", flush=True)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=["demo", "5m", "27m"])
    parser.add_argument("--turns", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--episodes", type=int, default=64, help="at once")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| model | turns | without: CPU, tokens a CPU second | with | times |")
    print("|---|---|---|---|---|")
    for size in options.sizes:
        for turns in options.turns:
            asyncio.run(measure(size, options.episodes, turns, options.rounds))


if __name__ == "__main__":
    main()
