"""A version is written only if every weight is a number."""

import pytest
import torch
from safetensors.torch import load_file

from gradbus.errors import TrainingError
from gradbus_kernels.weights.digest import weights_digest
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_make_no_version_and_no_file(tmp_path, value):
    weights = {"a": torch.ones(3), "b": torch.tensor([1.0, value])}
    with pytest.raises(TrainingError, match=r"weight b of version 7 is not finite, .*; lower trainer\.learning_rate"):
        export_version(7, LazyTensors.of(weights), False, Scratch(tmp_path / "scratch"))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_weights_that_no_step_has_changed_are_the_folder_s(tmp_path):
    with pytest.raises(TrainingError, match=r"weight a of version 0 is not finite, or .*; take the model's original files"):
        export_version(0, LazyTensors.of({"a": torch.full((9,), 3e38)}), False, Scratch(tmp_path / "scratch"))


def test_the_first_weight_that_is_not_finite_is_named(tmp_path):
    weights = {name: torch.full((20_000,), torch.nan if name in "ce" else 1.0) for name in "abcde"}
    with pytest.raises(TrainingError, match="weight c of version 1 "):
        export_version(1, LazyTensors.of(weights), False, Scratch(tmp_path / "scratch"), torch.bfloat16)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_failure_in_the_middle_leaves_no_file_and_the_next_version_is_whole(tmp_path):
    weights, scratch = {name: torch.randn(40_000) for name in "abc"}, Scratch(tmp_path / "scratch")

    def fail(name):
        if name == "b":
            raise RuntimeError("a rank is gone")
        return weights[name]

    with pytest.raises(RuntimeError, match="a rank is gone"):
        export_version(1, LazyTensors({name: torch.Size([40_000]) for name in weights}, fail), False, scratch)
    assert list((tmp_path / "scratch").iterdir()) == []
    export = export_version(1, LazyTensors.of(weights), False, scratch)
    assert export.digest == weights_digest(load_file(export.file.path)) == weights_digest(weights)
