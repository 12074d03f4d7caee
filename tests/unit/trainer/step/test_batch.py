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


@pytest.mark.parametrize("portions", [2, 3, 5, 40])
def test_portions_are_whole_groups_with_about_equally_many_tokens(make_batch, portions):
    samples = [sample for seed in range(6) for sample in make_batch(seed=seed).samples]
    parts = micro_batches(Batch(0, samples), 10_000, portions=portions)
    assert [id(sample) for part in parts for sample in part] == [id(sample) for sample in samples]
    assert min(portions, 9) <= len(parts) <= min(portions, 18)
    prompts = [{id(sample.prompt_ids) for sample in part} for part in parts]
    assert sum(map(len, prompts)) == 18, "a group is in one part"
    tokens = [sum(len(sample.prompt_ids) + len(sample.token_ids) for sample in part) for part in parts]
    assert max(tokens) - min(tokens) <= 2 * 4 * (7 + 6), "two of the largest groups"


def test_a_batch_without_samples_has_no_micro_batch():
    assert micro_batches(Batch(0, []), 10, portions=8) == []


def test_weight_counts_trainable_tokens_only(make_batch):
    batch = make_batch()
    assert sum(batch.trainable_counts) == sum(int(sample.trainable.sum()) for sample in batch.samples)
    assert batch.has_weight
    frozen = [replace(sample, trainable=np.zeros_like(sample.trainable)) for sample in batch.samples]
    assert not Batch(0, frozen).has_weight
    assert not Batch(0, []).has_weight
