"""Episodes of many turns by a real SGLang server: a Qwen3 with its own template of tools, random weights, prefix cache on."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import sglang_lab
import torch
from ledger import check, open_buffer, read_ledger
from run_lab import published, servers
from smoke import train
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from gradbus.embedded import Stack, StackConfig
from gradbus.v1.group_pb2 import Group
from gradbus.v1.journal_pb2 import JournalEntry
from gradbus.v1.record_pb2 import StoredRecord

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]
STEPS, GROUPS, GROUP_SIZE, TURNS = 6, 4, 4, 5
SOURCE = '''
class Environment:
    """Speaks with the policy, and has a tool."""

    def reset(self, item, seed):
        self.seed = seed

    def look_up(self, word: str) -> str:
        """Looks up a word."""
        return word[::-1]

    def step(self, text):
        return {"message": f"What of {self.seed % 97}?", "reward": len(set(text)) / 64}
'''


@pytest.fixture(scope="module")
def shapes():
    """The folders of families that the tests of turns make."""
    path = Path(__file__).parents[2] / "unit/tokenizer/turns/conftest.py"
    spec = importlib.util.spec_from_file_location("turn_shapes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory, shapes):
    folder = shapes.write_folder(tmp_path_factory.mktemp("qwen3"), "qwen3")
    torch.manual_seed(5)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(vocab_size=len(tokenizer), head_dim=8, max_position_embeddings=2048, tie_word_embeddings=True, **sizes)
    config.eos_token_id = tokenizer.eos_token_id
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def spec(model, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    words = ("fox", "dog", "lazy", "brown")
    prompts.write_text("".join(json.dumps({"prompt": [{"role": "user", "content": word}]}) + "\n" for word in words))
    size = AutoTokenizer.from_pretrained(model).vocab_size
    return {
        "name": "episodes",
        "model": {"path": str(model)},
        "data": {"train": str(prompts)},
        "environment": {"source": SOURCE, "max_turns": TURNS, "thinking": "keep"},
        "rollout": {
            "engine": "sglang",
            "slots": 16,
            "group_size": GROUP_SIZE,
            "max_new_tokens": 24,
            "stop_token_ids": list(range(3, size, 4)),
        },
        "algorithm": {"truncated": "keep"},
        "schedule": {"groups_per_step": GROUPS, "steps": STEPS, "max_staleness": 1},
        "checkpoint": {"every": 1, "keep": 100},
        "trainer": {"learning_rate": 1e-3},
    }


def worst_difference(folder, files, ledger):
    """Largest |log-prob drawn - log-prob of transformers| over the drawn tokens of whole episodes, nats; and the versions."""
    worst, seen = 0.0, set()
    for entry in ledger.entries.values():
        group = Group.FromString(entry.group)
        for sample in group.samples[:2]:
            (version,) = {span.version for span in sample.spans if span.trainable}
            if version not in files:
                continue
            (folder / "model.safetensors").write_bytes(files[version])
            prompt, tokens = np.frombuffer(group.prompt_ids, "<i4"), np.frombuffer(sample.token_ids, "<i4")
            ids = torch.tensor(np.concatenate([prompt, tokens]), dtype=torch.long)[None]
            with torch.no_grad():
                logits = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")(ids).logits[0, len(prompt) - 1 : -1]
            computed = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
            recorded = np.frombuffer(sample.logprobs, "<f4")
            drawn = np.concatenate([np.arange(span.start, span.end) for span in sample.spans if span.trainable])
            worst = max(worst, float(np.abs(computed - recorded)[drawn].max()))
            seen.add(version)
    return worst, seen


async def played(stack, spec, model):
    """The samples of a run to its end: whole episodes, each turn drawn by its version after all tokens before it."""
    outcome = await train(stack, spec, seconds=1500)
    assert (outcome.state, outcome.steps) == ("succeeded", STEPS)
    ledger = read_ledger(stack.state.root, outcome.run_id)
    assert check(ledger, GROUPS, STEPS, 1, fixed_lag=True) == []
    samples = [sample for entry in ledger.entries.values() for sample in Group.FromString(entry.group).samples]
    assert max(len(sample.episode.turns) for sample in samples) == TURNS
    assert not any(sample.episode.outcome.reason for sample in samples)
    folder = shutil.copytree(model, stack.state.root / "scored")
    worst, versions = worst_difference(folder, published(stack.state.root, ledger), ledger)
    assert worst < 1e-5
    assert versions == set(range(STEPS - 1))
    return samples


async def test_each_turn_of_an_episode_is_drawn_by_its_version_after_all_tokens_before_it(tmp_path, spec, model):
    async with Stack(StackConfig(state=tmp_path / "state", port=0, environment_overrides={"rollout-0": sglang_lab.variables()})) as stack:
        await played(stack, spec, model)


async def test_turns_in_the_journal_stay_when_the_worker_dies_with_its_server(tmp_path, spec, model):
    crashes = tmp_path / "crashes"
    crashes.mkdir()
    fault = {"GRADBUS_CRASH_POINT": "before-answered:40", "GRADBUS_CRASH_DIR": str(crashes)}
    config = StackConfig(state=tmp_path / "state", port=0, environment_overrides={"rollout-0": sglang_lab.variables() | fault})
    async with Stack(config) as stack:
        run = asyncio.create_task(played(stack, spec | {"environment": spec["environment"] | {"journal": True}}, model))
        while not list(crashes.iterdir()):
            await asyncio.sleep(0.1)
            assert not run.done(), await run
        before = await asyncio.to_thread(recorded_turns, stack.state.root)
        samples = {sample.sample_id: sample for sample in await run}
        assert len(servers(stack)) == 2, "the next worker has a server of its own"
    assert sum(map(len, before.values())) > GROUPS
    for name, turns in before.items():
        assert turns == drawn_turns(samples[name])[: len(turns)], name


def recorded_turns(state):
    """By sample, ids and log-probabilities of each turn that is in the buffer's journals."""
    found = defaultdict(list)
    with open_buffer(state) as conductor, open_buffer(state, "rollout") as worker:
        for key in conductor.scan_iter(match="*:journal:*"):
            for n in range(GROUP_SIZE):
                attempt = int(worker.hget(key, f"{n}.attempt") or 0)
                for entry in entries(worker, key, f"{n}.{attempt}"):
                    if entry.HasField("drawn"):
                        found[f"{key.decode().rsplit(':', 1)[1]}.{n}"].append((entry.drawn.token_ids, entry.drawn.logprobs))
    return found


def entries(buffer, key, episode):
    """The entries of an episode's attempt."""
    records = (buffer.hget(key, f"{episode}.{number}") for number in itertools.count())
    for record in itertools.takewhile(bool, records):
        yield JournalEntry.FromString(StoredRecord.FromString(record).payload)


def drawn_turns(sample):
    """The same of a sample in the log."""
    spans = [slice(4 * span.start, 4 * span.end) for span in sample.spans if span.trainable]
    return [(sample.token_ids[span], sample.logprobs[span]) for span in spans]
