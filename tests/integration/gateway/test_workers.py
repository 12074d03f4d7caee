"""Workers as they announce themselves."""

from gradbus.bus import Buckets
from gradbus.control.runs import WorkerPresence


async def test_a_live_worker_is_listed_with_its_version(client, bus):
    bucket = await bus.bucket(Buckets.WORKERS)
    presence = WorkerPresence(worker="rollout-7", role="rollout", incarnation="a", version=3, claims=[1, 2])
    await bucket.put("rollout-7", presence.to_bytes())
    found = {worker["worker"]: worker for worker in client.workers()["data"]}["rollout-7"]
    assert (found["object"], found["version"], found["claims"]) == ("worker", 3, [1, 2])
    await bucket.delete("rollout-7")
    assert "rollout-7" not in {worker["worker"] for worker in client.workers()["data"]}
