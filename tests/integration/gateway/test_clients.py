"""What both clients promise, against a real gateway: `Client` in a thread, and `AsyncClient`."""

import asyncio
import json
from pathlib import Path

import pytest

from gradbus.bus import EventLog
from gradbus.client import AsyncClient, Client, document
from gradbus.errors import (
    AuthenticationError,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    RunNameError,
    SpecError,
    StackError,
)
from gradbus.resources.runs import RunResource
from gradbus.spec import RunSpec

UNKNOWN = "run-000000000000-000000"


class Blocking:
    """Calls methods of a `Client`."""

    kind = Client

    def __init__(self, client):
        self.client = client

    async def do(self, method, *given, **named):
        return await asyncio.to_thread(getattr(self.client, method), *given, **named)

    async def items(self, method, *given, **named):
        return await asyncio.to_thread(lambda: list(getattr(self.client, method)(*given, **named)))

    async def close(self):
        self.client.close()


class Awaiting(Blocking):
    """Calls methods of an `AsyncClient`."""

    kind = AsyncClient

    async def do(self, method, *given, **named):
        return await getattr(self.client, method)(*given, **named)

    async def items(self, method, *given, **named):
        return [item async for item in getattr(self.client, method)(*given, **named)]

    async def close(self):
        await self.client.close()


@pytest.fixture(params=[Blocking, Awaiting], ids=["Client", "AsyncClient"])
async def connect(stack, request):
    """Makes clients of the gateway, each with the key that is given."""
    opened = []

    def one(key=stack.key):
        opened.append(request.param(request.param.kind(stack.url, key)))
        return opened[-1]

    yield one
    for client in opened:
        await client.close()


@pytest.fixture
def api(connect):
    return connect()


async def test_a_spec_is_a_dict_a_model_or_a_file(api, spec, tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(as_toml(spec))
    from_dict = await api.do("submit", spec, tmp_path)
    from_model = await api.do("submit", RunSpec.model_validate(spec), tmp_path)
    from_file, from_name = await api.do("submit", file), await api.do("submit", str(file))
    assert isinstance(from_dict, RunResource)
    assert from_dict.spec == from_model.spec == from_file.spec == from_name.spec
    assert len({run.id for run in (from_dict, from_model, from_file, from_name)}) == 4
    assert (await api.do("check", file)).spec == from_dict.spec
    assert (await api.do("submit", from_dict.spec)).spec == from_dict.spec, "what a run has can be submitted again"


def as_toml(spec):
    """The sections of a spec; JSON's strings, numbers and inline tables of strings are TOML's."""
    lines = [f"name = {json.dumps(spec['name'])}"]
    for section, fields in spec.items():
        if section == "name":
            continue
        for name, value in fields.items():
            shown = value if isinstance(value, dict) else {"": value}
            lines += [f"{section}.{name}{'.' if part else ''}{part} = {json.dumps(one)}" for part, one in shown.items()]
    return "\n".join(lines)


async def test_a_key_of_a_submission_makes_one_run(api, spec, tmp_path):
    first, again = [await api.do("submit", spec, tmp_path, api.kind.__name__) for _ in range(2)]
    assert first.id == again.id


async def test_a_run_goes_by_id_name_and_last(api, spec, tmp_path):
    run = await api.do("submit", spec | {"name": f"named-{api.kind.__name__.lower()}"}, tmp_path)
    for given in (run.id, run.name, "last", run.id[:-1]):
        assert (await api.do("run", given)).id == (await api.do("find", given)).id == run.id
    assert (await api.items("runs"))[0].id == run.id
    assert document(await api.do("run", "last"))["spec"] == document(run)["spec"]


async def test_what_does_not_exist_is_an_error_that_says_what_to_do(api, submitted):
    with pytest.raises(RunNameError, match="no run is called 'nobody'; `gradbus runs` lists them"):
        await api.do("run", "nobody")
    with pytest.raises(NotFoundError, match=UNKNOWN) as refused:
        await api.do("cancel", UNKNOWN)
    assert (refused.value.status, refused.value.problem["type"]) == (404, "urn:gradbus:problem:no-such-run")
    with pytest.raises(NotFoundError):
        await api.items("events", UNKNOWN)
    with pytest.raises(NotFoundError):
        await api.items("stream", UNKNOWN)


async def test_a_key_that_may_not_is_refused_by_its_own_error(connect, stack, spec, submitted):
    reader = connect(stack.reader_key)
    assert (await reader.do("run", submitted["id"])).id == submitted["id"]
    with pytest.raises(PermissionDeniedError, match="runs:write"):
        await reader.do("cancel", submitted["id"])
    with pytest.raises(AuthenticationError, match="check GRADBUS_KEY"):
        await connect("no.key").do("run", submitted["id"])


async def test_an_invalid_spec_has_all_its_faults(api, spec, tmp_path):
    with pytest.raises(SpecError) as refused:
        await api.do("check", spec | {"schedule": {"steps": 0}, "model": {"path": "nowhere"}}, tmp_path)
    assert [fault.path for fault in refused.value.faults] == ["schedule.steps", "model.path"]
    assert str(tmp_path) in refused.value.faults[1].given


async def test_a_run_is_paused_resumed_cancelled_awaited_and_deleted(api, submitted, set_state):
    run_id = submitted["id"]
    assert (await api.do("pause", run_id)).desired == "paused"
    assert (await api.do("resume", run_id)).desired == "running"
    with pytest.raises(TimeoutError, match=r"is queued at step 0 of 4 after 0\.1 s; it goes on: wait again, or cancel it"):
        await api.do("wait", run_id, seconds=0.1, poll_seconds=0.05)
    with pytest.raises(ConflictError, match="cancel"):
        await api.do("delete", run_id)
    waiting = asyncio.create_task(api.do("wait", run_id, poll_seconds=0.01))
    assert (await api.do("cancel", run_id)).desired == "cancelled"
    await set_state(run_id, "cancelled", step=3)
    ended = await waiting
    assert (ended.state, ended.progress.step, ended.finished_at is None) == ("cancelled", 3, False)
    await api.do("delete", run_id)
    with pytest.raises(NotFoundError):
        await api.do("run", run_id)


async def test_events_go_over_pages_and_a_stream_ends_with_the_run(api, bus, submitted, set_state):
    log, run_id = EventLog(bus, submitted["id"]), submitted["id"]
    for step in range(1005):
        log.emit("metrics", f"step {step}", {"step": step})
    await log.wait_until_stored()
    events = await api.items("events", run_id)
    assert [event.data["step"] for event in events] == list(range(1005))
    assert [event.id for event in await api.items("events", run_id, after=events[999].id)] == [event.id for event in events[1000:]]
    streaming = asyncio.create_task(api.items("stream", run_id, after=events[1000].id))
    log.emit("state", "done", {"state": "succeeded"})
    await log.wait_until_stored()
    await set_state(run_id, "succeeded")
    streamed = await streaming
    assert [event.type for event in streamed] == ["metrics"] * 4 + ["state"]
    assert streamed[:4] == events[1001:]


async def test_there_are_samples_versions_and_ancestors_of_a_new_run(api, submitted):
    run_id = submitted["id"]
    assert await api.items("samples", run_id, step=0, include=["tokens", "item"]) == []
    assert (await api.do("samples_page", run_id, limit=1)).has_more is False
    assert await api.items("versions", run_id) == []
    lineage = await api.do("lineage", run_id)
    assert (lineage.run_id, lineage.ancestors, lineage.children) == (run_id, [], [])
    with pytest.raises(ConflictError, match="has no version yet"):
        await api.do("export", run_id, Path("nowhere"))
    with pytest.raises(NotFoundError, match="has no version 2"):
        await api.do("version_lineage", run_id, 2)
    assert [scorer.kind for scorer in (await api.do("version_lineage", run_id, 0, limit=1)).scorers] == ["grader"]


async def test_a_live_run_gets_another_scorer_from_a_file_beside_it(api, submitted, tmp_path):
    run_id = submitted["id"]
    (tmp_path / "grade.py").write_text("def grade(sample, item):\n    return 1.0\n")
    changed = await api.do("change_reward", run_id, {"grader": {"type": "python", "file": "grade.py"}}, tmp_path)
    assert [turn.scorer.grader.type for turn in changed.scorers] == ["string_check", "python"]
    assert changed.scorers[1].scorer.grader.source.startswith("def grade")
    assert await api.do("reward", run_id) == changed
    with pytest.raises(SpecError) as refused:
        await api.do("change_reward", run_id, {"grader": {"type": "python", "file": "gone.py"}}, tmp_path)
    assert "grader.file" in [fault.path for fault in refused.value.faults]
    assert str(tmp_path / "gone.py") in str(refused.value)


async def test_a_browser_is_signed_in_and_the_gateway_is_ready(api, stack, submitted):
    link = await api.do("sign_in_link", submitted["id"])
    assert link.startswith(f"{stack.url}/sign-in#")
    assert link.endswith(f"&run={submitted['id']}")
    assert await api.do("is_ready")


async def test_without_an_answer_it_says_whom_it_asked(api):
    async with AsyncClient("http://127.0.0.1:9", "key") as nobody:
        assert not await nobody.is_ready()
        nobody.retries = type(nobody.retries)(0.1)
        with pytest.raises(StackError, match=r"http://127\.0\.0\.1:9 does not answer"):
            await nobody.run(UNKNOWN)
