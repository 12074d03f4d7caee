"""The engines under contract: the embedded engine, the load tests' stub, and SGLang under `make test-engines`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import pytest
import sglang_lab
import torch
from s3_servers import moto_server, rclone_server, seaweed_server  # noqa: F401 - fixtures
from sglang_lab import VOCAB, model, sglang_url, weights  # noqa: F401 - fixtures, and what the tests import from here

from gradbus.spec.engine_traits import ENGINES
from gradbus_load.calibration import EngineTiming
from gradbus_load.stub_engine import StubEngine
from gradbus_rollout.engines.base import Engine, PromptGroup
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.engines.torch.model import DecoderModel, read_supported_config

NEW = 12


@dataclass(frozen=True)
class Kind:
    """Properties of an engine that its tests need besides the Protocol."""

    name: str
    exact: bool
    """Samples depend on weights, prompt and seed alone."""
    long: int
    """Number of tokens of a sample that takes a while."""
    computes: bool = True
    """False for an engine whose tokens are noise, so that no test can expect any."""
    on_gpu: bool = False
    """Whether the embedded engine computes as on a GPU."""

    async def begin(self, engine, groups):
        """A call for long samples, once some of these have their first tokens; most are still to come."""
        seconds = await self._quarter(engine) if self.name == "sglang" else 0.0
        before = await engine.progress()
        call = asyncio.create_task(engine.generate(groups))
        await asyncio.sleep(seconds)
        while not seconds and await engine.progress() < before + 10:  # noqa: ASYNC110 - steps of decoding, or looks at samples that run
            await asyncio.sleep(0.002)
        return call

    async def _quarter(self, engine):
        """Seconds: of a server nobody learns how far a sample is, so a part of what one takes now, on this machine."""
        began = time.perf_counter()
        await engine.generate([PromptGroup("long", (1, 2, 3), (5, 6))])
        return (time.perf_counter() - began) / 4

    def assert_same(self, found, expected):
        """Of two results for one request; where bits depend on neighbours, those of greedy ones."""
        if self.exact:
            assert found == expected
            return
        for one, other in zip(found, expected, strict=True):
            for sample, twin in zip(one.completions, other.completions, strict=True):
                assert (sample.token_ids, sample.spans) == (twin.token_ids, twin.spans)
                np.testing.assert_allclose(np.frombuffer(sample.logprobs, "<f4"), np.frombuffer(twin.logprobs, "<f4"), atol=1e-5)


KINDS = {
    "torch": Kind("torch", ENGINES["torch"].deterministic, 700),
    "torch_on_gpu": Kind("torch", ENGINES["torch"].deterministic, 200, on_gpu=True),
    "stub": Kind("stub", True, 900, computes=False),
    "sglang": Kind("sglang", ENGINES["sglang"].deterministic, 1000),
}
STUB = EngineTiming(step_seconds=0.001, median_tokens=8.0)


@pytest.fixture(params=["torch", "torch_on_gpu", "stub", pytest.param("sglang", marks=pytest.mark.engines)])
def kind(request) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def url(kind, request):
    """URL of the server to attach to; empty for an engine without one."""
    return request.getfixturevalue("sglang_url") if kind.name == "sglang" else ""


@pytest.fixture
async def start(tmp_path, model, kind, url):  # noqa: F811
    engines: list[Engine] = []

    def begin(**config) -> Engine:
        config = {"slots": 8, "max_new_tokens": NEW} | config
        if kind.name == "sglang":
            engines.append(SGLangEngine(tmp_path, SGLangConfig(**config), sglang_lab.settings(url=url), tmp_path / "cache"))
        elif kind.name == "stub":
            engines.append(StubEngine(tmp_path, TorchEngineConfig(**config), STUB))
        elif kind.on_gpu:
            decoder = DecoderModel(read_supported_config(tmp_path), torch.empty(0), on_gpu=True)
            engines.append(TorchEngine(decoder, TorchEngineConfig(**config)))
        else:
            engines.append(TorchEngine.from_folder(tmp_path, TorchEngineConfig(**config)))
        return engines[-1]

    yield begin
    for engine in engines:
        await engine.close()
