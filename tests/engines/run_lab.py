"""What tests of whole runs ask of a run: its rewards, and whether its samples come from the versions they name."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ledger import Ledger
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM
from versions import logprob_difference

from gradbus.client import Client, document
from gradbus.embedded import Stack
from gradbus.ids import digest_of
from gradbus.v1.group_pb2 import Group
from gradbus.v1.sample_pb2 import Sample, Span
from gradbus.v1.weights_pb2 import Shard
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_kernels.weights.delta.file import apply_file_delta
from gradbus_trainer.step.routes import sample_routes

_SPANS_A_VERSION = 8
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_FOUND = "def grade(sample, item):\n    return sum(given in item['answer'] for given in sample['output_text'][:4]) / 4\n"


def easier(spec: dict) -> dict:
    """The run rewarded for digits of the answer in any order: that is learned in 40 steps, copying in 250."""
    evaluation = {"every": spec["schedule"]["steps"], "samples": 16}
    return spec | {"reward": {"grader": {"type": "python", "source": _FOUND}}, "evaluation": evaluation}


def of_family(example: Path, family: str, **config: Any) -> Path:
    """The example with its tokenizer, over a random model of another family: two layers of 64, unless `config` says otherwise."""
    before = json.loads((example / "model" / "config.json").read_text())
    tokens = {name: before[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id") if name in before}
    torch.manual_seed(0)
    made = AutoConfig.for_model(family, **SIZES | tokens | config, initializer_range=0.1)
    AutoModelForCausalLM.from_config(made, dtype=torch.float32).save_pretrained(example / "model")
    return example


async def kill_server(stack: Stack) -> None:
    """Kills the one server that the rollout has started, once its run has some checkpoints."""
    async with asyncio.timeout(600):
        while len(list(stack.state.objects.glob("runs/*/checkpoints/*"))) <= 3 or not servers(stack):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    (leader,) = servers(stack)
    os.killpg(leader, signal.SIGKILL)


def servers(stack: Stack) -> list[int]:
    """Process groups of the servers that the rollout has brought up, oldest first."""
    log = stack.state.logs / "rollout-0.log"
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")] if log.exists() else []
    return [line["pid"] for line in lines if line["event"] == "engine_server_up"]


def learned(rewards: list[float]) -> float:
    """Mean reward of the last ten steps, which must be well above the first five's: about 0.28 after 0.06."""
    first, last = sum(rewards[:5]) / 5, sum(rewards[-10:]) / 10
    assert last > 2.5 * first, f"the run shows no learning: {first:.3f} at first, {last:.3f} at last"
    return last


async def rewards(stack, run_id) -> list[float]:
    """Mean reward of each step."""
    return [data["reward"] for data in await events(stack, run_id, "metrics")]


async def events(stack, run_id, kind) -> list[dict]:
    """Data of the run's events of a kind, oldest first."""
    with Client(stack.url, stack.api_key) as client:
        found = document(await asyncio.to_thread(client.events_page, run_id, limit=1000))["data"]
    return [event["data"] for event in found if event["type"] == kind]


Difference = Callable[[Group, Sample, Span], float]
"""Largest |log-prob recorded - log-prob computed| of a span's tokens, nats."""


def by_transformers(folder: Path) -> Difference:
    """Computed by transformers."""
    # Read as a folder, because transformers holds the experts of a layer as one tensor.
    return partial(logprob_difference, AutoModelForCausalLM.from_pretrained(folder, dtype="float32"))


@dataclass
class Row:
    """A sample as the trainer's decoder takes it."""

    prompt_ids: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    routes: NDArray[np.int16]

    @classmethod
    def of(cls, group: Group, sample: Sample) -> Row:
        """With its routes in the group."""
        prompt, *responses = (np.frombuffer(ids, "<i4") for ids in (group.prompt_ids, *(one.token_ids for one in group.samples)))
        at = [one.n for one in group.samples].index(sample.n)
        return cls(prompt, responses[at], sample_routes(group, len(prompt), [len(ids) for ids in responses])[at])


def by_replay(folder: Path) -> Difference:
    """Computed by the trainer's decoder with the routes in the group."""
    model = load_causal_lm(folder)
    model.replay_routes()

    def difference(group: Group, sample: Sample, span: Span) -> float:
        with torch.no_grad():
            computed, _ = packed_logprobs(model, [Row.of(group, sample)], 1.0)
        return float(np.abs(computed.numpy() - np.frombuffer(sample.logprobs, "<f4"))[span.start : span.end].max())

    return difference


def off(
    root: Path, model: Path, ledger: Ledger, shift: int = 0, network: Callable[[Path], Difference] = by_transformers
) -> tuple[float, list[int]]:
    """Largest |log-prob recorded - log-prob of `network`| of some spans of each published version, nats; the versions.

    `shift`: with the weights of a version so much later, which must show.
    """
    drawn = defaultdict(list)
    for entry in ledger.entries.values():
        group = Group.FromString(entry.group)
        assert group.engine.startswith("sglang ") or not group.samples, group.engine
        for sample in group.samples:
            for span in sample.spans:
                if len(drawn[span.version]) < _SPANS_A_VERSION:
                    drawn[span.version].append((group, sample, span))
    files = {step - shift: content for step, content in published(root, ledger).items()}
    worst, seen = 0.0, sorted(files.keys() & drawn.keys())
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(model, Path(scratch) / "model")
        for version in seen:
            (folder / "model.safetensors").write_bytes(files[version])
            difference = network(folder)
            worst = max(worst, *(difference(*one) for one in drawn[version]))
    return worst, seen


def published(root: Path, ledger: Ledger) -> dict[int, bytes]:
    """Step to file of every version that checkpoints name or whose delta they name: made again, and checked by its digest."""
    files = {}
    for manifest in ledger.checkpoints:
        for version in (*manifest.pinned, manifest.weights):
            (shard,) = version.shards
            files |= _chain(root, shard)
            if not shard.delta_only:
                files[version.step] = _blob(root, shard.digest)
    return files


def _chain(root: Path, shard: Shard) -> dict[int, bytes]:
    """The files that the shard's deltas start from. What the oldest starts from is whole, unless retention took it."""
    files: dict[int, bytes] = {}
    for at, delta in enumerate(shard.chain):
        if at:
            before = shard.chain[at - 1]
            content = bytearray(len(files[before.base_step]))
            apply_file_delta(memoryview(_blob(root, before.digest)), memoryview(files[before.base_step]), memoryview(content))
            assert digest_of(content) == delta.base_digest
            files[delta.base_step] = bytes(content)
        elif (root / "objects" / "blobs" / delta.base_digest.removeprefix("sha256:")).exists():
            files[delta.base_step] = _blob(root, delta.base_digest)
        else:
            break
    return files


def _blob(root: Path, digest: str) -> bytes:
    return (root / "objects" / "blobs" / digest.removeprefix("sha256:")).read_bytes()
