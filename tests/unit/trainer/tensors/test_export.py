"""A version is written only if every weight is a number."""

import pytest
import torch

from gradbus.errors import TrainingError
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_make_no_version_and_no_file(tmp_path, value):
    weights = {"a": torch.ones(3), "b": torch.tensor([1.0, value])}
    with pytest.raises(TrainingError, match=r"weight b of version 7 is not finite; lower trainer\.learning_rate"):
        export_version(7, LazyTensors.of(weights), False, Scratch(tmp_path / "scratch"))
    assert list((tmp_path / "scratch").iterdir()) == []
