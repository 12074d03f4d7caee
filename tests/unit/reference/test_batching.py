"""The torch thread of the reference service, when nobody waits for its work any more."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradbus.aio.tasks import cancel_and_wait
from gradbus.errors import OutOfMemoryError, RestartNeededError
from gradbus_reference import batching
from gradbus_reference.batching import Batcher
from gradbus_reference.model import RunModel
from gradbus_reference.requests import LogProbsQuestion, PromptResponse, ScoreQuestion


class Loading:
    """Models whose load takes until `loaded` is set, in the torch thread."""

    def __init__(self, thread):
        self._thread = thread
        self.loaded = threading.Event()

    async def policy_of(self, _run_id, _version_files):
        await asyncio.get_running_loop().run_in_executor(self._thread, self.loaded.wait)
        raise KeyError("a model")


@pytest.fixture
def loading(monkeypatch):
    monkeypatch.setattr(batching, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(batching, "_ABANDONED_SECONDS", 0.1)
    with ThreadPoolExecutor(1) as thread:
        loading = Loading(thread)
        yield loading, thread
        loading.loaded.set()


def call(run_id="run-1", sample_id="0.0"):
    ids = np.array([1], dtype=np.int32)
    return LogProbsQuestion(run_id, 1.0), [PromptResponse(sample_id, ids, ids)]


async def test_a_load_that_goes_on_when_nobody_waits_ends_the_process(loading):
    models, thread = loading
    batcher = Batcher(models, thread)
    waiting = asyncio.create_task(batcher.values(*call()))
    await asyncio.sleep(0.05)
    await cancel_and_wait(waiting)
    with pytest.raises(RestartNeededError, match="run run-1, for which nobody waits"):
        await asyncio.wait_for(asyncio.shield(batcher.abandoned), 60)


async def test_a_long_load_is_waited_for_as_long_as_callers_ask_again(loading):
    models, thread = loading
    batcher = Batcher(models, thread)
    calls = [asyncio.create_task(batcher.values(*call()))]
    for _ in range(10):
        await asyncio.sleep(0.05)
        calls.append(asyncio.create_task(batcher.values(*call())))
        await asyncio.sleep(0)
        await cancel_and_wait(calls[-2])
    assert not batcher.abandoned.done()
    models.loaded.set()
    with pytest.raises(KeyError, match="a model"):
        await calls[-1]


class Counting:
    """A model whose computations are noted, by run; each call has one token a sequence."""

    vocabulary = 8

    def __init__(self, *, group_by_group=False):
        self.turns = []
        self.computed = []
        self._group_by_group = group_by_group

    async def policy_of(self, run_id, _version_files):
        self.turns.append(run_id)
        return RunModel(self, self._group_by_group)

    reward_of = policy_of

    def logprobs(self, sequences, temperature):
        assert temperature == 1.0
        return [np.zeros(len(sequence.token_ids), np.float32) for sequence in sequences]

    def scores(self, sequences):
        self.computed.append([sequence.sample_id for sequence in sequences])
        return [np.ones(1, np.float32) for _ in sequences]


async def test_runs_that_wait_take_turns_however_many_calls_one_of_them_has(monkeypatch):
    monkeypatch.setattr(batching, "_TURN_TOKENS", 4)
    models = Counting()
    with ThreadPoolExecutor(1) as thread:
        batcher = Batcher(models, thread)
        answers = await asyncio.gather(*(batcher.values(*call(run)) for run in ["run-a"] * 5 + ["run-b"]))
    assert models.turns == ["run-a", "run-b", "run-a", "run-a"], "two calls a turn"
    assert [answer[0].shape for answer in answers] == [(1,)] * 6


async def test_a_call_that_was_cancelled_before_its_turn_is_not_computed(monkeypatch):
    monkeypatch.setattr(batching, "_TURN_TOKENS", 1)
    models = Counting()
    with ThreadPoolExecutor(1) as thread:
        batcher = Batcher(models, thread)
        calls = [asyncio.create_task(batcher.values(*call(run))) for run in ("run-a", "run-b")]
        await asyncio.sleep(0)
        await cancel_and_wait(calls[1])
        await calls[0]
        await batcher._task
    assert models.turns == ["run-a"]


class Crowded:
    """Models that find no memory until all are dropped."""

    def __init__(self):
        self.attempts = []
        self.has_room = False

    async def policy_of(self, run_id, _version_files):
        self.attempts.append(run_id)
        raise KeyError(run_id) if self.has_room else OutOfMemoryError("no memory")

    async def drop_all(self):
        self.has_room = True


async def test_a_model_that_finds_no_memory_gets_that_of_the_other_runs_models(loading):
    models = Crowded()
    with pytest.raises(KeyError, match="run-1"):
        await Batcher(models, loading[1]).values(*call())
    assert models.attempts == ["run-1", "run-1"]


async def score_beside_logprobs(models):
    """Two calls for scores, and one for log-probabilities of the same run."""
    sequences = [sequence for sample_id in ("0.0", "0.1", "1.0") for sequence in call("run-1", sample_id)[1]]
    with ThreadPoolExecutor(1) as thread:
        batcher = Batcher(models, thread)
        scores = (batcher.values(ScoreQuestion("run-1"), part) for part in (sequences, sequences[:1]))
        return await asyncio.gather(*scores, batcher.values(*call()))


async def test_a_run_may_ask_both_of_its_models_and_each_is_computed_by_itself():
    models = Counting()
    answers = await score_beside_logprobs(models)
    assert models.computed == [["0.0", "0.1", "1.0", "0.0"]]
    assert [[float(value[0]) for value in answer] for answer in answers] == [[1.0] * 3, [1.0], [0.0]]


async def test_a_deterministic_run_has_each_group_scored_by_itself():
    models = Counting(group_by_group=True)
    await score_beside_logprobs(models)
    assert models.computed == [["0.0", "0.1"], ["1.0"], ["0.0"]]
