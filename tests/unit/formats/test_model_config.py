"""The features that config.json may ask for."""

import json
import math
import tracemalloc

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.model_config import read_model_config, redundant_shapes, tensor_shapes
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.formats.rope_config import RopeConfig
from gradbus_kernels.models.rotary import attention_factor, inverse_frequencies, pair_order, query_scales

BASE = {
    "model_type": "qwen2",
    "vocab_size": 29,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


NO_EPSILON = (0, 0.0, -1e-6, 2.0, True)
NO_THETA = (0, 0.0, -10_000.0, 1e13, False, "", [])


def of_family(name, changes):
    """config.json of a model of a family; of one with images, the changes are its text part's."""
    family = MODEL_FAMILIES.get(name) if isinstance(name, str) else None
    if family is None or not family.text_types:
        return BASE | {"model_type": name} | changes
    return {"model_type": name, "text_config": BASE | changes | {"model_type": family.text_types[-1]}}


@pytest.fixture
def shape_of(tmp_path):
    def read(**changes):
        architectures = {"architectures": changes.pop("architectures")} if "architectures" in changes else {}
        config = of_family(changes.pop("model_type", BASE["model_type"]), changes)
        (tmp_path / "config.json").write_text(json.dumps(config | architectures))
        return read_model_config(tmp_path)

    return read


@pytest.mark.parametrize("family", MODEL_FAMILIES.values(), ids=MODEL_FAMILIES)
def test_what_is_computed_is_what_a_submission_may_name(shape_of, family, tmp_path):
    shape = shape_of(model_type=family.model_type, architectures=[family.architecture], head_dim=8)
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    assert shape.family == check_model_folder(tmp_path).family == family


def test_what_is_not_said_has_the_usual_value(shape_of):
    shape = shape_of(num_key_value_heads=None, head_dim=None)
    assert (shape.kv_heads, shape.head_dim, shape.norms.eps, shape.tied) == (4, 8, 1e-6, False)
    assert shape.ropes == (RopeConfig(10_000.0, "default", {}),) * 4
    assert shape.windows == (None,) * 4


def test_biases_are_each_familys_own(shape_of):
    asked = {"attention_bias": True, "mlp_bias": True}
    found = [shape_of(model_type=family, **extra) for family in ("llama", "qwen2") for extra in ({}, asked)]
    assert [shape.biases for shape in found] == [
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
    assert shape_of(**fields).ropes == (RopeConfig(50.0, "linear", {"factor": 2.0}),) * 4


@pytest.mark.parametrize(
    ("fields", "original"),
    [({}, 64.0), ({"rope_scaling": {"original_max_position_embeddings": 16}}, 16.0), ({"original_max_position_embeddings": 8}, 8.0)],
)
def test_the_context_before_stretching_is_found_where_it_stands(shape_of, fields, original):
    scaling = {"type": "yarn", "factor": 4.0} | fields.pop("rope_scaling", {})
    assert shape_of(**fields, rope_scaling=scaling).ropes[0].scaling["original_max_position_embeddings"] == original


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
        ({"model_type": "mixtrals"}, "use one of .*llama.* qwen2, qwen3"),
        ({"model_type": None}, "use one of .*llama.* qwen2, qwen3"),
        ({"hidden_size": "wide"}, "must be a whole number above 0"),
        ({"num_hidden_layers": 0}, "must be a whole number above 0"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"head_dim": 7}, "heads of 7 elements, and an odd number makes no pairs"),
        ({"hidden_act": "gelu"}, "choose another model"),
        ({"quantization_config": {"bits": 4}}, "weights are quantised .* save it in bfloat16 with `save_pretrained`, and give that folder"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, r"quantization_config: 'mxfp4'\).* Mxfp4Config\(dequantize=True\)"),
        ({"partial_rotary_factor": 0.5}, "choose another model"),
        ({"partial_rotary_factor": 0}, "choose another model"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "choose a model with one of default, linear, llama3, yarn"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "misstates factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "misstates low_freq_factor"),
        ({"rope_scaling": [1]}, "save the model again"),
        ({"rms_norm_eps": "small"}, "save the model again"),
        *[({"rms_norm_eps": value}, "misstates rms_norm_eps") for value in NO_EPSILON],
        *[({place: {"rope_theta": value}}, "misstates rope_theta") for value in NO_THETA for place in ("rope_scaling", "rope_parameters")],
        *[({"rope_theta": value}, "misstates rope_theta") for value in NO_THETA],
        ({"layer_types": ["full_attention"]}, "save the model again"),
        ({"layer_types": ["chunked_attention"] * 4}, "save the model again"),
    ],
)
def test_what_is_not_computed_is_refused_with_what_to_do(shape_of, fields, message):
    with pytest.raises(ModelError, match=message):
        shape_of(**fields)


def test_a_quantised_model_with_images_is_refused_by_what_stands_beside_its_text(tmp_path):
    config = of_family("mistral3", {}) | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"weights are quantised \(quantization_config: 'fp8'\)"):
        read_model_config(tmp_path)


HUGE = 1 << 62


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": 1 << 20},
        {"vocab_size": 1 << 33},
        {"intermediate_size": 1 << 33},
        {"num_hidden_layers": 10**7},
        {"max_position_embeddings": 1 << 40},
        {"num_attention_heads": 1 << 20},
        {"num_attention_heads": 64},
        {"num_key_value_heads": 8},
        {"num_key_value_heads": HUGE},
        {"num_key_value_heads": 0},
        {"num_key_value_heads": 2.0},
        {"head_dim": HUGE},
        {"head_dim": True},
        {"head_dim": -8},
        {"head_dim": 258, "hidden_size": 256},
        {"head_dim": 1024},
        {"hidden_size": 32.0},
        {"hidden_size": True},
        {"hidden_size": -32},
        {"hidden_size": 10**299},
        {"num_hidden_layers": "4"},
        {"num_hidden_layers": None},
        {"rms_norm_eps": -1.0},
        {"rms_norm_eps": True},
        {"rms_norm_eps": 1e300},
        {"tie_word_embeddings": "no"},
        {"tie_word_embeddings": 1},
        {"model_type": "llama", "attention_bias": "yes"},
        {"model_type": "llama", "mlp_bias": []},
        {"use_sliding_window": "yes"},
        {"use_sliding_window": True, "sliding_window": HUGE},
        {"use_sliding_window": True, "sliding_window": -1},
        {"max_window_layers": [1]},
        {"layer_types": "full_attention"},
        {"layer_types": [{}] * 4},
        {"layer_types": ["full_attention"] * 100_000},
        {"eos_token_id": 29},
        {"eos_token_id": -1},
        {"eos_token_id": [1, 29]},
        {"eos_token_id": ["a", {}]},
        {"eos_token_id": True},
        {"bos_token_id": 1 << 40},
        {"bos_token_id": 1.5},
        {"rope_theta": 0.5},
        {"rope_theta": -1.0},
        {"rope_theta": 1e300},
        {"rope_theta": "fast"},
        {"rope_scaling": "yarn"},
        {"rope_scaling": {"rope_type": ["yarn"]}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": -2}},
        {"rope_scaling": {"rope_type": "linear", "factor": 1e300}},
        {"rope_scaling": {"rope_type": "linear", "factor": [2]}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": HUGE}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0.5}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 0.0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
        {"partial_rotary_factor": [1.0]},
        {"hidden_act": {"silu": 1}},
    ],
)
def test_sizes_and_settings_beyond_what_models_have_are_refused(shape_of, fields):
    tracemalloc.start()
    with pytest.raises(ModelError, match=r"config\.json .*; ") as refused:
        shape_of(**fields)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20, "sizes are bounded before anything is made of them"
    assert len(str(refused.value)) < 500


def test_the_largest_models_of_today_are_read(shape_of):
    seventy_billion = {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "bos_token_id": 128_000,
        "eos_token_id": [128_001, 128_008, 128_009],
    }
    config = shape_of(**seventy_billion)
    assert len(tensor_shapes(config)) == 723
    assert sum(rows * (columns[0] if columns else 1) for rows, *columns in tensor_shapes(config).values()) == 70_553_706_496
    largest = {"num_hidden_layers": 126, "hidden_size": 16_384, "intermediate_size": 53_248, "num_attention_heads": 128}
    assert shape_of(**seventy_billion | largest).layers == 126


NUMBERS = st.integers(-2, 40) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "yarn", "llama3", "linear", "full_attention", "silu"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["rope_type", "type", "factor", "rope_theta", "full_attention", "sliding_attention", "partial_rotary_factor"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)
SCALING = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["yarn", "llama3", "linear"])},
    optional=dict.fromkeys(
        (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "original_max_position_embeddings",
            "llama_4_scaling_beta",
        ),
        VALUES,
    ),
)
LONGROPE = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["longrope", "su"]), "short_factor": st.lists(st.floats(0.5, 90.0), min_size=1, max_size=4) | VALUES},
    optional=dict.fromkeys(("factor", "attention_factor", "original_max_position_embeddings", "long_factor"), VALUES),
)
FIELDS = [
    *BASE,
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window"),
    *("sliding_window", "max_window_layers", "layer_types", "eos_token_id", "bos_token_id", "rope_theta", "rope_parameters"),
    *("hidden_act", "partial_rotary_factor", "quantization_config", "original_max_position_embeddings"),
    *("no_rope_layers", "no_rope_layer_interval", "sliding_window_pattern", "rope_local_base_freq", "attention_out_bias"),
    *("query_pre_attn_scalar", "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"),
    *("hidden_activation", "final_logit_softcapping", "attn_logit_softcapping"),
    *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
    *("mlp_only_layers", "decoder_sparse_step"),
]


@given(
    family=st.sampled_from(sorted(MODEL_FAMILIES)),
    changes=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
    scaling=st.none() | SCALING | LONGROPE | VALUES,
)
def test_any_config_is_read_or_refused_and_what_is_read_can_be_computed_with(tmp_path_factory, family, changes, scaling):
    folder = tmp_path_factory.mktemp("config", numbered=True)
    (folder / "config.json").write_text(json.dumps(of_family(family, {"rope_scaling": scaling} | changes)))
    try:
        config = read_model_config(folder)
    except ModelError:
        return
    shapes = tensor_shapes(config)
    assert len(shapes) >= (len(config.family.linear_layers) + len(config.family.norms)) * config.layers
    assert all(size > 0 for shape in (*shapes.values(), *redundant_shapes(config).values()) for size in shape)
    for rope in {id(rope): rope for rope in config.ropes if rope}.values():
        assert inverse_frequencies(rope, config.head_dim).isfinite().all()
        assert attention_factor(rope) >= 0.0
        assert sorted(pair_order(rope, config.head_dim, config.family.rope_pairs == "neighbours")) == list(range(config.head_dim))
    assert all(math.isfinite(factor) for factor in config.multipliers)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "misstates no_rope_layers"),
        ({"model_type": "smollm3", "no_rope_layer_interval": 0}, "no_rope_layer_interval = 0"),
        (
            {"model_type": "gemma3_text", "head_dim": 8, "final_logit_softcapping": 30.0},
            "final_logit_softcapping = 30.0, which is not computed",
        ),
        ({"model_type": "gemma2", "head_dim": 8, "final_logit_softcapping": 0.0}, r"misstates final_logit_softcapping \(0\.0\)"),
        ({"model_type": "gemma2", "head_dim": 8, "attn_logit_softcapping": "50"}, r"misstates attn_logit_softcapping \('50'\)"),
        ({"model_type": "gemma3_text", "head_dim": 8, "hidden_activation": "silu"}, "hidden_activation = 'silu', which is not computed"),
        ({"model_type": "gemma3_text", "head_dim": 8, "sliding_window_pattern": 0}, "sliding_window_pattern = 0"),
        (
            {"model_type": "gemma3_text", "head_dim": 8, "rope_parameters": {"full_attention": {}}},
            r"misstates rope_parameters\.sliding_attention",
        ),
        ({"model_type": "granite", "logits_scaling": 0.0}, "misstates logits_scaling"),
        ({"model_type": "granite", "residual_multiplier": "small"}, "misstates residual_multiplier"),
        ({"model_type": "glm4", "head_dim": 8, "partial_rotary_factor": 0.4}, "asks to turn 3 elements of a head, which make no pairs"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 2.0}},
            "rope type 'yarn', which is not computed; choose a model with one of default, longrope",
        ),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "misstates short_factor"),
        ({"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1.0, 0.0]}}, r"misstates short_factor \(0\.0\)"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "1 numbers in short_factor for 4 pairs of a head",
        ),
        (
            {"model_type": "qwen3", "head_dim": 8, "partial_rotary_factor": 0.5},
            "is not computed for Qwen3ForCausalLM; choose another model",
        ),
    ],
)
def test_what_a_family_does_not_compute_is_refused_by_its_name(shape_of, fields, message):
    with pytest.raises(ModelError, match=message):
        shape_of(**fields)


def test_a_softcap_that_is_missing_has_its_default_and_one_that_is_null_is_none(shape_of):
    gemma = {"model_type": "gemma2", "head_dim": 8}
    assert shape_of(**gemma).multipliers[4:] == (50.0, 30.0)
    assert shape_of(**gemma, attn_logit_softcapping=None, final_logit_softcapping=20).multipliers[4:] == (0.0, 20.0)
    assert shape_of(**gemma).windows == (4096, None, 4096, None)


IMAGES = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "vision_config": {}}


@pytest.mark.parametrize(
    ("stated", "tied"),
    [
        ({}, False),
        ({"tie_word_embeddings": True}, True),
        ({"text_config": {"tie_word_embeddings": True}}, True),
        ({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}, False),
    ],
)
def test_a_model_with_images_is_read_from_its_text_part(tmp_path, stated, tied):
    text = BASE | {"model_type": "mistral", "head_dim": 8} | stated.get("text_config", {})
    (tmp_path / "config.json").write_text(json.dumps(IMAGES | stated | {"text_config": text}))
    config = read_model_config(tmp_path)
    assert (config.tied, config.windows, config.family.model_type) == (tied, (4096,) * 4, "mistral3")
    names = tensor_shapes(config).keys() | redundant_shapes(config).keys()
    assert all(name.startswith(("language_model.model.", "language_model.lm_head.")) for name in names)
    assert config.family.own_name("language_model.lm_head.weight") == "lm_head.weight"
    assert "language_model.lm_head.weight" in (redundant_shapes(config) if tied else tensor_shapes(config))


@pytest.mark.parametrize("text", [None, [], {}, BASE])
def test_a_text_part_of_another_kind_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(json.dumps(IMAGES | {"text_config": text}))
    with pytest.raises(ModelError, match="is trained with one of mistral, ministral3; choose another model"):
        read_model_config(tmp_path)


def test_queries_grow_where_the_family_has_that_scale(shape_of):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.5}
    found = shape_of(model_type="ministral3", head_dim=8, rope_parameters=rope).ropes[0]
    expected = torch.tensor([1.0, 1.0, 1.0 + 0.5 * math.log(2.0), 1.0 + 0.5 * math.log(4.0)])
    torch.testing.assert_close(query_scales(found, torch.tensor([0.0, 15.0, 16.0, 63.0])), expected)
    assert shape_of(model_type="mistral", rope_parameters=rope).ropes[0].query_beta == 0.0
    assert shape_of(model_type="ministral3", head_dim=8, rope_parameters={"rope_type": "default"}).ropes[0].query_beta == 0.0
    with pytest.raises(ModelError, match="misstates rope_type"):
        shape_of(model_type="ministral3", head_dim=8, rope_parameters=rope | {"rope_type": "linear"})
    with pytest.raises(ModelError, match="misstates llama_4_scaling_beta"):
        shape_of(model_type="ministral3", head_dim=8, rope_parameters=rope | {"llama_4_scaling_beta": -1.0})


@pytest.mark.parametrize("kind", ["longrope", "su"])
def test_with_longrope_the_context_ends_where_other_frequencies_begin(shape_of, kind):
    rope = {"type": kind, "short_factor": [1.0, 1.5, 2.0, 4.0], "long_factor": [1.0, 2.0, 8.0, 50.0]}
    shape = shape_of(model_type="phi3", original_max_position_embeddings=16, rope_scaling=rope)
    assert shape.context_length == 16
    factor = math.sqrt(1.0 + math.log(64 / 16) / math.log(16))
    assert shape.ropes[0] == RopeConfig(10_000.0, "longrope", {"attention_factor": factor}, 1.0, (1.0, 1.5, 2.0, 4.0))
    stated = shape_of(model_type="phi3", original_max_position_embeddings=16, rope_scaling=rope | {"attention_factor": 1.25})
    assert attention_factor(stated.ropes[0]) == 1.25
    unstretched = shape_of(model_type="phi3", rope_scaling=rope)
    assert (unstretched.context_length, attention_factor(unstretched.ropes[0])) == (64, 1.0)


def test_layers_differ_as_the_family_says(shape_of):
    local, everywhere = RopeConfig(5000.0, "default", {}), RopeConfig(1e6, "linear", {"factor": 8.0})
    gemma = {"model_type": "gemma3_text", "head_dim": 8, "sliding_window_pattern": 3, "sliding_window": 7}
    shape = shape_of(**gemma, rope_theta=1e6, rope_local_base_freq=5000, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert shape.windows == (7, 7, None, 7)
    assert shape.ropes == (local, local, everywhere, local)
    assert (shape.multipliers.embedding, shape.multipliers.scores, shape.tied) == (32**0.5, 256**-0.5, True)
    turned = [rope is not None for rope in shape_of(model_type="smollm3", no_rope_layer_interval=2).ropes]
    assert turned == [True, False, True, False]
    assert shape_of(model_type="mistral").windows == (4096,) * 4
    assert shape_of(model_type="mistral", sliding_window=None).windows == (None,) * 4
    factors = {"embedding_multiplier": 12, "residual_multiplier": 0.2, "attention_multiplier": 0.5, "logits_scaling": 8}
    assert shape_of(model_type="granite", **factors).multipliers == (12.0, 0.2, 0.5, 0.125, 0.0, 0.0)


def test_a_base_that_is_not_stated_is_the_familys(shape_of):
    def bases(**fields):
        return [rope.theta for rope in shape_of(**fields).ropes if rope]

    kinds = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    gemma = {"model_type": "gemma3_text", "head_dim": 8, "sliding_window_pattern": 2, "rope_parameters": kinds}
    assert bases(**gemma) == [10_000.0, 1e6, 10_000.0, 1e6]
    assert bases(**gemma, rope_theta=2e6, rope_local_base_freq=5000) == [5000.0, 2e6, 5000.0, 2e6]
    assert bases(model_type="olmo3", rope_parameters={"rope_type": "default", "rope_theta": 1e6}) == [1e6] * 4
    assert bases(model_type="smollm3") == [2e6] * 3
    ministral, *_ = shape_of(model_type="ministral3", head_dim=8, max_position_embeddings=1 << 18).ropes
    assert (ministral.theta, ministral.kind, ministral.query_beta) == (1e6, "yarn", 0.1)


def test_a_stated_factor_stretches_from_the_context_before_it_however_short_the_model_is_now(shape_of):
    rope = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 8.0}
    shape = shape_of(model_type="phi3", original_max_position_embeddings=4096, rope_scaling=rope)
    assert shape.context_length == BASE["max_position_embeddings"]
    assert attention_factor(shape.ropes[0]) == math.sqrt(1.0 + math.log(8.0) / math.log(4096))


def test_only_gemma_3_states_which_layers_see_everything(shape_of):
    def windows(name):
        return [window is not None for window in shape_of(model_type=name, head_dim=8, sliding_window=7, sliding_window_pattern=3).windows]

    assert windows("gemma3_text") == [True, True, False, True]
    assert windows("gemma2") == windows("gpt_oss") == [True, False, True, False]
    assert windows("olmo3") == [True, True, True, False]
