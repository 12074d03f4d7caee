"""Object storage that refuses writes in the middle of a run: its status says so and what to do, and the run goes on to the same weights."""

import asyncio
import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from smoke import EXAMPLE, FINAL, smoke_spec, train, until

from gradbus.client import Client, document

STEPS = 24


@contextmanager
def refusing(folder):
    """Files of the folder can be read and nothing can be written there, by root neither."""
    if os.getuid() == 0:
        close, opened = ["chattr", "-R", "+i", str(folder)], ["chattr", "-R", "-i", str(folder)]
        if shutil.which("chattr") is None or subprocess.run(close, check=False, capture_output=True).returncode:
            pytest.skip("root, and the file system has no immutable files")
    else:
        close, opened = ["chmod", "-R", "a-w", str(folder)], ["chmod", "-R", "u+w", str(folder)]
        subprocess.run(close, check=True)
    try:
        yield
    finally:
        subprocess.run(opened, check=True)


@pytest.mark.faults
async def test_a_run_says_that_its_storage_refuses_writes_and_goes_on(stack_of, example):
    spec = smoke_spec(example, schedule={"steps": STEPS}, evaluation={"every": 12, "samples": 4})
    async with stack_of() as stack:
        undisturbed = await train(stack, spec)
        client = Client(stack.url, stack.api_key)
        run_id = (await asyncio.to_thread(client.submit, spec, EXAMPLE)).id
        await until(client, run_id, lambda run: run["progress"]["step"] >= 3)
        with refusing(stack.state.objects):
            run = await until(client, run_id, lambda run: "waits to be stored" in run["waiting_for"])
        assert "check that it can be written to and has room" in run["waiting_for"]
        assert run["state"] == "running"
        ended = await until(client, run_id, lambda run: run["state"] in FINAL)
        version = document(await asyncio.to_thread(client.versions_page, run_id, STEPS - 1))["data"][-1]
        client.close()
    assert (ended["state"], version["digest"]) == ("succeeded", undisturbed.digest)
    assert not ended["waiting_for"]
