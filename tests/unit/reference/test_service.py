"""What the reference service counts of the samples that it scores."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradbus.errors import StorageError
from gradbus.telemetry import Metrics
from gradbus.v1.reward_pb2 import REWARD_STATUS_ERROR, ScoreRequest, ScoreSample
from gradbus_reference import service
from gradbus_reference.batching import Batcher
from gradbus_reference.model import RunModel
from gradbus_reference.service import ReferenceService
from gradbus_reference.settings import ReferenceSettings
from gradbus_reference.teacher_servers import TeacherServers

IDS = np.array([1], "<i4").tobytes()


class Scores:
    """A reward model whose scores are given, or storage that fails."""

    vocabulary = 8

    def __init__(self, *scores):
        self._given = scores

    async def reward_of(self, _run_id, _version_files):
        if not self._given:
            raise StorageError("the disk is away")
        return RunModel(self, group_by_group=False)

    def scores(self, _sequences):
        return [np.array([score], np.float32) for score in self._given]


@pytest.fixture
def read(monkeypatch):
    metrics = Metrics()
    monkeypatch.setattr(service, "PROCESS", metrics)
    return lambda: {point.attributes["gradbus.reward.status"]: point.value for point in metrics.read("gradbus.reward.samples")}


async def scored(*scores):
    samples = [ScoreSample(sample_id=f"0.{n}", prompt_ids=IDS, token_ids=IDS) for n in range(3)]
    with ThreadPoolExecutor(1) as thread:
        models = Scores(*scores)
        served = ReferenceService(models, Batcher(models, thread), TeacherServers(ReferenceSettings()), waiting_calls=4)
        return (await served.Score(ScoreRequest(run_id="run-1", samples=samples), None)).results


async def test_samples_are_counted_by_status(read):
    await scored(1.5, float("nan"), -2e6)
    assert read() == {"ok": 1, "invalid": 0, "error": 2}


async def test_a_storage_that_is_away_fails_no_run(read):
    results = await scored()
    assert {(result.status, result.permanent, result.reason) for result in results} == {
        (REWARD_STATUS_ERROR, False, "StorageError: the disk is away")
    }
    assert read()["error"] == 3
