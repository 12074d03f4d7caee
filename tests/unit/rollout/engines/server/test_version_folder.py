"""Safetensors files are read, checked and digested without torch, and the digest is the one that trainers publish."""

import json

import pytest
import torch
from safetensors.torch import save_file

from gradbus.errors import DiskError, ModelError
from gradbus.formats.safetensors import check_tensors, read_headers
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.engines.server.version_folder import digest, drop_version_folder, make_version_folder, model_tensors
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings
from gradbus_rollout.engines.sglang.version_folders import VersionFolders

TENSORS = {
    "b": torch.arange(6.0).reshape(2, 3),
    "a.weight": torch.tensor([float("nan"), -0.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
}


SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


@pytest.fixture
def shards(tmp_path):
    names = sorted(TENSORS)
    save_file({name: TENSORS[name] for name in names[:2]}, tmp_path / "one", metadata={"format": "pt"})
    save_file({name: TENSORS[name] for name in names[2:]}, tmp_path / "two")
    return [tmp_path / "two", tmp_path / "one"]


def test_the_digest_is_that_of_the_trainer_however_the_tensors_are_sharded(shards):
    assert digest(read_headers(shards)) == weights_digest(TENSORS)


@pytest.mark.parametrize("changed", [{"b": TENSORS["b"] + 1}, {"b": TENSORS["b"].reshape(3, 2)}, {"b": TENSORS["b"].half()}])
def test_the_digest_tells_bytes_shapes_and_dtypes_apart(tmp_path, changed):
    save_file(TENSORS | changed, tmp_path / "changed")
    assert digest(read_headers([tmp_path / "changed"])) == weights_digest(TENSORS | changed) != weights_digest(TENSORS)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"a.weight", "scalar", "empty"}, "1 tensors are missing from the weight files .b."),
        ({"a.weight", "b", "scalar", "empty", "lm_head.weight"}, "1 tensors are not tensors of this model .lm_head.weight."),
    ],
)
def test_names_that_are_not_the_models_are_refused(shards, tmp_path, names, message):
    save_file({name: TENSORS.get(name, torch.zeros(1)) for name in names}, tmp_path / "names")
    with pytest.raises(ModelError, match=message):
        check_tensors(read_headers([tmp_path / "names"]), SHAPES)


def test_another_shape_and_a_name_that_stands_twice_are_refused(shards, tmp_path):
    save_file(TENSORS | {"b": torch.zeros(2)}, tmp_path / "shape")
    with pytest.raises(ModelError, match=r"have another shape than in this model .b."):
        check_tensors(read_headers([tmp_path / "shape"]), SHAPES)
    with pytest.raises(ModelError, match="are in two of the weight files"):
        read_headers([*shards, tmp_path / "shape"])


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x05\0\0\0\0\0\0\0[1,2]", (2**60).to_bytes(8, "little")])
def test_a_file_that_is_no_safetensors_is_refused(tmp_path, content):
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ModelError, match="fetch them again"):
        read_headers([tmp_path / "bad"])


def test_a_file_that_is_cut_off_or_gone_is_refused(shards):
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    for file in (shards[0], shards[0].with_name("gone")):
        with pytest.raises(ModelError, match="fetch them again"):
            read_headers([file])


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True, "auto_map": {"AutoModel": "code.py"}}))
    save_file({"b": torch.zeros(1), "lm_head.weight": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def test_a_tied_head_is_no_tensor_of_the_model(model):
    assert set(model_tensors(model)) == {"b"}
    (model / "config.json").write_text("{}")
    assert set(model_tensors(model)) == {"b", "lm_head.weight"}


def test_a_family_whose_heads_are_tied_need_not_say_so(model):
    (model / "config.json").write_text(json.dumps({"model_type": "gemma3_text"}))
    assert set(model_tensors(model)) == {"b"}
    (model / "config.json").write_text(json.dumps({"model_type": "gemma3_text", "tie_word_embeddings": False}))
    assert set(model_tensors(model)) == {"b", "lm_head.weight"}


def test_frozen_tensors_are_the_models_and_do_not_count_in_the_digest(model, shards, tmp_path):
    save_file({"visual.w": torch.ones(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(1)}, model / "other.safetensors")
    assert set(model_tensors(model)) == {"b", "visual.w"}
    before = digest(read_headers(shards))
    save_file({"visual.w": torch.ones(2)}, tmp_path / "carried")
    assert digest(read_headers([*shards, tmp_path / "carried"])) == before


@pytest.mark.parametrize("copy", [False, True])
def test_a_version_folder_is_whole_and_outlives_the_deletion_of_its_shards(model, shards, tmp_path, copy):
    folder = make_version_folder(tmp_path / "versions", model, shards, copy)
    for shard in shards:
        shard.unlink()
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    assert digest(read_headers(sorted(folder.glob("*.safetensors")))) == weights_digest(TENSORS)
    assert "auto_map" not in json.loads((folder / "config.json").read_bytes())
    drop_version_folder(folder)
    drop_version_folder(folder)
    assert not folder.exists()


def test_a_version_for_which_the_disk_has_no_room_leaves_nothing(shards, model_folder, tmp_path, no_file_over):
    with no_file_over(100), pytest.raises(DiskError, match=r"cannot write a version's weights .*has room, or set GRADBUS_CACHE_DIR"):
        make_version_folder(tmp_path / "versions", model_folder, shards, copy=True)
    assert list((tmp_path / "versions").iterdir()) == []


def test_a_version_whose_file_is_lost_before_it_is_digested_leaves_nothing(model_folder, tmp_path, monkeypatch):
    def lost(_tensors):
        raise ModelError("the file is lost; fetch it again")

    folders = VersionFolders(model_folder, SGLangConfig(), SGLangSettings(), tmp_path / "cache")
    monkeypatch.setattr("gradbus_rollout.engines.sglang.version_folders.digest", lost)
    with pytest.raises(ModelError, match="fetch it again"):
        folders.prepare([model_folder / "model.safetensors"], 0, None)
    assert list(tmp_path.glob("cache/version-*")) == []


@pytest.mark.parametrize("shared", [False, True])
async def test_what_a_killed_worker_left_its_next_start_removes_and_no_other_workers(model_folder, tmp_path, shared):
    folder = tmp_path / "shared" if shared else tmp_path
    left, others = folder / "worker-a" / "version-0", folder / "worker-b" / "version-0"
    for version in (left, others):
        version.mkdir(parents=True)
    settings = SGLangSettings(url="http://127.0.0.1:1", weights_dir=folder if shared else None)
    engine = SGLangEngine(model_folder, SGLangConfig(), settings, tmp_path / "worker-a")
    assert (left.exists(), others.exists()) == (False, True)
    await engine.close()


def test_a_version_has_the_models_configurations_without_code(model, shards, tmp_path):
    for name in ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"):
        (model / name).write_text(json.dumps({"processor_class": name, "auto_map": {"AutoProcessor": "code.py"}}))
    folder = make_version_folder(tmp_path / "versions", model, shards, copy=True)
    assert json.loads((folder / "preprocessor_config.json").read_text()) == {"processor_class": "preprocessor_config.json"}
    stored = {path.name for path in folder.glob("*.json")}
    assert stored == {"config.json", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"}
