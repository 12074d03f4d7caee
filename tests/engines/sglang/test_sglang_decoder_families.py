"""Families of the trainer's decoder on a real SGLang server: it starts from their folders, and its log-probabilities are the decoder's."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import sglang_lab
import torch
from family_lab import VOCABULARY, Row, make_model, save
from safetensors.torch import load_file, save_file

from gradbus.errors import AttestationError
from gradbus.formats.frozen import frozen_names
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_rollout.engines.base import ExpectedLogprobs, PromptGroup, TokenSpan
from gradbus_rollout.engines.server.logprob_proof import prove_weights
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine
from gradbus_trainer.learners.probe import version_probe

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
TEMPERATURE = 0.7
END = frozenset({1})
"""As config.json says: a server stops there unasked."""
SHORT, LONG = (5, 6, 7), tuple(np.random.default_rng(2).integers(0, VOCABULARY, 70).tolist())


@pytest.fixture
async def start(tmp_path):
    """Starts a server from a family's folder, as a worker does."""
    engines = []

    def begin(family: str, **changes: object) -> tuple[SGLangEngine, Path]:
        folder = save(make_model(family, **{"tie_word_embeddings": False} | changes), tmp_path / "model")
        config = SGLangConfig(slots=8, max_new_tokens=24, temperature=TEMPERATURE, stop_token_ids=END)
        engines.append(SGLangEngine(folder, config, sglang_lab.settings(), tmp_path / "cache"))
        return engines[-1], folder

    yield begin
    for engine in engines:
        await engine.close()


def version(folder, step, target):
    """A folder with the weights of a step: all matrices of the model are larger."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    frozen = frozen_names(tensors)
    moved = {name: tensor * (1 + 0.1 * step * (tensor.dim() > 1 and name not in frozen)) for name, tensor in tensors.items()}
    save_file(moved, target / "model.safetensors", {"format": "pt"})
    return target


def probe(model):
    found = version_probe(model, VOCABULARY, lambda rows: packed_logprobs(model, rows, 1.0))
    logprobs = tuple(np.frombuffer(found.logprobs, "<f4").tolist())
    return ExpectedLogprobs(tuple(np.frombuffer(found.token_ids, "<i4").tolist()), logprobs, logprobs)


@pytest.mark.parametrize("family", sglang_lab.SERVED)
async def test_each_version_is_attested_and_sampled_with_the_decoders_log_probabilities(start, tmp_path, family):
    engine, folder = start(family, **sglang_lab.SERVED[family])
    groups = [PromptGroup("short", SHORT, (1, 2, 3)), PromptGroup("long", LONG, (4, 5, 6))]
    before = None
    for step in (0, 1):
        made = version(folder, step, tmp_path / f"v{step}")
        model = load_causal_lm(made)
        await engine.load([made / "model.safetensors"], step)
        await prove_weights(engine.server.api, step, probe(model), before)
        before = probe(model)
        for group, result in zip(groups, await engine.generate(groups), strict=True):
            for sample in result.completions:
                assert sample.spans == (TokenSpan(0, len(sample.token_ids), step),)
                row = Row(np.array(group.prompt_ids, np.int32), np.array(sample.token_ids, np.int32))
                with torch.no_grad():
                    expected, _ = packed_logprobs(model, [row], TEMPERATURE)
                np.testing.assert_allclose(np.frombuffer(sample.logprobs, "<f4"), expected.numpy(), atol=1e-5, err_msg=group.key)


async def test_a_window_that_the_server_leaves_out_shows_in_the_probe_but_not_in_the_tensors(start):
    engine, folder = start("mistral", sliding_window=6)
    await engine.load([folder / "model.safetensors"], 0)
    with pytest.raises(AttestationError, match="does not sample with version 0"):
        await prove_weights(engine.server.api, 0, probe(load_causal_lm(folder)), None)
