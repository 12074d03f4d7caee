"""Submitting, listing, and saying what is wanted."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradbus.control.condemned import CondemnedBlobs
from gradbus.control.runs import RunRecord, deletion_key
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.intake.submission import RunIntake, Submission
from gradbus_gateway.quotas.runs import RunQuota
from gradbus_gateway.runs.idempotency import IdempotencyKeys
from gradbus_gateway.runs.store import RunStore
from gradbus_gateway.settings import GatewaySettings, Quotas


def test_a_submitted_run_has_an_address_and_every_digest(http, stored_spec):
    answer = http.post("/v1/runs", json=stored_spec)
    assert answer.status_code == 201
    run = http.get(answer.headers["location"]).json()
    assert run == answer.json()
    assert (run["state"], run["desired"], run["kind"]) == ("queued", "running", "rl")
    assert set(run["spec"]["model"]["files"]) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert run["spec"]["data"]["train"].startswith("sha256:")


async def test_the_stored_record_is_what_a_conductor_reads(bus, submitted):
    bucket = await bus.bucket("runs")
    record = RunRecord.model_validate_json((await bucket.get(f"{submitted['id']}.spec")).value)
    assert record.run_id == submitted["id"]
    assert record.spec.schedule.steps == 4
    assert await bucket.get(f"{submitted['id']}.desired") is None, "nobody has wished for anything else than that it runs"


def test_a_toml_body_is_taken(http, stored_spec):
    files = "\n".join(f'"{name}" = "{digest}"' for name, digest in stored_spec["model"]["files"].items())
    body = f"""
name = "from-toml"
data = {{ train = "{stored_spec["data"]["train"]}" }}
reward = {{ service = "http://127.0.0.1:9/score" }}
schedule = {{ steps = 1 }}
rollout = {{ max_new_tokens = 8 }}
[model]
path = "model"
[model.files]
{files}
"""
    answer = http.post("/v1/runs", content=body, headers={"Content-Type": "application/toml"})
    assert (answer.status_code, answer.json()["name"]) == (201, "from-toml")


def test_the_same_key_and_body_give_the_same_run(http, stored_spec):
    answers = [http.post("/v1/runs", json=stored_spec, headers={"Idempotency-Key": "once"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    other = http.post("/v1/runs", json=stored_spec | {"seed": 7}, headers={"Idempotency-Key": "once"})
    assert (other.status_code, other.json()["type"]) == (422, "urn:gradbus:problem:idempotency-key-reused")


async def test_a_repeated_request_returns_its_run_when_its_files_are_gone(http, objects, stored_spec):
    mine = await objects.put_blob(b'{"prompt": "of this test alone"}\n')
    spec = stored_spec | {"data": {"train": mine, "prompt": "prompt"}, "reward": {"service": "http://127.0.0.1:9/score"}}
    first = http.post("/v1/runs", json=spec, headers={"Idempotency-Key": "gone"})
    assert first.status_code == 201
    await objects.delete_blob(mine)
    assert http.post("/v1/runs", json=spec).status_code == 422
    assert http.post("/v1/runs", json=spec, headers={"Idempotency-Key": "gone"}).json() == first.json()
    other = http.post("/v1/runs", json=spec | {"seed": 7}, headers={"Idempotency-Key": "gone"})
    assert other.json()["type"] == "urn:gradbus:problem:idempotency-key-reused"


def test_requests_with_one_key_at_the_same_time_end_in_one_run(http, stored_spec):
    def post(_):
        return http.post("/v1/runs", json=stored_spec, headers={"Idempotency-Key": "at the same time"}).json()["id"]

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(post, range(8)))) == 1


def test_paging_walks_every_run_once_newest_first(http, client, spec, tmp_path):
    mine = [client.submit(spec, tmp_path).id for _ in range(3)]
    seen, after = [], ""
    while after is not None:
        page = http.get("/v1/runs", params={"limit": 2, "after": after}).json()
        assert page["has_more"] == (page["next_after"] is not None)
        seen += [run["id"] for run in page["data"]]
        after = page["next_after"]
    assert seen == sorted(set(seen), reverse=True)
    assert seen[:3] == mine[::-1]


@pytest.mark.parametrize("key", ["spec", "desired", "status"])
async def test_a_run_that_cannot_be_read_hides_no_other_and_says_what_to_do(http, bus, submitted, key):
    bucket = await bus.bucket("runs")
    broken = "run-zzz-broken"  # the newest
    await bucket.put(f"{broken}.spec", (await bucket.get(f"{submitted['id']}.spec")).value)
    await bucket.put(f"{broken}.{key}", b"\xff not a record")
    try:
        listed = http.get("/v1/runs").json()["data"]
        assert [run["id"] for run in listed[:2]] == [broken, submitted["id"]]
        assert [(run["state"], run["kind"]) for run in listed[:2]] == [("unreadable", None), ("queued", "rl")]
        answer = http.get(f"/v1/runs/{broken}")
        assert (answer.status_code, answer.json()["type"]) == (500, "urn:gradbus:problem:unreadable-run")
        assert f"{broken}.{key} in the bucket `runs` cannot be read" in listed[0]["reason"] == answer.json()["detail"]
    finally:
        for name in ("spec", "desired", "status"):
            await bucket.delete(f"{broken}.{name}")


async def test_a_key_that_names_no_run_is_ignored(http, bus, submitted):
    bucket = await bus.bucket("runs")
    await bucket.put("No=Run.spec", b"{}")
    try:
        assert http.get("/v1/runs").json()["data"][0]["id"] == submitted["id"]
    finally:
        await bucket.delete("No=Run.spec")


def test_pause_resume_and_cancel_set_the_desired_state(client, submitted):
    run_id = submitted["id"]
    assert client.pause(run_id).desired == "paused"
    assert client.pause(run_id).desired == "paused"
    assert client.resume(run_id).desired == "running"
    assert client.cancel(run_id).desired == "cancelled"
    assert client.cancel(run_id).state == "cancelling"


def test_a_cancelled_run_cannot_resume(http, client, submitted):
    client.cancel(submitted["id"])
    answer = http.post(f"/v1/runs/{submitted['id']}/resume")
    assert (answer.status_code, answer.json()["title"]) == (409, "State forbids")


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
async def test_a_finished_run_takes_no_actions(http, submitted, set_state, verb):
    await set_state(submitted["id"], "succeeded")
    answer = http.post(f"/v1/runs/{submitted['id']}/{verb}")
    assert answer.status_code == 409
    assert "succeeded" in answer.json()["detail"]
    assert ("nothing to cancel" in answer.json()["detail"]) == (verb == "cancel")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/runs/run-unknown", 404),
        ("GET", "/v1/runs/..%2Fworkers", 404),
        ("GET", "/v1/runs/%3E", 404),
        ("POST", "/v1/runs/run-unknown/cancel", 404),
        ("GET", "/v1/nothing", 404),
        ("DELETE", "/v1/runs", 405),
        ("DELETE", "/v1/runs/run-unknown", 404),
        ("GET", "/v1/runs?limit=0", 422),
        ("GET", "/v1/runs/run-unknown/samples?after=x", 422),
        ("GET", "/v1/runs?state=running", 422),
    ],
)
def test_refusals_are_problem_documents(http, method, path, status):
    answer = http.request(method, path)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (answer.status_code, problem["status"]) == (status, status)
    assert problem["type"].startswith("urn:gradbus:problem:")
    assert problem["title"]
    assert problem["detail"]
    assert problem["instance"].startswith("/v1/")


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("GET", "/v1/runs?limit=5&afte=x", "there is no such parameter; do you mean `after`?"),
        ("GET", "/v1/runs/run-1/samples?stepp=3", "there is no such parameter; do you mean `step`?"),
        ("GET", "/v1/workers?zone=a", "there is no such parameter; the parameters are after, limit, run"),
        ("POST", "/v1/runs?name=x", "this route takes no parameters"),
    ],
)
def test_a_parameter_that_is_not_known_is_refused_instead_of_ignored(http, method, path, said):
    answer = http.request(method, path)
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert (fault["path"], fault["message"]) == (f"query.{path.rpartition('&')[2].rpartition('?')[2].partition('=')[0]}", said)


def test_a_body_that_is_no_json_is_named_so(http):
    answer = http.post("/v1/runs", content=b"{")
    assert (answer.status_code, answer.json()["title"]) == (400, "Unreadable body")


def test_a_body_past_the_limit_is_refused_announced_or_not(http):
    huge = b" " * ((1 << 20) + 1)
    assert http.post("/v1/runs", content=huge).status_code == 413
    assert http.post("/v1/runs", content=iter([huge[: 1 << 19]] * 3)).status_code == 413


@pytest.mark.parametrize("part", ["model.files.config.json", "model.files.model.safetensors", "data.train"])
async def test_content_that_was_checked_before_is_still_missed_when_it_is_gone(http, objects, stored_spec, part):
    again = http.post("/v1/runs", json=stored_spec)
    assert again.status_code == 201
    assert again.json()["spec"] == stored_spec, "what is remembered changes nothing"
    section, _, name = part.partition(".")
    digest = stored_spec["data"][name] if section == "data" else stored_spec["model"]["files"][name.removeprefix("files.")]
    content = await objects.get_blob(digest)
    await objects.delete_blob(digest)
    refused = http.post("/v1/runs", json=stored_spec)
    assert refused.status_code == 422
    assert [(fault["path"], "not stored" in fault["message"]) for fault in refused.json()["errors"]] == [(part, True)]
    await objects.put_blob(content)
    assert http.post("/v1/runs", json=stored_spec).status_code == 201


def test_a_run_is_listed_as_soon_as_it_is_submitted(http, stored_spec):
    """The list comes from a view, which hears of a write a moment after it."""
    for seed in range(20):
        run = http.post("/v1/runs", json=stored_spec | {"seed": seed}).json()
        assert http.get("/v1/runs", params={"limit": 1}).json()["data"][0]["id"] == run["id"]
        assert http.post(f"/v1/runs/{run['id']}/cancel").json()["desired"] == "cancelled"
        assert http.get("/v1/runs", params={"limit": 1}).json()["data"][0]["desired"] == "cancelled"


def test_pages_of_every_size_hold_the_same_runs(http, client, spec, tmp_path):
    for _ in range(3):
        client.submit(spec, tmp_path)
    whole = [run["id"] for run in http.get("/v1/runs", params={"limit": 1000}).json()["data"]]
    middle = whole[len(whole) // 2]
    older = http.get("/v1/runs", params={"limit": 1000, "after": middle}).json()["data"]
    assert [run["id"] for run in older] == whole[len(whole) // 2 + 1 :]
    assert http.get("/v1/runs", params={"after": "run-0"}).json()["data"] == []
    assert http.get("/v1/runs", params={"after": "zzz", "limit": 1}).json()["data"][0]["id"] == whole[0]


async def test_a_deleted_run_does_not_exist_for_users(http, client, bus, submitted, set_state):
    run_id = submitted["id"]
    refused = http.delete(f"/v1/runs/{run_id}")
    assert (refused.status_code, refused.json()["title"]) == (409, "State forbids")
    assert "cancel it" in refused.json()["detail"]
    await set_state(run_id, "cancelled")
    assert [http.delete(f"/v1/runs/{run_id}").status_code for _ in range(2)] == [204, 204]
    assert http.get(f"/v1/runs/{run_id}").status_code == 404
    assert http.get(f"/v1/runs/{run_id}/events").status_code == 404
    assert http.post(f"/v1/runs/{run_id}/resume").status_code == 404
    assert run_id not in [run["id"] for run in http.get("/v1/runs").json()["data"]]
    bucket = await bus.bucket("runs")
    assert (await bucket.get(f"{run_id}.desired")).value == b'"deleted"', "the conductor removes the rest"
    for kind in ("spec", "status", "desired"):
        await bucket.delete(f"{run_id}.{kind}")
    assert http.delete(f"/v1/runs/{run_id}").status_code == 404


async def test_deleting_again_succeeds_after_the_run_is_gone(http, bus, submitted, set_state):
    """As a client does that got no answer to its first request."""
    run_id, bucket = submitted["id"], await bus.bucket("runs")
    await set_state(run_id, "cancelled")
    assert http.delete(f"/v1/runs/{run_id}").status_code == 204
    await bucket.put_for(deletion_key(run_id), b"true", 3600.0)
    for kind in ("spec", "status", "desired"):
        await bucket.purge(f"{run_id}.{kind}")
    assert http.delete(f"/v1/runs/{run_id}").status_code == 204
    assert http.get(f"/v1/runs/{run_id}").status_code == 404
    assert http.delete("/v1/runs/a.b").status_code == 404


async def test_deleting_needs_the_scope_of_cancelling(stack, http, submitted, set_state):
    await set_state(submitted["id"], "succeeded")
    answer = http.delete(f"/v1/runs/{submitted['id']}", headers={"Authorization": f"Bearer {stack.reader_key}"})
    assert answer.status_code == 403
    assert http.get(f"/v1/runs/{submitted['id']}").status_code == 200


async def test_the_idempotency_key_of_a_run_that_is_being_deleted_brings_it_not_back(http, stored_spec, set_state):
    headers = {"Idempotency-Key": "of a deleted run"}
    run_id = http.post("/v1/runs", json=stored_spec, headers=headers).json()["id"]
    await set_state(run_id, "failed")
    assert http.delete(f"/v1/runs/{run_id}").status_code == 204
    again = http.post("/v1/runs", json=stored_spec, headers=headers)
    assert (again.status_code, again.json()["type"]) == (409, "urn:gradbus:problem:run-deleted")
    assert "new key" in again.json()["detail"]


async def test_after_its_run_is_deleted_an_idempotency_key_creates_another_run(http, bus, stored_spec):
    headers = {"Idempotency-Key": "again after the deletion"}
    first = http.post("/v1/runs", json=stored_spec, headers=headers).json()["id"]
    bucket = await bus.bucket("runs")
    record = RunRecord.model_validate_json((await bucket.get(f"{first}.spec")).value)
    assert json.loads((await bucket.get(f"idempotency.key.{record.idempotency_key}")).value)["run_id"] == first
    for key in (f"idempotency.key.{record.idempotency_key}", f"{first}.spec"):  # as the conductor removes them
        await bucket.purge(key)
    second = http.post("/v1/runs", json=stored_spec, headers=headers)
    assert second.status_code == 201
    assert second.json()["id"] != first


async def test_a_request_whose_first_run_is_deleted_meanwhile_creates_another_one(bus, objects, stored_spec, fork_server):
    """It read the run id before the deletion, and stored its run after it."""
    bucket = await bus.bucket("runs")
    store, keys = RunStore(bucket), IdempotencyKeys(bucket)
    settings = GatewaySettings(allow_loopback=True)
    quota, condemned = RunQuota(bucket.snapshot(), Quotas()), CondemnedBlobs(await bus.bucket("condemned"))
    intake = RunIntake(store, keys, quota, SpecIntake(objects, fork_server, settings, None), condemned)
    submission = Submission(stored_spec, "key", "deleted meanwhile")
    first = await intake.submit(submission)
    create = store.create

    async def create_after_the_deletion(record):
        if record.run_id == first.run_id:
            await bucket.purge(f"idempotency.key.{record.idempotency_key}")
            await bucket.purge(f"{record.run_id}.spec")
        return await create(record)

    store.create = create_after_the_deletion
    second = await intake.submit(submission)
    assert second.run_id != first.run_id
    assert await store.find(first.run_id) is None
    assert (await store.find(second.run_id)).record.spec == first.record.spec
