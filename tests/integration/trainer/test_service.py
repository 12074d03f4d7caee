"""The trainer service: its heartbeat, and the run that it is assigned to."""

import asyncio
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForConditionalGeneration
from transformers_lab import qwen3_5_of_images

from gradbus.bus import Buckets, EventLog
from gradbus.control.failures import RunFailures
from gradbus.control.runs import WorkerPresence
from gradbus.errors import RankLostError, StorageError
from gradbus.formats.safetensors import read_headers
from gradbus.process import Process, WorkerClients
from gradbus.process.device_lease import DeviceLease, device_name
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus_rollout.engines.server.version_folder import digest, make_version_folder, model_tensors
from gradbus_trainer.learners.registry import Learners
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.service import TrainerService
from gradbus_trainer.settings import Settings, TorchrunRank
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

from .conftest import until


@pytest.fixture
async def model_files(objects, model_folder):
    return {path.name: await objects.put_blob(path.read_bytes()) for path in model_folder.iterdir()}


@pytest.fixture
def serve(bus, buffer, objects, stub, tmp_path):
    """Starts a trainer on a run; returns its process and its task."""

    async def start(run, learners=None):
        process = Process("trainer")
        settings = Settings(worker_id="trainer", cache_dir=tmp_path / "cache")
        service = TrainerService(
            settings, WorkerClients(bus, buffer, objects, stub, run.heartbeat), learners or Learners(settings, TorchrunRank())
        )
        run.heartbeat.presence.worker = f"trainer-{run.run_id}"
        await (await bus.bucket(Buckets.ASSIGNMENTS)).put(run.heartbeat.presence.worker, json.dumps(run.run_id).encode())
        return process, asyncio.create_task(run.heartbeat.serve(process, service.serve_run))

    return start


async def presence(bus, run):
    entry = await (await bus.bucket(Buckets.WORKERS)).get(run.heartbeat.presence.worker)
    return WorkerPresence.model_validate_json(entry.value) if entry else None


async def test_an_assigned_run_is_trained_and_kept_until_the_process_stops(new_run, make_spec, model_files, serve, bus):
    run = await new_run(make_spec(model={"path": "m", "files": model_files}))
    await run.write(range(12))
    process, task = await serve(run)

    async def is_trained():
        heads = (await run.stub.GetHeads(pb.GetHeadsRequest(run_id=run.run_id))).heads
        shown = await presence(bus, run)
        return heads.checkpoint_step == 6 and shown is not None and shown.version == 6

    await until(is_trained)
    learner_events = [event for event in await EventLog(bus, run.run_id).read() if event.type == "learner"]
    assert [event.data["trained_parameters"] > 0 and event.message.endswith(" trainable parameters") for event in learner_events] == [True]
    shown = await presence(bus, run)
    assert (shown.role, shown.run_id, shown.trouble) == ("trainer", run.run_id, "")
    assert not task.done(), "the run is ours until the conductor has ended it"
    process.stopping.set()
    await asyncio.wait_for(task, 60)
    assert await presence(bus, run) is None, "gone at once"
    assert await (await bus.bucket(Buckets.LEASES)).get(f"trainer.{run.run_id}") is None, "and the lease with it"


async def test_a_folder_without_a_model_is_fatal_trouble_with_its_reason(new_run, make_spec, objects, serve, bus):
    files = {"config.json": await objects.put_blob(b'{"model_type": "qwen2"}')}
    run = await new_run(make_spec(model={"path": "m", "files": files}))
    process, task = await serve(run)

    async def is_in_trouble():
        shown = await presence(bus, run)
        return shown is not None and shown.fatal and shown.trouble

    await until(is_in_trouble)
    assert "config.json has num_attention_heads" in (await presence(bus, run)).trouble
    process.stopping.set()
    await asyncio.wait_for(task, 60)


async def test_an_attempt_that_failed_does_not_keep_the_device_from_others(new_run, make_spec, model_files, serve, bus, monkeypatch):
    def fails(*_):
        raise StorageError("planted: the disk of this machine is full")

    monkeypatch.setattr(DeviceLease, "_end_without_lease", lambda *_: None)  # it would end the tests
    monkeypatch.setattr(Learners, "open", fails)
    run = await new_run(make_spec(model={"path": "m", "files": model_files}, rollout={"placement": "timed"}))
    process, task = await serve(run)
    presence = run.heartbeat.presence
    await until(lambda: presence.trouble)
    other = await DeviceLease.of(bus, device_name("cpu"), WorkerPresence(worker="other", role="trainer", incarnation="1"))
    await asyncio.wait_for(other.take(), 60)
    await until(lambda: presence.preparing == "waits for its device, which another worker has")
    process.stopping.set()
    await asyncio.wait_for(task, 60)
    await other.give_back()


async def test_what_no_run_trains_is_stored_once_and_named_by_every_version(
    new_run, make_spec, model_folder, objects, serve, bus, tmp_path
):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    base = load_file(folder / "model.safetensors")
    frozen = {"mtp.norm.weight": torch.randn(4).bfloat16(), "visual.patch": torch.randn(3, 2)}
    save_file(base | frozen, folder / "model.safetensors", metadata={"format": "pt"})
    files = {path.name: await objects.put_blob(path.read_bytes()) for path in folder.iterdir()}
    run = await new_run(make_spec(model={"path": "m", "files": files}))
    await run.write(range(12))

    async def is_trained():
        shown = await presence(bus, run)
        return shown is not None and shown.version == 6

    for _ in range(2):  # the second trainer resumes from the first one's checkpoint
        process, task = await serve(run)

        await until(is_trained)
        process.stopping.set()
        await asyncio.wait_for(task, 60)
    manifests = (await run.stub.ListVersions(pb.ListVersionsRequest(run_id=run.run_id))).manifests
    assert len({manifest.shards[1].digest for manifest in manifests}) == 1
    for manifest in manifests:
        (tmp_path / "weights").write_bytes(await objects.get_blob(manifest.shards[0].digest))
        (tmp_path / "carried").write_bytes(await objects.get_blob(manifest.shards[1].digest))
        carried = load_file(tmp_path / "carried")
        assert load_file(tmp_path / "weights").keys() | carried.keys() == base.keys() | frozen.keys()
        assert all(torch.equal(carried[name].view(torch.uint8), tensor.view(torch.uint8)) for name, tensor in frozen.items())


async def test_versions_of_a_model_that_transformers_computes_are_what_a_server_reads(new_run, make_spec, serve, bus, objects, tmp_path):
    base = qwen3_5_of_images(tmp_path / "model")
    files = {path.name: await objects.put_blob(path.read_bytes()) for path in base.iterdir()}
    run = await new_run(make_spec(model={"path": "m", "files": files}, steps=2, weights={"dtype": "bf16"}))
    await run.write(range(4))
    process, task = await serve(run)

    async def is_trained():
        shown = await presence(bus, run)
        return shown is not None and shown.version == 2

    await until(is_trained)
    process.stopping.set()
    await asyncio.wait_for(task, 60)
    last = max((await run.stub.ListVersions(pb.ListVersionsRequest(run_id=run.run_id))).manifests, key=lambda manifest: manifest.step)
    shards = [tmp_path / f"shard-{number}" for number in range(2)]
    for path, shard in zip(shards, last.shards, strict=True):
        path.write_bytes(await objects.get_blob(shard.digest))
    version = make_version_folder(tmp_path / "versions", base, shards, copy=True)
    assert digest(read_headers(sorted(version.glob("*.safetensors")))) == last.digest, "what the worker attests"
    assert read_headers(sorted(version.glob("*.safetensors"))).keys() == model_tensors(base).keys()
    tensors = {name: tensor for path in shards for name, tensor in load_file(path).items()}
    save_file(tensors, version / "model.safetensors", {"format": "pt"})
    loaded = Qwen3_5ForConditionalGeneration.from_pretrained(version, dtype=torch.bfloat16).state_dict()
    names = {name for name in loaded.keys() & tensors.keys() if not name.startswith("model.visual")}
    assert all(torch.equal(loaded[name], tensors[name]) for name in names)
    before = load_file(base / "model.safetensors")
    assert sum(not torch.equal(tensors[name], before[name].bfloat16()) for name in names) > len(names) / 2, "it was trained"


async def test_a_learner_that_would_publish_another_model_ends_the_run(new_run, make_spec, model_files, serve, bus, monkeypatch):
    def transposed(learner):
        made = weights(learner)
        return LazyTensors(made.shapes, lambda name: made[name].flip(0) if name.endswith("gate_proj.weight") else made[name])

    weights = TorchLearner.weights
    monkeypatch.setattr(TorchLearner, "weights", transposed)
    run = await new_run(make_spec(model={"path": "m", "files": model_files}))
    process, task = await serve(run)

    async def is_in_trouble():
        shown = await presence(bus, run)
        return shown is not None and shown.fatal and shown.trouble

    await until(is_in_trouble)
    assert "1 tensors differ (model.layers.0.mlp.gate_proj.weight)" in (await presence(bus, run)).trouble
    process.stopping.set()
    await asyncio.wait_for(task, 60)


async def test_a_step_that_finds_no_memory_is_a_failed_attempt_with_advice(new_run, make_spec, model_files, serve, bus, monkeypatch):
    def find_no_memory(_learner, _batch, _coefficients):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    monkeypatch.setattr(TorchLearner, "train", find_no_memory)
    run = await new_run(make_spec(model={"path": "m", "files": model_files}))
    await run.write(range(12))
    process, task = await serve(run)

    async def is_counted():
        shown = await presence(bus, run)
        return shown is not None and shown.failures and shown.trouble

    await until(is_counted)
    shown = await presence(bus, run)
    assert "this process has too little memory" in shown.trouble
    assert "lower slots, max_prompt_tokens, max_new_tokens or micro_batch_tokens" in shown.failure
    assert not shown.fatal, "another process may have had the memory"
    process.stopping.set()
    await asyncio.wait_for(task, 60)


class FallenApart(Learners):
    """Ranks of which one is gone."""

    def __init__(self, settings):
        super().__init__(settings, TorchrunRank())

    def open(self, folder, spec):
        raise RankLostError("rank 1 is gone; see its log")


class WithoutMemory(FallenApart):
    """Ranks of which one finds no memory at each attempt."""

    def __init__(self, settings):
        super().__init__(settings)
        self._leader = SimpleNamespace(failure=lambda: "OutOfMemoryError: this process has too little memory", release=lambda: None)


async def test_a_rank_that_fails_in_each_process_ends_the_run_with_the_cause(new_run, make_spec, model_files, serve, bus, tmp_path):
    run = await new_run(make_spec(model={"path": "m", "files": model_files}))
    settings = Settings(worker_id="trainer", cache_dir=tmp_path / "cache")
    for _ in range(3):
        _, task = await serve(run, WithoutMemory(settings))
        with pytest.raises(RankLostError):
            await asyncio.wait_for(task, 60)
        run.heartbeat._failures = RunFailures("")  # a new process
    process, task = await serve(run, Learners(settings, TorchrunRank()))

    async def is_in_trouble():
        shown = await presence(bus, run)
        return shown is not None and shown.fatal and shown.trouble

    await until(is_in_trouble)
    trouble = (await presence(bus, run)).trouble
    assert trouble.startswith("the ranks failed 3 times in the same way: OutOfMemoryError: this process has too little memory")
    process.stopping.set()
    await asyncio.wait_for(task, 60)


async def test_a_lost_rank_ends_the_process_and_leaves_the_run_to_the_next(new_run, make_spec, model_files, serve, bus, tmp_path):
    run = await new_run(make_spec(model={"path": "m", "files": model_files}))
    _, task = await serve(run, FallenApart(Settings(worker_id="trainer", cache_dir=tmp_path / "cache")))
    with pytest.raises(RankLostError, match="rank 1"):
        await asyncio.wait_for(task, 60)
    assert await presence(bus, run) is None
    assert await (await bus.bucket(Buckets.LEASES)).get(f"trainer.{run.run_id}") is None
