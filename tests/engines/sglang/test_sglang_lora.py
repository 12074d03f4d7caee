"""LoRA versions on a real SGLang server. All engines attach to one server, launched with LoRA enabled."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import sglang_lab
import torch
from safetensors.torch import load_file, save_file

from gradbus.errors import AttestationError, ModelError
from gradbus.formats.peft import adapter_shapes
from gradbus.spec import LoraSpec
from gradbus_kernels.models.lora import merged_weights
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.engines.base import ExpectedLogprobs, PromptGroup, TokenSpan
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine
from gradbus_rollout.engines.sglang.api import ServerApi
from gradbus_rollout.engines.sglang.server import Server

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
URL = os.environ.get("GRADBUS_TEST_SGLANG_LORA_URL", "")
"""Of a server that runs already, with the contract's model and room for the adapters below; empty: the tests start theirs."""
ALL = LoraSpec(rank=4, alpha=8.0)
PARTS = LoraSpec(rank=3, alpha=3.0, target_modules=("k_proj", "up_proj"))
PROMPT = (4, 8, 15, 16, 23)
PROBE = tuple(int(token) for token in np.random.default_rng(0).integers(0, sglang_lab.VOCAB, 24))
LONG = 300


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def lora_url(tmp_path_factory):
    if URL:
        yield URL
        return
    chosen = sglang_lab.settings(arguments=(*sglang_lab.ARGUMENTS, "--lora-backend", "torch_native"))
    folder = tmp_path_factory.mktemp("sglang-lora")
    sglang_lab.make_folder(folder)
    server = Server(folder, SGLangConfig(slots=16, lora=ALL), chosen, folder / "server.log")
    await server.start()
    yield server.api.url
    await server.close()


@pytest.fixture
async def attach(tmp_path, model, lora_url):
    engines = []

    def begin(lora=ALL, **config):
        config = SGLangConfig(**{"slots": 8, "max_new_tokens": 12, "lora": lora} | config)
        engines.append(SGLangEngine(tmp_path, config, sglang_lab.settings(url=lora_url), tmp_path / "cache"))
        return engines[-1]

    yield begin
    for engine in engines:
        await engine.close()


class Version:
    """Adapters in a file, and what transformers computes with them."""

    def __init__(self, folder, model, step, lora):
        torch.manual_seed(step)
        self._model, self._base = model, load_file(folder / "model.safetensors")
        shapes = adapter_shapes({name: tensor.shape for name, tensor in self._base.items()}, lora)
        self.tensors = {name: 0.1 * torch.randn(shape) * bool(step or "lora_A" in name) for name, shape in shapes.items()}
        self.merged = {name: weight for name, weight, _ in merged_weights(self._base.items(), self.tensors, lora.scale)}
        self.file = folder / f"adapters-{step}-{lora.rank}"
        save_file(self.tensors, self.file)
        self.digest = weights_digest(self.tensors)
        self.probe = ExpectedLogprobs(PROBE, self._logprobs(self.merged, PROBE), self._logprobs(self._base, PROBE))

    def expected(self, prompt, completion):
        """Log-probabilities of the completion's tokens."""
        return np.array(self._logprobs(self.merged, (*prompt, *completion.token_ids))[len(prompt) - 1 :])

    def _logprobs(self, weights, token_ids):
        self._model.load_state_dict(weights, strict=False)
        self._model.tie_weights()
        ids = torch.tensor([token_ids])
        with torch.inference_mode():
            logprobs = torch.log_softmax(self._model(ids).logits[0, :-1], -1)
        return tuple(logprobs.gather(-1, ids[0, 1:, None]).squeeze(-1).tolist())


@pytest.fixture
def version(tmp_path, model):
    return lambda step, lora=ALL: Version(tmp_path, model, step, lora)


def logprobs(completion):
    return np.frombuffer(completion.logprobs, "<f4")


async def load(engine, version, step, **changes):
    return await engine.load([version.file], step, **{"probe": version.probe} | changes)


@pytest.mark.parametrize("lora", [ALL, PARTS], ids=["all", "parts of what the server fuses"])
async def test_at_every_version_the_log_probabilities_are_those_of_the_merged_weights(attach, version, lora):
    engine = attach(lora)
    for step in (0, 1, 2, 1):
        published = version(step, lora)
        assert await load(engine, published, step) == published.digest
        (group,) = await engine.generate([PromptGroup("a", PROMPT * 20, tuple(range(6)))])
        for completion in group.completions:
            assert completion.spans == (TokenSpan(0, 12, step),)
            np.testing.assert_allclose(logprobs(completion), published.expected(PROMPT * 20, completion), atol=1e-5)


async def test_samples_in_flight_go_on_with_their_adapters_and_new_ones_take_the_new(attach, version):
    engine = attach(max_new_tokens=LONG)
    old, new = version(1), version(2)
    await load(engine, old, 1)
    running = asyncio.create_task(engine.generate([PromptGroup("a", PROMPT, (1, 2, 3))]))
    await asyncio.sleep(0.5)
    await load(engine, new, 2)
    assert not running.done()
    (after,) = await engine.generate([PromptGroup("b", PROMPT, (4,))])
    (before,) = await running
    for group, step, published in ((before, 1, old), (after, 2, new)):
        for completion in group.completions:
            assert completion.spans == (TokenSpan(0, LONG, step),)
            np.testing.assert_allclose(logprobs(completion), published.expected(PROMPT, completion), atol=1e-5)
    assert len(await loaded(engine)) == 2
    await load(engine, version(3), 3)
    assert len(await loaded(engine)) == 1, "what no request names is unloaded"
    assert len(list(engine._folders.root.glob("version-*"))) == 1


async def loaded(engine):
    """Names of the adapters that the server says it has."""
    answer = await engine.server.api._call("GET", "/v1/models", None, 10.0)
    return [model["id"] for model in answer["data"] if model.get("parent")]


@pytest.mark.parametrize("fault", ["empty", "other names", "a tensor too many", "another rank", "of the whole model"])
async def test_a_file_that_is_not_the_runs_adapters_is_refused_and_changes_nothing(attach, version, tmp_path, weights, fault):
    engine, published = attach(), version(1)
    await load(engine, published, 1)
    tensors = {
        "empty": {},
        "other names": {name.replace("base_model.model.", ""): tensor for name, tensor in published.tensors.items()},
        "a tensor too many": published.tensors | {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 32)},
        "another rank": {name: tensor.repeat_interleave(2, int("lora_B" in name)) for name, tensor in published.tensors.items()},
        "of the whole model": load_file(weights),
    }[fault]
    save_file(tensors, tmp_path / "wrong")
    with pytest.raises(ModelError):
        await engine.load([tmp_path / "wrong"], 2, published.probe)
    (group,) = await engine.generate([PromptGroup("a", PROMPT, (1,))])
    assert group.completions[0].spans == (TokenSpan(0, 12, 1),)
    np.testing.assert_allclose(logprobs(group.completions[0]), published.expected(PROMPT, group.completions[0]), atol=1e-5)


async def test_a_load_that_answers_200_and_moves_nothing_is_found(attach, version, monkeypatch):
    """The adapters arrive under their name, but all zeros: the server samples from the base model."""
    engine, published = attach(), version(1)
    await load(engine, version(0), 0)
    real = ServerApi.load_adapter

    async def emptied(api, name, folder):
        file = Path(folder) / "adapter_model.safetensors"
        file.unlink()
        save_file({name: torch.zeros_like(tensor) for name, tensor in published.tensors.items()}, file)
        return await real(api, name, folder)

    with monkeypatch.context() as patch:
        patch.setattr(ServerApi, "load_adapter", emptied)
        with pytest.raises(AttestationError, match="does not sample with the adapters of version 1"):
            await load(engine, published, 1)
    assert (engine.version, len(await loaded(engine))) == (0, 1)
    await load(engine, published, 1)


async def test_adapters_of_which_the_server_ignores_one_kind_are_found(attach, version, monkeypatch):
    engine, published = attach(), version(1)
    real = ServerApi.load_adapter

    async def partly(api, name, folder):
        file = Path(folder) / "adapter_model.safetensors"
        file.unlink()
        save_file({name: tensor * ("o_proj" not in name) for name, tensor in published.tensors.items()}, file)
        return await real(api, name, folder)

    monkeypatch.setattr(ServerApi, "load_adapter", partly)
    with pytest.raises(AttestationError, match="does not sample with the adapters of version 1"):
        await load(engine, published, 1)


async def test_a_version_without_a_probe_is_refused(attach, version):
    with pytest.raises(ModelError, match="without a probe"):
        await load(attach(), version(1), 1, probe=None)


async def test_a_server_that_has_lost_the_adapters_is_given_them_again(attach, version):
    engine, published = attach(), version(1)
    await load(engine, published, 1)
    (name,) = await loaded(engine)
    await engine.server.api.unload_adapter(name)
    engine._loader.adapters._newest = name + "-of-a-life-before"  # the server keeps where adapters that it unloaded were
    engine._loader.adapters._loaded[engine._loader.adapters._newest] = engine._recovery.current
    (group,) = await engine.generate([PromptGroup("a", PROMPT, (1, 2))])
    for completion in group.completions:
        np.testing.assert_allclose(logprobs(completion), published.expected(PROMPT, completion), atol=1e-5)


async def test_a_base_model_that_somebody_changed_is_given_again(attach, version, tmp_path, weights):
    engine, published = attach(), version(1)
    await load(engine, published, 1)
    (tmp_path / "other").mkdir()
    save_file({name: tensor * 1.1 for name, tensor in load_file(weights).items()}, tmp_path / "other" / "model.safetensors")
    (tmp_path / "other" / "config.json").write_text((tmp_path / "config.json").read_text())
    await engine.server.api.update_from_disk(str(tmp_path / "other"), label="somebody's")
    (group,) = await engine.generate([PromptGroup("a", PROMPT, (1, 2))])
    for completion in group.completions:
        assert completion.spans == (TokenSpan(0, 12, 1),)
        np.testing.assert_allclose(logprobs(completion), published.expected(PROMPT, completion), atol=1e-5)
