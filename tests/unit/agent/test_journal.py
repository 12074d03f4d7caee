"""The steps of an episode, told again by another worker, and their bounds."""

import pytest

from gradbus.v1.environment_service_pb2 import AssistantTurn, DrawnTokens, StepRequest
from gradbus_agent.contract import ChatMessage, Reply
from gradbus_agent.episodes import journal as module
from gradbus_agent.episodes.journal import Journal, told_of
from gradbus_agent.episodes.memory import ByteBudget


def step(turn, text="a", versions=(4, 4), finish="stop", session="s"):
    drawn = DrawnTokens(version_first=versions[0], version_last=versions[1])
    return StepRequest(session=session, turn=turn, assistant=AssistantTurn(text=text, finish=finish, drawn=drawn))


def add(journal, request, reply=None):
    journal.answered(journal.add(told_of(request), request.assistant), reply or Reply(messages=[ChatMessage("user", "b")]))


@pytest.fixture
def budget():
    return ByteBudget(1 << 20)


@pytest.fixture
def journal(budget):
    return Journal(budget)


def test_the_newest_step_is_known_and_no_older_one(journal):
    add(journal, step(0))
    add(journal, step(1))
    assert journal.known(told_of(step(1, session="other"))) is journal.newest
    assert journal.known(told_of(step(0))) is None
    assert journal.known(told_of(step(1, "another"))) is None
    assert journal.recorded() is None


def test_another_worker_tells_all_steps_in_order_and_gets_the_turns(journal):
    requests = [step(0, "a"), step(1, "", finish="none"), step(1, "c")]
    for request in requests:
        add(journal, request)
    journal.begin_again()
    found = []
    for request in requests:
        assert not journal.is_at_end
        recorded = journal.recorded()
        found.append(recorded.text if recorded else None)
        assert journal.known(told_of(request)).told == told_of(request)
        assert journal.known(told_of(request)) is journal.newest, "told twice"
    assert found == ["a", None, "c"], "one without room is not drawn"
    assert journal.is_at_end
    assert journal.can_be_told_again


def test_a_turn_of_two_versions_cannot_be_told_again(journal):
    add(journal, step(0))
    add(journal, step(1, versions=(4, 5)))
    add(journal, step(2))
    assert not journal.can_be_told_again
    assert journal.known(told_of(step(2))) is journal.newest
    assert journal.known(told_of(step(1))) is None


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_long_episode_keeps_its_newest_step_alone(monkeypatch, is_alone):
    """It is bounded by itself, and by what the run's other episodes take."""
    budget = ByteBudget(1 << 20 if is_alone else 3000)
    if is_alone:
        monkeypatch.setattr(module, "MAX_BYTES", 3000)
    journal, other = Journal(budget), Journal(budget)
    add(other, step(0))
    for turn in range(8):
        add(journal, step(turn))
    assert not journal.can_be_told_again
    assert journal.newest.told == told_of(step(7))
    assert other.can_be_told_again
    other.clear()
    assert budget.take(3000)


def test_what_is_cleared_is_free_again(journal, budget):
    add(journal, step(0))
    journal.clear()
    assert budget.take(1 << 20)
    assert not budget.take(1)
