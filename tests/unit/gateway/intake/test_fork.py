"""A fork's teacher and reward model: a new source takes nothing of the run's with it."""

import pytest

from gradbus.spec import RunSpec
from gradbus_gateway.intake.fork import forked

OLD, NEW = ({"model.safetensors": "sha256:" + digit * 64} for digit in "01")
LINEAGE = {"base": "m", "ancestors": [{"run": "run-a", "name": "a", "version": 1, "digest": "sha256:" + "2" * 64}]}
SERVED = {"model_path": "m", "weight_version": "1", "vocab_size": 8}
FOLDER = {"path": "/srv/old", "files": OLD}
HUB = {"path": "owner/name", "revision": "a" * 40, "files": OLD}
RUN = {"run": "a", "version": 1, "files": OLD, "lineage": LINEAGE}
SERVER = {"url": "http://old:1", "served": SERVED}
CHANGES = [
    (FOLDER, {"path": "/srv/new"}, {"path": "/srv/new"}),
    (FOLDER, {"path": "here", "files": NEW}, {"path": "here", "files": NEW}),
    (HUB, {"path": "/srv/new"}, {"path": "/srv/new"}),
    (HUB, {"revision": "b" * 40}, {"path": "owner/name", "revision": "b" * 40}),
    (RUN, {"run": "b"}, {"run": "b"}),
    (RUN, {"version": 2}, {"run": "a", "version": 2}),
    (FOLDER, {"run": "b"}, {"run": "b"}),
    (RUN, {}, RUN),
]
OF_SERVERS = [
    (SERVER, {"url": "http://new:1"}, {"url": "http://new:1"}),
    (SERVER, {"path": "/srv/new"}, {"path": "/srv/new"}),
    (FOLDER, {"url": "http://new:1"}, {"url": "http://new:1"}),
    (SERVER, {}, {"url": "http://old:1"}),
]


def fork_of(sections, changes):
    body = {"name": "sums", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 4}}
    return forked(RunSpec.model_validate(body | sections), "run-1", 2, changes)


def given(section):
    """The fields that are set."""
    return {name: value for name, value in section.items() if value is not None}


@pytest.mark.parametrize(("parent", "change", "found"), [*CHANGES, *OF_SERVERS])
def test_another_teacher_takes_nothing_of_the_runs_teacher_with_it_but_its_settings(parent, change, found):
    reward = {"service": "grpc://scorer:1"}
    fork = fork_of({"teacher": parent | {"coefficient": 0.5}, "reward": reward}, {"teacher": change})
    assert given(fork["teacher"]) == found | {"coefficient": 0.5}


@pytest.mark.parametrize(("parent", "change", "found"), CHANGES)
def test_another_reward_model_takes_nothing_of_the_runs_with_it_but_its_settings(parent, change, found):
    fork = fork_of({"reward": {"model": parent | {"offload": True}}}, {"reward": {"model": change}})
    assert given(fork["reward"]["model"]) == found | {"offload": True}


def test_a_teachers_server_is_asked_anew_what_it_has():
    fork = fork_of({"teacher": SERVER | {"coefficient": 0.5}, "reward": {"service": "grpc://scorer:1"}}, {"seed": 5})
    assert given(fork["teacher"]) == {"url": "http://old:1", "coefficient": 0.5}
