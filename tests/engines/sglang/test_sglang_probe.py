"""A server that cannot compare its own tensors (0.5.21's checker wants a GPU): weights are proven by its log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import sglang_lab
import torch
from safetensors.torch import load_file, save_file

from gradbus.errors import AttestationError, EngineError
from gradbus_rollout.engines.base import ExpectedLogprobs, PromptGroup, TokenSpan
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine
from gradbus_rollout.engines.sglang.api import ServerApi

pytestmark = pytest.mark.engines
PROBE = tuple(range(1, 33))
SMALL = 1e-3
"""A step of training, about: log-probabilities move by less than 0.05 nats."""


class VersionLoader:
    """Files of versions that are a small step apart, and what transformers computes with each."""

    def __init__(self, folder, model):
        self._folder, self._model, self._base = folder, model, load_file(folder / "model.safetensors")

    def file(self, step, scale=SMALL):
        path = self._folder / f"v{step}-{scale}"
        save_file({name: tensor * (1 + step * scale * ("proj" in name)) for name, tensor in self._base.items()}, path)
        return path

    def logprobs(self, step, token_ids):
        self._model.load_state_dict(load_file(self.file(step)), strict=False)
        self._model.tie_weights()
        ids = torch.tensor([token_ids])
        with torch.inference_mode():
            logprobs = torch.log_softmax(self._model(ids).logits[0, :-1], -1)
        return tuple(logprobs.gather(-1, ids[0, 1:, None]).squeeze(-1).tolist())

    def probe(self, step):
        logprobs = self.logprobs(step, PROBE)
        return ExpectedLogprobs(PROBE, logprobs, logprobs)


@pytest.fixture
async def engine(tmp_path, model):
    without = {"environment": sglang_lab.ENVIRONMENT | {"GRADBUS_TEST_CUDA_CHECKER": "1"}}
    engine = SGLangEngine(tmp_path, SGLangConfig(slots=8, max_new_tokens=12), sglang_lab.settings(**without), tmp_path / "cache")
    yield engine
    await engine.close()


async def test_without_a_checker_a_version_is_proven_by_its_probe(engine, tmp_path, model, monkeypatch):
    versions = VersionLoader(tmp_path, model)
    for step in (0, 1, 2, 1):
        await engine.load([versions.file(step)], step, versions.probe(step))
        (group,) = await engine.generate([PromptGroup("a", PROBE[:5], (1, 2))])
        for sample in group.completions:
            assert sample.spans == (TokenSpan(0, 12, step),)
            expected = versions.logprobs(step, (*PROBE[:5], *sample.token_ids))[4:]
            np.testing.assert_allclose(np.frombuffer(sample.logprobs, "<f4"), expected, atol=1e-5)

    with pytest.raises(EngineError, match="came without a probe"):
        await engine.load([versions.file(2)], 2)
    with pytest.raises(AttestationError, match="does not sample with version 2"):
        await engine.load([versions.file(2, scale=0.3)], 2, versions.probe(2))
    await engine.load([versions.file(1)], 1, versions.probe(1))

    async def nothing(*_args):
        return None

    monkeypatch.setattr(ServerApi, "update_from_disk", nothing)
    for _ in range(2):  # a second try is not believed either
        with pytest.raises(AttestationError, match="does not sample with version 2"):
            await engine.load([versions.file(2)], 2, versions.probe(2))
    await engine.load([versions.file(1)], 1, versions.probe(1))
    monkeypatch.undo()
    await engine.load([versions.file(2)], 2, versions.probe(2))
