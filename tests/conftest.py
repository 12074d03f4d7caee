"""What holds for every test."""

import os

from hypothesis import HealthCheck, settings

# How fast a machine is decides nothing.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Before whatever imports Triton first: without a GPU its kernels run in its interpreter.
os.environ.setdefault("TRITON_INTERPRET", "1")
