"""A process that stands still for longer than a lease lives, and goes on as if nothing had happened."""

import asyncio
import os
import signal

import pytest
from smoke import train, until
from test_hash import faults_of

from gradbus.bus.subjects import LEASE_TTL_SECONDS
from gradbus.client import Client, document

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]


async def freeze(stack, name):
    """SIGSTOP in the middle of the newest run; what is stopped neither closes its connections nor learns that it is over."""
    with Client(stack.url, stack.api_key) as client:
        while not (runs := document(await asyncio.to_thread(client.runs_page))["data"]) or runs[0]["finished_at"]:  # noqa: ASYNC110 - it is asked, it does not signal
            await asyncio.sleep(0.05)
        await until(client, runs[0]["id"], lambda run: run["progress"]["step"] > 5)
    process = stack.processes[name].pid
    os.kill(process, signal.SIGSTOP)
    try:
        await asyncio.sleep(LEASE_TTL_SECONDS + 3.0)
    finally:
        os.kill(process, signal.SIGCONT)


@pytest.mark.parametrize("name", ["conductor", "trainer-0", "rollout-0", "weight_store", "nats", "buffer"])
async def test_a_zombie_changes_no_bit(stack_of, spec, true_digest, name):
    async with stack_of(2) as stack:
        freezing = asyncio.create_task(freeze(stack, name))
        outcome = await train(stack, spec, seconds=400.0)
        await freezing
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
        assert faults_of(stack, outcome, spec) == []
