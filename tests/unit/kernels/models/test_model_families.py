"""The contract of a model family: every registered family agrees with transformers and peft, and has its stated capabilities."""

import dataclasses
from typing import get_args

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import AutoConfig, AutoModelForCausalLM

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
from gradbus_kernels.models.lora import add_adapters
from gradbus_rollout.engines.torch.model import read_supported_config

SIZES = {
    "vocab_size": 29,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


ASKING = {
    "embedded_engine": ("rollout.engine", {"engine": "torch"}),
    "batch_invariant": ("numerics", {"numerics": "batch_invariant"}),
    "lora": ("trainer.lora", {"lora": LoraSpec()}),
}
"""Capability to the path of the fault and the settings that ask for it."""


@pytest.fixture(scope="module", params=MODEL_FAMILIES)
def family(request):
    return MODEL_FAMILIES[request.param]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, family, tmp_path_factory):
    """A folder that transformers saved of the family's model with random weights, biases and norms."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family.model_type, **SIZES, tie_word_embeddings=request.param)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    target = tmp_path_factory.mktemp(family.model_type)
    model.save_pretrained(target)
    (target / "tokenizer.json").touch()
    return target


@pytest.fixture
def sequences(make_tokens):
    shared = [make_tokens(20, length, 1, seed) for seed, length in enumerate((1, 3, 3, 6))]
    return [*shared, make_tokens(1, 1, 2), make_tokens(30, 12, 3)]


def faults_of(family, engine="sglang", numerics="fast", lora=None):
    return list(family.faults(RolloutSpec(engine=engine), numerics, lora))


def theirs(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def test_a_saved_folder_is_of_its_family_for_every_reader(folder, family):
    assert check_model_folder(folder).family == read_model_config(folder).family == family_of(family.model_type) == family
    assert type(theirs(folder)).__name__ == family.architecture


def test_log_probabilities_are_those_of_transformers(folder, sequences):
    found, _ = packed_logprobs(load_causal_lm(folder), sequences, 0.7)
    expected = []
    for sequence in sequences:
        ids = torch.tensor([*sequence.prompt_ids, *sequence.token_ids])[None]
        table = (theirs(folder)(ids).logits[0, len(sequence.prompt_ids) - 1 : -1] / 0.7).log_softmax(-1)
        expected.append(table.gather(1, ids[0, len(sequence.prompt_ids) :, None])[:, 0])
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-5)


def test_weights_are_exported_under_the_names_of_transformers(folder):
    exported = {name: parameter.shape for name, parameter in load_causal_lm(folder).named_parameters()}
    expected = {name: parameter.shape for name, parameter in theirs(folder).named_parameters()}
    assert list(exported.items()) == list(expected.items())


def test_a_submission_is_checked_for_the_names_and_shapes_of_transformers(folder):
    expected = {name: tuple(parameter.shape) for name, parameter in theirs(folder).named_parameters()}
    config = read_model_config(folder)
    assert list(tensor_shapes(config).items()) == list(expected.items())
    check_weights(folder, config)


def test_biases_that_config_json_states_are_among_the_names(family, tmp_path):
    config = AutoConfig.for_model(family.model_type, **SIZES, attention_bias=True, mlp_bias=True)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    assert tensor_shapes(read_model_config(tmp_path)).keys() == {name for name, _ in model.named_parameters()}


def test_its_linear_layers_are_all_of_a_decoder_layer_and_may_be_named_in_a_spec(folder, family):
    layer = theirs(folder).model.layers[0]
    matrices = {name.rpartition(".")[2] for name, module in layer.named_modules() if isinstance(module, torch.nn.Linear)}
    assert set(family.linear_layers) == matrices
    assert matrices <= set(get_args(LinearLayer))
    assert set(LoraSpec().target_modules) <= matrices


def test_adapters_have_the_names_and_shapes_of_peft(folder, family):
    lora = LoraSpec(rank=3, alpha=6.0, target_modules=family.linear_layers)
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
    if "batch_invariant" not in family.capabilities:
        with pytest.raises(ModelError, match="batch_invariant is not computed for"):
            invariant_packed_logprobs(model, sequences, 0.7)
        return
    together, _ = invariant_packed_logprobs(model, sequences, 0.7)
    assert torch.equal(together, torch.cat([invariant_packed_logprobs(model, [sequence], 0.7)[0] for sequence in sequences]))
    torch.testing.assert_close(together, packed_logprobs(model, sequences, 0.7)[0], atol=3e-4, rtol=3e-4)


def test_the_embedded_engine_takes_it_if_it_says_so(folder, family):
    if "embedded_engine" in family.capabilities:
        assert read_supported_config(folder) == read_model_config(folder)
    else:
        with pytest.raises(ModelError, match="embedded_engine is not computed for"):
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
    lora = LoraSpec(target_modules=("q_proj", "up_proj"))
    full = dataclasses.replace(family, capabilities=frozenset(get_args(Capability)))
    less = dataclasses.replace(family, capabilities=frozenset(), linear_layers=("q_proj",))
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


def test_every_family_is_among_the_tiny_models(model_types):
    assert model_types == set(MODEL_FAMILIES)
