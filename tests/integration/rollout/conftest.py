"""Tiny models with a tokenizer, and a trainer that publishes them."""

import asyncio
import inspect
import json
import secrets
from dataclasses import dataclass, field
from unittest.mock import AsyncMock

import grpc
import pytest
import torch
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gradbus.bus import Buckets, Bus, EventLog
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.objects import ObjectStore
from gradbus.rpc import open_channel
from gradbus.spec import RunSpec
from gradbus.tokenizer.encoder import PromptLimits
from gradbus.tokenizer.tokenizer import Deadlines, Tokenizer
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub, add_EnvironmentServiceServicer_to_server
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus_rollout.buffer_wait import BufferWait
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.episodes.attempt import PlayerParts
from gradbus_rollout.episodes.codec import TurnCodec
from gradbus_rollout.episodes.environment import EnvironmentClient, RunEnvironment
from gradbus_rollout.episodes.episode import EpisodeLimits
from gradbus_rollout.episodes.journal import Journals
from gradbus_rollout.episodes.sampler import EpisodeSampler
from gradbus_rollout.tasks.generation_traces import TaskTimes
from gradbus_rollout.tasks.prompts import PromptTable
from gradbus_rollout.tasks.sampler import PromptTables
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch
from gradbus_trainer.versions.publisher import Publisher
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.writer import VersionWriter

LETTERS = "abcdefghij"
NEW_TOKENS = 6
STOPS = frozenset({1, 3, 4, 5, 6, 7})
PROMPTS = b'{"prompt": "abc", "item": {"answer": "d"}}\n{"prompt": "jihgf", "item": {"answer": "e"}}\n'


async def until(condition):
    """Returns once `condition()`, which may be a coroutine function, holds; what it asks is another task's state."""
    async with asyncio.timeout(60):
        while not (await found if inspect.isawaitable(found := condition()) else found):  # noqa: ASYNC110 - nothing to wait on
            await asyncio.sleep(0.02)


def make_model(seed):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=False,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(0).save_pretrained(folder)
    words = ["<pad>", "<eos>", "<unk>", *LETTERS]
    tokenizer = RawTokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.fixture
async def engine(model_folder):
    engine = TorchEngine.from_folder(model_folder, TorchEngineConfig(slots=8, max_new_tokens=NEW_TOKENS))
    yield engine
    await engine.close()


@dataclass
class Trainer:
    """Publishes random models as versions; `seed` decides the weights."""

    bus: Bus
    objects: ObjectStore
    stub: WeightStoreServiceStub
    run_id: str
    scratch: Scratch
    published: dict = field(default_factory=dict)

    async def publish(self, step, seed=None, term=1, nudge=0.0, writer=None):
        """With a writer in its bfloat16; `nudge` is added to a few weights."""
        store = StoreClient(self.stub, self.run_id)
        await store.open_term(term)
        publisher = Publisher(store, writer or VersionWriter(self.objects, self.run_id, term), EventLog(self.bus, self.run_id), self.run_id)
        weights = {name: tensor.contiguous() for name, tensor in make_model(step if seed is None else seed).state_dict().items()}
        weights["model.norm.weight"] = weights["model.norm.weight"] + nudge
        dtype = torch.float32 if writer is None else torch.bfloat16
        task = await publisher.publish(export_version(step, LazyTensors.of(weights), False, self.scratch, dtype))
        await publisher.settle()
        self.published[step] = task.result()
        return task.result()


@pytest.fixture
def run_id():
    return f"run-{secrets.token_hex(4)}"


@pytest.fixture
def trainer(bus, objects, stub, run_id, tmp_path):
    return Trainer(bus, objects, stub, run_id, Scratch(tmp_path / "scratch"))


@pytest.fixture
def prompts():
    """Two rows of prompts, as the conductor puts them into object storage."""
    return b"".join(json.dumps({"prompt": prompt}).encode() + b"\n" for prompt in ("abc", "jihgf"))


@pytest.fixture
def new_record(bus, run_id):
    async def make(mode="fixed_lag", files=None, **rollout):
        body = {"name": "test", "model": {"path": "m", "files": files}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
        body |= {"schedule": {"mode": mode, "max_staleness": 1, "groups_per_step": 2, "steps": 10}}
        body |= {"rollout": {"slots": 8, "group_size": 3, "max_new_tokens": NEW_TOKENS} | rollout}
        record = RunRecord(run_id=run_id, spec=RunSpec.model_validate(body), created_unix_ns=1)
        await (await bus.bucket(Buckets.RUNS)).put(f"{run_id}.spec", record.to_bytes())
        return record

    return make


@pytest.fixture
async def episode_engine(model_folder):
    engine = TorchEngine.from_folder(model_folder, TorchEngineConfig(slots=8, max_new_tokens=NEW_TOKENS, stop_token_ids=STOPS))
    await engine.load([model_folder / "model.safetensors"], 4)
    yield engine
    await engine.close()


@pytest.fixture
def play(episode_engine, fork_server, model_folder, run_id, row_file):
    """Samples groups 0 and 1 in a world; returns them and the worker's presence."""

    async def sampled(
        world,
        kind=TaskKind.TASK_KIND_TRAIN,
        presence=None,
        reward=None,
        buffer=None,
        is_over=False,
        engine=None,
        algorithm=None,
        **environment,
    ):
        """With a `buffer` episodes are recorded there, if world and section want that. `is_over`: whether the run is when it is stopped.

        With an `engine` in place of the fixture's the world also gets the call that says that the worker lives.
        """
        body = {"name": "test", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 10}}
        source = {} if "agent" in environment else {"service": "http://127.0.0.1:1/"}
        body |= {"environment": source | environment}
        body |= {"rollout": {"slots": 8, "group_size": 3, "max_new_tokens": NEW_TOKENS, "stop_token_ids": sorted(STOPS)}}
        body |= {"reward": reward} if reward else {}
        body |= {"algorithm": algorithm} if algorithm else {}
        record = RunRecord(run_id=run_id, spec=RunSpec.model_validate(body), created_unix_ns=1)
        server = grpc.aio.server()
        add_EnvironmentServiceServicer_to_server(world, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        channel = open_channel(address)
        presence = presence or WorkerPresence(worker="worker", role="rollout", incarnation="1")
        client = EnvironmentClient(EnvironmentServiceStub(channel), address, record, presence)
        described = RunEnvironment(record.spec.environment, client, await client.describe())
        limits = PromptLimits(NEW_TOKENS, stop_token_ids=tuple(STOPS))
        tokenizer = await Tokenizer.open(fork_server, model_folder, limits, Deadlines(load=60, call=60), described.turn_settings)
        living = asyncio.create_task(client.keep_alive() if engine else asyncio.sleep(0))
        try:
            table = await PromptTable.open(tokenizer, row_file(PROMPTS))
            limits = EpisodeLimits.of(record.spec, described.section, tokenizer.context_length)
            journals = None
            if buffer is not None and described.has_journal:
                journals = Journals(buffer, BufferWait(presence), is_read=not described.is_seeded, is_over=AsyncMock(return_value=is_over))
            parts = PlayerParts(engine or episode_engine, TurnCodec(tokenizer), client, limits, journals)
            sampler = EpisodeSampler(record, parts, PromptTables(table, None), described.description)
            task = Task(task_id="t", kind=kind, version=4, groups=[GroupTask(index=index, row=index) for index in (0, 1)])
            return await sampler.sample(task, TaskTimes(received=1))
        finally:
            living.cancel()
            await tokenizer.close()
            await channel.close()
            await server.stop(None)

    return sampled
