"""Which samples go into one call, so that no message is too large."""

import pytest

from gradbus.v1.reference_service_pb2 import ReferenceSequence
from gradbus_conductor.groups import call_sizes
from gradbus_conductor.groups.call_sizes import divided, divided_by_group


@pytest.fixture(autouse=True)
def most(monkeypatch):
    monkeypatch.setattr(call_sizes, "_MOST_BYTES", 1000)


def samples(group, *sizes):
    return [ReferenceSequence(sample_id=f"{group}.{n}", token_ids=bytes(size)) for n, size in enumerate(sizes)]


def ids(calls):
    return [" ".join(part.sample_id for part in call) for call in calls]


def test_a_call_takes_what_fits_and_at_least_one():
    assert ids(divided([part] for part in samples(0, 400, 400, 400, 5000, 10, 10))) == ["0.0 0.1", "0.2", "0.3", "0.4 0.5"]
    assert ids(divided([])) == []


def test_a_group_stays_whole_if_it_can():
    assert ids(divided_by_group([samples(0, 300, 300), samples(1, 300, 300), samples(2, 100)])) == ["0.0 0.1", "1.0 1.1 2.0"]


@pytest.mark.parametrize("before", [0, 1, 3])
def test_where_a_large_group_is_divided_depends_on_no_other(before):
    """Nor do two parts of it meet in one call: the reference computes the samples of a group in a call together."""
    large = samples("large", 400, 400, 300, 600, 900)
    calls = ids(divided_by_group([*(samples(number, 100) for number in range(before)), large, samples("after", 10)]))
    parts = [" ".join(name for name in call.split() if name.startswith("large")) for call in calls]
    assert [part for part in parts if part] == ["large.0 large.1", "large.2 large.3", "large.4"]
