"""What holds for every test."""

from hypothesis import HealthCheck, settings

# How fast a machine is decides nothing.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
