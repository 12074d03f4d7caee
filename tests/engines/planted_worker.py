"""A rollout worker whose launched server is killed in the middle of a load, while it holds noise: once, at its third version."""

from __future__ import annotations

import os
import runpy
import signal
from pathlib import Path

from gradbus_rollout.engines.sglang.api import ServerApi
from gradbus_rollout.engines.sglang.launched_server import LaunchedServer

MARKER = Path(os.environ["GRADBUS_CRASH_DIR"]) / "server-killed"
THIRD = 3
check_weights, start = ServerApi.check_weights, LaunchedServer.start
servers, resets = [], []


async def start_and_note(launch):
    servers.append(await start(launch))
    return servers[-1]


async def check_and_kill(api, action):
    await check_weights(api, action)
    if action == "reset_tensors":
        resets.append(action)
        if len(resets) == THIRD and not MARKER.exists():
            MARKER.touch()
            os.killpg(servers[-1].pid, signal.SIGKILL)


if __name__ == "__main__":
    LaunchedServer.start = start_and_note
    ServerApi.check_weights = check_and_kill
    runpy.run_module("gradbus_rollout", run_name="__main__")
