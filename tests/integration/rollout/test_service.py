"""A rollout worker as a process has it: assigned to a run, it prepares an engine, proves its bits and serves."""

import asyncio
import gc
import json
import threading
import weakref
from pathlib import Path

import pytest

from gradbus.bus import Buckets, TaskQueue
from gradbus.control.runs import RunStatus, WorkerPresence
from gradbus.errors import EngineHungError, StorageError
from gradbus.experience import GroupStore
from gradbus.process import Process, WorkerClients, WorkerHeartbeat
from gradbus.process.device_lease import DeviceLease, device_name
from gradbus.tokenizer.tokenizer import Deadlines
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout import service
from gradbus_rollout.engines import watchdog
from gradbus_rollout.engines.registry import EngineFactory
from gradbus_rollout.engines.torch import TorchEngine
from gradbus_rollout.engines.torch.scheduler import Scheduler
from gradbus_rollout.run_end import is_over
from gradbus_rollout.service import RolloutService
from gradbus_rollout.settings import Settings
from gradbus_rollout.tasks import prompts as prompts_module

from .conftest import until


@pytest.fixture
async def model_files(objects, model_folder):
    return {path.name: await objects.put_blob(path.read_bytes()) for path in model_folder.iterdir()}


@pytest.fixture
async def serving(bus, buffer, objects, stub, run_id, tmp_path, fork_server, request):
    """A worker that is assigned to the run until the test is over; a parameter is its device."""
    process = Process("rollout")
    heartbeat = WorkerHeartbeat(bus, WorkerPresence(worker=f"worker-{run_id}", role="rollout", incarnation="1"))
    settings = Settings(cache_dir=tmp_path / "cache", device=getattr(request, "param", "cpu"))
    service = RolloutService(settings, WorkerClients(bus, buffer, objects, stub, heartbeat), EngineFactory(settings), fork_server)
    await (await bus.bucket(Buckets.ASSIGNMENTS)).put(heartbeat.presence.worker, json.dumps(run_id).encode())
    task = asyncio.create_task(heartbeat.serve(process, service.serve_run))
    yield heartbeat.presence
    process.stopping.set()
    await asyncio.wait_for(task, 60)
    assert await (await bus.bucket(Buckets.WORKERS)).get(heartbeat.presence.worker) is None


async def test_a_worker_ends_when_its_engine_hangs(
    new_record, model_files, prompts, bus, buffer, objects, stub, run_id, tmp_path, fork_server, monkeypatch
):
    stuck = threading.Event()
    monkeypatch.setattr(Scheduler, "step", lambda _self: stuck.wait())
    monkeypatch.setattr(watchdog, "_CLOSE_SECONDS", 0.1)
    await new_record(files=model_files)
    await write_status(bus, run_id, await objects.put_blob(prompts))
    heartbeat = WorkerHeartbeat(bus, WorkerPresence(worker=f"worker-{run_id}", role="rollout", incarnation="1"))
    settings = Settings(cache_dir=tmp_path / "cache", engine_progress_seconds=1.0)
    service = RolloutService(settings, WorkerClients(bus, buffer, objects, stub, heartbeat), EngineFactory(settings), fork_server)
    await (await bus.bucket(Buckets.ASSIGNMENTS)).put(heartbeat.presence.worker, json.dumps(run_id).encode())
    try:
        with pytest.raises(EngineHungError):
            await asyncio.wait_for(heartbeat.serve(Process("rollout"), service.serve_run), 60)
    finally:
        stuck.set()
    assert await (await bus.bucket(Buckets.WORKERS)).get(heartbeat.presence.worker) is None


async def write_status(bus, run_id, digest):
    await (await bus.bucket(Buckets.RUNS)).put(f"{run_id}.status", RunStatus(state="starting", prompts=digest).to_bytes())


async def test_a_run_is_over_once_its_end_is_decided(bus, run_id):
    bucket = await bus.bucket(Buckets.RUNS)
    assert await is_over(bus, run_id), "it is deleted"
    for status, over in [
        (RunStatus(state="running"), False),
        (RunStatus(state="paused"), False),
        (RunStatus(state="running", ending="succeeded"), True),
        (RunStatus(state="cancelled"), True),
    ]:
        await bucket.put(f"{run_id}.status", status.to_bytes())
        assert await is_over(bus, run_id) == over


async def test_an_assigned_worker_waits_for_the_prompts_then_proves_itself_and_samples(
    new_record, model_files, objects, prompts, trainer, bus, buffer, run_id, serving
):
    await new_record(files=model_files)
    queue, store = TaskQueue(bus, run_id), GroupStore(buffer, run_id)
    await queue.open()
    await write_status(bus, run_id, await objects.put_blob(prompts))
    await trainer.publish(0)
    await queue.publish([Task(task_id="t", run_id=run_id, kind=TaskKind.TASK_KIND_TRAIN, version=0, groups=[GroupTask(index=3, row=1)])])

    async def is_sampled():
        return 3 in await store.get([3])

    await until(is_sampled)
    assert await (await bus.bucket(Buckets.PROBES)).get(run_id) is not None
    assert (serving.run_id, serving.version, serving.trouble) == (run_id, 0, "")
    assert serving.engine.startswith("torch")
    await (await bus.bucket(Buckets.ASSIGNMENTS)).delete(serving.worker)
    await until(lambda: serving.run_id == "")


async def test_a_worker_says_what_it_prepares_until_it_can_sample(
    new_record, model_files, objects, prompts, bus, run_id, serving, monkeypatch
):
    started, make = threading.Event(), TorchEngine.from_folder
    monkeypatch.setattr(TorchEngine, "from_folder", lambda *given: started.wait(60) and make(*given))
    await new_record(files=model_files)
    await until(lambda: serving.preparing == "reads the tokenizer and the prompts")
    await write_status(bus, run_id, await objects.put_blob(prompts))
    await until(lambda: serving.preparing == "starts its torch engine")

    async def is_told():
        stored = await (await bus.bucket(Buckets.WORKERS)).get(serving.worker)
        return WorkerPresence.model_validate_json(stored.value).preparing == "starts its torch engine"

    await until(is_told)
    started.set()
    await until(lambda: serving.engine.startswith("torch"))
    assert serving.preparing == ""


async def test_an_attempt_that_failed_does_not_keep_the_device_from_others(
    new_record, model_files, objects, prompts, bus, run_id, serving, monkeypatch
):
    def fails(*_):
        raise StorageError("planted: the disk of this machine is full")

    monkeypatch.setattr(DeviceLease, "_end_without_lease", lambda *_: None)  # it would end the tests
    monkeypatch.setattr(TorchEngine, "from_folder", fails)
    await new_record(files=model_files, placement="timed")
    await write_status(bus, run_id, await objects.put_blob(prompts))
    await until(lambda: serving.trouble)
    trainer = await DeviceLease.of(bus, device_name("cpu"), WorkerPresence(worker="trainer", role="trainer", incarnation="1"))
    await asyncio.wait_for(trainer.take(), 60)
    await until(lambda: serving.preparing == "waits for its device, which another worker has")
    await (await bus.bucket(Buckets.ASSIGNMENTS)).delete(serving.worker)
    await until(lambda: serving.run_id == "")
    await trainer.give_back()


async def test_prompts_that_the_model_cannot_take_are_fatal_trouble(new_record, model_files, objects, bus, run_id, serving):
    await new_record(files=model_files)
    await write_status(bus, run_id, await objects.put_blob(json.dumps({"prompt": "a" * 500}).encode()))
    await until(lambda: serving.fatal and serving.trouble)
    assert "the prompt of line 1 has" in serving.trouble


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("chat_template.jinja", "{{ 1 / 0 }}", "the chat template does not render the messages of line 1 (ZeroDivisionError"),
        (
            "chat_template.jinja",
            LOOPS,
            "chat_template.jinja: the prompt of line 1 cannot be encoded: it took more than 1 s of the processor",
        ),
        ("tokenizer.json", "[" * 50_000 + "]" * 50_000, "tokenizer.json: the tokenizer cannot be loaded"),
        ("generation_config.json", "[1]", "generation_config.json: the file is not a JSON object"),
        ("generation_config.json", '{"eos_token_id": ["a", {}]}', "generation_config.json: eos_token_id = ['a', {}]"),
    ],
)
async def test_files_that_fail_are_fatal_trouble_and_the_worker_serves_the_next_run(
    new_record, model_files, objects, prompts, trainer, bus, buffer, run_id, serving, fork_server, monkeypatch, name, content, cause
):
    monkeypatch.setattr(service, "_DEADLINES", Deadlines(load=30, call=1))
    assignments = await bus.bucket(Buckets.ASSIGNMENTS)
    await new_record(files=model_files | {name: await objects.put_blob(content.encode())})
    chat = json.dumps({"prompt": [{"role": "user", "content": "abc"}]}).encode()
    await write_status(bus, run_id, await objects.put_blob(chat))
    await until(lambda: serving.fatal and serving.trouble)
    assert cause in serving.trouble
    await assignments.delete(serving.worker)
    await until(lambda: serving.run_id == "")
    await until(lambda: children(fork_server) == [])

    await new_record(files=model_files)
    await write_status(bus, run_id, await objects.put_blob(prompts))
    await trainer.publish(0)
    await assignments.put(serving.worker, json.dumps(run_id).encode())
    await until(lambda: serving.engine.startswith("torch"))
    await until(lambda: len(children(fork_server)) == 1)


async def test_a_row_that_fails_when_it_is_reached_is_fatal_trouble(
    new_record, model_files, objects, trainer, bus, run_id, serving, fork_server, monkeypatch
):
    monkeypatch.setattr(prompts_module, "_CHECKED_ROWS", 1)
    await new_record(files=model_files)
    queue = TaskQueue(bus, run_id)
    await queue.open()
    await write_status(bus, run_id, await objects.put_blob(b'{"prompt": "a"}\n' + json.dumps({"prompt": "a" * 500}).encode()))
    await trainer.publish(0)
    await queue.publish([Task(task_id="t", run_id=run_id, kind=TaskKind.TASK_KIND_TRAIN, version=0, groups=[GroupTask(index=3, row=1)])])
    await until(lambda: serving.fatal and serving.trouble)
    assert "the prompt of line 2 has 500 tokens" in serving.trouble


def children(fork_server):
    pid = fork_server._server.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def test_a_worker_with_other_bits_does_not_join(new_record, model_files, objects, prompts, bus, run_id, serving):
    await (await bus.bucket(Buckets.PROBES)).create(run_id, b"the bits of another machine")
    await new_record(files=model_files)
    await write_status(bus, run_id, await objects.put_blob(prompts))
    await until(lambda: serving.trouble)
    assert "samples other bits than the run's first worker" in serving.trouble
    assert not serving.fatal, "another machine may serve it"


@pytest.mark.parametrize("serving", ["cuda:99", "nowhere"], indirect=True)
async def test_a_device_that_is_not_there_is_the_workers_trouble_alone(new_record, model_files, objects, prompts, bus, run_id, serving):
    await new_record(files=model_files)
    await write_status(bus, run_id, await objects.put_blob(prompts))
    await until(lambda: serving.trouble)
    assert "torch cannot use device" in serving.trouble
    assert "set GRADBUS_DEVICE" in serving.trouble
    assert not serving.fatal, "another machine may serve it"


async def test_an_engine_that_breaks_at_the_probe_is_the_workers_trouble_alone(
    new_record, model_files, objects, prompts, bus, run_id, serving, monkeypatch
):
    def find_no_memory(_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Scheduler, "step", find_no_memory)
    await new_record(files=model_files)
    await write_status(bus, run_id, await objects.put_blob(prompts))
    await until(lambda: serving.trouble)
    assert "the engine broke: this process has too little memory (out of memory); choose a smaller model" in serving.trouble
    assert not serving.fatal, "another machine may serve it"


async def test_an_engine_that_comes_when_its_run_is_gone_is_let_go(new_record, model_folder, tmp_path, monkeypatch):
    made, go_on, make = [], threading.Event(), TorchEngine.from_folder

    def make_slowly(*given):
        engine = make(*given)
        made.append(weakref.ref(engine))
        go_on.wait(60)
        return engine

    monkeypatch.setattr(TorchEngine, "from_folder", make_slowly)
    spec = (await new_record()).spec
    task = asyncio.create_task(EngineFactory(Settings(cache_dir=tmp_path)).open(model_folder, spec, frozenset({1})))
    await until(lambda: made)
    task.cancel()
    go_on.set()
    await asyncio.wait({task})
    assert task.cancelled()

    def is_let_go():
        gc.collect()
        return made[0]() is None

    await until(is_let_go)
