"""The features that config.json may ask for."""

import json

import pytest

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus_kernels.models.config import RopeConfig, read_model_config

BASE = {
    "model_type": "qwen2",
    "vocab_size": 29,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


@pytest.fixture
def shape_of(tmp_path):
    def read(**changes):
        (tmp_path / "config.json").write_text(json.dumps(BASE | changes))
        return read_model_config(tmp_path)

    return read


@pytest.mark.parametrize("family", MODEL_FAMILIES.values(), ids=MODEL_FAMILIES)
def test_what_is_computed_is_what_a_submission_may_name(shape_of, family, tmp_path):
    shape = shape_of(model_type=family.model_type, architectures=[family.architecture])
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    assert shape.family == check_model_folder(tmp_path).family == family


def test_what_is_not_said_has_the_usual_value(shape_of):
    shape = shape_of(num_key_value_heads=None, head_dim=None)
    assert (shape.kv_heads, shape.head_dim, shape.norm_eps, shape.tied) == (4, 8, 1e-6, False)
    assert shape.rope == RopeConfig(10_000.0, "default", {})
    assert shape.windows == (None,) * 4


def test_biases_are_each_familys_own(shape_of):
    asked = {"attention_bias": True, "mlp_bias": True}
    found = [shape_of(model_type=family, **extra) for family in ("llama", "qwen2") for extra in ({}, asked)]
    assert [(shape.qkv_bias, shape.out_bias, shape.mlp_bias) for shape in found] == [
        (False, False, False),
        (True, True, True),
        (True, False, False),
        (True, False, False),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2}},
        {"rope_theta": 50, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
)
def test_old_and_new_names_of_the_rotary_settings_say_the_same(shape_of, fields):
    assert shape_of(**fields).rope == RopeConfig(50.0, "linear", {"factor": 2.0})


@pytest.mark.parametrize(
    ("fields", "original"),
    [({}, 64.0), ({"rope_scaling": {"original_max_position_embeddings": 16}}, 16.0), ({"original_max_position_embeddings": 8}, 8.0)],
)
def test_the_context_before_stretching_is_found_where_it_stands(shape_of, fields, original):
    scaling = {"type": "yarn", "factor": 4.0} | fields.pop("rope_scaling", {})
    assert shape_of(**fields, rope_scaling=scaling).rope.scaling["original_max_position_embeddings"] == original


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3}, (None, None, None, 7)),
        ({"use_sliding_window": True, "max_window_layers": 2}, (None, None, 4096, 4096)),
        ({"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 0}, (None,) * 4),
        (
            {"use_sliding_window": True, "sliding_window": 7, "layer_types": ["sliding_attention", *["full_attention"] * 3]},
            (7, None, None, None),
        ),
        ({"model_type": "llama", "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}, (None,) * 4),
    ],
)
def test_windows_are_those_of_qwen2s_layers(shape_of, fields, windows):
    assert shape_of(**fields).windows == windows


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mistral"}, "use one of llama, qwen2"),
        ({"model_type": None}, "use one of llama, qwen2"),
        ({"hidden_size": "wide"}, "must be a whole number above 0"),
        ({"num_hidden_layers": 0}, "must be a whole number above 0"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"head_dim": 7}, "do not divide"),
        ({"hidden_act": "gelu"}, "choose another model"),
        ({"quantization_config": {"bits": 4}}, "choose another model"),
        ({"partial_rotary_factor": 0.5}, "choose another model"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "choose a model with one of default, linear, llama3, yarn"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "misstates 'factor'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "misstates 'low_freq_factor'"),
        ({"rope_scaling": [1]}, "save the model again"),
        ({"rms_norm_eps": "small"}, "save the model again"),
        ({"layer_types": ["full_attention"]}, "save the model again"),
        ({"layer_types": ["chunked_attention"] * 4}, "save the model again"),
    ],
)
def test_what_is_not_computed_is_refused_with_what_to_do(shape_of, fields, message):
    with pytest.raises(ModelError, match=message):
        shape_of(**fields)
