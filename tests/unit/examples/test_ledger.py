"""The ledger: its data, its world, its spec, and the server that fails."""

import json
import runpy
import threading

import httpx2
import pytest
from transformers import AutoTokenizer

from gradbus.client import load_spec
from gradbus.spec import parse_spec


@pytest.fixture(scope="module")
def folder(ledger_pages, tmp_path_factory):
    return ledger_pages.make(tmp_path_factory.mktemp("examples") / "ledger", ledger_pages.Settings(evaluated=30))


@pytest.fixture
def world(examples):
    """Makes the world of a page with so many pages to open."""
    kind = runpy.run_path(str(examples / "ledger/environment.py"))["Environment"]

    def make(pages, tool="on"):
        for seed in range(100):
            made = kind()
            made.reset({"page": 3, "tool": tool}, seed)
            if len(made.trail) == pages:
                return made
        raise AssertionError

    return make


@pytest.fixture
def server(ledger_server):
    """Makes a server with a share of faults, and a client of it."""
    servers = []

    def make(faults):
        made = ledger_server.LedgerServer(0, faults)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        servers.append(made)
        return made, httpx2.Client(base_url=made.url, trust_env=False, timeout=30)

    yield make
    for made in servers:
        made.shutdown()
        made.server_close()


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def opening(episode, attempt=0):
    return {"run_id": "r", "episode_id": episode, "attempt": attempt, "item": {"page": 3, "tool": "on"}, "seed": 7}


def step(session, turn, text="", calls=(), is_last=False):
    calls = [{"call_id": f"c{turn}.0", "name": "p", "arguments": json.dumps({"page": page}), "status": "ok"} for page in calls]
    assistant = {"text": text, "calls": calls, "finish": "stop"}
    name = f"{session}.{turn}"
    return {"session": session, "turn": turn, "request_id": name, "assistant": assistant, "is_last": is_last, "end_reason": ""}


def test_no_ledger_is_in_the_data(folder):
    for name in ("train", "eval"):
        on, off = rows(folder / f"{name}.jsonl"), rows(folder / f"{name}-off.jsonl")
        assert [row.keys() for row in on] == [{"prompt", "page", "tool"}] * len(on)
        assert [{**row, "tool": "off"} for row in on] == off
    assert len(rows(folder / "train.jsonl")) == 10
    assert len(on) == 30


def test_a_call_and_an_answer_are_a_token_each_and_end_a_turn(folder, examples):
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    spec = load_spec(examples / "ledger/ledger.toml", [])
    words = [f"p({n})" for n in range(10)] + [f"{n}." for n in range(10)]
    assert spec["rollout"]["stop_token_ids"] == tokenizer.encode("".join(words))
    assert tokenizer.decode(tokenizer.encode("3?p(3)5?p(5)7.7.?.")) == "3?p(3)5?p(5)7.7.?."


def test_the_spec_is_valid(examples):
    body = load_spec(examples / "ledger/ledger.toml", [])
    body["environment"]["source"] = (examples / "ledger" / body["environment"].pop("file")).read_text()
    assert parse_spec(body).name == "ledger"


@pytest.mark.parametrize("pages", [1, 2])
def test_who_follows_the_pages_has_the_whole_reward_and_others_a_part(world, pages):
    right, short = world(pages), world(pages)  # one ledger
    for page in right.trail:
        said = right.p(page)
    found = right.reward(said)
    assert said.endswith(".")
    assert (found["exact"], found["followed"], found["reward"]) == (1.0, 1.0, pytest.approx(1.7))
    assert short.reward(said)["reward"] == 1.0, "who guesses right has not called"
    short.p(9)
    assert short.reward("?.")["reward"] == pytest.approx(0.1)
    assert world(pages).reward("")["reward"] == 0.0


def test_the_ledger_is_of_the_seed_and_a_tool_that_is_off_says_nothing(world, examples):
    assert world(2).trail == world(2).trail
    assert len({tuple(world(pages).amounts) for pages in (1, 2)}) == 2
    assert world(2, "off").p(3) == "?."


def test_the_server_plays_as_the_class_does(server, world, examples):
    _, client = server(0.0)
    played = runpy.run_path(str(examples / "ledger/environment.py"))["Environment"]()
    played.reset({"page": 3, "tool": "on"}, 7)
    described = client.get("/describe").json()
    assert (described["determinism"], [tool["name"] for tool in described["tools"]]) == ("seeded", ["p"])
    session = client.post("/open", json=opening("train.0.1.2")).json()["session"]
    for turn, page in enumerate(played.trail):
        said = played.p(page)
        asked = step(session, turn, calls=[page])
        answers = [client.post("/step", json=asked).json() for _ in range(2)]
        assert answers == [{"messages": [{"role": "tool", "call_id": f"c{turn}.0", "content": said}]}] * 2
    answer = client.post("/step", json=step(session, len(played.trail), said)).json()
    judged = played.reward(said)
    assert answer == {"messages": [], "reward": judged.pop("reward"), "components": judged}
    assert client.post("/close", json={"session": session}).json() == {}


@pytest.mark.parametrize("arguments", ["", "[]", '{"page": "3"}', "[" * 100_000])
def test_arguments_that_name_no_page_have_a_result(ledger_server, world, arguments):
    assert ledger_server.opened(world(2), arguments) == "?."


def test_a_share_of_the_first_attempts_fails_and_no_other(server, ledger_server, monkeypatch):
    monkeypatch.setattr(ledger_server, "HANG_SECONDS", 0.01)
    running, client = server(0.5)
    statuses = []
    for episode in range(60):
        for attempt in (0, 1):
            try:
                said = client.post("/open", json=opening(str(episode), attempt)).json()
                if "session" in said:
                    said = client.post("/step", json=step(said["session"], 0, calls=[3])).json()
                statuses.append((attempt, said.get("status", "ok")))
            except httpx2.RemoteProtocolError:
                statuses.append((attempt, "disconnect"))
    assert {status for attempt, status in statuses if attempt} == {"ok"}
    assert {status for attempt, status in statuses if not attempt} == {"ok", "error", "disconnect"}
    assert running.failed.total() == sum(status != "ok" for _, status in statuses)
    assert 20 <= running.failed.total() <= 40
