"""A search over the samples of a group: what they have in common is made ready once."""

from types import SimpleNamespace

import pytest

from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import VERDICT_TRAIN, Group, LogEntry
from gradbus.v1.sample_pb2 import Sample
from gradbus_gateway.resources.logged_group import LoggedGroup
from gradbus_gateway.resources.sample_search import SampleSearch

SPEC = RunSpec.model_validate(
    {"name": "sums", "model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps": 4}, "reward": {"service": "grpc://scorer:1"}}
)


class Prompt(str):
    """Counts how often its letters are folded."""

    folded = 0

    def casefold(self):
        self.folded += 1
        return super().casefold()


@pytest.fixture
def group():
    samples = [Sample(sample_id=f"4.{n}", n=n, text=f"Answer {n}") for n in range(3)]
    logged = LoggedGroup("1-0", LogEntry(index=4, verdict=VERDICT_TRAIN, group=Group(index=4, samples=samples).SerializeToString()), SPEC)
    logged.group = SimpleNamespace(prompt_text=Prompt("How MUCH?"), samples=samples)
    return logged


@pytest.mark.parametrize(("text", "found"), [("much", [0, 1, 2]), ("answer 1", [1]), ("no", [])])
def test_the_prompt_of_a_group_is_folded_once_for_all_its_samples(group, text, found):
    assert [at for at in range(3) if SampleSearch(text=text).finds(group, at)] == found
    assert group.group.prompt_text.folded == 1


def test_a_sample_that_another_condition_leaves_out_is_not_searched(group):
    assert not SampleSearch(text="much", verdict="dropped").finds(group, 0)
    assert not SampleSearch(text="much", min_reward=0.5).finds(group, 0)
    assert group.group.prompt_text.folded == 0
