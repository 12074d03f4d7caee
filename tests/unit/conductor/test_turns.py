"""The turns of API keys, against a plain reading of the rule."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gradbus_conductor.runs.turns import TrainerTurns

KEYS = st.sampled_from(["alice", "bob", "carol"])
RUNS = st.integers(0, 9).map("run-{}".format)
CHANGES = st.one_of(
    st.tuples(st.just("add"), RUNS, KEYS, st.integers(0, 5)),
    st.tuples(st.just("remove"), RUNS),
    st.tuples(st.just("serve"), KEYS, st.integers(1, 5)),
)


class PlainTurns:
    """The same rule, which sorts everything at each question."""

    def __init__(self):
        self.runs, self.served = {}, Counter()

    def add(self, run_id, key, yielded):
        self.runs[run_id] = (key, yielded)

    def remove(self, run_id):
        self.runs.pop(run_id, None)

    def serve(self, key, at):
        self.served[key] = at

    def upcoming(self, held, is_ready):
        queues = {}
        for run_id, (key, yielded) in self.runs.items():
            queues.setdefault(key, []).append((yielded, run_id))
        firsts = {key: min(queue) for key, queue in queues.items()}
        held, newest = Counter(held), max(self.served.values(), default=0)
        order = []
        while any(queues.values()):

            def rank(key):
                yielded = min(queues[key])[0]
                return yielded > newest, held[key], self.served[key], firsts[key]

            key = min((key for key in queues if queues[key]), key=rank)
            chosen = min(queues[key])
            queues[key].remove(chosen)
            if is_ready(chosen[1]):
                held[key] += 1
                order.append(chosen[1])
        return order


@given(st.lists(CHANGES, max_size=40), st.dictionaries(KEYS, st.integers(0, 3)), st.sets(RUNS))
def test_turns_that_are_kept_by_changes_follow_the_rule(changes, held, unready):
    turns, plain = TrainerTurns(), PlainTurns()
    for name, *values in changes:
        getattr(turns, name)(*values)
        getattr(plain, name)(*values)

    def is_ready(run_id):
        return run_id not in unready

    assert list(turns.upcoming(held, is_ready)) == plain.upcoming(held, is_ready)


def test_one_key_keeps_the_order_of_submission():
    turns = TrainerTurns()
    for n in (3, 1, 2):
        turns.add(f"run-{n}", "alice", 0)
    assert list(turns.upcoming({"alice": 2}, lambda _: True)) == ["run-1", "run-2", "run-3"]


def test_the_next_of_ten_thousand_keys_is_found_without_looking_at_all():
    looked = []

    class Watched(TrainerTurns):
        def _just_yielded(self, waiting):
            looked.append(waiting)
            return super()._just_yielded(waiting)

    turns = Watched()
    for n in range(10_000):
        turns.add(f"run-{n:05}", f"key{n}", 0)
    assert next(turns.upcoming({"key0": 1, "key1": 2}, lambda _: True)) == "run-00002"
    assert len(looked) == 3
