"""What holds for every test."""

import itertools
import os
import resource
import signal
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is decides nothing.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Before whatever imports Triton first: without a GPU its kernels run in its interpreter.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def free_port():
    """Gives ports that are given to nobody else: no other test, no stack, no outgoing connection that happens to get one."""
    from gradbus.embedded.ports import Ports

    ports, serial = Ports({}), itertools.count()
    yield lambda: ports[str(next(serial))]
    ports.release()


@pytest.fixture
def no_file_over():
    """A block, as on a disk that is full: the system takes so many bytes of a file and no more."""

    @contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return limited
