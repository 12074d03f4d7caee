"""The experience log: sampled groups, the log itself, its archive, and one reader over both."""

from gradbus.experience.groups import GroupStore, runs_in
from gradbus.experience.log import ExperienceLog, StoredEntry

__all__ = ["ExperienceLog", "GroupStore", "StoredEntry", "runs_in"]
