"""Which changes of a teacher give its scores another version."""

import pytest

from gradbus.spec import RunSpec
from gradbus_gateway.resources.version_lineage import scorers_of

SERVED = {"model_path": "m", "weight_version": "1", "vocab_size": 8}
FILES = {"model.safetensors": "sha256:" + "0" * 64}


def version(teacher):
    body = {"name": "sums", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 4}, "teacher": teacher}
    (scorer,) = scorers_of(RunSpec.model_validate(body))
    return scorer.version


@pytest.mark.parametrize("change", [{"model_path": "n"}, {"weight_version": "2"}])
def test_a_served_teacher_has_the_version_of_what_its_server_said_of_itself(change):
    served = version({"url": "http://old:1", "served": SERVED})
    assert version({"url": "http://moved:1", "served": SERVED}) == served
    assert version({"url": "http://old:1", "served": SERVED | change}) != served
    assert version({"path": "m", "files": FILES}) != served


def test_a_scorer_has_one_version_whether_a_run_begins_with_it_or_is_given_it_later():
    scorer = {"service": "http://there/x"}
    changes = [scorer | {"from_group": 8, "from_version": 2}, {"from_group": 9, "service": "http://there/y"}]
    reward = scorer | {"timeout_seconds": 3.0, "changes": changes}
    body = {"name": "sums", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 4}, "reward": reward}
    first, again, other = scorers_of(RunSpec.model_validate(body))
    assert first.version == again.version != other.version
