"""The contract of families that transformers computes: Gradbus's interface around its model changes no number of it."""

import shutil

import pytest
import torch
from family_lab import assert_batch_is_rows_alone, assert_checkpointing_keeps_bits, logprobs_of, rows, save, theirs
from learner_lab import SPEC, batch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, Qwen3_5ForConditionalGeneration
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers_lab import PACKED, RECURRENT, ROWS, make_transformers_model, qwen3_5_of_images

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.formats.model_weights import read_name_plan
from gradbus.formats.transformers_families import TRANSFORMERS_FAMILIES, TransformersFamily
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_kernels.models.fallback.attention import PACKED_ATTENTION
from gradbus_rollout.engines.server.version_folder import model_tensors
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.tensors.base_folder import BaseFolder
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch

EVERY = [name for name, family in TRANSFORMERS_FAMILIES.items() if not family.inner and name not in MODEL_FAMILIES]
BY_THREADS = {"dtype": "bf16", "threads": 2}
BY_THREADS_OFTEN = ("deepseek_v3", "nemotron_h")
"""One packed and one by rows; the others are trained by threads in `make test-faults`."""
TRAINED = [(name, setting) for name in (*PACKED, *ROWS) for setting in ({}, BY_THREADS)]
BOUND = 1e-5
"""Of log-probabilities in float32, nats."""


@pytest.fixture(scope="module", params=[*PACKED, *ROWS])
def folder(request, tmp_path_factory):
    return save(make_transformers_model(request.param), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def sequences():
    return rows()


@pytest.fixture(scope="module")
def expected(folder, sequences):
    """Log-probabilities by transformers, with a graph."""
    model = theirs(folder)
    return model, logprobs_of(model, sequences, 0.7)


def test_a_gpu_would_convolve_float32_in_float32(folder):
    torch.backends.cudnn.allow_tf32 = True
    load_causal_lm(folder)
    assert not torch.backends.cudnn.allow_tf32


def trained(model):
    return LazyTensors.of(dict(model.stored(dict(model.named_parameters()))))


def test_a_saved_folder_is_of_its_family(folder):
    family = check_model_folder(folder).family
    assert family == TRANSFORMERS_FAMILIES[family.model_type]
    assert type(theirs(folder)).__name__ == family.architecture
    assert load_causal_lm(folder).shares_prompts is (family.model_type in PACKED)


def test_log_probabilities_and_gradients_are_those_of_transformers(folder, expected, sequences):
    ours, (model, logprobs) = load_causal_lm(folder), expected
    found, _ = packed_logprobs(ours, sequences, 0.7)
    torch.testing.assert_close(found, logprobs, rtol=0.0, atol=BOUND)
    factors = torch.linspace(-1.0, 1.0, len(found))
    found.dot(factors).backward()
    gradients = torch.autograd.grad(logprobs.dot(factors), list(model.parameters()), retain_graph=True, allow_unused=True)
    for (name, parameter), gradient in zip(ours.named_parameters(), gradients, strict=True):
        assert (parameter.grad is None) is (gradient is None), name
        assert gradient is None or float((parameter.grad - gradient).norm()) < 1e-4 * float(gradient.norm()) + 1e-6, name


def test_in_bfloat16_the_error_is_no_more_than_twice_transformers_own(folder, sequences):
    with torch.no_grad():
        exact_model = theirs(folder, torch.bfloat16).double()
        exact_model.set_experts_implementation("eager")  # the other multiplies no float64
        exact = logprobs_of(exact_model, sequences, 0.7)
        error = (packed_logprobs(load_causal_lm(folder, torch.bfloat16), sequences, 0.7)[0] - exact).abs()
        their_error = (logprobs_of(theirs(folder, torch.bfloat16), sequences, 0.7) - exact).abs()
    assert error.mean() <= 2.0 * their_error.mean()


def test_a_batch_gives_what_each_of_its_sequences_gives_alone(folder, sequences):
    assert_batch_is_rows_alone(folder, sequences)


def test_layers_computed_again_give_the_same_bits(folder, sequences):
    assert_checkpointing_keeps_bits(folder, sequences)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_version_of_an_untrained_model_is_the_folder_and_loads_in_transformers(folder, dtype, tmp_path, sequences):
    model = load_causal_lm(folder)
    BaseFolder(folder).check_identity(trained(model), dtype)
    file = export_version(0, trained(model), False, Scratch(tmp_path / "scratch"), dtype).file
    (version := tmp_path / "version").mkdir()
    shutil.copy(file.path, version / "model.safetensors")
    shutil.copy(folder / "config.json", version)
    base, plan = load_file(folder / "model.safetensors"), read_name_plan(folder)
    exported = load_file(file.path)
    assert exported.keys() == plan.trained.keys() == base.keys() - plan.frozen.keys()
    assert all(torch.equal(tensor, base[name].to(dtype)) for name, tensor in exported.items())


@pytest.mark.parametrize(
    ("folder", "setting"),
    [
        pytest.param(
            name,
            setting,
            marks=[pytest.mark.slow] * bool(setting and name not in BY_THREADS_OFTEN),
            id=f"{name}-{'bf16_by_threads' if setting else 'fp32'}",
        )
        for name, setting in TRAINED
    ],
    indirect=["folder"],
)
def test_the_plain_trainer_moves_the_weights_and_resumes_to_the_same_bits(folder, setting):
    trainer = SPEC.trainer.model_copy(update={"learning_rate": 1e-3, **setting})
    straight, resumed = (TorchLearner(folder, SPEC.model_copy(update={"trainer": trainer})) for _ in range(2))
    before = {name: tensor.clone() for name, tensor in straight.weights().items()}
    straight.train(batch(0))
    still = [name for name, tensor in straight.weights().items() if torch.equal(tensor, before[name])]
    assert len(still) < len(before) / 4
    state = ({name: tensor.clone() for name, tensor in part.items()} for part in (straight.weights(), straight.optimizer_tensors()))
    resumed.restore(1, *state)
    for learner in (straight, resumed):
        learner.train(batch(1))
    assert all(torch.equal(tensor, resumed.weights()[name]) for name, tensor in straight.weights().items())


@pytest.mark.parametrize("model_type", RECURRENT)
def test_packing_a_model_with_a_state_would_be_found(model_type, sequences, tmp_path):
    model = load_causal_lm(save(make_transformers_model(model_type), tmp_path))
    with torch.no_grad():
        rows_alone, _ = packed_logprobs(model, sequences, 0.7)
        model.network.set_attn_implementation(PACKED_ATTENTION)
        model.shares_prompts = True
        packed, _ = packed_logprobs(model, sequences, 0.7)
    assert (packed - rows_alone).abs().max() > 1e-3


def test_the_text_of_qwen3_5_is_trained_and_its_vision_tower_and_further_heads_are_carried(sequences, tmp_path):
    folder = qwen3_5_of_images(tmp_path / "model")
    model, base = load_causal_lm(folder), load_file(folder / "model.safetensors")
    network = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        found, _ = packed_logprobs(model, sequences, 0.7)
        torch.testing.assert_close(found, logprobs_of(network, sequences, 0.7), rtol=0.0, atol=BOUND)
    BaseFolder(folder).check_identity(trained(model), torch.float32)
    scratch = Scratch(tmp_path / "scratch")
    files = [export_version(0, trained(model), False, scratch).file, BaseFolder(folder).write_frozen(scratch)]
    version = {name: tensor for file in files for name, tensor in load_file(file.path).items()}
    assert version.keys() == base.keys() == model_tensors(folder).keys()
    assert all(torch.equal(tensor, base[name]) and tensor.dtype == base[name].dtype for name, tensor in version.items())
    assert {name.split(".")[1] for name in load_file(files[1].path)} == {"visual", "fc"}


@pytest.mark.parametrize("model_type", ["deepseek_v3", "minimax_m2"])
def test_one_expert_in_anothers_place_is_found_at_the_start(model_type, tmp_path):
    folder = save(make_transformers_model(model_type), tmp_path)
    model = load_causal_lm(folder)
    BaseFolder(folder).check_identity(trained(model), torch.float32)
    experts = next(parameter for name, parameter in model.named_parameters() if name.endswith("experts.gate_up_proj"))
    experts.data = experts.data.roll(1, 0)
    with pytest.raises(ModelError, match="the trainer would publish other weights than the model's folder has: 8 tensors differ"):
        BaseFolder(folder).check_identity(trained(model), torch.float32)


def test_a_loss_of_routers_that_config_json_asks_for_is_not_added(tmp_path, sequences):
    gradients = []
    for changes in ({}, {"output_router_logits": True, "router_aux_loss_coef": 10.0}):
        model = load_causal_lm(save(make_transformers_model("minimax_m2", **changes), tmp_path / str(len(changes))))
        packed_logprobs(model, sequences, 0.7)[0].sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_a_head_that_is_scaled_otherwise_is_found_at_the_start(tmp_path, monkeypatch):
    folder = save(make_transformers_model("cohere"), tmp_path)
    monkeypatch.setattr("gradbus_kernels.models.fallback.model.logits_scale", lambda config: 1.0)
    with pytest.raises(ModelError, match="CohereForCausalLM is computed otherwise by Gradbus than by transformers"):
        load_causal_lm(folder)


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_state_that_leaks_is_found_at_the_start(model_type, tmp_path, monkeypatch):
    monkeypatch.setattr(TransformersFamily, "is_packed", lambda *_: True)
    with pytest.raises(ModelError, match="is computed otherwise by Gradbus than by transformers"):
        load_causal_lm(save(make_transformers_model(model_type), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", EVERY)
def test_every_listed_family_is_loaded_computed_and_published_as_transformers_does(model_type, sequences, tmp_path):
    folder = save(make_transformers_model(model_type), tmp_path)
    model = load_causal_lm(folder)
    BaseFolder(folder).check_identity(trained(model), torch.float32)
    with torch.no_grad():
        network = theirs(folder)
        network.config.use_cache = False
        torch.testing.assert_close(packed_logprobs(model, sequences, 0.7)[0], logprobs_of(network, sequences, 0.7), rtol=1e-6, atol=BOUND)


@pytest.mark.parametrize("name", TRANSFORMERS_FAMILIES)
def test_transformers_knows_each_family_by_these_names(name):
    family, config = TRANSFORMERS_FAMILIES[name], CONFIG_MAPPING[name]()
    assert family.model_type == name
    assert config.get_text_config().tie_word_embeddings is family.tied
    if not family.inner:
        assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name] == family.architecture
