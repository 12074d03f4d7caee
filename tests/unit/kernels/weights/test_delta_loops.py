"""The compiled loops come in a thread, or not at all, and nothing waits for them or fails for want of them."""

import subprocess
import sys

import pytest

from gradbus_kernels.weights.delta import compile_loops, loops
from gradbus_kernels.weights.delta.loops import COMPILE_BYTES, NUMPY, Loops, compiled_loops, loops_for, prepare_loops

NAMES = [name for name in vars(Loops) if not name.startswith("_")]


def test_small_weights_are_coded_by_numpy_and_large_ones_by_the_compiled_loops():
    compiled = compiled_loops()
    assert compiled is sys.modules[compile_loops.MODULE]
    assert loops_for(COMPILE_BYTES) is compiled
    assert loops_for(COMPILE_BYTES - 1) is NUMPY


def test_until_they_are_compiled_numpy_serves(monkeypatch):
    monkeypatch.setattr(loops, "_compiled", loops._Compiled())
    monkeypatch.setattr(loops._Compiled, "_load", lambda self: None)
    prepare_loops(COMPILE_BYTES)
    assert loops_for(COMPILE_BYTES) is NUMPY
    assert compiled_loops() is None


def test_what_needs_no_compiled_loops_loads_no_compiler(monkeypatch):
    monkeypatch.setattr(loops, "_compiled", loops._Compiled())
    prepare_loops(COMPILE_BYTES - 1)
    assert loops._compiled._thread is None


@pytest.mark.parametrize("name", NAMES)
def test_no_loop_holds_the_interpreter_nor_compiles_later(name):
    function = getattr(compiled_loops(), name)
    assert function.targetoptions["nogil"]
    assert not function._can_compile


def child(code, **environment):
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True).stdout


FIND = "from gradbus_kernels.weights.delta.loops import compiled_loops; print(compiled_loops() is not None)"


NO_CHILD = "from gradbus_kernels.weights.delta import loops; loops._compile_in_child = lambda: None"
NO_FOLDER = "caching.CacheImpl._locator_classes = []"
FULL_DISK = """
def save(*_): raise OSError(28, "No space left on device")
caching.IndexDataCacheFile.save = save
"""


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [NO_FOLDER, FULL_DISK], ids=["no folder", "a full disk"])
def test_where_nothing_can_be_kept_each_process_compiles(trouble, tmp_path):
    found = child(f"from numba.core import caching\n{NO_CHILD}\n{trouble}\n{FIND}", NUMBA_CACHE_DIR=str(tmp_path))
    assert found.strip() == "True"
    assert not list(tmp_path.rglob("*.nbc"))


@pytest.mark.slow
def test_a_child_compiles_for_every_process_of_the_machine(tmp_path):
    hits = "from gradbus_kernels.weights.delta import numba_loops; print(sum(numba_loops.compare.stats.cache_hits.values()))"
    assert child(f"{FIND}; {hits}", NUMBA_CACHE_DIR=str(tmp_path)).split() == ["True", "2"]
    assert list(tmp_path.rglob("*.nbc"))


@pytest.mark.slow
def test_of_processes_that_begin_together_one_compiles(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DEBUG_CACHE": "1"}
    command = [sys.executable, "-m", compile_loops.__name__]
    together = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=300)[0] for process in together]
    assert sorted("data saved" in output for output in said) == [False, False, True]
    assert sum("data loaded" in output for output in said) == 2


def test_without_numba_there_are_none():
    assert child(f"import sys; sys.modules['numba'] = None; {FIND}").strip() == "False"
