"""The counters themselves: a loop over samples is seen wherever it stands, and what does not grow is not."""

import contextlib
from collections import Counter

import pytest
import torch
import work_counters
from work_counters import OperatorCounter, PythonCounter, check, growth

from gradbus.formats.tokens import pack_ids
from gradbus.ids import sample_seed

LOOPS = {
    "for": "def work(samples):\n    for sample in samples:\n        pass\n",
    "comprehension": "def work(samples):\n    return [sample for sample in samples]\n",
    "generator": "def work(samples):\n    return sum(sample for sample in samples)\n",
    "while": "def work(samples):\n    left = len(samples)\n    while left:\n        left -= 1\n",
    "coroutine": "async def body(samples):\n    for _ in samples:\n        pass\ndef work(samples):\n    body(samples).send(None)\n",
}


def counted(work, samples):
    counter = PythonCounter()
    with counter.tracing(), counter.counting() as found:
        work(samples)
    return found


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A function of a shipped file."""
    monkeypatch.setattr(work_counters, "SHIPPED", (str(tmp_path),))

    def make(text):
        names = {}
        exec(compile(text, str(tmp_path / "planted.py"), "exec"), names)

        def work(samples):
            with contextlib.suppress(StopIteration):
                names["work"](samples)

        return work

    return make


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_over_samples_is_seen(planted, loop):
    work = planted(LOOPS[loop])
    grown = growth(counted(work, range(4)).lines, counted(work, range(12)).lines, 8)
    assert sum(grown.values()) >= 1


def test_work_on_all_samples_at_once_is_not_growth():
    small, large = (counted(pack_ids, list(range(count))) for count in (4, 400))
    assert growth(small.lines, large.lines, 396) == growth(small.calls, large.calls, 396) == {}
    assert small.calls.total() == 1


def test_calls_are_counted_by_the_place_of_the_function():
    found = counted(lambda samples: [sample_seed(0, "train", 1, n) for n in samples], range(5))
    (most,) = found.calls.most_common(1)
    assert most[0].startswith("libs/gradbus/ids.py:")
    assert most[1] >= 5


def test_a_few_more_by_chance_are_no_growth():
    assert growth(Counter(a=3, b=10), Counter(a=5, b=26), 16) == {"b": 1.0}


def test_a_count_above_its_bound_fails_with_both_and_the_place(monkeypatch):
    monkeypatch.setitem(work_counters.BOUNDS, "the test", 3.0)
    check("the test", {"a.py:1": 2.0, "a.py:2": 1.0})
    with pytest.raises(AssertionError, match=r"the test: 3\.5 counted, the bound is 3\n  2\.5 a\.py:1\n"):
        check("the test", {"a.py:1": 2.5, "a.py:2": 1.0})


def test_the_operators_of_the_backward_pass_are_counted():
    weights = torch.ones(3, requires_grad=True)
    with OperatorCounter() as forward:
        total = weights.exp().sum()
    with OperatorCounter() as backward:
        total.backward()
    assert forward.counts["aten.exp.default"] == 1
    assert backward.counts["aten.mul.Tensor"] == 1
