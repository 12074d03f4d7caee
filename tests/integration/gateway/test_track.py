"""`gradbus track` against a gateway: killed at random, it leaves every point once."""

import os
import random
import subprocess
import sys
import time
from collections import Counter

from gradbus.bus import EventLog
from gradbus.trackers.tensorboard import read_events

STEPS = 400


async def test_a_tracker_that_is_killed_at_random_writes_every_step_once(stack, bus, submitted, set_state, tmp_path):
    log, run_id = EventLog(bus, submitted["id"]), submitted["id"]
    command = [sys.executable, "-m", "gradbus.cli", "track", run_id, "--to", f"tensorboard:{tmp_path}/board"]
    environment = {**os.environ, "GRADBUS_URL": stack.url, "GRADBUS_KEY": stack.key}
    chance, file = random.Random(0), tmp_path / "board" / f"sums-{run_id}" / "events.out.tfevents.0.gradbus"
    for part in range(4):
        for step in range(part * STEPS // 4, (part + 1) * STEPS // 4):
            log.emit("metrics", f"step {step}", {"step": step, "reward": step / 8}, key=f"step:{step}")
        await log.flush()
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as tracker:
            before, deadline = file.stat().st_size if file.exists() else 0, time.monotonic() + 120
            while not file.exists() or file.stat().st_size < before + chance.randrange(1, 4000):
                assert tracker.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
            tracker.kill()
    await set_state(run_id, "succeeded")
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert "(succeeded) to tensorboard:" in done.stdout
    values = [(value.tag, event.step, value.simple_value) for event, _ in read_events(file) for value in event.summary.value]
    assert {step: value for tag, step, value in values if tag == "train/reward"} == {step: step / 8 for step in range(STEPS)}
    assert max(Counter((tag, step) for tag, step, _ in values).values()) == 1
    again = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert again.stdout.startswith("wrote 0 points")
