"""Measures bytes and seconds from the trainer's publisher to an attested engine, for whole files, deltas and broadcast.

    OMP_NUM_THREADS=1 python benchmarks/weights.py [--layers 12] [--rounds 3] [--s3]

A Llama-like model in bf16; masters, step and shares of changed elements as in `weights_delta.py`. One process: the trainer's
`VersionWriter`, an object store (a folder, and with --s3 a bucket of a moto server, which is a process of its own), the worker's
`VersionFiles`, the embedded engine with its attestation; of a broadcast the trainer's end, and the worker's member, which is a process.
Left out are the calls of the weight store, some milliseconds of gRPC and NATS. Beside it in the same rounds: safetensors written
and read in the folder, two other codecs by themselves, and memcpy.
Wall seconds, the best of the rounds.
Writes results/weights.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from charts.curves import chart
from compare_trl import HERE, machine
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from weights_delta import adam_direction, codecs, floor_bytes, versions

from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus.process.broadcast_settings import BroadcastSettings
from gradbus.spec import WeightsSpec
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastMembership
from gradbus.v1.weights_pb2 import Shard, WeightManifest
from gradbus_rollout.broadcast.process import BroadcastProcess, MemberConfig
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.weights.version_files import VersionFiles
from gradbus_trainer.broadcast.sender import BroadcastSender
from gradbus_trainer.tensors.export import Export, export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch
from gradbus_trainer.versions.writer import VersionWriter

TRANSPORTS = ("store", "delta", "broadcast")
SHARES = (0.001, 0.01, 0.03, 0.1)
Times = dict[str, list[float]]


def make_model(folder: Path, layers: int) -> dict[str, torch.Size]:
    """A model folder for the engine, with names and shapes of its tensors."""
    sizes = {"vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=layers, max_position_embeddings=64, tie_word_embeddings=True))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")  # required in a model folder; nothing is tokenised here
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def named(flat: Tensor, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """The flat weights as the model's tensors."""
    parts = torch.split(flat, [shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


@contextmanager
def moto_bucket() -> Iterator[str]:
    """The URL of a bucket on an S3 server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    keys = {
        "ACCESS_KEY_ID": "someone",
        "SECRET_ACCESS_KEY": "something",
        "REGION": "us-east-1",
        "ENDPOINT_URL": address,
        "ALLOW_HTTP": "true",
    }
    os.environ.update({f"AWS_{name}": value for name, value in keys.items()})
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{address}/weights", method="PUT"))
                break
            except OSError:
                time.sleep(0.2)
        yield "s3://weights/benchmark"
    finally:
        server.terminate()
        server.wait()


class BroadcastLab:
    """A broadcast group of two: this process and one worker."""

    def __init__(self, folder: Path) -> None:
        settings = BroadcastSettings(stall_seconds=60.0, seconds=600.0)
        self.config = settings.config
        self._sender = BroadcastSender(settings, "cpu")
        self._members = BroadcastMembership(group="benchmark", address=self._sender.address, workers=["worker"])
        self._receiver = BroadcastProcess(MemberConfig("worker", settings.host, "cpu", sys.executable, folder))
        self._receiver.wait_until_ready()

    async def connect(self) -> None:
        """Joins both members."""
        ends = (lambda: self._sender.connect(self._members), lambda: self._receiver.connect(self._members, self.config))
        await asyncio.gather(*map(asyncio.to_thread, ends))

    async def bring(self, export: Export) -> None:
        """Broadcasts a version's file into the worker's cache."""
        content = export.file.mapped()
        shard = Shard(digest=await asyncio.to_thread(digest_of, content), size_bytes=len(content))
        broadcast = Broadcast(step=export.step, config=self.config, shards=[shard])
        await asyncio.gather(
            asyncio.to_thread(self._sender.send, export.step, self._members, [content]),
            asyncio.to_thread(self._receiver.receive, broadcast, self._members),
        )

    def close(self) -> None:
        """Closes both members."""
        self._receiver.abort()
        self._sender.abort()


async def travel(url: str, engine: TorchEngine, transport: str, exports: tuple[Export, Export], times: Times) -> int:
    """Transports one version to an engine with the previous one; returns the bytes written to object storage."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        objects = ObjectStore.open(url or f"file://{folder}/objects")
        writer = VersionWriter(objects, "benchmark", 1, WeightsSpec(transport=transport, dtype="bf16"))
        shards = VersionFiles(objects, Path(folder) / "shards")
        broadcast = BroadcastLab(Path(folder)) if transport == "broadcast" else None
        old, new = exports
        first = await writer.store(old, whole=True)
        if broadcast:
            await broadcast.connect()
            await broadcast.bring(old)
        if transport == "delta":
            writer.advance(old, first)  # otherwise it would remove the file, which the other transports need
        await engine.load(await shards.files(first), 0)
        begin = time.perf_counter()
        ways = [broadcast.bring(new)] if broadcast else []
        manifest, *_ = await asyncio.gather(writer.store(new, whole=False), *ways)
        stored = time.perf_counter()
        files = await shards.files(manifest)
        here = time.perf_counter()
        attested = await engine.load(files, 1)
        end = time.perf_counter()
        assert attested == new.digest, transport
        seconds = {"store": stored - begin, "fetch": here - stored, "load": end - here, "all": end - begin}
        for part, spent in seconds.items():
            times[f"{'bucket' if url else 'folder'}, {transport}, {part}"].append(spent)
        moved = moved_bytes(manifest)
        if broadcast:
            broadcast.close()
        await forget(objects, first, manifest)
        return moved


def moved_bytes(manifest: WeightManifest) -> int:
    """Bytes of the version in object storage."""
    (shard,) = manifest.shards
    return shard.chain[-1].size_bytes if shard.delta_only else shard.size_bytes


async def forget(objects: ObjectStore, *manifests: WeightManifest) -> None:
    """Removes the blobs, which the next round would otherwise find."""
    for manifest in manifests:
        for digest in {manifest.shards[0].digest, *(link.digest for link in manifest.shards[0].chain)}:
            await objects.delete_blob(digest)


def timed(times: Times, name: str, work: Callable[[], Any]) -> Any:
    """Times `work` and returns its result."""
    begin = time.perf_counter()
    result = work()
    times[name].append(time.perf_counter() - begin)
    return result


def probes(old: Tensor, new: Tensor, folder: Path, times: Times) -> dict[str, int]:
    """Probes: memory, a plain file and the other codecs, with the bytes of each."""
    into = torch.zeros_like(old)
    timed(times, "memcpy", lambda: into.copy_(old))
    file = folder / "probe.safetensors"
    timed(times, "safetensors write + read", lambda: (save_file({"w": new}, file), load_file(file)["w"].sum()))
    sizes = {"safetensors write + read": file.stat().st_size}
    file.unlink()
    for name, codec in codecs(old, new, into).items():
        message = timed(times, f"{name}, encode", codec.encode)
        timed(times, f"{name}, decode", lambda codec=codec, message=message: codec.decode(message))
        sizes[name] = len(message)
    return sizes


def measure(shapes: dict[str, torch.Size], flats: tuple[Tensor, Tensor], model: Path, urls: list[str], rounds: int) -> dict[str, Any]:
    """Bytes and seconds between two versions."""
    old, new = flats
    scratch = Scratch(model / "scratch")
    exports = tuple(
        export_version(step, LazyTensors.of(named(flat, shapes)), False, scratch, torch.bfloat16) for step, flat in enumerate(flats)
    )
    bits = [flat.view(torch.int16).numpy().view("u2") for flat in flats]
    times: Times = defaultdict(list)
    moved: dict[str, int] = {}

    async def rounds_of() -> None:
        engine = TorchEngine.from_folder(model, TorchEngineConfig(slots=4, max_new_tokens=4))
        for _ in range(rounds):
            for url in urls:
                for transport in TRANSPORTS:
                    moved[transport] = await travel(url, engine, transport, exports, times)
            moved.update(probes(old, new, model, times))
        await engine.close()

    asyncio.run(rounds_of())
    seconds = {name: min(values) for name, values in times.items()}
    return {"changed": float((bits[0] != bits[1]).mean()), "floor": floor_bytes(*bits), "bytes": moved, "seconds": seconds}


def summary(results: list[dict[str, Any]], elements: int, rounds: int) -> str:
    """The tables."""
    lines = [
        "# Weights on their way",
        "",
        f"{machine()}. {elements:,} bf16 weights, {elements * 2 / 1e6:.0f} MB; the best of {rounds} round(s).",
        "",
    ]
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        lines += [
            f"Others used the machine (load {load:.1f} on {cores} cores): the seconds are too many, and unlike; the bytes are right.",
            "",
        ]
    lines += ["![bytes](weights.svg)", "", "Bytes, MB:", ""]
    lines += ["| changed | dense | delta | XOR + zstd | index + value | floor | delta / floor |", "|---:|---:|---:|---:|---:|---:|---:|"]
    for found in results:
        sizes = [found["bytes"][name] / 1e6 for name in ("store", "delta", "XOR + zstd", "index + value")]
        row = " | ".join(f"{value:.2f}" for value in (*sizes, found["floor"] / 1e6, found["bytes"]["delta"] / found["floor"]))
        lines.append(f"| {found['changed']:.2%} | {row} |")
    for storage in ("folder", "bucket"):
        if f"{storage}, store, all" in results[0]["seconds"]:
            lines += [
                "",
                f"Seconds by a {storage}, from publishing to attested (storing and broadcasting + fetching + loading and attesting):",
                "",
            ]
            lines += [
                "| changed | dense | delta | broadcast |",
                "|---:|---:|---:|---:|",
                *(_seconds_row(found, storage) for found in results),
            ]
    names = ("memcpy", "safetensors write + read", "delta", "XOR + zstd", "index + value")
    lines += [
        "",
        "Seconds of the probes; the codecs encode + decode in memory:",
        "",
        f"| changed | {' | '.join(names)} |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_probe_row(found, names) for found in results]
    return "\n".join([*lines, ""])


def _seconds_row(found: dict[str, Any], storage: str) -> str:
    cells = []
    for transport in TRANSPORTS:
        parts = [found["seconds"][f"{storage}, {transport}, {part}"] for part in ("all", "store", "fetch", "load")]
        cells.append(f"{parts[0]:.2f} ({' + '.join(f'{part:.2f}' for part in parts[1:])})")
    return f"| {found['changed']:.2%} | {' | '.join(cells)} |"


def _probe_row(found: dict[str, Any], names: tuple[str, ...]) -> str:
    seconds = found["seconds"]
    cells = [
        f"{seconds[name]:.2f}" if name in seconds else f"{seconds[f'{name}, encode']:.2f} + {seconds[f'{name}, decode']:.2f}"
        for name in names
    ]
    return f"| {found['changed']:.2%} | {' | '.join(cells)} |"


def main() -> None:
    """Measures, prints the tables and writes three files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, moto_bucket() as bucket:
        shapes = make_model(Path(folder), options.layers)
        elements = sum(shape.numel() for shape in shapes.values())
        masters, direction = adam_direction(elements)
        results = []
        for share in SHARES:
            flats = versions(masters, direction, share)
            results.append(measure(shapes, flats, Path(folder), ["", *([bucket] if options.s3 else [])], options.rounds))
            print(f"{share:.1%}: {results[-1]['seconds']}", flush=True)
    text = summary(results, elements, options.rounds)
    print(f"\n{text}")
    curves = {
        name: [(100 * found["changed"], found["bytes"][name] / found["bytes"]["store"]) for found in results]
        for name in ("delta", "XOR + zstd", "index + value")
    }
    curves["floor"] = [(100 * found["changed"], found["floor"] / found["bytes"]["store"]) for found in results]
    options.out.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(), "elements": elements, "rounds": options.rounds, "results": results}
    (options.out / "weights.json").write_text(json.dumps(content, indent=1) + "\n")
    (options.out / "weights.md").write_text(text)
    (options.out / "weights.svg").write_text(chart("Bytes of a version, of the whole file's", "% of weights changed", curves, top=0.4))


if __name__ == "__main__":
    main()
