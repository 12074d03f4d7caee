"""What tests of whole runs ask of a run: its rewards, and whether its samples come from the versions they name."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

from ledger import Ledger
from transformers import AutoModelForCausalLM
from versions import logprob_difference

from gradbus.client import Client
from gradbus.ids import digest_of
from gradbus.v1.group_pb2 import Group
from gradbus.v1.weights_pb2 import Shard
from gradbus_kernels.weights.delta.file import apply_file_delta

_SAMPLES_A_VERSION = 8
_FOUND = "def grade(sample, item):\n    return sum(given in item['answer'] for given in sample['output_text'][:4]) / 4\n"


def easier(spec: dict) -> dict:
    """The run rewarded for digits of the answer in any order: that is learned in 40 steps, copying in 250."""
    evaluation = {"every": spec["schedule"]["steps"], "samples": 16}
    return spec | {"reward": {"grader": {"type": "python", "source": _FOUND}}, "evaluation": evaluation}


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
        found = (await asyncio.to_thread(client.events, run_id, limit=1000))["data"]
    return [event["data"] for event in found if event["type"] == kind]


def off(root: Path, model: Path, ledger: Ledger, shift: int = 0) -> tuple[float, list[int]]:
    """Largest |log-prob recorded - log-prob of transformers| of some samples of each published version, nats; the versions.

    `shift`: with the weights of a version so much later, which must show.
    """
    drawn = defaultdict(list)
    for entry in ledger.entries.values():
        group = Group.FromString(entry.group)
        assert group.engine.startswith("sglang "), group.engine
        for sample in group.samples:
            (span,) = sample.spans
            if len(drawn[span.version]) < _SAMPLES_A_VERSION:
                drawn[span.version].append((group, sample, span.end))
    files = {step - shift: content for step, content in published(root, ledger).items()}
    worst, seen = 0.0, sorted(files.keys() & drawn.keys())
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(model, Path(scratch) / "model")
        for version in seen:  # read as a folder, because transformers holds the experts of a layer as one tensor
            (folder / "model.safetensors").write_bytes(files[version])
            network = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
            worst = max(worst, *(logprob_difference(network, *one) for one in drawn[version]))
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
