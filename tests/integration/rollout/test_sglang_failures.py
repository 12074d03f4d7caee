"""What the engine makes of a server that fails; the server here speaks just enough of SGLang's HTTP."""

import asyncio
import json

import pytest

from gradbus.errors import EngineError
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings

POISON, GOOD = PromptGroup("poison", (7,), (1,)), PromptGroup("good", (8,), (1,))
MANY = 64
DROPPED = None


class Server:
    """Takes every version, gives one token to a prompt, and drops the connection of one that it cannot bear."""

    def __init__(self):
        self.url = self.label = ""
        self.drops = 0
        """Samples whose connections are dropped, all at once when the last of them has come."""
        self.dropping = asyncio.Event()
        self.unhealthy = 0
        """Health checks that fail, before the next succeeds."""
        self.ends_in_load = False
        """Whether it ends when it is to load weights, and answers nothing more."""
        self.checked, self.health_checks = asyncio.Event(), 0

    async def reply(self, route, body):
        if route == b"/update_weight_version":
            self.label = body["new_version"]
        if route == b"/update_weights_from_disk" and self.ends_in_load:
            self.unhealthy = MANY
            return DROPPED
        if route == b"/health":
            return self.health()
        if route != b"/generate":
            return 200, {}
        if body["input_ids"] == list(POISON.prompt_ids):
            return DROPPED
        if self.drops and not self.dropping.is_set():
            return await self.drop()
        meta = {"output_token_logprobs": [[-1.0, 5, None]], "completion_tokens": 1, "weight_version": self.label}
        return 200, {"meta_info": meta | {"finish_reason": {"type": "stop"}}}

    def health(self):
        self.health_checks += 1
        self.unhealthy -= 1
        self.checked.set()
        return 503 if self.unhealthy >= 0 else 200, {}

    async def drop(self):
        self.drops -= 1
        if not self.drops:
            self.dropping.set()
        await self.dropping.wait()
        return DROPPED

    async def serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = next((int(line.split(b":")[1]) for line in head.lower().splitlines() if line.startswith(b"content-length")), 0)
        body = json.loads(await reader.readexactly(size) or b"{}")
        answer = (401, {}) if b"authorization" not in head.lower() else await self.reply(head.split(b" ", 2)[1], body)
        if answer is not DROPPED:
            content = json.dumps(answer[1]).encode()
            writer.write(f"HTTP/1.1 {answer[0]} -\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
            await writer.drain()
        writer.close()


@pytest.fixture
async def server():
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=2 * MANY)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield server
    listener.close()


@pytest.fixture
async def begin(server, model_folder, tmp_path):
    """Starts an engine with a version loaded, on a server that is well so far."""
    engines = []

    async def start(**settings):
        settings = SGLangSettings(url=server.url, key="of-the-test", **settings)
        engines.append(SGLangEngine(model_folder, SGLangConfig(max_new_tokens=4), settings, tmp_path / "cache"))
        await engines[-1].load([model_folder / "model.safetensors"], 0)
        server.health_checks = 0
        server.checked.clear()
        return engines[-1]

    yield start
    for engine in engines:
        await engine.close()


async def test_a_prompt_that_the_server_cannot_bear_is_given_up_while_others_are_sampled(begin):
    engine = await begin()
    poisoned = asyncio.create_task(engine.generate([POISON]))
    async with asyncio.timeout(60):
        while not poisoned.done():
            (group,) = await engine.generate([GOOD])
            assert group.completions[0].token_ids == (5,)
    with pytest.raises(EngineError, match=r"dead: .*generate does not answer"):
        await poisoned


async def test_connections_that_are_lost_at_once_cost_one_health_check_and_no_repair(begin, server):
    engine = await begin()
    server.drops = MANY
    (group,) = await engine.generate([PromptGroup("many", (8,), tuple(range(MANY)))])
    assert [completion.token_ids for completion in group.completions] == [(5,)] * MANY
    assert (server.health_checks, engine.server.starts) == (1, 1)


async def test_a_server_that_is_slow_to_show_its_health_is_waited_for_and_not_restarted(begin, server):
    engine = await begin()
    server.drops, server.unhealthy = 1, 3
    (group,) = await engine.generate([GOOD])
    assert group.completions[0].token_ids == (5,)
    assert (server.health_checks, engine.server.starts) == (4, 1)


async def test_a_reply_to_another_sample_shows_that_the_server_lives(begin, server):
    engine = await begin()
    server.drops, server.unhealthy = 1, 1000
    lost = asyncio.create_task(engine.generate([GOOD]))
    await server.checked.wait()
    await engine.generate([GOOD])
    await lost
    assert engine.server.starts == 1


async def test_a_server_without_an_answer_for_all_the_patience_is_restarted(begin, server):
    engine = await begin(health_seconds=0.01)
    server.drops, server.unhealthy = 1, 3
    (group,) = await engine.generate([GOOD])
    assert group.completions[0].token_ids == (5,)
    assert engine.server.starts == 2


async def test_a_server_that_cannot_load_its_first_version_is_not_restarted_by_the_engine(server, model_folder, tmp_path):
    settings = SGLangSettings(url=server.url, key="of-the-test", health_seconds=0.01, start_seconds=1)
    engine = SGLangEngine(model_folder, SGLangConfig(max_new_tokens=4), settings, tmp_path / "cache")
    server.ends_in_load = True
    with pytest.raises(EngineError, match=r"dead: .*update_weights_from_disk does not answer"):
        await engine.load([model_folder / "model.safetensors"], 0)
    assert engine.server.starts == 1
    await engine.close()
