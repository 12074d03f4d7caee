"""The headers of weights are compared with config.json; whatever they say, the answer is yes or a ModelError, in bounded time and room."""

import json
import math
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.model_config import read_model_config, redundant_shapes, tensor_shapes
from gradbus.formats.model_weights import check_weights
from gradbus.formats.safetensors import MAX_HEADER_BYTES, are_equal_values, header, read_headers

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "BOOL": 1}


@pytest.fixture
def folder(tmp_path, write_model):
    return write_model(tmp_path / "model")


@pytest.fixture
def shapes(folder):
    return tensor_shapes(read_model_config(folder))


def check(folder):
    info = check_model_folder(folder)
    check_weights(folder, read_model_config(folder))
    return info


def write(path, tensors, dtype="F32"):
    """A whole file of zeros with these tensors, name to shape."""
    data = header({name: (dtype, shape) for name, shape in tensors.items()})
    path.write_bytes(data + bytes(SIZES[dtype] * sum(map(math.prod, tensors.values()))))


def write_raw(path, described, data=b""):
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def shard(folder, shapes, **changed):
    """Two shards and their index, of which `changed` replaces entries."""
    (folder / "model.safetensors").unlink()
    names = sorted(shapes)
    index = {}
    for number, part in enumerate((names[:3], names[3:]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        write(folder / file, {name: shapes[name] for name in part})
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index | changed}))


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_the_tensors_of_the_model_are_taken_in_each_floating_point_dtype(folder, shapes, dtype):
    write(folder / "model.safetensors", shapes, dtype)
    assert check(folder).files == ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I64", "BOOL"])
def test_quantised_and_other_dtypes_are_refused(folder, shapes, dtype):
    write(folder / "model.safetensors", shapes, dtype)
    with pytest.raises(ModelError, match="are quantised or no floating-point numbers"):
        check(folder)


def test_shards_are_taken_with_their_index_and_other_files_are_left_out(folder, shapes):
    shard(folder, shapes)
    (folder / "consolidated.safetensors").write_bytes(b"a copy in another layout")
    assert [name for name in check(folder).files if name.startswith(("model", "cons"))] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]


def test_what_older_folders_store_beside_the_weights_may_be_there(folder, shapes):
    write(folder / "model.safetensors", shapes | redundant_shapes(read_model_config(folder)))
    check(folder)


def test_the_plan_has_every_name_in_the_models_order_and_what_is_frozen_beside(folder, shapes):
    plan = check_weights(folder, read_model_config(folder))
    assert (list(plan.trained), dict(plan.frozen)) == (list(shapes), {})
    write(folder / "model.safetensors", shapes, "BF16")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    write(folder / "model-00002-of-00002.safetensors", {"visual.patch": (3,), "mtp.layers.0.weight": (2, 2)}, "F8_E4M3")
    files = dict.fromkeys(shapes, "model-00001-of-00002.safetensors")
    files |= dict.fromkeys(("visual.patch", "mtp.layers.0.weight"), "model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    plan = check_weights(folder, read_model_config(folder))
    assert {name: tensor.shape for name, tensor in plan.trained.items()} == shapes
    assert {tensor.dtype for tensor in plan.trained.values()} == {"BF16"}
    assert {name: (tensor.dtype, tensor.file.name) for name, tensor in plan.frozen.items()} == dict.fromkeys(
        ("mtp.layers.0.weight", "visual.patch"), ("F8_E4M3", "model-00002-of-00002.safetensors")
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda shapes: shapes | {"model.layers.1.extra": (1,)}, r"1 tensors are not tensors of this model \(model.layers.1.extra\)"),
        (lambda shapes: {name: shape for name, shape in shapes.items() if "norm" not in name}, "3 tensors are missing"),
        (lambda shapes: shapes | {"model.norm.weight": (5,)}, r"another shape than in this model \(model.norm.weight\)"),
        (lambda shapes: shapes | {"model.norm.weight": (4, 1)}, "another shape"),
        (lambda shapes: shapes | {"lm_head.weight": (16, 5)}, r"another shape .*lm_head"),
        (lambda shapes: {f"transformer.{name}": shape for name, shape in shapes.items()}, "are missing"),
        (lambda shapes: shapes | {"x" * 100_000: (1,)}, "not tensors of this model"),
        (lambda _: {}, "are missing"),
    ],
)
def test_tensors_of_another_model_are_named(folder, shapes, change, words):
    write(folder / "model.safetensors", change(shapes))
    with pytest.raises(ModelError, match=words) as refused:
        check(folder)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_size": 8}, "another shape"),
        ({"intermediate_size": 9}, "another shape"),
        ({"vocab_size": 17}, "another shape"),
        ({"num_hidden_layers": 2}, "are missing"),
        ({"num_hidden_layers": 1024}, "are missing"),
        ({"tie_word_embeddings": False}, r"missing .*lm_head"),
        ({"attention_bias": True}, "are missing"),
        ({"num_key_value_heads": 1}, "another shape"),
    ],
)
def test_a_config_that_asks_for_other_weights_is_refused(folder, fields, words):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(ModelError, match=words):
        check(folder)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model.norm.weight": "model-00001-of-00002.safetensors"}, r"disagree about 1 tensors \(model.norm.weight\)"),
        ({"extra": "model-00001-of-00002.safetensors"}, "disagree about 1 tensors"),
        ({"extra": "elsewhere.safetensors"}, "names elsewhere.safetensors, which the model does not have"),
        ({"extra": "../../etc/passwd"}, "not a plain file name"),
        ({"extra": "/etc/passwd"}, "not a plain file name"),
        ({"extra": 3}, "no weight_map"),
    ],
)
def test_an_index_that_disagrees_with_the_shards_is_refused(folder, shapes, changed, words):
    shard(folder, shapes, **changed)
    with pytest.raises(ModelError, match=words):
        check(folder)


def test_shards_without_an_index_are_refused_with_what_to_do(folder, shapes):
    shard(folder, shapes)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"neither model.safetensors nor model.safetensors.index.json; save it"):
        check(folder)


def test_a_tensor_in_two_shards_is_refused(folder, shapes):
    shard(folder, shapes)
    write(folder / "model-00002-of-00002.safetensors", shapes)
    with pytest.raises(ModelError, match="in two of the weight files"):
        check(folder)


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
BROKEN = {
    "empty": b"",
    "too short": b"\x01\x00",
    "no header": (0).to_bytes(8, "little"),
    "a length beyond the file": (1 << 62).to_bytes(8, "little"),
    "a list": b"\x02" + bytes(7) + b"[]",
    "deep": (100_000).to_bytes(8, "little") + b'{"a":' + b"[" * 99_995,
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_without_a_header_is_refused(folder, case):
    (folder / "model.safetensors").write_bytes(BROKEN[case])
    with pytest.raises(ModelError, match=r"cannot read the weights in model.safetensors .*fetch them again"):
        check(folder)


@pytest.mark.parametrize(
    ("described", "data", "words"),
    [
        ({"a": ENTRY}, bytes(3), "tensors end at byte"),
        ({"a": ENTRY}, bytes(5), "tensors end at byte"),
        ({"a": ENTRY, "b": ENTRY}, bytes(4), "overlap"),
        ({"a": ENTRY | {"data_offsets": [4, 8]}}, bytes(8), "gaps"),
        ({"a": ENTRY | {"data_offsets": [4, 0]}}, bytes(4), "does not fit"),
        ({"a": ENTRY | {"data_offsets": [-4, 0]}}, bytes(4), "not a whole number"),
        ({"a": ENTRY | {"data_offsets": [0, 1 << 63]}}, bytes(4), "not a whole number"),
        ({"a": ENTRY | {"data_offsets": [0.0, 4.0]}}, bytes(4), "not a whole number"),
        ({"a": ENTRY | {"data_offsets": [False, 4]}}, bytes(4), "not a whole number"),
        ({"a": ENTRY | {"data_offsets": [0, 4, 8]}}, bytes(4), "broken"),
        ({"a": ENTRY | {"shape": [2]}}, bytes(4), "does not fit"),
        ({"a": ENTRY | {"shape": [1 << 62] * 9}}, bytes(4), "more than 8 dimensions"),
        ({"a": ENTRY | {"shape": [1 << 62] * 8}}, bytes(4), "does not fit"),
        ({"a": ENTRY | {"shape": "11"}}, bytes(4), "not a whole number"),
        ({"a": ENTRY | {"shape": None}}, bytes(4), "broken"),
        ({"a": ENTRY | {"dtype": "F4"}}, bytes(4), "dtype 'F4' is unknown"),
        ({"a": ENTRY | {"dtype": ["F32"]}}, bytes(4), "broken"),
        ({"a": 3}, bytes(4), "broken"),
        ({"__metadata__": {"format": 3}}, b"", "metadata is not text"),
        ({"__metadata__": []}, b"", "broken"),
        (b'{"a": NaN}', b"", "broken"),
        (b'{"\\ud800": 1}', b"", "broken"),
        (b'{"a": \xff}', b"", "broken"),
    ],
)
def test_a_broken_header_is_refused(folder, described, data, words):
    write_raw(folder / "model.safetensors", described, data)
    with pytest.raises(ModelError, match=words):
        check(folder)


def test_a_pointer_of_git_lfs_is_no_weights(folder):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 988097824\n"
    (folder / "model.safetensors").write_text(pointer)
    with pytest.raises(ModelError, match="it is a pointer of Git LFS and not the weights: `git lfs pull` in the folder fetches them"):
        check(folder)


def test_headers_are_not_read_beyond_their_bound(folder):
    with (folder / "model.safetensors").open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{")
        file.truncate(MAX_HEADER_BYTES * 2)
    with pytest.raises(ModelError, match=f"more than {MAX_HEADER_BYTES} bytes"):
        check(folder)


@pytest.mark.parametrize("filler", [b"[],", b"{},", b"1,", b'"a":[],'])
def test_a_crowded_header_takes_little_memory(folder, filler):
    room = MAX_HEADER_BYTES - 100
    write_raw(folder / "model.safetensors", b'{"a":[' + filler * (room // len(filler)) + b"1]}")
    tracemalloc.start()
    with pytest.raises(ModelError, match="more than 200000 values"):
        read_headers([folder / "model.safetensors"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MAX_HEADER_BYTES


def test_a_file_that_is_larger_than_its_kind_is_refused_unread(folder):
    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        with (folder / name).open("r+b" if (folder / name).exists() else "wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(ModelError, match=f"{name} has more than"):
            check(folder)
        (folder / name).write_text("{}")


FIELDS = ["dtype", "shape", "data_offsets", "a"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5) | st.just("F32"),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(described=st.dictionaries(st.sampled_from(["a", "b", "__metadata__", "model.norm.weight"]), JSON) | JSON, data=st.binary(max_size=9))
def test_any_header_is_taken_or_a_model_error(tmp_path_factory, described, data):
    path = tmp_path_factory.mktemp("headers", numbered=True) / "model.safetensors"
    write_raw(path, described, data)
    try:
        tensors = read_headers([path])
    except ModelError:
        return
    assert sum(tensor.end - tensor.start for tensor in tensors.values()) == len(data)


HALVES = struct.pack("<3f", 1.0, -2.5, 0.0)


@pytest.mark.parametrize(
    ("other", "dtype", "equal"),
    [
        (HALVES, "F32", True),
        (struct.pack("<3f", 1.0, -2.5, -0.0), "F32", True),
        (struct.pack("<3d", 1.0, -2.5, 0.0), "F64", True),
        (struct.pack("<3e", 1.0, -2.5, 0.0), "F16", True),
        (b"".join(HALVES[at + 2 : at + 4] for at in (0, 4, 8)), "BF16", True),
        (struct.pack("<3f", 1.0, 2.5, 0.0), "F32", False),
        (struct.pack("<3f", 1.0, -2.5, 1e-45), "F32", False),
        (struct.pack("<3d", 1.0, -2.5, 1e-300), "F64", False),
        (struct.pack("<3f", 1.0, -2.5, math.nan), "F32", False),
    ],
)
def test_numbers_are_compared_across_dtypes(other, dtype, equal):
    assert are_equal_values(HALVES, "F32", other, dtype) is equal
    assert are_equal_values(other, dtype, HALVES, "F32") is equal
    assert are_equal_values(other, dtype, other, dtype)
