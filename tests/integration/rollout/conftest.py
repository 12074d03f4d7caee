"""Tiny models with a tokenizer, and a trainer that publishes them."""

import asyncio
import inspect
import json
import secrets
from dataclasses import dataclass, field

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gradbus.bus import Buckets, Bus, EventLog
from gradbus.control.runs import RunRecord
from gradbus.objects import ObjectStore
from gradbus.spec import RunSpec
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch
from gradbus_trainer.versions.publisher import Publisher
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.writer import VersionWriter

LETTERS = "abcdefghij"
NEW_TOKENS = 6


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
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
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
