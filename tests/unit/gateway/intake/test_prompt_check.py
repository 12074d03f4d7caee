"""Which submissions' prompts are checked again, and whose wait for one another."""

import asyncio

import pytest

from gradbus.errors import Fault
from gradbus.objects import ObjectStore
from gradbus.spec import RunSpec
from gradbus.tokenizer.launcher import ForkServer
from gradbus_gateway.intake.prompt_check import Checked, PromptCheck


def spec(train):
    body = {"name": "a", "model": {"path": "m", "files": {"config.json": "sha256:" + "0" * 64}}, "data": {"train": train}}
    return RunSpec.model_validate(body | {"reward": {"service": "grpc://scorer:1"}, "schedule": {"steps": 1}})


async def never(_spelling, _url):
    raise AssertionError("no spec here has a teacher that is a server")


@pytest.fixture
async def check(tmp_path, monkeypatch):
    """A check that ends when the test lets it, with the result that the test gives."""
    check = PromptCheck(ObjectStore.open(f"file://{tmp_path}"), ForkServer(), never)
    check.running, check.result = [], asyncio.Future()

    async def checked(spec, _limits):
        check.running.append(spec.data.train)
        return await asyncio.shield(check.result)

    monkeypatch.setattr(check, "_checked", checked)
    return check


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_submission_is_checked_at_a_time_and_its_equals_not_at_all(check):
    waiting = [asyncio.create_task(check.fault(spec(train), "someone")) for train in ("a", "a", "b", "a")]
    await settle()
    assert check.running == ["a"]
    check.result.set_result(Checked(None))
    assert await asyncio.gather(*waiting) == [None] * 4
    assert check.running == ["a", "b"]


async def test_what_passed_is_remembered_and_what_failed_is_not(check):
    check.result.set_result(Checked(Fault("model", "a fault")))
    for _ in range(2):
        assert await check.fault(spec("a"), "someone") == Fault("model", "a fault")
    check.result = asyncio.Future()
    check.result.set_result(Checked(None))
    for _ in range(2):
        assert await check.fault(spec("a"), "someone") is None
    assert check.running == ["a"] * 3


async def test_a_submission_waits_for_longer_than_a_check_of_another_takes(check, monkeypatch):
    waiting = [asyncio.create_task(check.fault(spec(caller), caller)) for caller in ("someone", "another")]
    await settle()
    loop = asyncio.get_running_loop()
    later = loop.time() + 60
    monkeypatch.setattr(loop, "time", lambda: later)
    await settle()
    assert check.running == ["someone"]
    check.result.set_result(Checked(None))
    assert await asyncio.gather(*waiting) == [None] * 2
