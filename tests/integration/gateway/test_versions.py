"""Versions come from the weight store; an export is a folder that holds one of them."""

import asyncio
import json
import time

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save, save_file

from gradbus.bus import Buckets
from gradbus.client import document
from gradbus.control.runs import WorkerPresence
from gradbus.formats.peft import adapter_names
from gradbus.ids import digest_of
from gradbus.v1.weight_store_service_pb2 import AttestRequest, OpenTermRequest, PublishVersionRequest
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus.v1.weights_pb2 import Attestation, Shard, ShardDelta, WeightManifest


@pytest.fixture
def new_publisher(channel, objects):
    """Publishes versions of a run, one shard for each of `contents`."""

    async def of(run_id):
        stub = WeightStoreServiceStub(channel)
        await stub.OpenTerm(OpenTermRequest(run_id=run_id, term=1))

        async def one(step, *contents):
            shards = [
                Shard(digest=await objects.put_blob(content), size_bytes=len(content), tensors=[f"t{at}"])
                for at, content in enumerate(contents)
            ]
            manifest = WeightManifest(run_id=run_id, term=1, step=step, digest=digest_of(b"".join(contents)), shards=shards)
            await stub.PublishVersion(PublishVersionRequest(manifest=manifest))

        return one

    return of


@pytest.fixture
async def publish(new_publisher, submitted):
    """Publishes a version of the submitted run."""
    return await new_publisher(submitted["id"])


async def test_versions_name_the_workers_that_loaded_them(client, submitted, publish, bus):
    await publish(0, b"base")
    await publish(1, b"better")
    worker = WorkerPresence(worker="w1", role="rollout", incarnation="a", run_id=submitted["id"], version=1, digest=digest_of(b"better"))
    await (await bus.bucket(Buckets.WORKERS)).put("w1", worker.to_bytes())
    deadline = time.monotonic() + 60
    while (page := document(client.versions_page(submitted["id"]))) and not any(version["held_by"] for version in page["data"]):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert [(version["version"], version["bytes"], version["held_by"]) for version in page["data"]] == [(0, 4, []), (1, 6, ["w1"])]
    assert [version["version"] for version in document(client.versions_page(submitted["id"], after=0))["data"]] == [1]


async def test_a_version_names_its_workers_after_they_hold_a_newer_one(client, submitted, publish, channel):
    for step, content in enumerate((b"base", b"better")):
        await publish(step, content)
        claim = Attestation(run_id=submitted["id"], worker="w1", step=step, digest=digest_of(content))
        assert (await WeightStoreServiceStub(channel).Attest(AttestRequest(attestation=claim))).matches
    assert [version["held_by"] for version in document(client.versions_page(submitted["id"]))["data"]] == [["w1"], ["w1"]]


async def test_an_export_holds_the_newest_weights_and_the_model_s_own_files(client, submitted, publish, model_folder, tmp_path):
    await publish(0, b"base")
    await publish(1, b"better")
    written = document(client.export(submitted["id"], tmp_path / "out"))
    assert (written["version"], written["final"]) == (1, False)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"better"
    assert (tmp_path / "out" / "config.json").read_bytes() == (model_folder / "config.json").read_bytes()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in model_folder.iterdir()}


async def test_an_older_version_is_exported_by_number(client, submitted, publish, tmp_path):
    await publish(0, b"base")
    await publish(1, b"better")
    client.export(submitted["id"], tmp_path / "out", version=0)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"base"


async def test_several_shards_come_with_their_index(client, submitted, publish, tmp_path):
    await publish(0, b"first", b"second")
    client.export(submitted["id"], str(tmp_path / "out"))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"t0": "model-00001-of-00002.safetensors", "t1": "model-00002-of-00002.safetensors"}
    assert (tmp_path / "out" / "model-00002-of-00002.safetensors").read_bytes() == b"second"


async def test_a_run_without_versions_cannot_be_exported(http, submitted):
    answer = http.get(f"/v1/runs/{submitted['id']}/export")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:gradbus:problem:no-such-version")


async def test_an_export_takes_versions_that_are_stored_whole(client, http, submitted, publish, channel, objects, tmp_path):
    await publish(0, b"base")
    delta = await objects.put_blob(b"what changed")
    link = ShardDelta(base_step=0, base_digest=digest_of(b"base"), digest=delta, size_bytes=12)
    shard = Shard(digest=digest_of(b"more"), size_bytes=4, chain=[link], delta_only=True)
    manifest = WeightManifest(run_id=submitted["id"], term=1, step=1, digest=digest_of(b"more"), shards=[shard])
    await WeightStoreServiceStub(channel).PublishVersion(PublishVersionRequest(manifest=manifest))
    assert [(one["bytes"], one["whole"]) for one in document(client.versions_page(submitted["id"]))["data"]] == [(4, True), (4, False)]
    assert client.export(submitted["id"], tmp_path / "out").version == 0
    refused = http.get(f"/v1/runs/{submitted['id']}/export", params={"version": 1}).json()
    assert "keeps these versions whole: 0" in refused["detail"]


async def test_of_adapters_an_export_is_the_base_model_with_these_added(client, http, spec, tmp_path, new_publisher, model_folder):
    weight = "model.layers.0.self_attn.q_proj.weight"
    base = load_file(model_folder / "model.safetensors")
    base |= {weight: torch.ones(4, 4), "model.norm.weight": torch.zeros(4, dtype=torch.bfloat16)}
    save_file(base, model_folder / "model.safetensors")
    run = document(client.submit(spec | {"trainer": {"lora": {"rank": 1, "alpha": 2.0, "target_modules": ["q_proj"]}}}, tmp_path))
    parts = torch.tensor([[1.0, 2.0, 0.0, 0.0]]), torch.tensor([[1.0], [0.0], [-1.0], [0.0]])
    adapters = dict(zip(adapter_names(weight), parts, strict=True))
    await (await new_publisher(run["id"]))(0, save(adapters))
    written = document(client.export(run["id"], tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in model_folder.iterdir()}
    merged = load_file(tmp_path / "out" / "model.safetensors")
    assert merged[weight].tolist() == [[3.0, 5.0, 1.0, 1.0], [1.0] * 4, [-1.0, -3.0, 1.0, 1.0], [1.0] * 4]
    assert {tensor.dtype for tensor in merged.values()} == {torch.float32}
    assert written["merge"]["scale"] == 2.0
    client.export(run["id"], tmp_path / "peft", adapters=True)
    assert {path.name for path in (tmp_path / "peft").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    config = LoraConfig.from_pretrained(tmp_path / "peft")
    assert (config.r, config.lora_alpha, config.target_modules, config.lora_dropout) == (1, 2.0, {"q_proj"}, 0.0)
    assert load_file(tmp_path / "peft" / "adapter_model.safetensors").keys() == adapters.keys()


async def test_a_run_that_trains_every_weight_has_no_adapters_to_export(http, submitted, publish):
    await publish(0, b"base")
    answer = http.get(f"/v1/runs/{submitted['id']}/export", params={"adapters": True})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:gradbus:problem:no-adapters")
