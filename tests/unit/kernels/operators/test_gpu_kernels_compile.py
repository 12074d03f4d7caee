"""Where no GPU is at hand, kernels compile at least, with the launch table that real shapes get: to CUDA's and ROCm's machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

KERNELS = {
    "sample": ["candidates_kernel", "draw_kernel", "statistics_kernel"],
    "linear_sample": ["_head", "candidates_kernel", "draw_kernel"],
    "cached_attention": ["_attend", "_copy", "_join", "_rotate"],
    "invariant_embedding": ["_row_sums"],
    "decoder_layer": [
        *("_add_sums", "_gated_backward", "_gated_forward", "_norm_backward", "_norm_forward"),
        *("_normed_rotary_backward", "_normed_rotary_forward", "_rotary"),
    ],
    "prefix_shared_attention": ["_add_parts", "_backward_key", "_backward_query", "_forward"],
}
DEAR = {"cached_attention", "decoder_layer", "sample", "linear_sample", "prefix_shared_attention"}


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed; pip install triton")
@pytest.mark.parametrize("target", ["sm_90", pytest.param("gfx942", marks=pytest.mark.slow)])
@pytest.mark.parametrize("operator", [pytest.param(name, marks=[pytest.mark.slow] * (name in DEAR)) for name in KERNELS])
def test_every_kernel_compiles(operator, target, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("gpu_compiler.py"), target, operator],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == KERNELS[operator]
