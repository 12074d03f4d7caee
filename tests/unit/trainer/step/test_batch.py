"""Batches and their micro-batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradbus_kernels.models.packing import pack
from gradbus_trainer.step.batch import Batch, micro_batches


@pytest.mark.parametrize("budget", [1, 20, 45, 10_000])
def test_micro_batches_are_the_rows_in_order_within_the_budget(make_batch, budget):
    batch = make_batch()
    parts = micro_batches(batch, budget)
    assert [id(sample) for part in parts for sample in part] == [id(sample) for sample in batch.samples]
    for part in parts:
        assert len(part) == 1 or pack(part, torch.device("cpu")).layout.tokens <= budget


def test_weight_counts_trainable_tokens_only(make_batch):
    batch = make_batch()
    assert sum(batch.trainable_counts) == sum(int(sample.trainable.sum()) for sample in batch.samples)
    assert batch.has_weight
    frozen = [replace(sample, trainable=np.zeros_like(sample.trainable)) for sample in batch.samples]
    assert not Batch(0, frozen).has_weight
    assert not Batch(0, []).has_weight
