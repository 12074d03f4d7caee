"""What the engine makes of a server that fails; the server here speaks just enough of SGLang's HTTP."""

import asyncio
import json

import pytest

from gradbus.errors import EngineError
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings

POISON, GOOD = PromptGroup("poison", (7,), (1,)), PromptGroup("good", (8,), (1,))


@pytest.fixture
async def url():
    """Of a server that takes every version, gives one token to a prompt, and drops the connection of one that it cannot bear."""
    label = ""

    def reply(route, headers, body):
        nonlocal label
        if b"authorization" not in headers.lower():
            return 401, {}
        if route == b"/update_weight_version":
            label = body["new_version"]
        if route != b"/generate":
            return 200, {}
        if body["input_ids"] == list(POISON.prompt_ids):
            return None
        meta = {"output_token_logprobs": [[-1.0, 5, None]], "completion_tokens": 1, "weight_version": label}
        return 200, {"meta_info": meta | {"finish_reason": {"type": "stop"}}}

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = next((int(line.split(b":")[1]) for line in head.lower().splitlines() if line.startswith(b"content-length")), 0)
        if answer := reply(head.split(b" ", 2)[1], head, json.loads(await reader.readexactly(size) or b"{}")):
            content = json.dumps(answer[1]).encode()
            writer.write(f"HTTP/1.1 {answer[0]} -\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_prompt_that_the_server_cannot_bear_is_given_up_while_others_are_sampled(url, model_folder, tmp_path):
    engine = SGLangEngine(model_folder, SGLangConfig(max_new_tokens=4), SGLangSettings(url=url, key="of-the-test"), tmp_path / "cache")
    try:
        await engine.load([model_folder / "model.safetensors"], 0)
        poisoned = asyncio.create_task(engine.generate([POISON]))
        async with asyncio.timeout(60):
            while not poisoned.done():
                (group,) = await engine.generate([GOOD])
                assert group.completions[0].token_ids == (5,)
        with pytest.raises(EngineError, match=r"dead: .*generate does not answer"):
            await poisoned
    finally:
        await engine.close()
