"""Tags and notes on runs: written by REST, the client and the command, and selecting runs in lists."""

import asyncio
import json
from uuid import uuid4

import httpx2
import pytest

from gradbus.bus import Buckets, OwnedKey
from gradbus.control.annotations import AnnotationChange
from gradbus.spec import RewardChange
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.runs.store import RunStore

TOML = """
name = "typed"
model.path = "model"
data.train = "train.jsonl"
rollout.max_new_tokens = 8
reward.grader = { type = "math", reference = "{{ item.answer }}" }
schedule = { steps = 4, groups_per_step = 2 }
"""


@pytest.fixture
def tag():
    """A tag that no other test gives."""
    return f"t-{uuid4().hex[:8]}"


def test_tags_and_a_note_are_part_of_a_run_whatever_its_state(http, submitted, set_state, tag):
    address = f"/v1/runs/{submitted['id']}"
    assert (submitted["tags"], submitted["note"]) == ([], "")
    run = http.patch(address, json={"add_tags": ["b", tag, "b"], "note": "tries 5e-5"}).json()
    assert (run["tags"], run["note"]) == (["b", tag], "tries 5e-5")
    assert run["spec"] == submitted["spec"]
    assert http.patch(address, json={"add_tags": ["a"], "remove_tags": ["b", "unknown"]}).json()["tags"] == sorted(["a", tag])
    assert http.patch(address, json={}).json()["note"] == "tries 5e-5"
    listed = http.get("/v1/runs", params={"tag": tag}).json()["data"]
    assert [(one["id"], one["tags"]) for one in listed] == [(submitted["id"], sorted(["a", tag]))]
    assert "note" not in listed[0], "a thousand notes would be megabytes, which no list shows"


async def test_a_finished_run_is_tagged_too(http, submitted, set_state, tag):
    await set_state(submitted["id"], "succeeded", step=4)
    run = http.patch(f"/v1/runs/{submitted['id']}", json={"add_tags": [tag], "note": ""}).json()
    assert (run["state"], run["tags"]) == ("succeeded", [tag])


def test_lists_have_the_runs_with_all_tags_page_by_page(client, http, spec, tmp_path, tag):
    spec["name"] = "tagged"
    runs = [client.submit(spec, tmp_path).id for _ in range(3)]
    for run_id in runs:
        client.annotate(run_id, add_tags=[tag])
    client.annotate(runs[1], add_tags=[f"{tag}-more"])
    assert [run.id for run in client.runs([tag])] == runs[::-1]
    page = client.runs_page(limit=2, tags=[tag])
    assert ([run.id for run in page.data], page.has_more) == (runs[:0:-1], True)
    assert [run.id for run in client.runs_page(after=page.next_after, tags=[tag]).data] == runs[:1]
    assert [run.id for run in client.runs([tag, f"{tag}-more"])] == [runs[1]]
    assert list(client.runs([f"{tag}-less"])) == []
    client.annotate(runs[1], remove_tags=[tag])
    assert [run.id for run in client.runs([tag])] == [runs[2], runs[0]]


@pytest.mark.parametrize(
    "body",
    [
        {"add_tags": [""]},
        {"add_tags": ["two words"]},
        {"add_tags": ["x" * 65]},
        {"add_tags": [f"t{n}" for n in range(33)]},
        {"note": "x" * 4001},
        {"tags": ["a"]},
        {"add_tags": "a"},
        [],
    ],
)
def test_what_is_no_tag_or_note_is_refused_and_changes_nothing(http, submitted, body):
    response = http.patch(f"/v1/runs/{submitted['id']}", json=body)
    assert (response.status_code, response.json()["type"]) == (422, "urn:gradbus:problem:invalid-request")
    assert http.get(f"/v1/runs/{submitted['id']}").json()["tags"] == []


def test_a_run_has_at_most_32_tags(http, submitted):
    address = f"/v1/runs/{submitted['id']}"
    assert http.patch(address, json={"add_tags": [f"t{n}" for n in range(30)]}).status_code == 200
    response = http.patch(address, json={"add_tags": ["a", "b", "c"]})
    assert (response.status_code, response.json()["type"]) == (409, "urn:gradbus:problem:too-many-tags")
    assert len(http.get(address).json()["tags"]) == 30


def test_who_may_only_read_may_not_tag_and_no_run_no_tags(stack, http, submitted):
    reader = {"Authorization": f"Bearer {stack.reader_key}"}
    address = f"{stack.url}/v1/runs/{submitted['id']}"
    assert httpx2.patch(address, json={"note": "mine"}, headers=reader).status_code == 403
    assert http.patch("/v1/runs/run-000000000000-000000", json={"note": "x"}).status_code == 404


async def test_tags_that_are_added_at_the_same_time_are_all_there(stack, submitted):
    async with httpx2.AsyncClient(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=60) as http:
        address = f"/v1/runs/{submitted['id']}"

        async def add(tag):
            while (response := await http.patch(address, json={"add_tags": [tag]})).status_code == 409:
                pass  # others keep changing it: try again, as the problem says
            return response.status_code

        tags = [f"t{n}" for n in range(6)]
        assert set(await asyncio.gather(*map(add, tags))) == {200}
        assert (await http.get(address)).json()["tags"] == tags


async def test_annotations_that_cannot_be_read_are_named_and_can_be_repaired(http, bus, submitted):
    bucket = await bus.bucket(Buckets.RUNS)
    key = f"{submitted['id']}.annotations"
    await bucket.put(key, b'{"tags": 7}')
    for response in (http.get(f"/v1/runs/{submitted['id']}"), http.patch(f"/v1/runs/{submitted['id']}", json={"note": "x"})):
        assert response.status_code == 500
        assert f"restore the key {key}" in response.json()["detail"]
    (listed,) = [run for run in http.get("/v1/runs", params={"limit": 1000}).json()["data"] if run["id"] == submitted["id"]]
    assert listed["state"] == "unreadable"
    await bucket.purge(key)
    assert http.patch(f"/v1/runs/{submitted['id']}", json={"note": "x"}).json()["note"] == "x"


@pytest.mark.parametrize("is_purged", [False, True])
@pytest.mark.parametrize(
    ("key", "write"),
    [
        ("annotations", lambda store, run_id: store.annotate(run_id, AnnotationChange(note="too late"))),
        ("scorers_wanted", lambda store, run_id: store.change_scorer(run_id, RewardChange(from_group=1, service="grpc://there:1"))),
        ("desired", lambda store, run_id: store.request(run_id, "pause")),
    ],
)
async def test_a_run_that_is_deleted_meanwhile_keeps_nothing_that_is_written_then(bus, submitted, monkeypatch, key, write, is_purged):
    """Another request deletes the run, and maybe the conductor removes its keys, between the look at the run and the write."""
    run_id, bucket, real = submitted["id"], await bus.bucket(Buckets.RUNS), OwnedKey.replace

    async def replace_late(owned, value):
        await bucket.put(f"{run_id}.desired", b'"deleted"')
        for kind in ("spec", "desired") if is_purged else ():
            await bucket.purge(f"{run_id}.{kind}")
        await real(owned, value)

    monkeypatch.setattr(OwnedKey, "replace", replace_late)
    with pytest.raises(ProblemError) as problem:
        await write(RunStore(bucket), run_id)
    assert problem.value.status == 404
    left = await bucket.get(f"{run_id}.{key}")
    assert left is None or (left.value, is_purged) == (b'"deleted"', False)


def test_the_command_tags_a_run_when_it_is_submitted_and_later(gradbus, spec, tmp_path, tag):  # `spec` writes the files
    (tmp_path / "run.toml").write_text(TOML)
    status, output, errors = gradbus("run", "run.toml", "--tag", tag, "--tag", "first", "--note", "tries 5e-5")
    assert status == 0, errors
    run_id = output.split()[1]
    assert gradbus("tag", run_id)[1] == f"tags        first {tag}\nnote        tries 5e-5\n"
    assert gradbus("tag", run_id, "good", "--remove", "first", "--note", "two\nlines")[1].splitlines() == [
        f"tags        good {tag}",
        "note        two",
        "            lines",
    ]
    assert f"[good {tag}]" in gradbus("runs", "--tag", tag)[1]
    assert gradbus("runs", "--tag", tag, "--tag", "bad")[1] == "no run has these tags; `gradbus runs` lists all\n"
    assert f"tags        good {tag}\nnote        two\n" in gradbus("show", run_id)[1]
    assert json.loads(gradbus("tag", run_id, "--note", "", "--json")[1])["note"] == ""
    status, _, errors = gradbus("tag", run_id, "two words")
    assert (status, "add_tags" in errors) == (2, True)


@pytest.mark.parametrize("options", [("--tag", "two words"), ("--note", "x" * 4001), sum((("--tag", f"t{n}") for n in range(33)), ())])
def test_a_run_whose_tags_or_note_are_refused_is_not_created(gradbus, client, spec, tmp_path, tag, options):
    (tmp_path / "run.toml").write_text(TOML.replace("typed", tag))
    for more in ((), ("--dry-run",), ("--json",)):
        status, output, errors = gradbus("run", "run.toml", *options, *more)
        assert (status, output, options[0] in errors) == (2, "", True)
    assert tag not in {run.name for run in client.runs()}
