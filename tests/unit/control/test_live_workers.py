"""The live workers, kept as heartbeats come: what one costs does not grow with their number."""

from held_view import beat, change, empty_view
from hypothesis import given
from hypothesis import strategies as st
from work_counters import PythonCounter

from gradbus.control.live_workers import LiveWorkers, NameGroups
from gradbus.control.runs import WorkerPresence


def test_workers_are_told_by_role_and_run_in_order_of_name():
    view = empty_view()
    beat(view, "b", "rollout", run_id="one")
    live = LiveWorkers(view)
    beat(view, "c", "rollout", run_id="two")
    beat(view, "a", "rollout", run_id="one")
    beat(view, "t", "trainer", run_id="one")
    assert [worker.worker for worker in live.of_role("rollout")] == ["a", "b", "c"]
    assert [worker.worker for worker in live.of_run("one", "rollout")] == ["a", "b"]
    assert (list(live.names("trainer")), live.of_run("two", "trainer"), live.of_role("reward")) == (["t"], [], [])
    beat(view, "b", "rollout", run_id="two", version=3)
    assert [worker.version for worker in live.of_run("two", "rollout")] == [3, -1]
    change(view, "b", None)
    assert live.get("b") is None
    assert [worker.worker for worker in live.of_run("two", "rollout")] == ["c"]


def test_an_incarnation_lives_as_long_as_a_worker_shows_it():
    view = empty_view()
    live = LiveWorkers(view)
    beat(view, "a", "rollout", "1")
    beat(view, "b", "rollout", "1")
    change(view, "a", None)
    assert live.is_alive("1")
    beat(view, "b", "rollout", "2")
    assert (live.is_alive("1"), live.is_alive("2")) == (False, True)


def test_listeners_hear_of_every_worker_and_an_unreadable_heartbeat_hides_nobody_else():
    view, heard = empty_view(), []
    beat(view, "a", "rollout")
    live = LiveWorkers(view)
    live.listen(heard.append)
    change(view, "broken", b'{"role": 1}')
    beat(view, "a", "rollout", version=1)
    assert heard == ["a", "broken", "a"]
    assert [worker.worker for worker in live.of_role("rollout")] == ["a"]


def test_a_page_is_of_all_roles_or_of_one_run():
    view = empty_view()
    live = LiveWorkers(view)
    for name, role, run_id in (("b", "rollout", "one"), ("a", "trainer", "one"), ("d", "rollout", "two"), ("c", "rollout", "one")):
        beat(view, name, role, run_id=run_id)
    assert [name for name, _ in live.page("", 3)] == ["a", "b", "c"]
    assert [name for name, _ in live.page("b", 3)] == ["c", "d"]
    assert [name for name, _ in live.page("a", 5, "one")] == ["b", "c"]


def lines_of_a_heartbeat(workers):
    view = empty_view()
    for number in range(workers):
        beat(view, f"w-{number:04}", "rollout", str(number), run_id=f"run-{number % 7}")
    live, counter = LiveWorkers(view), PythonCounter()
    with counter.tracing(), counter.counting() as work:
        beat(view, "w-0005", "rollout", "5", run_id="run-0", version=1)
    assert live.get("w-0005").version == 1
    return sum(work.lines.values())


def test_a_heartbeat_costs_the_same_however_many_workers_there_are():
    assert 0 < lines_of_a_heartbeat(1000) <= lines_of_a_heartbeat(10)


def test_a_heartbeat_is_parsed_once_however_often_somebody_asks(monkeypatch):
    view, parsed, parse = empty_view(), [], WorkerPresence.model_validate_json
    live = LiveWorkers(view)
    monkeypatch.setattr(WorkerPresence, "model_validate_json", lambda value: parsed.append(value) or parse(value))
    for number in range(2000):  # more than any cache of values would hold
        beat(view, f"w-{number}", "rollout", run_id="run")
    for _ in range(5):
        assert len(live.of_role("rollout")) == len(live.of_run("run", "rollout")) == 2000
    assert len(parsed) == 2000


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([None, 1, 2, 3]))))
def test_groups_hold_each_name_once_and_in_order(moves):
    groups, expected = NameGroups[int](), {}
    for name, group in moves:
        groups.move(name, group)
        expected[name] = group
    for group in (1, 2, 3):
        assert list(groups.of(group)) == sorted(name for name, of in expected.items() if of == group)
    assert set(groups) == {group for group in expected.values() if group is not None}
    assert all(groups.group(name) == group for name, group in expected.items())
