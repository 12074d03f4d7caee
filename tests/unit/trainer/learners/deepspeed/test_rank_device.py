"""GRADBUS_DEVICE means the same device for DeepSpeed as for plain torch."""

import pytest
import torch

from gradbus_trainer.learners.deepspeed.ranks import rank_device


@pytest.mark.parametrize(
    ("given", "local_rank", "device"),
    [("cpu", 1, "cpu"), ("cuda", 0, "cuda:0"), ("cuda", 3, "cuda:3"), ("cuda:1", 0, "cuda:1"), ("cuda:2", 1, "cuda:3")],
)
def test_a_rank_counts_from_the_device_that_is_given(given, local_rank, device):
    assert rank_device(given, local_rank) == torch.device(device)
