"""A deployment that is lost and restored from a backup, which was made in the middle of a run, ends the run in the same weights."""

import asyncio
import os
import shutil
import signal

import pytest
from smoke import EXAMPLE, FINAL, smoke_spec, train, until

from gradbus.client import Client, document
from gradbus.embedded import Stack, StackConfig

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]
STEPS = 30


@pytest.fixture
def short(example):
    """Only two checkpoints are kept, so that the run deletes files while they are copied."""
    return smoke_spec(example, schedule={"steps": STEPS}, checkpoint={"every": 4, "keep": 2}, evaluation={"every": STEPS})


def back_up(stack: Stack, target) -> None:
    """As docs/kubernetes.md says it: the secrets, all objects, and then the disk of NATS as of one moment. The buffer is left out."""
    source = stack.state.root
    back_up_objects(stack, target)
    shutil.copytree(source / "secrets", target / "secrets")
    shutil.copy(source / "ports.json", target)
    server = stack.processes["nats"].pid
    os.kill(server, signal.SIGSTOP)
    try:
        shutil.copytree(source / "nats", target / "nats")
    finally:
        os.kill(server, signal.SIGCONT)


def back_up_objects(stack: Stack, target) -> None:
    """File by file, as `rclone copy` does: what is deleted meanwhile is left out."""
    for path in sorted((stack.state.root / "objects").rglob("*")):
        copy = target / path.relative_to(stack.state.root)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        elif "#" not in path.name:  # not a file that is being written
            shutil.copy2(path, copy) if path.exists() else None


async def test_a_restored_backup_of_a_running_stack_ends_the_run_in_the_same_weights(tmp_path, short):
    lost, backup = tmp_path / "lost", tmp_path / "backup"
    async with Stack(StackConfig(state=lost, port=0)) as stack:
        calm = await train(stack, short)
        client = Client(stack.url, stack.api_key)
        run_id = (await asyncio.to_thread(client.submit, short, EXAMPLE)).id
        await until(client, run_id, lambda run: run["progress"]["step"] >= 8)
        await asyncio.to_thread(back_up, stack, backup)
        # The run goes on past further checkpoints before its objects are copied once more.
        await until(client, run_id, lambda run: run["progress"]["step"] >= 17)
        await asyncio.to_thread(back_up_objects, stack, backup)
        client.close()
    shutil.rmtree(lost)
    async with Stack(StackConfig(state=backup, port=0)) as stack:
        with Client(stack.url, stack.api_key) as client:
            run = await until(client, run_id, lambda run: run["state"] in FINAL)
            versions = document(await asyncio.to_thread(client.versions_page, run_id, after=STEPS - 1))["data"]
    assert (calm.state, run["state"], versions[-1]["digest"]) == ("succeeded", "succeeded", calm.digest)
