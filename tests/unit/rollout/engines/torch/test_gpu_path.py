"""What the engine computes on a GPU, computed here by the operators' references or in Triton's interpreter, beside its path for a CPU."""

from __future__ import annotations

import weakref
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from triton_lab import _patched_once  # noqa: F401 - a fixture

from gradbus_kernels.operators import using
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.engines.torch.gpu import cache, prefill
from gradbus_rollout.engines.torch.gpu.cache import room_for
from gradbus_rollout.engines.torch.gpu.prefill import PackedPrefill
from gradbus_rollout.engines.torch.model import DecoderModel, read_supported_config
from gradbus_rollout.engines.torch.prefill import Prefill
from gradbus_rollout.engines.torch.version_format import WholeVersions

NEW = 20
CONFIG = {"slots": 8, "max_new_tokens": NEW, "stop_token_ids": frozenset({1, 2, 3})}
PROBE = PromptGroup("probe", tuple(range(3, 20)), (11, 12, 13))
CROWD = [PromptGroup(str(n), tuple((7 * n + at) % 48 for at in range(1 + 40 * n)), (n, n + 50), greedy=n % 3) for n in range(9)]


@pytest.fixture(params=["reference", "triton"])
def implementation(request, monkeypatch):
    if request.param == "triton":
        if find_spec("triton") is None:
            pytest.skip("triton is not installed; pip install triton")
        monkeypatch.setattr(prefill, "_CHUNK", 8)
        monkeypatch.setattr(prefill, "_AT_ONCE", 2)
    with using(request.param):
        yield request.param


@pytest.fixture
def load():
    def of(folder, on_gpu=True, dtype=torch.float32):
        model = DecoderModel(read_supported_config(folder), torch.empty(0, dtype=dtype), on_gpu=on_gpu)
        with torch.inference_mode():
            WholeVersions(model.weights).replace(load_file(folder / "model.safetensors"))
        return model

    return of


@pytest.fixture
async def start(model_folder):
    engines = []

    async def begin(on_gpu=True, **config):
        decoder = DecoderModel(read_supported_config(model_folder), torch.empty(0), on_gpu=on_gpu)
        engines.append(TorchEngine(decoder, TorchEngineConfig(**CONFIG | config)))
        await engines[-1].load([model_folder / "model.safetensors"], 0)
        return engines[-1]

    yield begin
    for engine in engines:
        await engine.close()


def random_prompts(*lengths):
    draw = torch.Generator().manual_seed(0)
    return [tuple(torch.randint(0, 48, (length,), generator=draw).tolist()) for length in lengths]


def logprobs(model, prompts, lanes):
    """Of what follows the prompts, and what follows one token more."""
    filled = (PackedPrefill if model.on_gpu else Prefill)(model, lanes, "cpu")
    first = filled.run(prompts)
    positions = torch.tensor([[len(prompt)] for prompt in prompts])
    kept = filled.cache
    if model.on_gpu:
        kept.reserve(int(positions.max()) + 1)
        kept = kept.at(torch.arange(lanes))
    after = model.logits(model.forward(torch.full((lanes, 1), 7), positions, kept))
    return torch.stack((first, after)).log_softmax(-1)


@torch.inference_mode()
def test_every_family_is_computed_as_on_a_cpu(tmp_path, hf_model, load):
    prompts = random_prompts(1, 2, 127, 128, 300)
    with using("reference"):
        found = logprobs(load(tmp_path / "model"), prompts, 5)
    torch.testing.assert_close(found, logprobs(load(tmp_path / "model", on_gpu=False), prompts, 5), atol=2e-5, rtol=1e-5)


INTERPRETED = ("qwen3-tied-wide-heads", "gemma2", "gpt_oss")
"""Norms of heads, softcaps, and sinks, windows and experts."""
REFERENCES = (*INTERPRETED, "qwen2-untied-gqa", "llama3-rope", "olmo2", "ministral3")
OFTEN = [
    pytest.param(family, how, marks=[pytest.mark.slow] * (how == "triton" and family not in INTERPRETED))
    for family in REFERENCES
    for how in ("reference", "triton")
]


@pytest.mark.parametrize(("family", "implementation"), OFTEN, indirect=True)
@torch.inference_mode()
def test_chunks_of_one_prompt_are_packed_into_one_forward_or_several(tmp_path, hf_model, load, implementation):
    prompts = random_prompts(1, 7, 8, 21)
    found = logprobs(load(tmp_path / "model"), prompts, 4)
    torch.testing.assert_close(found, logprobs(load(tmp_path / "model", on_gpu=False), prompts, 4), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_bfloat16_differs_from_float32_by_rounding(model_folder, load):
    prompts = random_prompts(1, 30, 200)
    exact, rounded = (logprobs(load(model_folder, dtype=dtype), prompts, 3).float() for dtype in (torch.float32, torch.bfloat16))
    assert 0 < (exact - rounded).norm() < 0.15 * exact.norm()


async def test_greedy_tokens_are_those_of_a_cpu_and_drawn_ones_have_its_logprobs(start):
    found, expected = [await (await start(on_gpu)).generate(CROWD) for on_gpu in (True, False)]
    assert [one.token_ids for group in found for one in group.completions] == [
        one.token_ids for group in expected for one in group.completions
    ]
    of_gpu, of_cpu = [np.frombuffer(b"".join(c.logprobs for group in of for c in group.completions), "<f4") for of in (found, expected)]
    np.testing.assert_allclose(of_gpu, of_cpu, atol=2e-5)


@pytest.mark.parametrize(("before", "after"), [(0, 9), (9, 0), (4, 5), (8, 8)])
async def test_neighbours_and_what_was_computed_before_change_no_bit(start, before, after):
    engine = await start()
    alone = (await (await start()).generate([PROBE]))[0]
    assert (await engine.generate([*CROWD[:before], PROBE, *CROWD[:after]]))[before] == alone
    assert (await engine.generate([PROBE]))[0] == alone


@pytest.mark.parametrize("slots", [4, 16])
async def test_slots_and_the_order_within_a_group_change_no_bit(start, slots):
    alone = (await (await start()).generate([PROBE]))[0].completions
    mixed = await (await start(slots=slots)).generate([PromptGroup("mixed", PROBE.prompt_ids, (13, 99, 11, 12))])
    assert [mixed[0].completions[n] for n in (2, 3, 0)] == list(alone)


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1025, 3000, 40_000])
def test_a_caches_room_is_enough_and_not_much_more(length):
    assert length <= room_for(length) < length + max(256, length / 2)
    assert room_for(room_for(length)) == room_for(length)


@torch.inference_mode()
def test_a_cache_that_grows_keeps_what_it_has_and_prompts_are_copied(model_folder, load):
    model = load(model_folder)
    filled, copied = PackedPrefill(model, 4, "cpu"), model.new_cache(8)
    filled.run(random_prompts(40, 40, 40, 40))
    before = [part.clone() for part in filled.cache.tensors]
    lanes, rows = torch.tensor([2, 0, 2, 3, 1]), torch.tensor([6, 1, 0, 3, 5])
    copied.copy_rows(rows, filled.cache, lanes, 40)
    for into, origin in zip(copied.layers, filled.cache.layers, strict=True):
        assert into.keys[6, :, :40].any()
        assert all(torch.equal(to[rows, :, :40], of[lanes, :, :40]) for to, of in zip(into, origin, strict=True))
    filled.cache.reserve(300)
    assert filled.cache.capacity == 512
    storage, turns = filled.cache.tensors
    assert torch.equal(storage[..., :256, :], before[0])
    assert not storage[..., 256:, :].any()
    assert torch.equal(turns[:, :256], before[1])


@torch.inference_mode()
def test_a_cache_that_does_not_fit_beside_its_larger_self_grows_by_way_of_host_memory(model_folder, load, monkeypatch):
    filled = PackedPrefill(load(model_folder), 4, "cpu")
    filled.run(random_prompts(40, 40, 40, 40))
    before, grown, held = filled.cache.tensors[0].clone(), cache._grown, []
    old = weakref.ref(filled.cache._storage)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: tensor.clone())  # here as on a GPU: another tensor

    filled.cache.free_memory = lambda: held.append("freed")

    def first_is_refused(like, kept, capacity):
        held.append(old() is not None)
        if len(held) == 1:
            raise torch.OutOfMemoryError("the old one is still there")
        return grown(like, kept, capacity)

    monkeypatch.setattr(cache, "_grown", first_is_refused)
    filled.cache.reserve(300)
    assert held == [True, "freed", False], "the old one was freed before the second attempt, and so was what can be done without"
    storage = filled.cache.tensors[0]
    assert (storage.shape[4], len(filled.cache.layers)) == (512, len(storage))
    assert torch.equal(storage[..., :256, :], before)
    assert not storage[..., 256:, :].any()
