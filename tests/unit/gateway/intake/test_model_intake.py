"""A model is checked alike in a folder of the server and as stored files, before anything large of it is read."""

import json
import math
import struct
import tracemalloc

import pytest

from gradbus.formats import safetensors
from gradbus.formats.model_config import read_model_config, tensor_shapes
from gradbus.formats.safetensors import MAX_HEADER_BYTES, header
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus.objects.paths import blob_path
from gradbus.spec import ModelSpec
from gradbus_gateway.intake.model import tied_head
from gradbus_gateway.intake.model.intake import ModelIntake
from gradbus_gateway.settings import GatewaySettings


@pytest.fixture
def folder(tmp_path, write_model):
    return write_model(tmp_path / "roots" / "model")


@pytest.fixture
def objects(tmp_path):
    return ObjectStore.open(f"file://{tmp_path}/objects")


@pytest.fixture
def new_intake(tmp_path, objects):
    return lambda **settings: ModelIntake(objects, GatewaySettings(model_roots=(tmp_path / "roots",), cache_dir=tmp_path / "c", **settings))


@pytest.fixture
def uploaded(folder, objects):
    """The model as a client names it that uploaded its files; arguments replace contents, or leave a file out."""

    async def upload(**changed):
        contents = {path.name: path.read_bytes() for path in folder.iterdir()} | changed
        return ModelSpec(path="model", files={name: await objects.put_blob(data) for name, data in contents.items() if data is not None})

    return upload


async def fault(intake, model):
    stored, faults = await intake.store(model, "someone")
    assert stored is None
    [found] = faults
    return found


def changed_config(folder, **fields):
    return json.dumps(json.loads((folder / "config.json").read_text()) | fields).encode()


async def test_a_folder_and_its_uploaded_files_are_one_model(new_intake, uploaded, folder):
    intake = new_intake()
    (here, none), (there, nothing) = await intake.store(ModelSpec(path="model"), "someone"), await intake.store(await uploaded(), "someone")
    assert none == nothing == []
    assert here.spec == there.spec
    assert (here.config, here.info) == (there.config, there.info)
    assert here.info.files == tuple(sorted(path.name for path in folder.iterdir()))


async def test_a_link_out_of_the_roots_is_refused_and_nothing_of_it_is_stored(new_intake, folder, objects, tmp_path):
    (tmp_path / "secret").write_text("the key")
    (folder / "merges.txt").symlink_to(tmp_path / "secret")
    found = await fault(new_intake(), ModelSpec(path="model"))
    assert found.message == "merges.txt is a symbolic link out of the server's roots; put the file itself there"
    assert not await objects.has_blob(digest_of(b"the key"))
    (folder / "merges.txt").unlink()
    (tmp_path / "roots" / "blobs").mkdir()
    (folder / "config.json").rename(tmp_path / "roots" / "blobs" / "config")
    (folder / "config.json").symlink_to(tmp_path / "roots" / "blobs" / "config")  # as in a cache of the hub
    assert (await new_intake().store(ModelSpec(path="model"), "someone"))[1] == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_size": 1 << 20}, "hidden_size"),
        ({"vocab_size": 1 << 33}, "vocab_size"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers"),
        ({"hidden_size": 8}, "another shape"),
        ({"num_hidden_layers": 3}, "missing from the weight files"),
        ({"eos_token_id": ["a", {}]}, "eos_token_id"),
        ({"auto_map": {}, "intermediate_size": 4}, "another shape"),
    ],
)
async def test_sizes_that_are_not_those_of_the_weights_are_refused(new_intake, uploaded, folder, fields, words):
    content = changed_config(folder, **fields)
    assert words in str(await fault(new_intake(), await uploaded(**{"config.json": content})))
    (folder / "config.json").write_bytes(content)
    assert words in str(await fault(new_intake(), ModelSpec(path="model")))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", b"weights", "cannot read the weights in model.safetensors"),
        ("model.safetensors", b"", "cannot read the weights in model.safetensors"),
        ("config.json", b'{"a": "\\ud800"}', "half of a surrogate pair"),
        ("config.json", b"[" * 10_000, "not JSON"),
        ("config.json", b'{"auto_map": "\\ud800"}', "half of a surrogate pair"),
        ("config.json", b'{"auto_map": ' + b"[" * 900 + b"]" * 900 + b"}", "not JSON"),
        ("tokenizer_config.json", b'{"auto_map": "\\ud800"}', "half of a surrogate pair"),
        ("tokenizer_config.json", b'{"auto_map": "' + b"x" * (1 << 20) + b'"}', "names code"),
        ("tokenizer.json", None, "tokenizer.json"),
    ],
)
async def test_a_damaged_file_is_named_without_a_path_of_the_server(new_intake, uploaded, folder, tmp_path, name, content, words):
    found = str(await fault(new_intake(), await uploaded(**{name: content})))
    assert words in found
    assert "/tmp" not in found
    (folder / name).write_bytes(content) if content is not None else (folder / name).unlink()
    found = str(await fault(new_intake(), ModelSpec(path="model")))
    assert words in found
    assert str(tmp_path) not in found


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "merges.txt"])
async def test_a_huge_file_is_refused_before_it_is_read(new_intake, uploaded, objects, tmp_path, name):
    model = await uploaded()
    digest = digest_of(name.encode())
    path = tmp_path / "objects" / blob_path(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{")
    with path.open("r+b") as file:
        file.truncate(1 << 36)
    tracemalloc.start()
    found = await fault(new_intake(), model.model_copy(update={"files": model.files | {name: digest}}))
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    assert f"{name} has more than" in str(found)


async def test_a_header_that_claims_to_be_huge_is_not_read(new_intake, uploaded, objects, tmp_path):
    model = await uploaded()
    digest = digest_of(b"huge")
    path = tmp_path / "objects" / blob_path(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((1 << 34).to_bytes(8, "little") + b"{")
    with path.open("r+b") as file:
        file.truncate(1 << 36)
    found = await fault(new_intake(), model.model_copy(update={"files": model.files | {"model.safetensors": digest}}))
    assert f"more than {MAX_HEADER_BYTES} bytes" in str(found)


@pytest.mark.parametrize(
    ("content", "has_template"),
    [
        (b"{}", False),
        (b'{"chat_template": "a"}', True),
        (b'{"chat_template": [{"name": "default", "template": "a"}]}', True),
        (b"[" * 50_000, False),
        (b'{"a": ' + b"[" * 50_000, False),
        (b"\xff", False),
    ],
)
async def test_a_tokenizer_s_configuration_is_not_parsed_here(new_intake, uploaded, content, has_template):
    stored, faults = await new_intake().store(await uploaded(**{"tokenizer_config.json": content}), "someone")
    assert faults == []
    assert stored.has_chat_template == has_template


async def test_a_model_beyond_the_operator_s_limit_is_refused(new_intake, uploaded):
    model = await uploaded()
    assert "GRADBUS_MAX_MODEL_BYTES" in str(await fault(new_intake(max_model_bytes=1000), model))
    assert "GRADBUS_MAX_MODEL_BYTES" in str(await fault(new_intake(max_model_bytes=1000), ModelSpec(path="model")))


async def test_a_file_that_is_not_stored_is_named(new_intake, uploaded):
    model = await uploaded()
    missing = model.model_copy(update={"files": model.files | {"merges.txt": digest_of(b"nowhere")}})
    found = await fault(new_intake(), missing)
    assert (found.path, found.message) == ("model.files.merges.txt", "the file is not stored")


async def test_a_folder_that_fails_the_check_is_not_stored(new_intake, folder, objects):
    (folder / "config.json").write_bytes(changed_config(folder, hidden_size=8))
    await fault(new_intake(), ModelSpec(path="model"))
    assert await objects.list("blobs") == []


async def test_weights_that_no_forward_reads_are_not_stored(new_intake, uploaded):
    stored, _ = await new_intake().store(await uploaded(**{"consolidated.safetensors": b"another layout", "notes.txt": b"x"}), "someone")
    assert not {"consolidated.safetensors", "notes.txt"} & set(stored.spec.files)


def tensor_file(**tensors):
    """A file of tensors, name to (dtype, shape, bytes)."""
    described = {name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()}
    return header(described) + b"".join(data for _, _, data in tensors.values())


def with_head(folder, head, dtype="F32"):
    """The folder's weights with an embedding of 1, 2, 3, ... and a head, as files by name: the head in a shard of its own."""
    table = struct.pack("<64f", *range(1, 65))
    shapes = tensor_shapes(read_model_config(folder))
    own = {name: ("F32", shape, bytes(4 * math.prod(shape))) for name, shape in shapes.items()}
    own["model.embed_tokens.weight"] = ("F32", (16, 4), table)
    files = {
        "model-00001-of-00002.safetensors": tensor_file(**{"lm_head.weight": (dtype, (16, 4), head)}),
        "model-00002-of-00002.safetensors": tensor_file(**own),
    }
    index = dict.fromkeys(own, "model-00002-of-00002.safetensors") | {"lm_head.weight": "model-00001-of-00002.safetensors"}
    return files | {"model.safetensors.index.json": json.dumps({"weight_map": index}).encode(), "model.safetensors": None}


async def stored_both_ways(intake, folder, uploaded, files):
    """The faults of a folder, and of its uploaded files."""
    model = await uploaded(**files)
    for name, content in files.items():
        (folder / name).write_bytes(content) if content is not None else (folder / name).unlink()
    return [(await intake.store(given, "someone"))[1] for given in (ModelSpec(path="model"), model)]


@pytest.mark.parametrize(("dtype", "code"), [("F32", "f"), ("F64", "d"), ("F16", "e")])
async def test_a_tied_head_that_is_stored_with_equal_values_is_taken(new_intake, uploaded, folder, monkeypatch, dtype, code):
    monkeypatch.setattr(tied_head, "PART_ELEMENTS", 24)  # the last part is shorter
    monkeypatch.setattr(safetensors, "PART_ELEMENTS", 24)
    files = with_head(folder, struct.pack(f"<64{code}", *range(1, 65)), dtype)
    assert await stored_both_ways(new_intake(), folder, uploaded, files) == [[], []]


@pytest.mark.parametrize("at", [1, 64], ids=["first", "last"])
async def test_a_tied_head_with_another_value_is_refused_before_anything_is_stored(new_intake, uploaded, folder, monkeypatch, objects, at):
    monkeypatch.setattr(tied_head, "PART_ELEMENTS", 24)
    monkeypatch.setattr(safetensors, "PART_ELEMENTS", 24)
    files = with_head(folder, struct.pack("<64f", *(value + (value == at) for value in range(1, 65))))
    words = "config.json ties it; set tie_word_embeddings to false there, or remove the head"
    [here], [there] = await stored_both_ways(new_intake(), folder, uploaded, files)
    assert words in str(here)
    assert words in str(there)
    for digest in await objects.list("blobs"):
        await objects.delete(digest)
    await fault(new_intake(), ModelSpec(path="model"))
    assert await objects.list("blobs") == []
