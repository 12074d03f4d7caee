"""The torch thread of the reference service, when nobody waits for its work any more."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradbus.aio.tasks import cancel_and_wait
from gradbus.errors import OutOfMemoryError, RestartNeededError
from gradbus.v1.reference_service_pb2 import LogProbsRequest, ReferenceSequence
from gradbus_reference import batching
from gradbus_reference.batching import Batcher


class Loading:
    """Models whose load takes until `loaded` is set, in the torch thread."""

    def __init__(self, thread):
        self._thread = thread
        self.loaded = threading.Event()

    async def of(self, _run_id):
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


def request(run_id="run-1"):
    ids = np.array([1], dtype=np.int32).tobytes()
    sequence = ReferenceSequence(sample_id="0.0", prompt_ids=ids, token_ids=ids)
    return LogProbsRequest(run_id=run_id, temperature=1.0, sequences=[sequence])


async def test_a_load_that_goes_on_when_nobody_waits_ends_the_process(loading):
    models, thread = loading
    batcher = Batcher(models, thread)
    call = asyncio.create_task(batcher.logprobs(request()))
    await asyncio.sleep(0.05)
    await cancel_and_wait(call)
    with pytest.raises(RestartNeededError, match="run run-1, for which nobody waits"):
        await asyncio.wait_for(asyncio.shield(batcher.abandoned), 60)


async def test_a_long_load_is_waited_for_as_long_as_callers_ask_again(loading):
    models, thread = loading
    batcher = Batcher(models, thread)
    calls = [asyncio.create_task(batcher.logprobs(request()))]
    for _ in range(10):
        await asyncio.sleep(0.05)
        calls.append(asyncio.create_task(batcher.logprobs(request())))
        await asyncio.sleep(0)
        await cancel_and_wait(calls[-2])
    assert not batcher.abandoned.done()
    models.loaded.set()
    with pytest.raises(KeyError, match="a model"):
        await calls[-1]


class Counting:
    """A model whose computations are noted, by run; each call has one token a sequence."""

    vocabulary, group_by_group = 8, False

    def __init__(self):
        self.turns = []
        self.model = self

    async def of(self, run_id):
        self.turns.append(run_id)
        return self

    def logprobs(self, sequences, _temperature):
        return [np.zeros(len(sequence.token_ids), np.float32) for sequence in sequences]


async def test_runs_that_wait_take_turns_however_many_calls_one_of_them_has(monkeypatch):
    monkeypatch.setattr(batching, "_TURN_TOKENS", 4)
    models = Counting()
    with ThreadPoolExecutor(1) as thread:
        batcher = Batcher(models, thread)
        answers = await asyncio.gather(*(batcher.logprobs(request(run)) for run in ["run-a"] * 5 + ["run-b"]))
    assert models.turns == ["run-a", "run-b", "run-a", "run-a"], "two calls a turn"
    assert {answer.results[0].sample_id for answer in answers} == {"0.0"}


async def test_a_call_that_was_cancelled_before_its_turn_is_not_computed(monkeypatch):
    monkeypatch.setattr(batching, "_TURN_TOKENS", 1)
    models = Counting()
    with ThreadPoolExecutor(1) as thread:
        batcher = Batcher(models, thread)
        calls = [asyncio.create_task(batcher.logprobs(request(run))) for run in ("run-a", "run-b")]
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

    async def of(self, run_id):
        self.attempts.append(run_id)
        raise KeyError(run_id) if self.has_room else OutOfMemoryError("no memory")

    async def drop_all(self):
        self.has_room = True


async def test_a_model_that_finds_no_memory_gets_that_of_the_other_runs_models(loading):
    models = Crowded()
    with pytest.raises(KeyError, match="run-1"):
        await Batcher(models, loading[1]).logprobs(request())
    assert models.attempts == ["run-1", "run-1"]
