"""Two users on one stack: one submits what can hurt, the other trains run after run, and no bit of those changes."""

import asyncio

from compose_lab import MADE, RESTART_SECONDS, STEPS, digest_of, until

from gradbus.client import Client, RetryPolicy
from gradbus_hostile.attack import attacked, submit_all
from gradbus_hostile.clients import CLIENTS, Target
from gradbus_hostile.material import Material
from gradbus_hostile.submissions import SUBMISSIONS

STUCK_SECONDS = 240.0
SCOPES = ("runs:read", "runs:write", "files:write")
SMALL = {
    "name": "hostile",
    "model": {"path": str(MADE / "model")},
    "data": {"train": str(MADE / "train.jsonl")},
    "rollout": {"slots": 16, "group_size": 4, "max_new_tokens": 6},
    "reward": {"grader": {"type": "string_check", "operation": "like", "input": "{{ sample.output_text }}", "reference": "1"}},
    "schedule": {"groups_per_step": 4, "steps": 2},
}


def key_of_another_user(compose):
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    create = ["-m", "gradbus.cli", "keys", "create", "hostile", *scopes, "--state", "/var/lib/gradbus"]
    return compose("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "secrets", *create).stdout.strip()


async def digest_of_trained(client, run_id):
    run = await asyncio.to_thread(until, client, run_id, STEPS + 1)
    assert run["state"] == "succeeded", run["reason"]
    return await asyncio.to_thread(digest_of, client, run_id)


async def test_a_hostile_user_changes_no_bit_of_another_users_runs(compose, submit, true_digest, tmp_path):
    compose.up("--no-build", "--scale", "trainer=2", "--scale", "rollout=2")
    key = key_of_another_user(compose)
    with compose.client() as good, Client(compose.url, key, RetryPolicy(RESTART_SECONDS)) as hostile:
        first = submit(good)
        async with attacked(Target("127.0.0.1", compose.port, key, first), CLIENTS[:6]):
            attack = asyncio.create_task(submit_all(hostile, Material(tmp_path, SMALL), SUBMISSIONS, STUCK_SECONDS))
            digests = {await digest_of_trained(good, first)}
            while not attack.done():
                digests.add(await digest_of_trained(good, await asyncio.to_thread(submit, good)))
        wrong = [f"{ended.submission.name}: {ended.end} {ended.cause}" for ended in await attack if not ended.is_allowed]
        assert not wrong, "\n".join(wrong)
        assert digests == {true_digest}
    assert compose.foreign_lines() == []
