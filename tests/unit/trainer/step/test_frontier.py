"""The trained set: order never matters, holes stay visible, and it survives its message."""

from hypothesis import given
from hypothesis import strategies as st

from gradbus.v1.weights_pb2 import Frontier as FrontierMessage
from gradbus_trainer.step.frontier import Frontier

indexes = st.lists(st.integers(0, 60), max_size=40)


def members(frontier):
    return set(range(frontier.below)) | frontier.above


def digests(indexes):
    return [(number, f"digest {number}") for number in indexes]


@given(indexes)
def test_below_and_above_are_the_set_however_it_was_added(indexes):
    frontier = Frontier()
    for number in indexes:
        frontier.add(0, digests([number]))
    assert members(frontier) == set(indexes)
    assert frontier.below not in frontier.above, "the first hole is not trained"
    assert all(index > frontier.below for index in frontier.above)
    assert all((index in frontier) == (index in set(indexes)) for index in range(70))


@given(st.lists(st.integers(0, 60), unique=True).flatmap(lambda indexes: st.tuples(st.just(indexes), st.permutations(indexes))))
def test_one_step_in_any_order_is_one_frontier_with_one_chain(orders):
    first, second = Frontier(), Frontier()
    first.add(3, digests(orders[0]))
    second.add(3, digests(orders[1]))
    assert first.to_message() == second.to_message()


@given(indexes, indexes)
def test_the_message_gives_the_frontier_back(indexes, later):
    frontier = Frontier()
    frontier.add(0, digests(set(indexes)))
    restored = Frontier.from_message(FrontierMessage.FromString(frontier.to_message().SerializeToString()))
    for one in (frontier, restored):
        one.add(1, digests(set(later)))
    assert restored.to_message() == frontier.to_message()
    assert members(restored) == set(indexes) | set(later)


@given(indexes)
def test_what_is_in_already_changes_nothing(indexes):
    frontier = Frontier()
    frontier.add(0, digests(set(indexes)))
    before = frontier.to_message()
    frontier.add(1, digests(indexes))
    assert frontier.to_message() == before


def test_the_chain_tells_steps_and_contents_apart():
    chains = set()
    for step, entries in ((0, [(0, "a"), (1, "b")]), (1, [(0, "a"), (1, "b")]), (0, [(0, "b"), (1, "a")]), (0, [(0, "a"), (2, "b")])):
        frontier = Frontier()
        frontier.add(step, entries)
        chains.add(frontier.chain)
    assert len(chains) == 4
