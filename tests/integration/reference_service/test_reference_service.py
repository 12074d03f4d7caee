"""The reference service as a process: it finds a run's base model by the digests in its spec."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys

import grpc
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gradbus.bus import Buckets, Bus, BusSettings
from gradbus.control.runs import RunRecord
from gradbus.objects import ObjectStore
from gradbus.rpc import open_channel, token_hash
from gradbus.spec import RunSpec
from gradbus.v1.reference_service_pb2 import LogProbsRequest, ReferenceSequence
from gradbus.v1.reference_service_pb2_grpc import ReferenceServiceStub

TOKEN = "of-the-test"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reference")


@pytest.fixture(scope="module")
def object_url(folder):
    return f"file://{folder}/objects"


@pytest.fixture(scope="module")
def model(folder):
    torch.manual_seed(0)
    sizes = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3))
    model.save_pretrained(folder / "model")
    return model


@pytest.fixture
async def run_id(nats_url, object_url, model, folder):
    objects = ObjectStore.open(object_url)
    files = {path.name: await objects.put_blob(path.read_bytes()) for path in (folder / "model").iterdir()}
    spec = RunSpec.model_validate(
        {
            "name": "test",
            "model": {"path": "model", "files": files},
            "data": {"train": "train.jsonl"},
            "reward": {"service": "grpc://127.0.0.1:1"},
            "schedule": {"steps": 1},
        }
    )
    run = f"run-{secrets.token_hex(4)}"
    bus = await Bus.connect(BusSettings(nats_url), "test")
    await (await bus.bucket(Buckets.RUNS)).put(f"{run}.spec", RunRecord(run_id=run, spec=spec, created_unix_ns=1).to_bytes())
    await bus.close()
    return run


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
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "gradbus_reference"], env=environment, stderr=log)
    yield f"127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, "SIGTERM drains and ends with 0"


@pytest.fixture
async def stub(address):
    channel = open_channel(address, TOKEN)
    await asyncio.wait_for(channel.channel_ready(), 60)
    yield ReferenceServiceStub(channel)
    await channel.close()


def sequences(seed):
    rng = np.random.default_rng(seed)
    return [
        ReferenceSequence(
            sample_id=f"{seed}.{n}",
            prompt_ids=rng.integers(0, 17, 3).astype("<i4").tobytes(),
            token_ids=rng.integers(0, 17, 1 + n).astype("<i4").tobytes(),
        )
        for n in range(3)
    ]


def expected(model, sequence, temperature):
    prompt, response = (np.frombuffer(ids, "<i4") for ids in (sequence.prompt_ids, sequence.token_ids))
    ids = torch.tensor([*prompt, *response])[None]
    with torch.no_grad():
        table = (model(ids).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return table.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


async def status_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_calls_at_once_get_what_each_gets_alone(stub, run_id, model):
    requests = [
        LogProbsRequest(run_id=run_id, temperature=temperature, sequences=sequences(seed))
        for seed, temperature in enumerate((1.0, 0.7, 1.0))
    ]
    together = await asyncio.gather(*(stub.LogProbs(request, timeout=60) for request in requests))
    for request, response in zip(requests, together, strict=True):
        assert await stub.LogProbs(request, timeout=60) == response, "the same bits, whoever else asks"
        for sequence, result in zip(request.sequences, response.results, strict=True):
            assert result.sample_id == sequence.sample_id
            found = np.frombuffer(result.logprobs, "<f4")
            np.testing.assert_allclose(found, expected(model, sequence, request.temperature), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrong", [-1, 17, 2**31 - 1])
async def test_an_unknown_token_fails_its_own_call_and_none_that_waits_beside_it(stub, run_id, wrong):
    good = [LogProbsRequest(run_id=run_id, temperature=1.0, sequences=sequences(seed)) for seed in range(3)]
    bad = LogProbsRequest(run_id=run_id, temperature=1.0, sequences=sequences(3))
    bad.sequences[1].token_ids = np.array([1, wrong], "<i4").tobytes()
    calls = [stub.LogProbs(request, timeout=60) for request in (good[0], bad, *good[1:])]
    first, failed, *others = await asyncio.gather(*calls, return_exceptions=True)
    assert failed.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "3.1" in failed.details()
    assert [len(answer.results) for answer in (first, *others)] == [3, 3, 3]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
async def test_an_invalid_temperature_is_refused(stub, run_id, temperature):
    request = LogProbsRequest(run_id=run_id, temperature=temperature, sequences=sequences(0))
    assert (await status_of(stub.LogProbs(request, timeout=60)))[0] == grpc.StatusCode.FAILED_PRECONDITION


async def test_bad_requests_are_answered_with_advice(stub, run_id):
    unknown = LogProbsRequest(run_id="run-nobody", temperature=1.0, sequences=sequences(0))
    assert await status_of(stub.LogProbs(unknown, timeout=60)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "ModelError: run run-nobody is not known; name a run that the gateway has accepted",
    )
    torn = LogProbsRequest(
        run_id=run_id, temperature=1.0, sequences=[ReferenceSequence(sample_id="0.0", prompt_ids=b"123", token_ids=b"1234")]
    )
    code, details = await status_of(stub.LogProbs(torn, timeout=60))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "0.0" in details
    assert (await status_of(stub.LogProbs(LogProbsRequest(run_id="../x"), timeout=60)))[0] == grpc.StatusCode.FAILED_PRECONDITION
