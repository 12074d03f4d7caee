"""Every wire is measured, and no metric ever names a run, a group or a worker."""

import pytest
import torch
from obstore.store import MemoryStore

from gradbus.bus import Buckets, Conflict, EventLog, TaskQueue, subjects
from gradbus.errors import FencedError, ObjectMissingError
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.objects import ObjectStore
from gradbus.rpc import RpcServer, RpcSettings, open_channel, token_hash
from gradbus.spec import WeightsSpec
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus.v1.reward_pb2 import ScoreRequest, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, RewardServiceStub, add_RewardServiceServicer_to_server
from gradbus.v1.task_pb2 import GroupTask, Task
from gradbus_rollout.weights.version_files import VersionFiles
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch
from gradbus_trainer.versions.writer import VersionWriter


class Scorer(RewardServiceServicer):
    async def Score(self, request, context):  # noqa: N802 - named by gRPC
        return ScoreResponse()


async def use_the_bus(bus, run_id):
    queue = TaskQueue(bus, run_id)
    await queue.open()
    await queue.publish([Task(task_id=f"task-of-{run_id}", run_id=run_id, groups=[GroupTask(index=7)]) for _ in range(3)])
    assert await queue.fetch(3)
    runs = await bus.bucket(Buckets.RUNS)
    await runs.create(f"{run_id}.status", b"{}")
    with pytest.raises(Conflict):
        await runs.create(f"{run_id}.status", b"{}")
    await runs.get(f"{run_id}.status")
    await bus.publish(subjects.groups(run_id), b"hint")
    events = EventLog(bus, run_id)
    events.emit("state", "running")
    await events.wait_until_stored()


async def use_the_buffer(buffer, run_id):
    store, log = GroupStore(buffer, run_id), ExperienceLog(buffer, run_id)
    await store.put([Group(index=index) for index in range(5)])
    await store.get(range(5))
    await log.append(2, {index: LogEntry(index=index) for index in range(5)})
    await log.read()
    with pytest.raises(FencedError):
        await log.append(1, {9: LogEntry(index=9)})


async def use_the_objects(url):
    objects = ObjectStore.open(url)
    await objects.get_blob(await objects.put_blob(b"x" * 1000))
    with pytest.raises(ObjectMissingError):
        await objects.get("nothing")


async def use_grpc(run_id):
    server = RpcServer(RpcSettings("127.0.0.1:0", {"conductor": token_hash("token")}))
    add_RewardServiceServicer_to_server(Scorer(), server.server)
    await server.start()
    channel = open_channel(f"127.0.0.1:{server.port}", "token")
    await RewardServiceStub(channel).Score(ScoreRequest(run_id=run_id), timeout=60)
    await channel.close()
    await server.server.stop(0)


async def use_every_wire(bus, buffer, object_url, run_id):
    await use_the_bus(bus, run_id)
    await use_the_buffer(buffer, run_id)
    await use_the_objects(object_url)
    await use_grpc(run_id)


@pytest.fixture
def before(points):
    """All data points that earlier tests of this process left. Requested before `measured`."""
    return points()


@pytest.fixture
async def measured(points, bus, buffer, object_url, run_id):
    """All data points after some use of every wire."""
    await use_every_wire(bus, buffer, object_url, run_id)
    return points()


def total(measured, metric, **wanted):
    wanted = {name.replace("__", "."): value for name, value in wanted.items()}
    found = [point for name, attributes, point in measured if name == metric and wanted.items() <= attributes.items()]
    return sum(point.count if metric.endswith("duration") else point.value for point in found)


async def test_every_wire_shows_items_and_bytes(before, measured):
    for metric in ("gradbus.wire.items", "gradbus.wire.payload"):
        known = {attributes["gradbus.wire"] for name, attributes, _ in measured if name == metric}
        used = {wire for wire in known if total(measured, metric, gradbus__wire=wire) > total(before, metric, gradbus__wire=wire)}
        assert used == {"nats", "redis", "grpc", "objects"}, metric


@pytest.mark.parametrize(
    ("metric", "wanted"),
    [
        ("messaging.client.operation.duration", {"messaging__system": "nats", "messaging__operation__type": "send"}),
        ("db.client.operation.duration", {"db__system__name": "redis", "db__operation__name": "append"}),
        ("rpc.client.call.duration", {"rpc__system__name": "grpc", "rpc__method": "gradbus.v1.RewardService/Score"}),
        ("rpc.server.call.duration", {"rpc__system__name": "grpc", "rpc__method": "gradbus.v1.RewardService/Score"}),
        ("gradbus.wire.duration", {"gradbus__wire": "objects", "gradbus__operation": "put"}),
    ],
)
async def test_a_wires_time_is_named_by_the_conventions_for_it(measured, metric, wanted):
    assert total(measured, metric, **wanted) > 0


async def test_a_batch_is_one_operation_with_all_its_items(measured, points, buffer, run_id):
    put = {"gradbus__wire": "redis", "db__operation__name": "put_groups"}
    timed = {"db__operation__name": "put_groups"}
    before = total(measured, "gradbus.wire.items", **put), total(measured, "db.client.operation.duration", **timed)
    await GroupStore(buffer, run_id).put([Group(index=index) for index in range(32)])
    after = points()
    found = total(after, "gradbus.wire.items", **put), total(after, "db.client.operation.duration", **timed)
    assert found == (before[0] + 32, before[1] + 1)


async def test_bytes_are_those_of_the_payload(measured, points, object_url):
    put = {"gradbus__wire": "objects", "gradbus__operation": "put"}
    before = total(measured, "gradbus.wire.payload", **put)
    await ObjectStore.open(object_url).put_blob(b"y" * 12345)
    assert total(points(), "gradbus.wire.payload", **put) == before + 12345


async def test_weights_are_counted_by_their_transport(measured, points, tmp_path):
    def moved():
        found, kinds = points(), [(transport, direction) for transport in ("store", "delta") for direction in ("published", "fetched")]
        name = "gradbus.weights.moved"
        return [
            total(found, name, gradbus__weights__transport=transport, gradbus__weights__direction=direction)
            for transport, direction in kinds
        ]

    objects = ObjectStore(MemoryStore(), "memory:///")
    writer = VersionWriter(objects, "run", 1, WeightsSpec(transport="delta", dtype="bf16"))
    shards, scratch = VersionFiles(objects, tmp_path / "cache"), Scratch(tmp_path / "scratch")
    before = moved()
    for step in range(2):
        weights = LazyTensors.of({"w": torch.arange(9000.0) + (torch.arange(9000) < step)})
        export = export_version(step, weights, False, scratch, torch.bfloat16)
        manifest = await writer.store(export, whole=False)
        writer.advance(export, manifest)
        await shards.files(manifest)
    delta = manifest.shards[0].chain[0].size_bytes
    assert [after - once for after, once in zip(moved(), before, strict=True)] == [export.file.size_bytes] * 2 + [delta] * 2


async def test_errors_are_recorded_by_their_kind(measured):
    kinds = {(name.partition(".")[0], attributes["error.type"]) for name, attributes, _ in measured if "error.type" in attributes}
    assert {("messaging", "KeyWrongLastSequenceError"), ("db", "FencedError"), ("gradbus", "FileNotFoundError")} <= kinds


async def test_no_metric_names_a_run_a_task_or_a_worker(before, measured, points, bus, buffer, object_url, run_id):
    known, named = values_of(before), {name for _, attributes, _ in before for name in attributes}
    values = values_of(measured) - known
    assert not [value for value in values if run_id in value or "run-" in value or "task-" in value]
    names = {name for _, attributes, _ in measured for name in attributes} - named
    assert not [name for name in names if name.endswith(".id")]
    await use_every_wire(bus, buffer, object_url, f"{run_id}-2")
    assert values_of(points()) - known == values, "a new value for each run would grow for ever"


def values_of(measured):
    return {str(value) for _, attributes, _ in measured for value in attributes.values()}
