"""A run that starts from the finished run of another: with its exact weights, and also after the other one is deleted."""

import json
import time

import pytest

from gradbus.client import document
from gradbus.objects.paths import blob_path

EACH = {"every": 1, "keep": 100}
GRACE_SECONDS = 8
"""A blob that nobody names is deleted after twice as long: more than a submission takes after its upload, on a busy machine."""
WAIT_SECONDS = 240.0


@pytest.fixture(scope="module")
def parent(lab, spec):
    return lab.train(spec(name="first"))


def test_a_run_begins_with_the_weights_in_which_another_ended(lab, spec, parent, gradbus, tmp_path):
    child = lab.train(spec(name="second", model={"run": "first"}, checkpoint=EACH, seed=1))
    versions = document(lab.client.versions_page(child["id"]))["data"]
    assert [version["version"] for version in versions] == [0, 1, 2, 3]
    assert versions[0]["digest"] == lab.final_digest(parent) == child["spec"]["model"]["lineage"]["ancestors"][0]["digest"]
    assert lab.learned(child)
    assert len({version["digest"] for version in versions}) == 4
    exported = gradbus("export", child["id"], tmp_path / "out")
    assert exported.returncode == 0, exported.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == parent["spec"]["model"]["files"].keys()


def test_a_run_from_an_earlier_version_and_the_tree_of_both(lab, spec, parent, gradbus):
    child = lab.train(spec(name="from-the-middle", model={"run": parent["id"], "version": 2}, checkpoint=EACH))
    begins = document(lab.client.versions_page(child["id"]))["data"][0]["digest"]
    assert begins == document(lab.client.versions_page(parent["id"], after=1))["data"][0]["digest"] != lab.final_digest(parent)
    assert json.loads(gradbus("lineage", child["id"], "--json").stdout) == document(lab.client.lineage(child["id"]))
    lines = gradbus("lineage", "from-the-middle").stdout.splitlines()
    assert lines[0] == parent["spec"]["model"]["path"]
    assert lines[1].split() == ["└─", parent["id"], "first", "succeeded"]
    assert lines[2].split() == ["└─", child["id"], "from-the-middle", "succeeded", "from", "version", "2", "*"]


@pytest.mark.slow  # tests/integration/weight_store has what keeps a blob that runs name
def test_a_run_ends_in_the_same_weights_although_the_run_that_it_starts_from_is_deleted(stack, lab_on, spec, tmp_path):
    with stack(GRADBUS_BLOB_GRACE_SECONDS=str(GRACE_SECONDS)) as state, lab_on(state) as lab:
        parent = lab.train(spec(name="first", checkpoint=EACH))
        body = spec(name="second", model={"run": "first"}, schedule={"steps": 40}, checkpoint={"every": 5, "keep": 1})
        undisturbed = lab.train(body)
        digest = lab.final_digest(undisturbed)
        child = lab.submit(body)
        lab.until(child, lambda run: run["progress"]["checkpoint_step"] >= 5)
        lab.client.pause(child)
        paused = lab.until(child, lambda run: run["state"] == "paused")
        kept, gone = weights(state, lab, parent["id"], tmp_path, 3), weights(state, lab, parent["id"], tmp_path, 1)
        for run in (parent, undisturbed):
            lab.client.delete(run["id"])
        assert document(lab.client.lineage(child))["ancestors"][0]["state"] == "deleted"
        deadline = time.monotonic() + WAIT_SECONDS
        while gone.exists():
            assert time.monotonic() < deadline, "the files of the deleted run are still there"
            time.sleep(0.1)
        time.sleep(2)  # the sweep that deleted it may be under way
        assert kept.exists()
        assert paused["spec"]["model"]["files"]["model.safetensors"].endswith(kept.name)
        lab.client.resume(child)
        assert lab.final_digest(lab.ends(child)) == digest


def weights(state, lab, run_id, folder, version):
    """The stored file with the weights of a version."""
    plan = document(lab.client.export(run_id, folder / str(version), version))
    [digest] = [file["id"] for file in plan["files"] if file["name"] == "model.safetensors"]
    return state / "objects" / blob_path(digest)
