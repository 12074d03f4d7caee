"""A server's log and its cgroup say why it ended; what follows from the first error does not hide it."""

import pytest

from gradbus_rollout.engines.server.exit_cause import error_line, kernel_kills, log_lacks_memory

FAILED_CHILD = """\
[2026-01-31 12:00:00] Attention backend not explicitly specified.
[2026-01-31 12:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 2906, in run_scheduler_process
    scheduler = Scheduler(server_args)
RuntimeError: CUDA error: no kernel image is available for execution on the device
Search for `cudaErrorNoKernelImageForDevice' in the documentation.

[2026-01-31 12:00:10] Received sigquit from a child process. It usually means the child failed.
Traceback (most recent call last):
  File "launch_server.py", line 30, in <module>
    data = reader.recv()
EOFError
Killed
"""
NO_MEMORY = """\
[2026-01-31 12:00:09 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "model_runner.py", line 1, in load_model
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
[2026-01-31 12:00:10] Received sigquit from a child process. It usually means the child failed.
"""
WRONG_FLAG = "usage: launch_server.py [-h]\n    [--model-path]\nlaunch_server.py: error: unrecognized arguments: --tp-sise 2\n"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (FAILED_CHILD, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        (NO_MEMORY, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        (WRONG_FLAG, "launch_server.py: error: unrecognized arguments: --tp-sise 2"),
        ("[2026-01-31] loading\nKilled\n", "loading"),
        ("Killed\n", "Killed"),
        ("", ""),
    ],
)
def test_the_first_error_of_a_log_is_named_and_not_what_follows_from_it(log, line):
    assert error_line(log) == line


def test_a_log_lacks_memory_if_its_error_or_its_last_lines_say_so():
    assert log_lacks_memory(NO_MEMORY)
    assert log_lacks_memory("Not enough memory. Please try to increase --mem-fraction-static.\n")
    assert not log_lacks_memory(FAILED_CHILD)
    assert not log_lacks_memory("[x] lower this to avoid out of memory errors\n" + "loading\n" * 20)


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/pod/worker", "pod/worker/memory.events"),
        ("0::/of/the/host", "memory.events"),
        ("4:memory:/worker\n0::/", "memory/worker/memory.oom_control"),
    ],
)
def test_kills_for_memory_are_read_from_the_cgroup(tmp_path, membership, file):
    cgroups = tmp_path / "cgroup"
    cgroups.write_text(f"9:pids:/\n{membership}\n")
    assert kernel_kills(cgroups, tmp_path) == 0
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("oom 3\noom_kill 2\n")
    assert kernel_kills(cgroups, tmp_path) == 2


def test_a_machine_without_cgroups_has_no_kills(tmp_path):
    assert kernel_kills(tmp_path / "none", tmp_path) == 0
