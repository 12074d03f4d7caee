"""Draws that are withdrawn, whatever comes first: the word of it or the draw."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gradbus_rollout.episodes.withdrawals import Draw, Withdrawals

SESSIONS = ("a", "b")


@dataclass
class Worker:
    """Plays sessions beside each other; `said` is what it was told, as a plain list."""

    withdrawals: Withdrawals = field(default_factory=Withdrawals)
    ordinals: dict = field(default_factory=lambda: dict.fromkeys(SESSIONS, 0))
    drawing: dict = field(default_factory=dict)
    said: list = field(default_factory=list)

    async def begins(self, session):
        """A draw, which is withdrawn at once if the newest that it was told of this session is this one."""
        if session in self.drawing:
            return
        draw, end = Draw(session, self.ordinals[session]), asyncio.Event()
        started = []

        async def drawn():
            started.append(draw)
            await end.wait()
            return draw

        of_session = [told.ordinal for told in self.said if told.session == session]
        is_early = bool(of_session) and max(of_session) == draw.ordinal
        task = asyncio.create_task(self.withdrawals.unless_withdrawn(draw, drawn))
        await settled()
        assert (task.done(), started) == (is_early, [] if is_early else [draw])
        if is_early:
            await self.over(session, task, None)
        else:
            self.drawing[session] = draw, end, task

    async def ends(self, session):
        if session in self.drawing:
            draw, end, task = self.drawing.pop(session)
            end.set()
            await self.over(session, task, draw)

    async def hears(self, session, back):
        """That a draw is withdrawn: the one that is due, one before, or one after that another worker begins."""
        told = Draw(session, max(0, self.ordinals[session] - back))
        self.said.append(told)
        self.withdrawals.add(told)
        await settled()
        for of_session, (draw, _, task) in list(self.drawing.items()):
            assert task.done() == (draw == told), "no other draw ends"
            if task.done():
                del self.drawing[of_session]
                await self.over(of_session, task, None)

    async def closes(self, session):
        await self.ends(session)
        self.withdrawals.forget(session)
        self.said = [told for told in self.said if told.session != session]
        self.ordinals[session] = 0

    async def over(self, session, task, result):
        assert await task == result
        self.ordinals[session] += 1


async def settled():
    for _ in range(4):
        await asyncio.sleep(0)


SESSION = st.sampled_from(SESSIONS)
EVENTS = st.one_of(
    st.tuples(st.just("begins"), SESSION),
    st.tuples(st.just("ends"), SESSION),
    st.tuples(st.just("closes"), SESSION),
    st.tuples(st.just("hears"), SESSION, st.integers(-1, 2)),
)


@given(st.lists(EVENTS, max_size=30))
def test_a_draw_is_withdrawn_if_it_is_the_newest_that_was_named_and_no_other_one_is(events):
    async def play():
        worker = Worker()
        for event, *given_with in events:
            await getattr(worker, event)(*given_with)
        for session in SESSIONS:
            await worker.closes(session)
        assert (worker.withdrawals.newest, worker.withdrawals.drawing) == ({}, {})

    asyncio.run(play())


async def test_so_many_sessions_are_kept_and_those_that_were_named_last():
    withdrawals = Withdrawals(most_sessions=2)
    for session in ("a", "b", "a", "c"):
        withdrawals.add(Draw(session, 0))
    assert set(withdrawals.newest) == {"a", "c"}


async def test_a_draw_that_is_cancelled_by_its_worker_is_forgotten():
    withdrawals, never = Withdrawals(), asyncio.Event()
    task = asyncio.create_task(withdrawals.unless_withdrawn(Draw("a", 0), never.wait))
    await settled()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert withdrawals.drawing == {}
