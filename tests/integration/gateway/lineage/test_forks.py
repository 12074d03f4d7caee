"""Forks: what they take over from their run, what they may change, and what is refused with the reason."""

import pytest
import torch

from gradbus.client import document
from gradbus.errors import SpecError


@pytest.fixture
def forked(client, submitted, tmp_path):
    """Submits a fork of the submitted run."""
    return lambda version=None, **changes: document(client.submit({**changes, "fork_of": fork_of(submitted, version)}, tmp_path))


def fork_of(run, version):
    return {"run": run["id"]} | ({} if version is None else {"version": version})


@pytest.fixture
def refused(forked):
    """Submits it, and returns the faults by their paths."""

    def submit(version=None, **changes):
        with pytest.raises(SpecError) as error:
            forked(version, **changes)
        return {fault.path: fault for fault in error.value.faults}

    return submit


async def test_a_fork_has_the_spec_of_its_run_the_version_as_its_model_and_the_steps_that_were_left(trainer, forked, submitted):
    version = await trainer.commit(1)
    await trainer.commit(2)
    fork = forked(1)
    parent = {"run": submitted["id"], "name": "sums", "version": 1, "digest": version.digest}
    assert (fork["name"], fork["spec"]["schedule"]["steps"]) == ("sums-fork", 3)
    assert fork["spec"]["model"]["lineage"]["ancestors"] == [parent]
    assert fork["spec"]["model"]["files"]["model.safetensors"] == version.shards[0].digest
    taken_over = submitted["spec"].keys() - {"name", "schedule", "model"}
    assert {name: fork["spec"][name] for name in taken_over} == {name: submitted["spec"][name] for name in taken_over}


async def test_a_fork_begins_without_tags_and_note(trainer, client, forked, submitted):
    await trainer.commit(1)
    client.annotate(submitted["id"], add_tags=["of-the-parent"], note="of the parent")
    fork = forked()
    assert fork["spec"]["model"]["lineage"]["ancestors"][0]["run"] == submitted["id"]
    assert (fork["tags"], fork["note"]) == ([], "")


async def test_the_newest_checkpoint_is_the_default_and_a_name_stands_for_the_newest_run(client, spec, tmp_path, trainer_of):
    run = document(client.submit(spec | {"name": "named"}, tmp_path))
    trainer = await trainer_of(run["id"])
    await trainer.commit(1)
    await trainer.commit(3)
    model = document(client.submit({"fork_of": {"run": "named"}}, tmp_path))["spec"]["model"]
    assert (model["run"], model["version"]) == (run["id"], 3)


async def test_settings_are_changed_one_by_one(trainer, forked, submitted):
    await trainer.commit(2)
    fork = forked(
        name="other",
        seed=5,
        trainer={"learning_rate": 1e-4},
        rollout={"max_new_tokens": 4, "max_prompt_tokens": None},
        reward={"timeout_seconds": 3.0},
        schedule={"steps": 9},
    )
    ours, theirs = fork["spec"], submitted["spec"]
    assert (ours["name"], ours["seed"], ours["schedule"]["steps"]) == ("other", 5, 9)
    assert ours["trainer"] == theirs["trainer"] | {"learning_rate": 1e-4}
    assert ours["rollout"] == theirs["rollout"] | {"max_new_tokens": 4}
    assert ours["reward"] == theirs["reward"] | {"timeout_seconds": 3.0}


async def test_another_scorer_algorithm_or_dataset_takes_the_place_of_the_one_before(trainer, forked, submitted, tmp_path):
    await trainer.commit(2)
    grader = {"type": "regex", "pattern": "[0-9]+"}
    reward = forked(reward={"grader": grader})["spec"]["reward"]
    assert reward["grader"]["pattern"] == "[0-9]+"
    assert "operation" not in reward["grader"]
    reward = forked(reward={"service": "grpc://127.0.0.1:9"})["spec"]["reward"]
    assert (reward["grader"], reward["service"]) == (None, "grpc://127.0.0.1:9")
    algorithm = forked(algorithm={"name": "rloo"})["spec"]["algorithm"]
    assert (algorithm["name"], algorithm["advantage"], algorithm["kl"]) == ("rloo", "rloo", 0.05)
    (tmp_path / "more.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    mixture = [{"source": "more.jsonl", "weight": 1.0}]
    data = forked(data={"mixture": mixture})["spec"]["data"]
    assert len(data["mixture"]) == 1
    assert data["train"] != submitted["spec"]["data"]["train"]


async def test_settings_that_a_fork_may_not_change_are_refused_with_the_reason(trainer, refused):
    await trainer.commit(2)
    faults = refused(model={"path": "other"}, kind="sft")
    assert faults.keys() == {"model", "kind"}
    assert "begins with the version that `fork_of` names" in faults["model"].message
    assert "in place of a fork" in faults["kind"].allowed


async def test_the_faults_of_changed_settings_are_those_of_any_spec(trainer, refused):
    await trainer.commit(2)
    faults = refused(trainer={"learning_rat": 1.0}, schedule={"steps": 0}, data={"train": "gone.jsonl"})
    assert faults.keys() == {"trainer.learning_rat", "schedule.steps", "data.train"}
    assert faults["trainer.learning_rat"].nearest == "learning_rate"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"run": "nobody"}, "fork_of.run"),
        ({"run": "../.."}, "fork_of.run"),
        ({}, "fork_of.run"),
        ("last", "fork_of"),
        (None, "fork_of"),
        ({"run": "sums", "version": "newest"}, "fork_of.version"),
        ({"run": "sums", "step": 1}, "fork_of.step"),
    ],
)
def test_what_names_no_version_is_refused_with_its_field(http, submitted, given, path):
    answer = http.post("/v1/runs", json={"fork_of": given})
    assert (answer.status_code, [error["path"] for error in answer.json()["errors"]]) == (422, [path])


async def test_a_version_that_cannot_be_forked_is_refused_with_those_that_can(client, spec, tmp_path, trainer, refused, submitted):
    assert "has no checkpoint" in refused()["fork_of.run"].message
    await trainer.publish(1)
    await trainer.commit(2)
    assert refused(1)["fork_of.version"].allowed == '"last", or one of 2'
    await trainer.commit(4)
    assert "no step is left to train" in refused(4)["schedule.steps"].message


@pytest.fixture
async def adapted(client, spec, tmp_path, trainer_of):
    """A run that trains adapters, and its version 2."""
    run = document(client.submit(spec | {"name": "adapted", "trainer": {"lora": {"rank": 1}}}, tmp_path))
    trainer = await trainer_of(run["id"])
    trainer.weights = {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(1, 4)}
    return run, await trainer.commit(2)


async def test_a_fork_of_a_run_with_adapters_keeps_the_base_and_begins_with_the_adapters(client, spec, tmp_path, adapted):
    run, version = adapted
    fork = document(client.submit({"fork_of": {"run": run["id"]}}, tmp_path))
    model = fork["spec"]["model"]
    assert (model["files"], model["adapters"]) == (run["spec"]["model"]["files"], version.shards[0].digest)
    assert fork["spec"]["trainer"]["lora"] == run["spec"]["trainer"]["lora"]
    ancestor = {"run": run["id"], "name": "adapted", "version": 2, "digest": version.digest}
    assert model["lineage"] == {"base": run["spec"]["model"]["path"], "ancestors": [ancestor]}
    whole = spec | {"trainer": {"lora": {"rank": 1}}, "model": {"run": run["id"], "version": 2}}
    assert document(client.submit(whole, tmp_path))["spec"]["model"] == model
    assert document(client.submit(fork["spec"], tmp_path))["spec"]["model"] == model, "a stored spec can be submitted again"
    export = client.versions_page(run["id"]).data
    assert [one.version for one in export] == [2]


async def test_adapters_go_on_with_their_settings_and_are_no_model_for_others(client, spec, tmp_path, adapted):
    run, version = adapted

    def fault(body):
        with pytest.raises(SpecError) as error:
            client.submit(body, tmp_path)
        return {found.path: found for found in error.value.faults}

    found = fault({"fork_of": {"run": run["id"]}, "trainer": {"lora": {"rank": 2}}})["trainer.lora"]
    assert ('"rank":2' in found.given, "gradbus export" in found.allowed) == (True, True)
    assert fault(spec | {"model": {"run": run["id"]}})["trainer.lora"].given == "none"
    found = fault(spec | {"teacher": {"run": run["id"], "coefficient": 0.5}})["teacher.run"]
    assert f"gradbus export {run['id']}" in found.allowed
    model = {"run": run["id"], "adapters": "sha256:" + "0" * 64}
    assert fault(spec | {"trainer": {"lora": {"rank": 1}}, "model": model}).keys() == {"model.adapters"}
    assert fault(spec | {"model": {"path": "model", "adapters": version.shards[0].digest}}).keys() == {"model.adapters"}


async def test_a_fork_is_checked_without_a_run_and_shown_as_a_child(client, trainer, forked, submitted):
    await trainer.commit(2)
    assert document(client.check({"fork_of": {"run": submitted["id"]}}))["spec"]["schedule"]["steps"] == 2
    assert document(client.lineage(submitted["id"]))["children"] == []
    fork = forked()
    assert [(one["id"], one["version"]) for one in document(client.lineage(submitted["id"]))["children"]] == [(fork["id"], 2)]
