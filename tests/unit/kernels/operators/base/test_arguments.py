from __future__ import annotations

import pytest
import torch

from gradbus_kernels.operators.base.arguments import check_finite, check_floats, check_ids


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(2, 3, dtype=torch.int32), "hidden: is torch.int32; pass float32"),
        (torch.ones(2, 4), r"hidden: has shape \(2, 4\); pass \(any, 3\)"),
        (torch.ones(3), r"hidden: has shape \(3,\); pass \(any, 3\)"),
        (torch.ones(2, 3, device="meta"), "hidden: is on meta; pass it on cpu"),
    ],
)
def test_a_wrong_tensor_is_refused_under_its_name(tensor, words):
    with pytest.raises(ValueError, match=words):
        check_floats("hidden", tensor, (None, 3), torch.ones(1))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor([0, 7]), r"ids: holds 7; pass ids in \[0, 7\)"),
        (torch.tensor([-100, 7]), "ids: holds -100"),
        (torch.tensor([0, 1], dtype=torch.int32), "ids: is torch.int32; pass int64"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(ids, words):
    with pytest.raises(ValueError, match=words):
        check_ids("ids", ids, (2,), 7, torch.ones(1))


def test_no_ids_at_all_are_fine():
    check_ids("ids", torch.empty(0, dtype=torch.int64), (0,), 7, torch.ones(1))


def test_nan_is_reported_by_its_row():
    check_finite("logits", torch.tensor([0.0, float("-inf")]))
    with pytest.raises(ValueError, match="logits: row 1 holds NaN"):
        check_finite("logits", torch.tensor([0.0, float("nan")]))
