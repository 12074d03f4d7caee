"""Files live as long as they are referenced, and a full disk is reported."""

import pytest
import torch
from safetensors.torch import load

from gradbus.errors import StorageError
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch

TENSORS = LazyTensors.of({"w": torch.arange(5000.0), "v": torch.ones(3)})


def test_a_file_is_removed_with_its_last_reference_and_its_mapping_stays(tmp_path):
    file = Scratch(tmp_path / "scratch").write(TENSORS)
    path, mapped = file.path, file.mapped()
    assert (file.names, file.size_bytes) == (("v", "w"), path.stat().st_size)
    del file
    assert not path.exists()
    assert torch.equal(load(bytes(mapped))["w"], TENSORS["w"])


def test_a_removed_file_is_gone_whoever_refers_to_it_and_its_mapping_stays(tmp_path):
    file = Scratch(tmp_path / "scratch").write(TENSORS)
    mapped = file.mapped()
    file.remove()
    file.remove()
    assert not file.path.exists()
    assert torch.equal(load(bytes(mapped))["w"], TENSORS["w"])


def test_what_a_killed_trainer_left_is_cleaned_at_the_next_start(tmp_path):
    left = Scratch(tmp_path).new()
    left.write_bytes(b"half a file")
    scratch = Scratch(tmp_path)
    assert not left.exists()
    assert scratch.write(TENSORS).names == ("v", "w")


def test_a_full_disk_is_an_error_with_a_next_step_and_leaves_no_file(tmp_path, no_file_over):
    scratch = Scratch(tmp_path)
    with no_file_over(1000), pytest.raises(StorageError, match=r"cannot write 0 MB .*free space there, or set GRADBUS_CACHE_DIR"):
        scratch.write(TENSORS)
    assert list(tmp_path.iterdir()) == []
    assert scratch.write(TENSORS).path.exists()


def test_a_tensor_that_cannot_be_had_leaves_nothing(tmp_path):
    def fail(name):
        raise RuntimeError("a rank is gone")

    with pytest.raises(RuntimeError, match="a rank is gone"):
        Scratch(tmp_path).write(LazyTensors({"w": torch.Size([2])}, fail))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="set GRADBUS_CACHE_DIR to a writable one"):
        Scratch(tmp_path / "file" / "below").write(TENSORS)
