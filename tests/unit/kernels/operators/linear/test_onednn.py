"""oneDNN's products, and what it keeps of them."""

import subprocess
import sys

import pytest
import torch

from gradbus_kernels.operators.linear.onednn import matmul

PROGRAM = """
import torch
from gradbus_kernels.operators.linear.onednn import times_transposed

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

torch.set_num_threads(1)
weight, found = torch.ones(176, 64), []
for rows in range(1, 601):
    times_transposed(torch.ones(rows, 64), weight)
    if rows % 200 == 0:
        found.append(resident())
print(found[2] - found[0])
"""


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_is_that_of_float64(transposed):
    left, right = torch.randn(5, 7), torch.randn(7, 3)
    factor = left.t().contiguous().t() if transposed else left
    torch.testing.assert_close(matmul(factor, right).double(), left.double() @ right.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_code_of_few_shapes_is_kept():
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=120)
    assert int(done.stdout) < 50_000, "kB that 400 shapes more took; with torch's defaults about 150,000"
