"""Rows are copied; a row's gradient is the sum over its own positions in order, for any number of threads and other ids."""

import pytest
import torch

from gradbus_kernels.operators import invariant_embedding, using

IDS = torch.tensor([4, 0, 4, 11, 4, 0, 7, 4, 4])
ROOM = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.fixture(params=["cpu", "triton"])
def fixed_order(request, monkeypatch):
    """The implementations that promise bits."""
    if request.param == "triton":
        pytest.importorskip("triton")
        from gradbus_kernels.operators.batch_invariant.triton import embedding as gpu

        monkeypatch.setattr(gpu, "LAUNCH", type(gpu.LAUNCH)(positions=2, columns=16))
    with using(request.param):
        yield request.param


def randn(*size, dtype=torch.float32, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradient(ids, pull, rows=12):
    weight = randn(rows, pull.shape[1], dtype=pull.dtype, seed=3).requires_grad_()
    out = invariant_embedding(ids, weight)
    assert torch.equal(out, weight[ids])
    out.backward(pull)
    return weight.grad


@pytest.mark.parametrize("width", [1, 37, 64])
def test_rows_and_their_gradient(implementation, dtype, width):
    pull = randn(len(IDS), width, dtype=dtype)
    exact = torch.zeros(12, width, dtype=torch.float64).index_add_(0, IDS, pull.double())
    found = gradient(IDS, pull)
    assert found.dtype == dtype
    room = ROOM[dtype] * (4 if implementation == "reference" else 1)  # autograd's rounds each sum to the dtype
    torch.testing.assert_close(found.double(), exact, atol=room, rtol=room)
    assert not found[[1, 2, 3, 5, 6, 8, 9, 10]].any()


def test_long_sums_in_low_precision_lose_nothing(fixed_order):
    ids, pull = torch.zeros(320, dtype=torch.int64), torch.ones(320, 2, dtype=torch.bfloat16)
    assert gradient(ids, pull)[0].tolist() == [320.0, 320.0]  # a sum in bfloat16 stops at 256


def test_bits_are_the_same_each_time_and_on_any_number_of_threads(fixed_order):
    generator = torch.Generator().manual_seed(5)
    ids, pull = torch.randint(7, (60,), generator=generator), randn(60, 2000 if fixed_order == "cpu" else 20)
    first, before = gradient(ids, pull), torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(gradient(ids, pull), first)
    finally:
        torch.set_num_threads(before)


def test_a_rows_bits_depend_on_its_own_positions_alone(fixed_order):
    pull = randn(len(IDS), 24)
    whole, own = gradient(IDS, pull), (IDS == 4).nonzero().flatten()
    assert torch.equal(gradient(IDS[own], pull[own])[4], whole[4])
    others = IDS.clone()
    others[[1, 3, 5, 6]] = torch.tensor([11, 2, 7, 0])  # what is between them is another's
    assert torch.equal(gradient(others, pull)[4], whole[4])
    apart = torch.cat((torch.full((31,), 9), IDS)), torch.cat((randn(31, 24, seed=8), pull))
    assert torch.equal(gradient(*apart)[4], whole[4])


def test_the_order_of_its_own_positions_is_the_order_of_the_sum(fixed_order):
    ids, pull = torch.full((3,), 2), torch.tensor([[1e8], [-1e8], [1.0]])
    assert gradient(ids, pull)[2] == 1.0
    assert gradient(ids, pull[[0, 2, 1]])[2] == 0.0


def test_no_positions_are_fine(implementation):
    assert gradient(torch.empty(0, dtype=torch.int64), torch.empty(0, 5)).count_nonzero() == 0


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor([0, 12]), r"ids: holds 12; pass ids in \[0, 12\)"),
        (torch.tensor([-1]), "ids: holds -1"),
        (torch.tensor([0], dtype=torch.int32), "ids: is torch.int32; pass int64"),
        (torch.tensor([[0]]), r"ids: has shape \(1, 1\); pass \(any\)"),
        (torch.tensor([0], device="meta"), "ids: is on meta"),
    ],
)
def test_ids_that_do_not_fit_are_refused_by_name(implementation, ids, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        invariant_embedding(ids, torch.zeros(12, 5))
