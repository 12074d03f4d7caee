"""`gradbus track` against a gateway: killed at random, it leaves every point once."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from gradbus.bus import EventLog
from gradbus.trackers.tensorboard import read_events

STEPS = 400


@pytest.fixture
def tracked(stack, submitted, tmp_path):
    """The file that the command writes, and what runs it: until it has written some more bytes, or to its end."""
    command = [sys.executable, "-m", "gradbus.cli", "track", submitted["id"], "--to", f"tensorboard:{tmp_path}/board"]
    environment = {**os.environ, "GRADBUS_URL": stack.url, "GRADBUS_KEY": stack.key}
    file = tmp_path / "board" / f"sums-{submitted['id']}" / "events.out.tfevents.0.gradbus"

    def kill_after(more):
        wanted, deadline = (file.stat().st_size if file.exists() else 0) + more, time.monotonic() + 120
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as tracker:
            while not file.exists() or file.stat().st_size < wanted:
                assert tracker.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
            tracker.kill()

    def finish():
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    return file, kill_after, finish


async def test_a_tracker_that_is_killed_at_random_writes_every_step_once(bus, submitted, set_state, tracked):
    file, kill_after, finish = tracked
    log, chance = EventLog(bus, submitted["id"]), random.Random(0)
    for part in range(4):
        for step in range(part * STEPS // 4, (part + 1) * STEPS // 4):
            log.emit("metrics", f"step {step}", {"step": step, "reward": step / 8}, key=f"step:{step}")
        await log.flush()
        await asyncio.to_thread(kill_after, chance.randrange(1, 4000))
    await set_state(submitted["id"], "succeeded")
    assert "(succeeded) to tensorboard:" in await asyncio.to_thread(finish)
    values = [(value.tag, event.step, value.simple_value) for event, _ in read_events(file) for value in event.summary.value]
    assert {step: value for tag, step, value in values if tag == "train/reward"} == {step: step / 8 for step in range(STEPS)}
    assert max(Counter((tag, step) for tag, step, _ in values).values()) == 1
    assert (await asyncio.to_thread(finish)).startswith("wrote 0 points")
