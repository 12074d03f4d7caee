"""The codec's loops. The first test that asks for the compiled ones compiles them, and not every process that collects tests."""

import pytest

from gradbus_kernels.weights.delta.loops import NUMPY, compiled_loops


@pytest.fixture(scope="session")
def both_loops():
    compiled = compiled_loops()
    assert compiled is not None, "install requirements/dev.txt"
    return {"numpy": NUMPY, "numba": compiled}


@pytest.fixture(scope="session", params=["numpy", "numba"])
def loops(request, both_loops):
    return both_loops[request.param]
