"""Weights are worked on by as many threads as there are cores for them."""

import os
import threading

import pytest

from gradbus_kernels.weights import threads
from gradbus_kernels.weights.threads import MOST_THREADS, submit, thread_count, usable_cores


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 6), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 6), ("", 6)]
)
def test_a_control_groups_quota_bounds_the_cores(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path / "cpu.max") == cores


def test_without_control_groups_the_affinity_alone_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert usable_cores(tmp_path / "none") == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path / "none") == 1


def test_there_are_never_more_threads_than_cores():
    assert 1 <= thread_count() <= min(MOST_THREADS, os.cpu_count() or 1)


def test_a_few_bytes_are_worked_on_here_and_many_in_a_thread():
    here = threading.get_ident()
    assert submit(threading.get_ident, threads.SMALL_BYTES).result() == here
    assert submit(threading.get_ident, threads.SMALL_BYTES + 1).result() != here
