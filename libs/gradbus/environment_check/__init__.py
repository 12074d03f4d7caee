"""Tries an environment before a run: the same seeded calls in two processes, and what differs, fails, takes long or is cut off."""

from gradbus.environment_check.check import Checked, check_environment
from gradbus.environment_check.report import Report

__all__ = ["Checked", "Report", "check_environment"]
