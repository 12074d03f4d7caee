"""Who may claim what, how long an offer waits, and what a key is good for."""

import asyncio
import dataclasses
import time

import pytest

from gradbus.v1 import environment_service_pb2 as pb

from .conftest import start_service

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR


async def test_an_episode_that_nobody_claims_is_away_with_what_to_do_and_waits_on(worker, claim, service):
    opened = await worker.open(timeout=3)
    assert (opened.status, opened.is_away, opened.session) == (ERROR, True, "")
    assert "no agent has claimed an episode of this run for" in opened.reason
    assert f'POST {service.url}/v1/agent/claim {{"run": "{worker.run_id}"}}' in opened.reason
    opening = asyncio.create_task(worker.open())
    offers = (await claim(worker.run_id, capacity=8)).json()
    assert [one["episode"] for one in offers] == ["train.0.0.0"], "the same offer is found again"
    assert (await claim(worker.run_id, seconds=0)).json() == []
    opening.cancel()


async def test_a_claim_waits_for_an_episode(worker, claim):
    claiming = asyncio.create_task(claim(worker.run_id, capacity=2))
    await asyncio.sleep(0.2)
    assert not claiming.done()
    opening = asyncio.create_task(worker.open())
    assert [one["episode"] for one in (await claiming).json()] == ["train.0.0.0"]
    opening.cancel()


async def test_a_claim_that_waits_when_the_service_stops_gets_no_episodes(http, free_port, tmp_path):
    """The embedded stack stops it with the last run that needs it."""
    stopped = start_service(tmp_path, free_port)
    claim = {"run": "run", "capacity": 1, "wait_seconds": 60}
    claiming = asyncio.create_task(
        http.post(f"{stopped.url}/v1/agent/claim", json=claim, headers={"Authorization": f"Bearer {stopped.key}"})
    )
    await asyncio.sleep(0.5)
    assert not claiming.done()
    stopped.process.terminate()
    assert ((await claiming).status_code, (await claiming).json()) == (200, [])
    assert await asyncio.to_thread(stopped.process.wait, 60) == 0
    assert "Traceback" not in (tmp_path / "agent.log").read_text()


async def test_a_claim_takes_as_many_episodes_as_it_has_room_for(worker, claim):
    opening = [asyncio.create_task(worker.open(f"train.0.0.{n}")) for n in range(3)]
    await asyncio.sleep(0.5)
    assert [len((await claim(worker.run_id, capacity=2, seconds=0)).json()) for _ in range(3)] == [2, 1, 0]
    for one in opening:
        one.cancel()


async def test_an_offer_is_queued_while_another_episode_of_the_run_is_played(begin):
    worker, agent, opening = await begin()
    other = dataclasses.replace(worker, session="")
    queued = await other.open("train.0.0.1", timeout=3)
    assert (queued.status, queued.is_away, queued.is_queued) == (ERROR, True, True)
    assert queued.reason == "queued: 1 episodes of this run are played, 1 wait"
    assert (await agent.end(status="error")).status_code == 200
    assert (await opening).status == ERROR
    away = await other.open("train.0.0.1", timeout=3)
    assert (away.is_away, away.is_queued) == (True, False)
    assert "no agent has claimed an episode of this run for" in away.reason


async def test_an_offer_whose_worker_is_gone_is_not_claimed(worker, claim):
    gone = asyncio.create_task(worker.open("train.0.0.0"))
    await asyncio.sleep(0.3)
    gone.cancel()
    waits = asyncio.create_task(worker.open("train.0.0.1"))
    await asyncio.sleep(5.5)
    assert [one["episode"] for one in (await claim(worker.run_id, capacity=8)).json()] == ["train.0.0.1"]
    waits.cancel()


async def test_claims_are_for_keys_that_may_write_runs(service, worker, claim, http):
    assert (await claim(worker.run_id, key="wrong")).status_code == 401
    refused = await claim(worker.run_id, key=service.reader)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert (await http.post(f"{service.url}/v1/agent/claim", json={"run": "x"})).status_code == 401


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"capacity": True}, {"wait_seconds": 61}, {"wait_seconds": "1"}, {"run": 5}])
async def test_a_claim_that_is_wrong_says_what_to_send(claim, wrong):
    refused = await claim(wrong.pop("run", "run"), **wrong)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_a_key_is_that_of_one_episode(begin, http):
    (_, first, opening), (_, second, other) = await begin(), await begin()
    assert (await http.get(first.url("models"), headers={"x-api-key": second.offer["api_key"]})).status_code == 200
    first.offer["episode"] = "train.0.0.7"
    assert (await first.beat()).status_code == 403
    assert (await http.get(first.url("models"), headers={"authorization": "Bearer wrong"})).status_code == 401
    assert (await http.get(first.url("models"))).status_code == 401
    in_path = first.offer["base_url"].replace("/v1", f"/e/{first.offer['api_key']}/v1")
    assert (await http.get(f"{in_path}/models")).json()["data"][0]["id"] == first.offer["model"]
    assert (await http.post(first.url("agent/claim"), json={"run": "x"}, headers=first.headers)).status_code == 401
    opening.cancel()
    other.cancel()


async def test_an_agent_that_does_nothing_is_given_up_and_its_key_is_gone(begin):
    _worker, agent, opening = await begin(step_seconds=1.0)
    began = time.monotonic()
    opened = await opening
    assert 0.5 < time.monotonic() - began < 10
    assert (opened.status, opened.is_away) == (ERROR, False)
    assert "did nothing for 1 s" in opened.reason
    gone = await agent.chat("hello")
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, "episode_over")
    assert (await agent.end(reward=1)).status_code == 410


async def test_beats_keep_an_agent_that_works_and_its_worker_waits(begin):
    worker, agent, opening = await begin(step_seconds=1.0)
    for _ in range(5):
        await asyncio.sleep(0.4)
        assert (await agent.beat()).json() == {"lease_seconds": 1.0}
    asked = asyncio.create_task(agent.chat("hello"))
    worker.session = (await opening).session
    stepping = asyncio.create_task(worker.step("4", timeout=2))
    await asked
    for _ in range(5):
        await asyncio.sleep(0.4)
        await agent.beat()
    away = await stepping
    assert (away.status, away.is_away) == (ERROR, True), "a caller with a deadline is told to ask again"
    worker.turn -= 1
    again = asyncio.create_task(worker.step("4"))
    assert (await agent.end(reward=0.5)).status_code == 200
    assert ((await again).done, (await again).reward) == (True, 0.5)


async def test_after_a_limit_beats_do_not_put_off_the_end(begin):
    worker, agent, opening = await begin(step_seconds=1.0)
    asked = asyncio.create_task(agent.chat("hello"))
    worker.session = (await opening).session
    stepping = asyncio.create_task(worker.step("4", end="max_turns"))
    assert (await asked).status_code == 200
    began = time.monotonic()
    while not stepping.done() and time.monotonic() - began < 10:
        await agent.beat()
        await asyncio.sleep(0.2)
    stepped = await stepping
    assert 0.5 < time.monotonic() - began < 3
    assert (stepped.status, stepped.is_away) == (ERROR, False)
    assert "did not end it within 1 s of the run's limit" in stepped.reason


async def test_a_request_beside_the_end_is_refused_when_its_worker_closes(begin):
    worker, agent, opening = await begin()
    asked = asyncio.create_task(agent.chat("hello"))
    worker.session = (await opening).session
    assert (await agent.end(reward=1)).status_code == 200
    await asyncio.sleep(0.2)
    assert not asked.done()
    await worker.close()
    assert (await asked).status_code == 410


async def test_another_attempt_closes_the_one_before(begin, worker, claim):
    worker, agent, opening = await begin()
    opening.cancel()
    asked = asyncio.create_task(agent.chat("hello"))
    await asyncio.sleep(0.2)
    newer = asyncio.create_task(worker.open(attempt=1))
    assert (await asked).status_code == 410
    (offer,) = (await claim(worker.run_id)).json()
    assert (offer["attempt"], offer["api_key"] != agent.offer["api_key"]) == (1, True)
    older = await worker.open(attempt=0)
    assert (older.status, older.is_away) == (ERROR, False)
    newer.cancel()


async def test_a_session_that_is_closed_is_over_for_its_agent_and_unknown_to_its_worker(begin):
    worker, agent, opening = await begin()
    asked = asyncio.create_task(agent.chat("hello"))
    worker.session = (await opening).session
    await worker.close()
    assert (await asked).status_code == 410
    assert (await agent.beat()).status_code == 410
    assert (await worker.step("4")).status == pb.ENVIRONMENT_STATUS_UNKNOWN_SESSION


async def test_a_claim_whose_client_is_gone_takes_no_episode(worker, claim):
    gone = asyncio.create_task(claim(worker.run_id))
    await asyncio.sleep(0.3)
    gone.cancel()
    await asyncio.sleep(0.3)
    opening = asyncio.create_task(worker.open())
    await asyncio.sleep(0.3)
    assert len((await claim(worker.run_id)).json()) == 1
    opening.cancel()


async def test_clients_that_send_no_whole_head_are_closed(service):
    host, _, port = service.url.removeprefix("http://").partition(":")

    async def is_closed_after(sent):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(20):
            rest = await reader.read()
        writer.close()
        return rest == b""

    heads = (b"", b"GET /v1/models HTTP/1.1\r\nhost: x\r\n", b"POST /v1/agent/claim HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 40_000)
    assert all(await asyncio.gather(*map(is_closed_after, heads)))
