"""What holds for every test."""

import asyncio
import functools
import itertools
import json
import math
import os
import resource
import signal
from contextlib import contextmanager

import httpcore2
import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is decides nothing. Examples are drawn anew in every run of the tests, so thirty a run are many.
settings.register_profile("any machine", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Tests talk to this machine alone, and a proxy of the environment cannot reach it.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, ["127.0.0.1", "localhost", os.environ.get("NO_PROXY")]))

# Each client of HTTP reads the system's certificates, which takes 30 ms.
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)

# Before whatever imports Triton first: without a GPU its kernels run in its interpreter.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def free_port():
    """Gives ports that are given to nobody else: no other test, no stack, no outgoing connection that happens to get one."""
    from gradbus.embedded.ports import Ports

    ports, serial = Ports({}), itertools.count()
    yield lambda: ports[str(next(serial))]
    ports.release()


@pytest.fixture(scope="session")
def commands():
    """Runs `gradbus` commands in processes of their own."""
    from forked_command import ForkedCommands

    commands = ForkedCommands()
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def write_tokenizer():
    """Writes a tokenizer of the digits and a few signs, one id each, into a folder; arguments change parts of tokenizer.json."""
    characters = {character: number for number, character in enumerate("?0123456789+=-x ")}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
        "model": {"type": "WordLevel", "vocab": characters, "unk_token": "?"},
    }

    def write(folder, **changed):
        (folder / "tokenizer.json").write_text(json.dumps(content | changed))
        (folder / "tokenizer_config.json").write_text("{}")

    return write


@pytest.fixture(scope="session")
def fork_server():
    """A fork server of tokenizers, which takes seconds to start."""
    from gradbus.tokenizer.launcher import ForkServer

    server = ForkServer()
    asyncio.run(server.start())
    yield server
    asyncio.run(server.close())


@pytest.fixture
def row_file(tmp_path):
    """A file of rows with this content."""
    from gradbus.datasets.row_file import RowFile

    names = itertools.count()

    def written(content):
        path = tmp_path / f"rows-{next(names)}"
        path.write_bytes(content)
        return RowFile(path)

    return written


@pytest.fixture
def no_file_over():
    """A block, as on a disk that is full: the system takes so many bytes of a file and no more."""

    @contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return limited


@pytest.fixture(scope="session")
def write_model(write_tokenizer):
    """Writes a model that passes every check of a submission: zeros, 2,000 bytes. Arguments change its config.json."""
    from gradbus.formats.model_config import read_model_config, tensor_shapes
    from gradbus.formats.safetensors import header

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 16,
        "hidden_size": 4,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }

    def write(folder, **changed):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | changed))
        write_tokenizer(folder)
        shapes = tensor_shapes(read_model_config(folder))
        tensors = header({name: ("F32", shape) for name, shape in shapes.items()})
        (folder / "model.safetensors").write_bytes(tensors + bytes(4 * sum(map(math.prod, shapes.values()))))
        return folder

    return write


@pytest.fixture(scope="session")
def write_scorer(write_model):
    """Writes a reward model beside `write_model`'s policy: zeros. `labels`: rows of its head; other arguments change its config.json."""
    from gradbus.formats.model_config import read_model_config, tensor_shapes
    from gradbus.formats.safetensors import header

    config = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}

    def write(folder, labels=1, **changed):
        write_model(folder, **(config | changed))
        shapes = tensor_shapes(read_model_config(folder)) | ({"score.weight": (labels, 4)} if labels else {})
        tensors = header({name: ("F32", shape) for name, shape in shapes.items()})
        (folder / "model.safetensors").write_bytes(tensors + bytes(4 * sum(map(math.prod, shapes.values()))))
        return folder

    return write
