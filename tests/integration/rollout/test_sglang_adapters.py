"""LoRA versions on a server: the base model once a start, then adapters under new names. The server here only speaks SGLang's HTTP."""

import asyncio
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from gradbus.errors import AttestationError
from gradbus.formats.peft import adapter_shapes
from gradbus.spec import LoraSpec
from gradbus_rollout.engines.base import ExpectedLogprobs, PromptGroup, TokenSpan
from gradbus_rollout.engines.server.version_folder import model_tensors
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings

BASE, ADAPTED = (-1.0, -2.0), (-1.5, -2.5)
PROBE = ExpectedLogprobs((3, 4, 5), ADAPTED, BASE)
LORA = LoraSpec()


class Server:
    """Keeps labels and adapters as SGLang does; `ignores_adapters` computes with the base alone."""

    def __init__(self):
        self.label, self.adapters, self.calls, self.ignores_adapters = "", {}, [], False

    def reply(self, route, body):
        self.calls.append(route)
        if route == "/update_weight_version":
            self.label = body["new_version"]
        if route == "/load_lora_adapter":
            self.adapters[body["lora_name"]] = body["lora_path"]
            return {"success": True, "loaded_adapters": self.adapters}
        if route == "/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
        return self.generate(body) if route == "/generate" else {}

    def generate(self, body):
        adapted = body["lora_path"] is not None and not self.ignores_adapters
        meta = {"input_token_logprobs": [[None, 0, None], *([logprob, 0, None] for logprob in (ADAPTED if adapted else BASE))]}
        meta |= {"output_token_logprobs": [[-1.0, 5, None]], "completion_tokens": 1, "weight_version": self.label}
        return {"meta_info": meta | {"finish_reason": {"type": "stop"}}}


@pytest.fixture
def server():
    return Server()


@pytest.fixture
async def engine(server, model_folder, tmp_path):
    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = next((int(line.split(b":")[1]) for line in head.lower().splitlines() if line.startswith(b"content-length")), 0)
        body, route = await reader.readexactly(size), head.split(b" ", 2)[1].decode()
        allowed = b"authorization" in head.lower()
        content = json.dumps(server.reply(route, json.loads(body or b"{}")) if allowed else {}).encode()
        status = 200 if allowed else 401
        writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    engine = SGLangEngine(model_folder, SGLangConfig(max_new_tokens=4, lora=LORA), SGLangSettings(url=url, key="k"), tmp_path / "cache")
    yield engine
    await engine.close()
    listener.close()


@pytest.fixture
def adapters(model_folder, tmp_path):
    def write(value):
        shapes = adapter_shapes({name: tensor.shape for name, tensor in model_tensors(model_folder).items()}, LORA)
        save_file({name: np.full(shape, value, np.float32) for name, shape in shapes.items()}, tmp_path / f"{value}")
        return [tmp_path / f"{value}"]

    return write


async def test_the_base_is_loaded_once_and_each_version_under_a_new_name(engine, server, adapters, tmp_path):
    digests = [await engine.load(adapters(step / 8), step, PROBE) for step in (1, 2)]
    assert digests[0] != digests[1]
    assert server.calls.count("/weights_checker") == 3, "the base is proven once: snapshot, noise, comparison"
    assert [name.partition("-")[0] for name in server.adapters] == ["2"], "what no request uses is unloaded"
    assert len(list((tmp_path / "cache").glob("version-*"))) == 1
    (group,) = await engine.generate([PromptGroup("a", (3, 4), (1,))])
    assert group.completions[0].spans == (TokenSpan(0, 1, 2),)


async def test_adapters_that_the_server_ignores_are_no_version(engine, server, adapters):
    await engine.load(adapters(0.125), 1, PROBE)
    server.ignores_adapters = True
    with pytest.raises(AttestationError, match="does not sample with the adapters of version 2"):
        await engine.load(adapters(0.25), 2, PROBE)
    assert engine.version == 1
    assert [name.partition("-")[0] for name in server.adapters] == ["1"]


async def test_a_closed_engine_leaves_no_adapters_and_no_folders(engine, server, adapters, tmp_path):
    await engine.load(adapters(0.125), 1, PROBE)
    await engine.close()
    assert server.adapters == {}
    assert list((tmp_path / "cache").glob("version-*")) == []
