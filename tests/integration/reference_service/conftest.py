"""The reference service as a process, and a run whose two models it finds by the digests in the run's spec."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from gradbus.bus import Buckets, Bus, BusSettings
from gradbus.control.runs import RunRecord
from gradbus.objects import ObjectStore
from gradbus.rpc import open_channel, token_hash
from gradbus.spec import RunSpec

TOKEN = "of-the-test"
SIZES = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reference")


@pytest.fixture(scope="module")
def object_url(folder):
    return f"file://{folder}/objects"


@pytest.fixture(scope="module")
def model(folder):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.3))
    model.save_pretrained(folder / "model")
    return model


@pytest.fixture(scope="module")
def scorer(folder):
    """A reward model."""
    torch.manual_seed(1)
    model = LlamaForSequenceClassification(LlamaConfig(**SIZES, initializer_range=0.3, num_labels=1))
    (folder / "scorer").mkdir()
    model.save_pretrained(folder / "scorer")
    return model


@pytest.fixture(scope="module")
def teacher(folder):
    torch.manual_seed(2)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | {"hidden_size": 24}, initializer_range=0.3))
    model.save_pretrained(folder / "teacher")
    return model


@pytest.fixture
async def new_run(nats_url, object_url):
    """Stores a run of the two folders as the gateway does; returns its id. Without a second folder its scorer is a service."""
    objects = ObjectStore.open(object_url)

    async def stored(folder):
        return {"path": folder.name, "files": {path.name: await objects.put_blob(path.read_bytes()) for path in folder.iterdir()}}

    async def run(model, scorer=None, teacher=None, *, offload=False, **sections):
        reward = {"model": await stored(scorer) | {"offload": offload}} if scorer else {"service": "grpc://127.0.0.1:1"}
        body = {"name": "test", "model": await stored(model), "data": {"train": "train.jsonl"}, "reward": reward, "schedule": {"steps": 1}}
        if teacher is not None:
            sections["teacher"] = teacher if isinstance(teacher, dict) else await stored(teacher)
        run_id, spec = f"run-{secrets.token_hex(4)}", RunSpec.model_validate(body | sections)
        bus = await Bus.connect(BusSettings(nats_url), "test")
        await (await bus.bucket(Buckets.RUNS)).put(f"{run_id}.spec", RunRecord(run_id=run_id, spec=spec, created_unix_ns=1).to_bytes())
        await bus.close()
        return run_id

    return run


@pytest.fixture
def stored_file(object_url, tmp_path):
    """Stores tensors as one file of a version; returns its digest."""
    objects = ObjectStore.open(object_url)

    async def store(tensors):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "version.safetensors")
        return await objects.put_file(tmp_path / "version.safetensors")

    return store


@pytest.fixture
async def run_id(new_run, folder, model, scorer):
    return await new_run(folder / "model", folder / "scorer")


@pytest.fixture(scope="module")
def address(nats_url, object_url, folder, free_port):
    port = free_port()
    environment = {
        **os.environ,
        "GRADBUS_LISTEN": f"127.0.0.1:{port}",
        "GRADBUS_RPC_CALLERS": json.dumps({"conductor": token_hash(TOKEN)}),
        "GRADBUS_NATS_URL": nats_url,
        "GRADBUS_OBJECTS_URL": object_url,
        "GRADBUS_CACHE_DIR": str(folder / "cache"),
        "GRADBUS_ALLOW_LOOPBACK": "true",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "gradbus_reference"], env=environment, stderr=log)
    yield f"127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, "SIGTERM drains and ends with 0"


@pytest.fixture
async def channel(address):
    channel = open_channel(address, TOKEN)
    await asyncio.wait_for(channel.channel_ready(), 60)
    yield channel
    await channel.close()
