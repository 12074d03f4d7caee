"""Versions that are adapters, in the embedded engine: merged at the load, attested by what was merged."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradbus.errors import ModelError
from gradbus.formats.peft import adapter_shapes
from gradbus.spec import LoraSpec
from gradbus_kernels.models.lora import Merged, merged_weights
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig, version_format

LORA = LoraSpec(rank=3, alpha=6.0)
ATTENTION = LoraSpec(rank=2, alpha=1.0, target_modules=("q_proj", "v_proj"))
GROUP = PromptGroup("a", (5, 6, 7), tuple(range(6)))


@pytest.fixture
async def start(model_folder):
    engines = []

    def begin(lora=LORA):
        engines.append(TorchEngine.from_folder(model_folder, TorchEngineConfig(slots=8, max_new_tokens=10), lora))
        return engines[-1]

    yield begin
    for engine in engines:
        await engine.close()


@pytest.fixture
def base(model_folder):
    return load_file(model_folder / "model.safetensors")


@pytest.fixture
def adapters(base):
    def draw(seed, lora=LORA, dtype=torch.float32):
        torch.manual_seed(seed)
        shapes = adapter_shapes({name: tensor.shape for name, tensor in base.items()}, lora)
        return {name: (0.2 * torch.randn(shape)).to(dtype) for name, shape in shapes.items()}

    return draw


@pytest.fixture
def write(tmp_path):
    def to_file(tensors, name="version"):
        save_file(tensors, tmp_path / name)
        return [tmp_path / name]

    return to_file


async def sampled(engine):
    (group,) = await engine.generate([GROUP])
    return [(one.token_ids, one.logprobs) for one in group.completions]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lora", [LORA, ATTENTION], ids=["all", "attention"])
async def test_samples_are_to_the_bit_those_of_the_merged_weights(start, base, adapters, write, lora, dtype):
    engine, whole = start(lora), start(None)
    for seed in (1, 2):
        tensors = adapters(seed, lora, dtype)
        merged = {name: weight for name, weight, _ in merged_weights(base.items(), tensors, lora.scale)}
        assert await engine.load(write(tensors), seed) == weights_digest(tensors)
        await whole.load(write(merged), seed)
        assert await sampled(engine) == await sampled(whole)
        assert not torch.equal(merged["model.layers.1.self_attn.v_proj.weight"], base["model.layers.1.self_attn.v_proj.weight"].float())


async def test_a_product_of_zero_is_the_base_model(start, base, adapters, write):
    engine, plain = start(), start(None)
    await engine.load(write({name: tensor * ("lora_A" in name) for name, tensor in adapters(1).items()}), 0)
    await plain.load(write(base), 0)
    assert await sampled(engine) == await sampled(plain)


FAULTS = {
    "empty": lambda tensors, _: {},
    "other names": lambda tensors, _: {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()},
    "one missing": lambda tensors, _: dict(list(tensors.items())[1:]),
    "one too many": lambda tensors, _: tensors | {"base_model.model.lm_head.lora_A.weight": torch.zeros(3, 4)},
    "another rank": lambda tensors, _: {name: torch.cat([tensor] * 2, int("lora_B" in name)) for name, tensor in tensors.items()},
    "the whole model": lambda _, base: base,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_file_that_is_not_the_runs_adapters_is_refused_and_changes_nothing(start, base, adapters, write, fault):
    engine = start()
    await engine.load(write(adapters(1)), 1)
    before = await sampled(engine)
    with pytest.raises(ModelError, match=r"are missing from the weight files|are not tensors of this model|have another shape"):
        await engine.load(write(FAULTS[fault](adapters(2), base), "wrong"), 2)
    with pytest.raises(ModelError, match="are missing from the weight files"):
        await engine.load([], 2)
    assert (engine.version, await sampled(engine)) == (1, before)


async def test_stale_content_attests_what_it_is(start, adapters, write):
    engine = start()
    stale = await engine.load(write(adapters(1)), 1)
    assert await engine.load(write(adapters(1), "again"), 2) == stale == weights_digest(adapters(1)) != weights_digest(adapters(2))


@pytest.mark.parametrize("ignored", ["all", "one layer"])
async def test_adapters_that_were_read_and_not_merged_are_missing_from_the_digest(start, adapters, write, monkeypatch, ignored):
    def forgetful(base, tensors, scale):
        for merged in merged_weights(base, tensors, scale):
            skipped = ignored == "all" or "layers.1.mlp.up_proj" in merged.name
            yield Merged(merged.name, merged.weight, {} if skipped else merged.adapters)

    monkeypatch.setattr(version_format, "merged_weights", forgetful)
    assert await start().load(write(adapters(1)), 1) != weights_digest(adapters(1))
