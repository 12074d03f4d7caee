"""A teacher's server that is slow or goes away: what it has answered is kept."""

import asyncio
import threading

import numpy as np
import pytest
from sglang_peer import SGLangPeer

from gradbus.aio.tasks import cancel_and_wait
from gradbus.errors import ServiceAwayError
from gradbus.spec import ServedTeacherSpec, TeacherSpec
from gradbus.user_services import sglang
from gradbus.user_services.addresses import AddressPolicy
from gradbus.user_services.keys import ServiceKeys
from gradbus.user_services.sglang import SGLangClient
from gradbus.user_services.sglang_answers import GivenTokens
from gradbus_reference import teacher_servers
from gradbus_reference.requests import LogProbsQuestion, PromptResponse
from gradbus_reference.settings import ReferenceSettings
from gradbus_reference.teacher_servers import TeacherServers

HELD = 9
"""The first token of a prompt that the server keeps."""
QUESTION = LogProbsQuestion("run-1", 1.0, of_teacher=True)


@pytest.fixture
def peer():
    holds, released = threading.Event(), threading.Event()

    def table(ids):
        if ids[0] == HELD:
            holds.set()
            assert not released.wait(60), "the server goes away without an answer"
        return np.full((len(ids), 17), -np.log(17.0))

    peer = SGLangPeer(table)
    peer.holds, peer.released = holds, released
    yield peer
    released.set()
    peer.close()


@pytest.fixture
async def servers():
    servers = TeacherServers(ReferenceSettings(allow_loopback=True))
    yield servers
    await servers.close()


def asked(peer, *first):
    """The arguments of a question about one sequence for each first token."""
    teacher = TeacherSpec(url=peer.url, served=ServedTeacherSpec(model_path="models/large", weight_version="default", vocab_size=17))
    sequences = [PromptResponse(f"0.{n}", np.array([token, 1], np.int32), np.array([2, 3], np.int32)) for n, token in enumerate(first)]
    return teacher, QUESTION, sequences


async def test_what_a_slow_server_has_answered_is_kept_and_the_rest_left_out(servers, peer, monkeypatch):
    monkeypatch.setattr(teacher_servers, "_ANSWER_SECONDS", 3.0)
    first, held, last = await servers.values(*asked(peer, 1, HELD, 2))
    np.testing.assert_allclose([first, last], -np.log(17.0), rtol=1e-6)
    assert held is None


async def test_what_a_server_has_answered_before_it_goes_away_is_kept(servers, peer):
    call = asyncio.create_task(servers.values(*asked(peer, 1, HELD)))
    await asyncio.to_thread(peer.holds.wait, 60)
    asyncio.get_running_loop().call_later(1.0, peer.released.set)
    assert [found is not None for found in await call] == [True, False]


async def test_a_server_that_answers_nothing_in_time_is_away(servers, peer, monkeypatch):
    monkeypatch.setattr(teacher_servers, "_ANSWER_SECONDS", 0.5)
    with pytest.raises(ServiceAwayError, match=r"answered none of 2 sequences within 0\.5 s"):
        await servers.values(*asked(peer, HELD, HELD))


async def test_no_question_but_those_about_sequences_waits_for_a_place(peer, monkeypatch):
    monkeypatch.setattr(sglang, "_AT_ONCE", 1)
    client = SGLangClient(peer.url, AddressPolicy(allow_loopback=True), ServiceKeys())
    held = asyncio.create_task(client.logprobs(GivenTokens([HELD], [1], 17), 60.0))
    await asyncio.to_thread(peer.holds.wait, 60)
    async with asyncio.timeout(20):
        assert (await client.served(10.0)).path == "models/large"
    await cancel_and_wait(held)
    await client.close()
