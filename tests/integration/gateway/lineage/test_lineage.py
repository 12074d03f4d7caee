"""Runs whose model is a version of another run: what is resolved, what is refused, and what both show."""

import json
from pathlib import Path

import pytest
import torch

from gradbus.access.api_keys import new_api_key, write_api_keys
from gradbus.access.keyring import Keyring
from gradbus.bus import Buckets
from gradbus.client import Client, document
from gradbus.control.condemned import Condemned, CondemnedBlobs, key_of
from gradbus.errors import SpecError
from gradbus_gateway.intake.model.run_models import RunModels
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.intake.submission import RunIntake, Submission
from gradbus_gateway.quotas.runs import RunQuota
from gradbus_gateway.runs.idempotency import IdempotencyKeys
from gradbus_gateway.runs.relations import RunRelations
from gradbus_gateway.runs.store import RunStore
from gradbus_gateway.settings import GatewaySettings, Quotas


@pytest.fixture
def chained(client, spec, tmp_path):
    """Submits the spec with the model of a run."""
    return lambda run, name="child", **model: document(client.submit(spec | {"name": name, "model": {"run": run, **model}}, tmp_path))


@pytest.fixture
def refused(chained):
    """Submits it, and returns the only fault."""

    def submit(run, **model):
        with pytest.raises(SpecError) as error:
            chained(run, **model)
        [fault] = error.value.faults
        return fault

    return submit


async def test_a_run_starts_from_the_newest_checkpoint_of_another(client, trainer, chained, submitted, tmp_path):
    await trainer.commit(2)
    version = await trainer.commit(4)
    await trainer.publish(5)  # provisional
    model = chained(submitted["id"])["spec"]["model"]
    base = submitted["spec"]["model"]["files"]
    assert model["files"] == base | {"model.safetensors": version.shards[0].digest}
    assert (model["path"], model["run"], model["version"]) == (None, submitted["id"], 4)
    parent = {"run": submitted["id"], "name": "sums", "version": 4, "digest": version.digest}
    assert model["lineage"] == {"base": submitted["spec"]["model"]["path"], "ancestors": [parent]}


async def test_an_older_checkpoint_is_named_by_its_step(trainer, chained, submitted):
    older = await trainer.commit(2)
    await trainer.commit(4)
    assert chained(submitted["id"], version=2)["spec"]["model"]["files"]["model.safetensors"] == older.shards[0].digest


async def test_a_name_is_the_newest_run_of_that_name(client, spec, tmp_path, trainer_of, chained):
    for content in (2, 4):
        run = document(client.submit(spec | {"name": "same-name"}, tmp_path))
        await (await trainer_of(run["id"])).commit(content)
    model = chained("same-name")["spec"]["model"]
    assert (model["run"], model["version"]) == (run["id"], 4)


async def test_a_name_in_the_form_of_an_id_is_no_substitute_for_a_run_that_is_gone(client, spec, tmp_path, trainer_of, refused):
    taken = "run-0123456789ab-0123ab"
    await (await trainer_of(client.submit(spec | {"name": taken}, tmp_path).id)).commit(2)
    assert (refused(taken).path, refused(taken).message) == ("model.run", "there is no such run")


async def test_what_cannot_be_used_is_refused_with_its_field(client, spec, tmp_path, trainer, refused, submitted):
    assert (refused("nobody").path, refused("nobody").given) == ("model.run", "nobody")
    fault = refused(submitted["id"])
    assert (fault.path, fault.message) == ("model.run", f"run {submitted['id']} (queued) has no checkpoint")
    await trainer.publish(1)
    await trainer.commit(2)
    fault = refused(submitted["id"], version=1)
    assert (fault.path, fault.given, fault.allowed) == ("model.version", "1", '"last", or one of 2')


@pytest.fixture
async def ranks(client, spec, tmp_path, trainer_of):
    """A run of kind reward_model with a checkpoint."""
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n')
    kept = {name: spec[name] for name in ("model", "schedule")}
    run = document(client.submit(kept | {"name": "ranks", "kind": "reward_model", "data": {"train": "pairs.jsonl"}}, tmp_path))
    trainer = await trainer_of(run["id"])
    trainer.weights |= {"score.weight": torch.zeros(1, 4)}
    await trainer.commit(2)
    return run


async def test_a_reward_model_scores_runs_and_starts_reward_models_and_nothing_else(client, spec, tmp_path, trainer, ranks, submitted):
    await trainer.commit(2)

    def submit(**changes):
        return document(client.submit(spec | {"data": {"train": "train.jsonl"}} | changes, tmp_path))

    def fault(**changes):
        with pytest.raises(SpecError) as error:
            submit(**changes)
        [found] = error.value.faults
        return found

    scored = submit(reward={"model": {"run": ranks["id"]}})
    assert scored["spec"]["reward"]["model"]["run"] == ranks["id"]
    found = fault(reward={"model": {"run": submitted["id"]}})
    assert (found.path, found.allowed) == ("reward.model.run", "a run of kind reward_model")
    found = fault(model={"run": ranks["id"]})
    assert (found.path, "reward.model.run" in found.allowed) == ("model.run", True)
    given = {name: ranks["spec"][name] for name in ("kind", "schedule", "data")} | {"name": "next"}
    for parent in (ranks, submitted):  # a reward model, and a language model that gets a head
        stored = document(client.submit(given | {"model": {"run": parent["id"]}}, tmp_path))["spec"]
        assert stored["model"]["run"] == parent["id"]
        assert document(client.submit(stored))["spec"] == stored
    with pytest.raises(SpecError, match=r"model\.run"):
        client.submit(given | {"kind": "dpo", "model": {"run": ranks["id"]}}, tmp_path)


async def test_faults_of_the_rest_of_the_spec_are_listed_too(client, spec, tmp_path, submitted):
    with pytest.raises(SpecError) as error:
        client.submit(spec | {"model": {"run": submitted["id"]}, "data": {"train": "gone.jsonl"}, "schedule": {"steps": 0}}, tmp_path)
    assert {fault.path for fault in error.value.faults} == {"model.run", "data.train", "schedule.steps"}


async def test_a_deleted_run_is_no_model(client, trainer, refused, submitted, set_state):
    await trainer.commit(2)
    await set_state(submitted["id"], "succeeded")
    client.delete(submitted["id"])
    assert refused(submitted["id"]).message == "there is no such run"


async def test_a_run_whose_record_cannot_be_read_is_no_model(bus, trainer, refused, submitted):
    await trainer.commit(2)
    await (await bus.bucket(Buckets.RUNS)).put(f"{submitted['id']}.status", b"torn")
    fault = refused(submitted["id"])
    assert fault.path == "model.run"
    assert f"{submitted['id']}.status in the bucket `runs` cannot be read" in fault.message


@pytest.mark.parametrize("key", [None, "retried"])
async def test_a_version_that_retention_deletes_during_the_submission_leaves_no_run(
    bus, stack, stored_spec, trainer, submitted, fork_server, key
):
    """It is there when the spec is checked, and gone before the run that names it is stored."""
    version = await trainer.commit(2)
    bucket, settings = await bus.bucket(Buckets.RUNS), GatewaySettings(allow_loopback=True)
    store, keyring = RunStore(bucket), Keyring(Path(stack.environment["GRADBUS_API_KEYS_FILE"]))
    async with bucket.view("*.*") as view:
        models = RunModels(store, RunRelations(view), trainer.stub, trainer.objects, keyring)
        specs = SpecIntake(trainer.objects, fork_server, settings, models)
        condemned, quota = CondemnedBlobs(await bus.bucket(Buckets.CONDEMNED)), RunQuota(bucket.snapshot(), Quotas())
        intake, created, create = RunIntake(store, IdempotencyKeys(bucket), quota, specs, condemned), [], store.create

        async def create_after_retention(record):
            await trainer.objects.delete_blob(version.shards[0].digest)
            created.append(record.run_id)
            return await create(record)

        store.create = create_after_retention
        with pytest.raises(SpecError, match="has deleted this version meanwhile"):
            await intake.submit(Submission(stored_spec | {"model": {"run": submitted["id"]}}, stack.key.partition(".")[0], key))
    assert await store.find(*created) is None
    assert await bucket.get(f"{created[0]}.spec") is None


async def test_a_key_that_may_not_read_runs_may_not_start_from_one(start_gateway, stack, spec, tmp_path, trainer, submitted):
    await trainer.commit(2)
    key, record = new_api_key("writer", ["runs:write", "files:write"])
    write_api_keys(tmp_path / "keys.json", [record])
    url, _ = start_gateway(api_keys_file=tmp_path / "keys.json")
    with Client(url, key) as writer:
        assert writer.submit(spec, tmp_path).state == "queued"
        with pytest.raises(SpecError, match="a key with the scope runs:read"):
            writer.submit(spec | {"model": {"run": submitted["id"]}}, tmp_path)


async def test_a_stored_spec_is_submitted_again_and_a_forged_one_is_not(http, trainer, chained, submitted):
    await trainer.commit(2)
    stored = chained(submitted["id"])["spec"]
    await trainer.commit(4)
    again = http.post("/v1/runs", json=stored)
    assert (again.status_code, again.json()["spec"]) == (201, stored), "its version is a step by now"
    for field, value in {"files": submitted["spec"]["model"]["files"], "lineage": stored["model"]["lineage"] | {"base": "other"}}.items():
        answer = http.post("/v1/runs", json=stored | {"model": stored["model"] | {field: value}})
        assert (answer.status_code, [error["path"] for error in answer.json()["errors"]]) == (422, [f"model.{field}"])


async def test_a_spec_check_resolves_the_version_too(http, trainer, submitted, stored_spec):
    await trainer.commit(2)
    answer = http.post("/v1/spec-checks", json=stored_spec | {"model": {"run": submitted["id"], "version": "last"}})
    assert answer.json()["spec"]["model"]["version"] == 2


async def test_the_same_request_again_is_the_same_run_after_the_parent_moved_on(http, trainer, submitted, stored_spec):
    await trainer.commit(2)
    body, headers = stored_spec | {"model": {"run": submitted["id"]}}, {"Idempotency-Key": "chained"}
    first = http.post("/v1/runs", json=body, headers=headers).json()
    await trainer.commit(4)
    assert http.post("/v1/runs", json=body, headers=headers).json() == first


async def test_condemned_weights_are_kept_for_the_run_that_starts_from_them(bus, trainer, chained, submitted):
    version = await trainer.commit(2)
    condemned = await bus.bucket(Buckets.CONDEMNED)
    key = key_of(version.shards[0].digest)
    await condemned.put(key, Condemned(since_unix_ns=1).to_bytes())
    chained(submitted["id"])
    assert await condemned.get(key) is None


async def test_a_child_is_exported_and_outlives_its_parent(client, trainer, trainer_of, chained, submitted, set_state, tmp_path):
    version = await trainer.commit(2)
    child = chained(submitted["id"])
    await (await trainer_of(child["id"])).commit(3)
    await set_state(submitted["id"], "succeeded")
    client.delete(submitted["id"])
    written = document(client.export(child["id"], tmp_path / "out"))
    assert written["version"] == 3
    assert {file.name for file in (tmp_path / "out").iterdir()} == submitted["spec"]["model"]["files"].keys()
    grandchild = chained(child["id"], name="grandchild")
    [near, far] = grandchild["spec"]["model"]["lineage"]["ancestors"]
    assert (near["run"], near["version"]) == (child["id"], 3)
    assert (far["run"], far["name"], far["version"], far["digest"]) == (submitted["id"], "sums", 2, version.digest)


async def test_a_long_lineage_keeps_the_nearest_ancestors(bus, trainer_of, trainer, chained, submitted):
    await trainer.commit(2)
    child = chained(submitted["id"])
    bucket = await bus.bucket(Buckets.RUNS)
    record = json.loads((await bucket.get(f"{child['id']}.spec")).value)
    parent = record["spec"]["model"]["lineage"]["ancestors"][0]
    record["spec"]["model"]["lineage"]["ancestors"] = [parent | {"version": version} for version in range(64)]
    await bucket.put(f"{child['id']}.spec", json.dumps(record).encode())
    await (await trainer_of(child["id"])).commit(1)
    ancestors = chained(child["id"], name="grandchild")["spec"]["model"]["lineage"]["ancestors"]
    assert ancestors[0]["run"] == child["id"]
    assert [one["version"] for one in ancestors[1:]] == list(range(63))


async def test_a_lineage_has_ancestors_and_children(client, http, trainer, trainer_of, chained, submitted, set_state):
    await trainer.commit(2)
    middle = chained(submitted["id"], name="middle")
    await (await trainer_of(middle["id"])).commit(5)
    young = [chained(middle["id"], name=f"young-{at}") for at in range(3)]
    found = document(client.lineage(middle["id"], limit=2))
    assert (found["base"], found["name"], found["has_more"]) == (submitted["spec"]["model"]["path"], "middle", True)
    assert [(one["id"], one["name"], one["version"], one["state"]) for one in found["ancestors"]] == [
        (submitted["id"], "sums", 2, "queued")
    ]
    assert [(one["id"], one["version"]) for one in found["children"]] == [(young[2]["id"], 5), (young[1]["id"], 5)]
    assert [one["name"] for one in document(client.lineage(young[0]["id"]))["ancestors"]] == ["sums", "middle"]
    for run_id in (submitted["id"], young[2]["id"]):
        await set_state(run_id, "succeeded")
        client.delete(run_id)
    found = document(client.lineage(middle["id"]))
    assert [one["state"] for one in found["ancestors"]] == ["deleted"]
    assert [one["id"] for one in found["children"]] == [young[1]["id"], young[0]["id"]]
    assert http.get("/v1/runs/nobody/lineage").status_code == 404


@pytest.fixture
async def judge(client, spec, tmp_path, trainer_of):
    """A run of a reward model with a checkpoint of step 3."""
    pair = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    body = {"name": "judge", "kind": "reward_model", "data": {"train": "pairs.jsonl"}}
    run = document(client.submit({"model": spec["model"], "schedule": spec["schedule"]} | body, tmp_path))
    trainer = await trainer_of(run["id"])
    trainer.weights["score.weight"] = torch.zeros(1, 4)
    await trainer.commit(3)
    return run


async def test_the_stored_spec_of_a_reward_model_from_a_run_is_submitted_again(http, trainer, judge, submitted):
    await trainer.commit(2)
    body = judge["spec"] | {"model": {"run": submitted["id"]}}
    stored = http.post("/v1/runs", json=body).json()["spec"]
    assert len(stored["model"]["files"]) > len(submitted["spec"]["model"]["files"]), "a head is added"
    again = http.post("/v1/runs", json=stored)
    assert (again.status_code, again.json()["spec"]) == (201, stored)


async def test_a_run_is_the_child_of_the_run_whose_reward_model_scores_it(client, spec, tmp_path, trainer, judge, submitted, set_state):
    await trainer.commit(2)
    scored = spec | {"name": "scored", "model": {"run": submitted["id"]}, "reward": {"model": {"run": "judge"}}}
    child = document(client.submit(scored, tmp_path))
    found = document(client.lineage(child["id"]))
    assert [(one["id"], one["role"], one["version"]) for one in found["ancestors"]] == [(submitted["id"], "model", 2)]
    assert [(one["id"], one["role"], one["version"]) for one in found["reward_model"]] == [(judge["id"], "reward_model", 3)]
    of_judge = document(client.lineage(judge["id"]))
    assert [(one["id"], one["role"], one["version"]) for one in of_judge["children"]] == [(child["id"], "reward_model", 3)]
    await set_state(judge["id"], "succeeded")
    client.delete(judge["id"])
    assert [one["state"] for one in document(client.lineage(child["id"]))["reward_model"]] == ["deleted"]


async def test_a_run_is_the_child_of_its_teacher(client, http, spec, tmp_path, trainer, judge, submitted):
    await trainer.commit(2)
    without = {name: value for name, value in spec.items() if name not in {"reward", "evaluation"}}
    taught = without | {"name": "taught", "data": {"train": spec["data"]["train"]}, "algorithm": {"name": "opd"}}
    child = document(client.submit(taught | {"teacher": {"run": "sums", "version": 2}}, tmp_path))
    assert (child["spec"]["teacher"]["run"], child["spec"]["teacher"]["version"]) == (submitted["id"], 2)
    assert [(one["id"], one["role"], one["version"]) for one in document(client.lineage(child["id"]))["teacher"]] == [
        (submitted["id"], "teacher", 2)
    ]
    assert [(one["id"], one["role"], one["version"]) for one in document(client.lineage(submitted["id"]))["children"]] == [
        (child["id"], "teacher", 2)
    ]
    again = http.post("/v1/runs", json=child["spec"])
    assert (again.status_code, again.json()["spec"]) == (201, child["spec"])
    for run, path, words in (("judge", "teacher.run", "score text and write none"), ("nobody", "teacher.run", "there is no such run")):
        answer = http.post("/v1/runs", json=child["spec"] | {"teacher": {"run": run}})
        [fault] = answer.json()["errors"]
        assert (answer.status_code, fault["path"]) == (422, path)
        assert words in fault["message"]
    old = http.post("/v1/runs", json=child["spec"] | {"teacher": {"run": "sums", "version": 1}})
    assert [fault["path"] for fault in old.json()["errors"]] == ["teacher.version"]


async def test_a_run_without_relations_has_a_lineage_too(client, submitted):
    found = document(client.lineage(submitted["id"]))
    assert (found["base"], found["ancestors"], found["reward_model"], found["children"]) == (submitted["spec"]["model"]["path"], [], [], [])
