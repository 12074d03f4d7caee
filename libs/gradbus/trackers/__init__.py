"""Experiment trackers, fed from a run's history alone.

A sink may be killed at any moment: what it finds in the tracker says where it goes on, so that nothing is there twice.
"""

from gradbus.trackers.feed import feed
from gradbus.trackers.points import Point, PointReader
from gradbus.trackers.registry import TRACKERS, open_sink
from gradbus.trackers.sink import Sink, TrackedRun

__all__ = ["TRACKERS", "Point", "PointReader", "Sink", "TrackedRun", "feed", "open_sink"]
