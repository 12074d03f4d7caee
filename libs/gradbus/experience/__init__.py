"""The experience log: sampled groups, the log in the buffer, its archive in object storage, and a reader of both."""

from gradbus.experience.groups import GroupStore, runs_in
from gradbus.experience.log import ExperienceLog, StoredEntry

__all__ = ["ExperienceLog", "GroupStore", "StoredEntry", "runs_in"]
