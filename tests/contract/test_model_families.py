"""The contract of a model family: every registered family agrees with transformers and peft, and has its stated capabilities."""

import dataclasses
import functools
import shutil
from typing import get_args

import numpy as np
import pytest
import torch
from family_faults import FAULTS
from family_lab import (
    FAMILIES,
    PLAIN,
    VOCABULARY,
    Row,
    assert_batch_is_rows_alone,
    assert_checkpointing_keeps_bits,
    gradients_of,
    logprobs_of,
    make_model,
    rows,
    save,
    stored,
    text_model,
    theirs,
    trained,
)
from learner_lab import SPEC, batch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.model_config import read_model_config, tensor_shapes
from gradbus.formats.model_families import MODEL_FAMILIES, Capability, family_of
from gradbus.formats.model_weights import check_weights
from gradbus.formats.peft import adapter_shapes
from gradbus.spec import LoraSpec, RolloutSpec
from gradbus.spec.engine_traits import ENGINES
from gradbus.spec.sections import LinearLayer
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_kernels.models.invariant_decoder import invariant_packed_logprobs
from gradbus_kernels.models.lora import adapters_off, add_adapters
from gradbus_kernels.weights import host_buffers, piece_reader
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_rollout.engines.torch import weights as engine_weights
from gradbus_rollout.engines.torch.model import DecoderModel, read_supported_config
from gradbus_rollout.engines.torch.version_format import WholeVersions
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.tensors.base_folder import BaseFolder
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch

ASKING = {
    "embedded_engine": ("rollout.engine", {"engine": "torch"}),
    "batch_invariant": ("numerics", {"numerics": "batch_invariant"}),
    "lora": ("trainer.lora", {"lora": LoraSpec(target_modules=("o_proj",))}),
}
"""Capability to the path of the fault and the settings that ask for it."""


BOUND = 1e-5
"""Of log-probabilities in float32, nats."""


@pytest.fixture(scope="module", params=MODEL_FAMILIES)
def family(request):
    return MODEL_FAMILIES[request.param]


@pytest.fixture(scope="module", params=[pytest.param(True, marks=pytest.mark.slow), False], ids=["plain", "odd"])
def is_plain(request):
    """In the usual tests every family has all that is odd in it."""
    return request.param


@pytest.fixture(scope="module")
def is_even(is_plain, family):
    """True of half of the usual models, and of the slow ones of the other families."""
    return is_plain == list(MODEL_FAMILIES.values()).index(family) % 2


@pytest.fixture(scope="module")
def folder(is_plain, is_even, family, tmp_path_factory):
    """A folder that transformers saved: a plain model, and one with all that is odd in its family. One of them has a tied head."""
    changes = PLAIN.get(family.model_type, {}) if is_plain else FAMILIES[family.model_type]
    model = make_model(family.model_type, **changes, tie_word_embeddings=is_even)
    return save(model, tmp_path_factory.mktemp(family.model_type))


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["bf16_by_turns", "fp32_by_turns"])
def in_bf16(request, is_even):
    """In the usual tests half of the families are in float32 and the others in bfloat16; the other way round takes as long again."""
    return is_even != request.param


@pytest.fixture(scope="module")
def expected(folder):
    """Log-probabilities by transformers, with a graph."""
    model = theirs(folder)
    return model, logprobs_of(model, rows(), 0.7)


@pytest.fixture
def sequences():
    return rows()


def faults_of(family, engine="sglang", numerics="fast", lora=None):
    return list(family.faults(RolloutSpec(engine=engine), numerics, lora))


def test_a_saved_folder_is_of_its_family_for_every_reader(folder, family):
    assert check_model_folder(folder).family == read_model_config(folder).family == family_of(family.model_type) == family
    assert type(theirs(folder)).__name__ == family.architecture


def test_every_family_is_in_the_contract():
    assert FAMILIES.keys() == MODEL_FAMILIES.keys()


def test_log_probabilities_and_gradients_are_those_of_transformers(folder, expected, sequences, tmp_path):
    ours, (model, logprobs) = load_causal_lm(folder), expected
    found, _ = packed_logprobs(ours, sequences, 0.7)
    torch.testing.assert_close(found, logprobs, rtol=0.0, atol=BOUND)
    factors = torch.linspace(-1.0, 1.0, len(found))
    found.dot(factors).backward()
    gradients = stored(model, tmp_path, gradients_of(logprobs.dot(factors), model))
    assert gradients.keys() == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        # An expert that no token chose has none in either.
        assert float((parameter.grad - gradients[name]).norm()) <= 1e-4 * float(gradients[name].norm()), name


def test_in_bfloat16_the_error_is_no_more_than_twice_transformers_own(folder, sequences):
    with torch.no_grad():
        exact = logprobs_of(theirs(folder, torch.bfloat16).double(), sequences, 0.7)
        error = (packed_logprobs(load_causal_lm(folder, torch.bfloat16), sequences, 0.7)[0] - exact).abs()
        their_error = (logprobs_of(theirs(folder, torch.bfloat16), sequences, 0.7) - exact).abs()
    assert error.mean() <= 2.0 * their_error.mean()


def test_rows_packed_together_are_what_each_is_alone(folder, sequences):
    assert_batch_is_rows_alone(folder, sequences)


def test_layers_computed_again_give_the_same_bits(folder, sequences):
    assert_checkpointing_keeps_bits(folder, sequences)


def test_a_version_of_an_untrained_model_is_the_folder_and_loads_in_transformers(folder, in_bf16, tmp_path, sequences):
    model, dtype = load_causal_lm(folder), torch.bfloat16 if in_bf16 else torch.float32
    weights = LazyTensors.of(dict(model.named_parameters()))
    BaseFolder(folder).check_identity(weights, dtype)
    file = export_version(0, weights, False, Scratch(tmp_path / "scratch"), dtype).file
    (version := tmp_path / "version").mkdir()
    frozen = BaseFolder(folder).write_frozen(Scratch(tmp_path / "frozen"))
    save_file(load_file(file.path) | (load_file(frozen.path) if frozen else {}), version / "model.safetensors", {"format": "pt"})
    shutil.copy(folder / "config.json", version)
    assert load_file(file.path).keys() == trained(folder).keys()
    assert load_file(version / "model.safetensors").keys() == load_file(folder / "model.safetensors").keys()
    assert frozen or not model.family.text_types
    exported = theirs(version, dtype).state_dict()
    assert all(torch.equal(tensor, exported[name]) for name, tensor in theirs(folder, dtype).state_dict().items())
    with torch.no_grad():
        logprobs, _ = packed_logprobs(load_causal_lm(version, dtype), sequences, 1.0)
        assert torch.equal(logprobs, packed_logprobs(load_causal_lm(folder, dtype), sequences, 1.0)[0])


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The folder of an odd model and its log-probabilities by transformers, made once for all faults of its family."""

    @functools.cache
    def of(model_type):
        folder = save(make_model(model_type, **FAMILIES[model_type]), tmp_path_factory.mktemp(model_type))
        with torch.no_grad():
            return folder, logprobs_of(theirs(folder), rows(), 0.7)

    return of


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_far_beyond_the_bound(name, sound, sequences):
    fault = FAULTS[name]
    folder, logprobs = sound(fault.model_type)
    model = load_causal_lm(folder)
    with torch.no_grad():
        torch.testing.assert_close(packed_logprobs(model, sequences, 0.7)[0], logprobs, rtol=0.0, atol=BOUND)
        fault.plant(model)
        assert (packed_logprobs(model, sequences, 0.7)[0] - logprobs).abs().max() > 10 * BOUND


def test_longropes_context_ends_at_the_last_length_that_transformers_turns_by_the_short_factors(tmp_path):
    folder = save(make_model("phi3", **FAMILIES["phi3"]), tmp_path)
    model, longest = load_causal_lm(folder), read_model_config(folder).context_length
    assert check_model_folder(folder).context_length == longest == 128
    tokens = np.arange(longest + 1, dtype=np.int32)
    within, beyond = ([Row(tokens[:100], tokens[100:end])] for end in (longest, longest + 1))
    with torch.no_grad():
        found, theirs_within = packed_logprobs(model, within, 0.7)[0], logprobs_of(theirs(folder), within, 0.7)
        torch.testing.assert_close(found, theirs_within, rtol=0.0, atol=BOUND)
        # One more token changes all that came before it, so no engine could have sampled them with these probabilities.
        assert (logprobs_of(theirs(folder), beyond, 0.7)[:-1] - theirs_within).abs().mean() > 1e-2


@torch.inference_mode()
def test_a_version_that_comes_to_a_device_in_pieces_is_what_the_cpu_copies(folder, in_bf16, monkeypatch):
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    if read_model_config(folder).engine_lacks:
        return
    found = []
    for by_pieces in (False, True):  # the CPU plays the device
        for module in (piece_reader, engine_weights):
            monkeypatch.setattr(module, "on_host", lambda _, by_pieces=by_pieces: not by_pieces)
        monkeypatch.setattr(host_buffers, "PIECE_BYTES", 1000)
        model = DecoderModel(read_model_config(folder), torch.zeros(0, dtype=dtype))
        version = WholeVersions(model.weights)
        found.append((version.replace(version.read(sorted(folder.glob("*.safetensors")))), [one.clone() for one in model.weights.tensors]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(one, other) for one, other in zip(found[0][1], found[1][1], strict=True))


async def test_the_embedded_engine_records_what_the_trainer_computes(folder, family):
    if read_model_config(folder).engine_lacks:
        with pytest.raises(ModelError, match="which the embedded engine does not compute; choose another model"):
            TorchEngine.from_folder(folder, TorchEngineConfig())
        return
    recorded, digest = await sampled(folder, TorchEngineConfig(slots=6, max_new_tokens=17, temperature=0.7))
    assert digest == weights_digest(trained(folder))
    with torch.no_grad():
        found, _ = packed_logprobs(load_causal_lm(folder), [row for row, _ in recorded], 0.7)
    assert len(found) > 60
    torch.testing.assert_close(found, torch.cat([logprobs for _, logprobs in recorded]), rtol=0.0, atol=2e-5)


async def test_with_batch_invariant_numerics_it_records_the_trainers_bits(folder, family):
    config = TorchEngineConfig(slots=6, max_new_tokens=17, temperature=0.7, numerics="batch_invariant")
    if "batch_invariant" not in family.capabilities or read_model_config(folder).invariant_lacks:
        with pytest.raises(ModelError, match="batch_invariant"):
            TorchEngine.from_folder(folder, config)
        return
    recorded, _ = await sampled(folder, config)
    found, _ = invariant_packed_logprobs(load_causal_lm(folder), [row for row, _ in recorded], 0.7)
    assert torch.equal(found, torch.cat([logprobs for _, logprobs in recorded]))


async def test_the_engine_with_adapters_merged_records_what_the_trainer_computes_beside_the_base(folder, family, tmp_path):
    if read_model_config(folder).engine_lacks or "lora" not in family.capabilities:
        return
    lora = LoraSpec(rank=3, alpha=6.0, target_modules=family.adapted_layers)
    model = load_causal_lm(folder)
    adapters = add_adapters(model, lora, 0)
    for name, parameter in adapters.items():
        if name.endswith("lora_B.weight"):
            torch.nn.init.normal_(parameter, 0.0, 0.05)
    save_file({name: parameter.detach().clone() for name, parameter in adapters.items()}, tmp_path / "adapters")
    config = TorchEngineConfig(slots=6, max_new_tokens=9, temperature=0.7)
    recorded, _ = await sampled(folder, config, lora, tmp_path / "adapters")
    with torch.no_grad():
        beside, _ = packed_logprobs(model, [row for row, _ in recorded], 0.7)
        with adapters_off(model):
            base, _ = packed_logprobs(model, [row for row, _ in recorded], 0.7)
    torch.testing.assert_close(beside, torch.cat([logprobs for _, logprobs in recorded]), rtol=0.0, atol=2e-5)
    assert (beside - base).abs().max() > 1e-2


async def sampled(folder, config, lora=None, version=None):
    """Rows that the engine sampled with the log-probabilities that it gave them, and the digest that it attested."""
    engine = TorchEngine.from_folder(folder, config, lora)
    digest = await engine.load([version or folder / "model.safetensors"], 0)
    prompts = [tuple((7 * n + at) % VOCABULARY for at in range(1 + 12 * n)) for n in range(4)]
    done = await engine.generate([PromptGroup(str(n), prompt, (n, n + 50)) for n, prompt in enumerate(prompts)])
    await engine.close()
    samples = [(prompt, one) for prompt, group in zip(prompts, done, strict=True) for one in group.completions]
    return [
        (Row(np.array(prompt, np.int32), np.array(one.token_ids, np.int32)), torch.from_numpy(np.frombuffer(one.logprobs, "<f4").copy()))
        for prompt, one in samples
    ], digest


def test_the_plain_trainer_moves_every_weight_and_resumes_to_the_same_bits(folder, in_bf16):
    setting = {"dtype": "bf16", "threads": 2} if in_bf16 else {}
    trainer = SPEC.trainer.model_copy(update={"learning_rate": 1e-3, **setting})
    straight, resumed = (TorchLearner(folder, SPEC.model_copy(update={"trainer": trainer})) for _ in range(2))
    before = {name: tensor.clone() for name, tensor in straight.weights().items()}
    straight.train(batch(0))
    assert [name for name, tensor in straight.weights().items() if torch.equal(tensor, before[name])] == []
    state = ({name: tensor.clone() for name, tensor in part.items()} for part in (straight.weights(), straight.optimizer_tensors()))
    resumed.restore(1, *state)
    for learner in (straight, resumed):
        learner.train(batch(1))
    assert all(torch.equal(tensor, resumed.weights()[name]) for name, tensor in straight.weights().items())


def test_weights_are_exported_under_the_names_of_transformers(folder, family):
    exported = {name: parameter.shape for name, parameter in load_causal_lm(folder).named_parameters()}
    if family.experts or family.prefix:  # in transformers' module they are fused, or have other names, but not in its files
        assert exported == {name: tensor.shape for name, tensor in trained(folder).items()}
        return
    expected = {name: parameter.shape for name, parameter in theirs(folder).named_parameters()}
    assert list(exported.items()) == list(expected.items())


def test_a_submission_is_checked_for_the_names_and_shapes_of_the_weights(folder):
    expected = {name: tuple(parameter.shape) for name, parameter in load_causal_lm(folder).named_parameters()}
    config = read_model_config(folder)
    assert list(tensor_shapes(config).items()) == list(expected.items())
    check_weights(folder, config)


def test_biases_that_config_json_states_are_among_the_names(family, tmp_path):
    model = make_model(family.model_type, **FAMILIES[family.model_type] | {"attention_bias": True, "mlp_bias": True})
    save(model, tmp_path)
    others = family.experts or family.prefix
    names = trained(tmp_path).keys() if others else {name for name, _ in model.named_parameters()}
    assert tensor_shapes(read_model_config(tmp_path)).keys() == names


def test_its_linear_layers_are_all_of_a_decoder_layer_and_may_be_named_in_a_spec(folder, family):
    layer = text_model(theirs(folder)).layers[0]
    part = layer.self_attn if family.experts else layer
    matrices = {name.rpartition(".")[2] for name, module in part.named_modules() if isinstance(module, torch.nn.Linear)}
    assert set(family.adapted_layers) == matrices
    assert matrices <= set(get_args(LinearLayer))
    others = bool({"qkv_proj", "gate_up_proj"} & matrices) or family.experts is not None
    assert others is not (set(LoraSpec().target_modules) <= matrices)
    refused = ["trainer.lora"] * ("lora" not in family.capabilities)
    assert [fault.path for fault in faults_of(family, lora=LoraSpec())] == refused + ["trainer.lora.target_modules"] * others


def test_adapters_have_the_names_and_shapes_of_peft(folder, family):
    lora = LoraSpec(rank=3, alpha=6.0, target_modules=family.adapted_layers)
    model = load_causal_lm(folder)
    base = {name: parameter.shape for name, parameter in model.named_parameters()}
    if "lora" not in family.capabilities:
        with pytest.raises(ModelError, match="lora is not computed for"):
            add_adapters(model, lora, 0)
        return
    found = {name: tuple(parameter.shape) for name, parameter in add_adapters(model, lora, 0).items()}
    config = LoraConfig(r=3, lora_alpha=6.0, target_modules=list(lora.target_modules), task_type="CAUSAL_LM")
    stored = get_peft_model_state_dict(get_peft_model(theirs(folder), config))
    assert found == {name: tuple(tensor.shape) for name, tensor in stored.items()} == adapter_shapes(base, lora)


def test_batch_invariant_bits_do_not_depend_on_the_packing(folder, family, sequences):
    model = load_causal_lm(folder)
    if "batch_invariant" not in family.capabilities or model.config.invariant_lacks:
        with pytest.raises(ModelError, match=r"batch_invariant.* choose (a|another) model"):
            invariant_packed_logprobs(model, sequences, 0.7)
        return
    together, _ = invariant_packed_logprobs(model, sequences, 0.7)
    assert torch.equal(together, torch.cat([invariant_packed_logprobs(model, [sequence], 0.7)[0] for sequence in sequences]))
    torch.testing.assert_close(together, packed_logprobs(model, sequences, 0.7)[0], atol=3e-4, rtol=3e-4)


def test_the_embedded_engine_takes_it_if_it_says_so(folder, family):
    config = read_model_config(folder)
    if "embedded_engine" in family.capabilities and not config.engine_lacks:
        assert read_supported_config(folder) == config
    else:
        with pytest.raises(ModelError, match=r"embedded_engine is not computed for|the embedded engine does not compute"):
            read_supported_config(folder)


@pytest.mark.parametrize("capability", get_args(Capability))
def test_what_a_family_cannot_is_refused_with_the_families_that_can(family, capability):
    less = dataclasses.replace(family, capabilities=family.capabilities - {capability})
    path, asking = ASKING[capability]
    if capability in family.capabilities:
        family.require(capability)
        assert faults_of(family, **asking) == []
    assert [fault.path for fault in faults_of(less, **asking)] == [path]
    with pytest.raises(ModelError, match=f"{capability} is not computed for {family.architecture}; choose a model of one of: .*Llama"):
        less.require(capability)


def test_a_spec_that_asks_for_more_than_a_family_can_has_faults(family):
    first, second = family.adapted_layers[:2]
    lora = LoraSpec(target_modules=(first, second))
    full = dataclasses.replace(family, capabilities=frozenset(get_args(Capability)))
    less = dataclasses.replace(family, capabilities=frozenset(), linear_layers=(first,), experts=None)
    assert faults_of(full, "torch", "batch_invariant", lora) == faults_of(less) == []
    paths = [fault.path for fault in faults_of(less, "torch", "batch_invariant", lora)]
    assert paths == ["rollout.engine", "numerics", "trainer.lora", "trainer.lora.target_modules"]


def test_the_families_of_today_have_every_capability():
    assert {name for name, family in MODEL_FAMILIES.items() if family.capabilities == set(get_args(Capability))} >= {"llama", "qwen2"}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_embedded_engine_alone_is_refused_with_the_families_that_it_computes(family, engine):
    less = dataclasses.replace(family, capabilities=family.capabilities - {"embedded_engine"})
    faults = faults_of(less, engine)
    assert [(fault.path, fault.given) for fault in faults] == [("rollout.engine", engine)] * ENGINES[engine].embedded
    assert all(family.architecture in fault.message and "an engine that is a server" in fault.allowed for fault in faults)
    assert all("Llama" in fault.allowed for fault in faults)
