"""A process that ends with the one that started it."""

import os
import subprocess
import sys

import pytest

SLEEPS = "import os, signal, sys, time; from gradbus.parent_death import *; {first}; print('ready', flush=True); time.sleep(60)"
STARTS = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
HEARS = "signal.signal(signal.SIGTERM, lambda *_: (print('heard', flush=True), sys.exit()))"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")


def said_when_its_parent_was_killed(first):
    """The child's output after that, to its end: the pipe is the child's alone then."""
    source = SLEEPS.format(first=first)
    with subprocess.Popen([sys.executable, "-c", STARTS, source], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        return parent.stdout.read()


@on_linux
@pytest.mark.parametrize("first", ["die_with(os.getppid())", "signal_at_parent_death()"])
@pytest.mark.timeout(50)  # before it ends by itself
def test_a_process_ends_with_its_parent(first):
    assert said_when_its_parent_was_killed(first) == ""


@on_linux
def test_a_process_chooses_the_signal():
    assert said_when_its_parent_was_killed(f"{HEARS}; signal_at_parent_death(signal.SIGTERM)") == "heard\n"


def test_a_process_whose_parent_is_another_one_ends_at_once():
    source = SLEEPS.format(first=f"die_with({os.getpid() + 1})")
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")
