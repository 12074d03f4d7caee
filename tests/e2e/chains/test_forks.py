"""A fork of a real run: it begins with the bits of the version, and everything that made a version is listed."""

import json

import pytest

from gradbus.client import document
from gradbus.experience.records import unseal_message
from gradbus.v1.weights_pb2 import CheckpointManifest, Origin

CHANGES = [part for change in ("trainer.learning_rate=1e-4", "schedule.steps=2", "checkpoint.every=1") for part in ("--set", change)]


@pytest.fixture(scope="module")
def parent(lab, spec):
    return lab.train(spec(name="to-be-forked"))


def test_a_fork_begins_with_the_bits_of_the_version_and_its_manifests_say_so(lab, parent, gradbus):
    answer = gradbus("fork", parent["id"], "--at", 2, *CHANGES, "--follow")
    assert answer.returncode == 0, answer.stderr
    fork = document(lab.client.run("last"))
    assert (fork["name"], fork["steps"], fork["spec"]["trainer"]["learning_rate"]) == ("to-be-forked-fork", 2, 1e-4)
    assert lab.learned(fork)
    begun = document(lab.client.versions_page(parent["id"], after=1))["data"][0]
    assert document(lab.client.versions_page(fork["id"]))["data"][0]["digest"] == begun["digest"]
    paths = sorted((lab.state / "objects/runs" / fork["id"] / "checkpoints").iterdir())
    manifests = [unseal_message(CheckpointManifest, path.read_bytes(), path.name) for path in paths]
    assert len(manifests) == 2
    assert all(one.origin == Origin(run_id=parent["id"], step=2, digest=begun["digest"]) for one in manifests)
    lines = gradbus("lineage", f"{fork['id']}@1").stdout.splitlines()
    assert f"by version 2 of {parent['id']} (to-be-forked)" in lines[1]


def test_a_fork_of_adapters_begins_with_them_and_trains_them_on(lab, spec, gradbus):
    lora = {"rank": 2, "alpha": 8.0}
    parent = lab.train(spec(name="adapters", trainer={"learning_rate": 1e-2, "lora": lora}))
    answer = gradbus("fork", "adapters", "--at", 2, "--set", "schedule.steps=2", "--set", "checkpoint.every=1", "--follow")
    assert answer.returncode == 0, answer.stderr
    fork = document(lab.client.run("last"))
    assert (fork["name"], fork["spec"]["trainer"]["lora"]["rank"]) == ("adapters-fork", 2)
    assert lab.learned(fork)
    digests = {run["id"]: [one["digest"] for one in document(lab.client.versions_page(run["id"]))["data"]] for run in (parent, fork)}
    begun = document(lab.client.versions_page(parent["id"], after=1))["data"][0]
    assert digests[fork["id"]][0] == begun["digest"]
    assert digests[fork["id"]][2] not in digests[parent["id"]], "the optimiser is new, and so are the groups"
    [manifest] = [path for path in (lab.state / "objects/runs" / fork["id"] / "checkpoints").iterdir() if path.name.startswith("2-")]
    origin = unseal_message(CheckpointManifest, manifest.read_bytes(), manifest.name).origin
    assert origin == Origin(run_id=parent["id"], step=2, digest=begun["digest"])
    answer = gradbus("fork", "adapters", "--at", 2, "--set", "trainer.lora.rank=4")
    assert (answer.returncode, "trainer.lora" in answer.stderr) == (2, True)


def test_what_made_a_version_is_listed_group_by_group(lab, parent, gradbus):
    found = json.loads(gradbus("lineage", f"{parent['id']}@2", "--json").stdout)
    assert [(group["step"], group["index"]) for group in found["groups"]] == [(index // 4, index) for index in range(8)]
    assert found["digest"] == document(lab.client.versions_page(parent["id"], after=1))["data"][0]["digest"]
    assert [(one["section"], one["kind"], one["name"]) for one in found["scorers"]] == [("reward", "grader", "python")]
    prompts = {sample["index"]: sample["prompt"] for sample in lab.samples(parent["id"])}
    assert all(group["prompt"] == prompts[group["index"]] and group["reward"] is not None for group in found["groups"])
    lines = gradbus("lineage", f"{parent['id']}@2", "--step", 1).stdout.splitlines()
    assert sum(line.startswith("step 1  group") for line in lines) == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("fork", "to-be-forked", "--at", 1), "keeps no checkpoint of this step"),
        (("fork", "to-be-forked", "--set", "model.path=other"), "cannot be changed"),
        (("fork", "to-be-forked", "--set", "steps"), "section.field=value"),
        (("fork", "to-be-forked", "--dry-run", "--follow"), "--dry-run creates no run"),
        (("lineage", "to-be-forked@9"), "has no version 9"),
    ],
)
def test_what_cannot_be_done_is_told_and_ends_with_status_two(parent, gradbus, arguments, told):
    answer = gradbus(*arguments)
    assert answer.returncode == 2
    assert told in answer.stderr


def test_a_dry_run_creates_no_fork(lab, parent, gradbus):
    before = len(list(lab.client.runs()))
    assert "to-be-forked-fork is valid" in gradbus("fork", "to-be-forked", "--at", 2, "--dry-run").stdout
    assert len(list(lab.client.runs())) == before
