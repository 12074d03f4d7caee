"""A server that frees its memory for a trainer's turns, with a stand-in for its memory saver: weights come back as noise.

The server here speaks as much of SGLang's HTTP as turns need. It draws a token every few milliseconds, `GOOD` with weights that were loaded
and `NOISE` with anything else, and it breaks if it is asked to compute without memory.
"""

import asyncio
import json
import os

import pytest

from gradbus.errors import AttestationError
from gradbus_rollout.engines.base import ExpectedLogprobs, PromptGroup, TokenSpan
from gradbus_rollout.engines.server import driver_memory
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings
from gradbus_rollout.engines.sglang.launched_server import LaunchConfig, _command, _environment
from gradbus_rollout.engines.watchdog import WatchedEngine

GOOD, NOISE = 5, 6
TOKENS = 8
TOKEN_SECONDS = 0.004


class Server:
    """One server and its memory."""

    def __init__(self):
        self.url, self.label, self.weights = "", "", "noise"
        self.memory = {"weights": True, "kv_cache": True}
        self.running = self.noise_drawn = 0
        self.aborted = 0
        self.snapshot = None
        self.stale = False
        """Whether a tensor that the checker does not know is of another version."""
        self.calls = []
        self.fails = set()
        """Routes that answer with an error."""

    async def reply(self, route, body):
        self.calls.append(route + "".join(f" {tag}" for tag in body.get("tags", ())))
        if route in self.fails:
            return 400, {"error": "planted"}
        if route == "/health":
            return (200 if all(self.memory.values()) else 500), {}
        handler = getattr(self, "on" + route.replace("/", "_"), None)
        return (200, {}) if handler is None else await handler(body)

    async def on_generate(self, body):
        if body.get("return_logprob") and body.get("logprob_start_len") == 0:
            assert all(self.memory.values()), "it computes without memory"
            return 200, {"meta_info": {"input_token_logprobs": [[-9.0 if self.stale else -1.0, 1, None]] * len(body["input_ids"])}}
        tokens, spans, aborts = [], [], self.aborted
        wanted = body["sampling_params"]["max_new_tokens"]
        self.running += 1
        try:
            while len(tokens) < wanted and self.aborted == aborts:
                await asyncio.sleep(TOKEN_SECONDS)
                if self.aborted != aborts:
                    continue
                assert all(self.memory.values()), "it computes without memory"
                self.noise_drawn += self.weights == "noise"
                tokens.append([-1.0, NOISE if self.weights == "noise" else GOOD, None])
                if not spans or spans[-1]["version"] != self.label:
                    spans.append({"version": self.label, "start": len(tokens) - 1, "end": 0})
                spans[-1]["end"] = len(tokens)
        finally:
            self.running -= 1
        finish = {"type": "length" if len(tokens) == wanted else "abort"}
        meta = {"output_token_logprobs": tokens, "completion_tokens": len(tokens), "finish_reason": finish}
        return 200, {"meta_info": meta | {"weight_version": self.label, "weight_versions": spans or None}}

    async def on_abort_request(self, body):
        self.aborted += bool(body.get("abort_all"))
        return 200, {}

    async def on_flush_cache(self, body):
        return (400 if self.running else 200), {}

    async def on_update_weight_version(self, body):
        self.label = body["new_version"]
        return 200, {}

    async def on_update_weights_from_disk(self, body):
        assert self.memory["weights"], "it loads without memory"
        self.weights = body["model_path"]
        self.label = body["weight_version"] or self.label
        return 200, {}

    async def on_weights_checker(self, body):
        if body["action"] == "snapshot":
            self.snapshot = self.weights
        if body["action"] == "reset_tensors":
            self.weights = "noise"
        return (200 if body["action"] != "compare" or self.weights == self.snapshot else 400), {}

    async def on_release_memory_occupation(self, body):
        assert not self.running, "it is not idle"
        for tag in body["tags"]:
            self.memory[tag] = False
        return 200, {}

    async def on_resume_memory_occupation(self, body):
        for tag in body["tags"]:
            self.memory[tag] = True
        if "weights" in body["tags"]:
            self.weights = "noise"
        return 200, {}

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next((int(line.split(":")[1]) for line in head.lower().splitlines() if line.startswith("content-length")), 0)
        body = json.loads(await reader.readexactly(size) or b"{}")
        status, answer = (401, {}) if "authorization" not in head.lower() else await self.reply(head.split(" ", 2)[1], body)
        content = json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
        await writer.drain()
        writer.close()


@pytest.fixture
async def server():
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=256)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield server
    listener.close()


@pytest.fixture
async def begin(server, model_folder, tmp_path):
    engines = []

    async def start(**config):
        config = SGLangConfig(**({"max_new_tokens": TOKENS, "slots": 32, "takes_turns": True} | config))
        engines.append(SGLangEngine(model_folder, config, SGLangSettings(url=server.url, key="of-the-test"), tmp_path / "cache"))
        await engines[-1].load([model_folder / "model.safetensors"], 0)
        server.calls.clear()
        return engines[-1]

    yield start
    for engine in engines:
        await engine.close()


@pytest.mark.parametrize("samples", [500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_no_sample_of_noise_leaves_the_engine_over_many_turns(begin, server, model_folder, samples):
    engine = await begin()
    found, turns = [], 0
    over = asyncio.Event()

    async def sample():
        while not over.is_set():
            (group,) = await engine.generate([PromptGroup("a", (1, 2), tuple(range(16)))])
            found.extend(group.completions)

    sampling = [asyncio.create_task(sample()) for _ in range(4)]
    while len(found) < samples:
        await asyncio.sleep(0.1)
        await engine.release()
        assert not any(server.memory.values())
        await asyncio.sleep(0.01)
        await engine.load([model_folder / "model.safetensors"], turns // 3)
        turns += 1
    over.set()
    await asyncio.gather(*sampling)
    assert {completion.token_ids for completion in found} == {(GOOD,) * TOKENS}
    assert turns > 5
    assert server.noise_drawn == 0


async def test_a_turn_ends_cache_first_and_begins_weights_first_with_the_proof_before_the_cache(begin, server, model_folder):
    engine = await begin(max_new_tokens=50)
    running = asyncio.create_task(engine.generate([PromptGroup("a", (1, 2), (1, 2))]))
    await asyncio.sleep(10 * TOKEN_SECONDS)
    await engine.release()
    released = [call for call in server.calls if call not in {"/generate", "/health"}]
    assert released == [
        "/abort_request",
        "/flush_cache",
        "/update_weight_version",
        "/release_memory_occupation kv_cache",
        "/release_memory_occupation weights",
    ]
    server.calls.clear()
    await engine.load([model_folder / "model.safetensors"], 0)
    assert [call for call in server.calls if call not in {"/generate", "/health"}] == [
        "/resume_memory_occupation weights",
        "/update_weights_from_disk",
        "/weights_checker",
        "/weights_checker",
        "/update_weights_from_disk",
        "/weights_checker",
        "/resume_memory_occupation kv_cache",
        "/update_weight_version",
    ]
    (group,) = await running
    assert [sample.spans for sample in group.completions] == [(TokenSpan(0, 50, 0),)] * 2


async def test_the_probe_is_asked_for_after_a_turn_even_where_the_server_can_compare(begin, server, model_folder):
    engine = await begin()
    probe = ExpectedLogprobs((1, 2, 3), (-1.0, -1.0), (-1.0, -1.0))
    await engine.load([model_folder / "model.safetensors"], 1, probe)
    assert "/generate" not in server.calls
    await engine.release()
    server.stale = True
    with pytest.raises(AttestationError, match="does not sample with version 1"):
        await engine.load([model_folder / "model.safetensors"], 1, probe)
    waits = asyncio.create_task(engine.generate([PromptGroup("a", (1, 2), (1,))]))
    await asyncio.sleep(0.05)
    assert server.running == 0, "no sample enters before the proof"
    server.stale = False
    server.calls.clear()
    await engine.load([model_folder / "model.safetensors"], 1, probe)
    assert not any("resume" in call for call in server.calls), "it has its memory already"
    (group,) = await waits
    assert group.completions[0].token_ids == (GOOD,) * TOKENS


async def test_nobody_asks_a_released_server_for_its_health_or_repairs_it(begin, server):
    engine = WatchedEngine(await begin(max_new_tokens=50), limit=0.4)
    running = asyncio.create_task(engine.generate([PromptGroup("a", (1, 2), (1, 2))]))
    await asyncio.sleep(0.05)
    await engine.release()
    server.calls.clear()
    await asyncio.sleep(1.0)
    assert not running.done(), "a released engine does not hang"
    assert server.calls == []
    running.cancel()


async def test_a_server_that_does_not_release_is_ended(begin, server, monkeypatch):
    engine = await begin()
    ended = []

    async def end():
        ended.append(True)

    monkeypatch.setattr(engine.server, "end", end)
    server.fails.add("/release_memory_occupation")
    await engine.release()
    assert ended


async def test_a_server_that_was_ended_is_started_by_the_next_load_without_waiting_for_its_answer(begin, server, model_folder):
    engine = await begin()
    server.fails.add("/release_memory_occupation")
    await engine.release()
    server.fails.clear()
    await engine.load([model_folder / "model.safetensors"], 1)
    assert (engine.server.starts, engine.server.is_ended, engine.version) == (2, False, 1)
    await engine.load([model_folder / "model.safetensors"], 2)
    assert engine.server.starts == 2


async def test_a_release_waits_until_the_driver_counts_the_memory_as_free(begin, monkeypatch):
    free = iter([1000, 1000, 1000, 5000, 9000, 9000, 9000, 9000])
    looks = []

    async def look():
        looks.append(next(free))
        return looks[-1]

    monkeypatch.setattr("gradbus_rollout.engines.sglang.loader.free_mebibytes", look)
    monkeypatch.setattr(driver_memory, "free_mebibytes", look)
    monkeypatch.setattr(driver_memory, "_LOOK_SECONDS", 0.001)
    engine = await begin()
    await engine.release()
    assert looks == [1000, 1000, 1000, 5000, 9000, 9000, 9000, 9000]


def test_the_drivers_free_memory_is_the_sum_over_gpus_and_unknown_without_a_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asyncio.run(driver_memory.free_mebibytes()) is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 100\necho 23\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert asyncio.run(driver_memory.free_mebibytes()) == 123
    tool.write_text("#!/bin/sh\necho no devices\n")
    assert asyncio.run(driver_memory.free_mebibytes()) is None
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert asyncio.run(driver_memory.free_mebibytes()) is None


def test_the_driver_is_asked_for_the_gpus_of_this_process_alone(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nfor option; do test "$option" = --id=3,5 && echo 7; done\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert asyncio.run(driver_memory.free_mebibytes()) == 7


def test_a_driver_that_does_not_answer_is_as_good_as_none_and_no_query_outlives_it(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(driver_memory, "_ANSWER_SECONDS", 1.0)
    assert asyncio.run(driver_memory.free_mebibytes()) is None
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_server_that_takes_turns_starts_with_the_memory_saver(tmp_path):
    config = SGLangConfig(takes_turns=True, memory_fraction=0.7)
    launch = LaunchConfig(SGLangSettings(), tmp_path, config, "key", tmp_path / "log")
    command = _command(launch, 1, tmp_path / "secret")
    assert "--enable-memory-saver" in command
    assert command[command.index("--mem-fraction-static") + 1] == "0.7"
    assert _environment(launch, "/tmp/x")["NCCL_GRAPH_REGISTER"] == "0"
    plain = LaunchConfig(SGLangSettings(), tmp_path, SGLangConfig(), "key", tmp_path / "log")
    assert not {"--enable-memory-saver", "--mem-fraction-static"} & set(_command(plain, 1, tmp_path / "secret"))
