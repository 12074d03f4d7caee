"""Feeds one tracker with a history: `feeder.py HISTORY.json TO [HOW ...]`. Each HOW is a process, one after the other; they are forked
from this one, which has imported the tracker's package: that takes seconds. A line `ended CODE` follows what a process prints.

A process dies without a word after HOW points, waits for the end of its input with the tracker open, feeds it after it was closed
(`late`), or closes it as that of a run in the state HOW.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

from gradbus.resources.runs import EventResource
from gradbus.trackers import TrackedRun, feed, open_sink
from gradbus.trackers.registry import TRACKERS

SPEC = {"name": "sums", "schedule": {"steps": 9}, "trainer": {"learning_rate": 1e-3}, "data": {"columns": {"pass@1": "x"}}}


class Recorded:
    """A history that has ended."""

    def __init__(self, events):
        self._events = list(map(EventResource.model_validate, events))

    def events(self, run, after=0):
        return (event for event in self._events if event.id > after)

    stream = events


class Dying:
    """A sink whose process ends after so many points."""

    def __init__(self, sink, points):
        self.sink, self.points, self.written = sink, points, sink.written

    def write(self, points):
        for point in points:
            if not self.points:
                os._exit(9)
            self.sink.write([point])
            self.points -= 1


def main(history, to, how):
    """One process."""
    sink = open_sink(to, TrackedRun("run-0123456789ab-000001", "sums", SPEC))
    if how == "wait":
        print("open", flush=True)
        sys.stdin.read()
    if how == "late":
        sink.close("running")
    dying = Dying(sink, int(how) if how.isdecimal() else -1)
    print(feed(Recorded(json.loads(Path(history).read_text())), "run", dying, follow=True))
    sink.close(how)


if __name__ == "__main__":
    history, to, *processes = sys.argv[1:]
    import_module(TRACKERS[to.partition(":")[0]].module)
    for how in processes or ["succeeded"]:
        if os.fork() == 0:
            main(history, to, how)
            break
        print("ended", code := os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    else:
        sys.exit(code)
