"""A weight store in this process, a tiny model, and a log as a conductor writes it."""

import asyncio
import inspect
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from s3_servers import moto_server  # noqa: F401 - a fixture
from transformers import Qwen2Config, Qwen2ForCausalLM

from gradbus.algorithms import algorithm_of, metric_names_of
from gradbus.bus import Buckets, Bus, EventLog
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.experience import ExperienceLog
from gradbus.experience.archive import ArchiveWriter
from gradbus.objects import ObjectStore
from gradbus.process import WorkerHeartbeat
from gradbus.process.device_turns import DeviceTurns
from gradbus.run_files.record import store_record
from gradbus.spec import RunSpec
from gradbus.telemetry import run_metrics
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus_trainer.checkpoints.state import restore
from gradbus_trainer.checkpoints.writer import CheckpointWriter
from gradbus_trainer.learners.device_tenant import LearnerTenant
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.run_control import RunControl
from gradbus_trainer.settings import Settings
from gradbus_trainer.step.collector import collector_for
from gradbus_trainer.step.live_log import LiveLog, missing_reporter
from gradbus_trainer.telemetry.learning_alarms import LearningAlarms
from gradbus_trainer.telemetry.step_metrics import StepMetricsRecorder
from gradbus_trainer.telemetry.step_report import StepReporter
from gradbus_trainer.telemetry.step_traces import StepSampler, StepTraces
from gradbus_trainer.tensors.scratch import Scratch
from gradbus_trainer.train_loop import TrainLoop, TrainLoopParts
from gradbus_trainer.versions.publisher import Publisher
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.writer import VersionWriter

from .replay_lab import Archived

VOCABULARY = 23
GROUPS, SAMPLES = 2, 4


async def until(condition):
    """Returns once `condition()`, which may be a coroutine function, holds; what it asks is another service's state."""
    async with asyncio.timeout(60):
        while not (await found if inspect.isawaitable(found := condition()) else found):  # noqa: ASYNC110 - nothing to wait on
            await asyncio.sleep(0.02)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    folder = tmp_path_factory.mktemp("model")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def run_id():
    return f"run-{secrets.token_hex(4)}"


@pytest.fixture
def make_spec():
    """Six steps of two groups of four; each keyword is a section's fields."""

    def make(mode="fixed_lag", steps=6, **sections):
        body = {"name": "test", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
        body |= {"schedule": {"mode": mode, "max_staleness": 1, "groups_per_step": GROUPS, "steps": steps}}
        body |= {"trainer": {"learning_rate": 1e-2}, "checkpoint": {"every": 2, "keep": 100}}
        return RunSpec.model_validate(body | sections)

    return make


def make_sample(index, n, rng):
    length = int(rng.integers(1, 6))
    return Sample(
        sample_id=f"{index}.{n}",
        n=n,
        token_ids=rng.integers(1, VOCABULARY, length).astype("<i4").tobytes(),
        logprobs=rng.normal(-3.0, 0.3, length).astype("<f4").tobytes(),
        spans=[Span(start=0, end=length, version=max(0, index // GROUPS - 1), trainable=True)],
        finish_reason=FinishReason.FINISH_REASON_STOP,
    )


def make_entry(index, verdict=Verdict.VERDICT_TRAIN):
    """The same for an index in every run."""
    rng = np.random.default_rng(index)
    samples = [make_sample(index, n, rng) for n in range(SAMPLES)]
    group = Group(index=index, prompt_ids=rng.integers(1, VOCABULARY, 3).astype("<i4").tobytes(), samples=samples)
    rewards = [
        SampleReward(sample_id=sample.sample_id, status=RewardStatus.REWARD_STATUS_OK, reward=1.0 + float(sample.n == index % SAMPLES))
        for sample in samples
    ]
    return LogEntry(index=index, verdict=verdict, group=group.SerializeToString(), rewards=rewards)


@dataclass
class Trained:
    """One run and everything a trainer needs to serve it, again and again."""

    record: RunRecord
    bus: Bus
    log: ExperienceLog
    objects: ObjectStore
    stub: WeightStoreServiceStub
    model_folder: object
    scratch: Scratch
    checkpoint_bytes: int = 1 << 30
    heartbeat: WorkerHeartbeat = field(init=False)

    def __post_init__(self):
        presence = WorkerPresence(worker="trainer", role="trainer", incarnation="1")
        self.heartbeat = WorkerHeartbeat(self.bus, presence)

    @property
    def run_id(self):
        return self.record.run_id

    async def write(self, indexes, verdicts=None, reference=False):
        """`reference`: with log-probabilities of a base model, a little below those of the rollout."""
        entries = {index: make_entry(index, (verdicts or {}).get(index, Verdict.VERDICT_TRAIN)) for index in indexes}
        for entry in entries.values() if reference else ():
            rows = [np.frombuffer(sample.logprobs, "<f4") for sample in Group.FromString(entry.group).samples]
            entry.reference_logprobs.extend([(row - 0.1).astype("<f4").tobytes() for row in rows])
        await self.log.append(1, entries)

    @asynccontextmanager
    async def train_loop(self, source=None):
        """A trainer's life from its lease to its train loop, as the service builds it; `source` takes the place of the live log."""
        spec, run_id, algorithm = self.record.spec, self.run_id, algorithm_of(self.record.spec)
        control = await RunControl.acquire(self.bus, run_id, self.heartbeat)
        events = EventLog(self.bus, run_id)
        try:
            store = StoreClient(self.stub, run_id)
            await store.open_term(control.term)
            learner = TorchLearner(self.model_folder, spec)
            state = await restore(store, self.objects, learner, self.scratch, spec)
            missing = missing_reporter(self.bus, run_id, state.frontier)
            live = LiveLog(run_id, self.log, algorithm, collector_for(spec, state.frontier), missing)
            publisher = Publisher(store, VersionWriter(self.objects, run_id, control.term, spec.weights), events, run_id)
            self.metrics = run_metrics(run_id)
            checkpoints = CheckpointWriter(store, self.objects, events, self.record, control.term, self.checkpoint_bytes)
            recorder = StepMetricsRecorder(self.metrics)
            reporter = StepReporter(events, self.heartbeat, recorder, metric_names_of(spec), LearningAlarms(spec))
            traces = StepTraces(run_id, control.term, StepSampler())
            turns = DeviceTurns(None, LearnerTenant(learner))
            parts = TrainLoopParts(source or live, learner, turns, self.scratch, publisher, checkpoints, control, reporter, traces)
            async with live.reading():
                yield TrainLoop(self.record, parts, state)
        finally:
            await control.release()
            await events.wait_until_stored()

    async def train(self, source=None):
        async with self.train_loop(source) as loop:
            await loop.run()


@pytest.fixture
def scratch(tmp_path):
    return Scratch(tmp_path / "scratch")


@pytest.fixture
def new_run(bus, buffer, objects, stub, model_folder, scratch):
    async def make(spec, suffix="", **fields):
        run_id = f"run-{secrets.token_hex(4)}{suffix}"
        record = RunRecord(run_id=run_id, spec=spec, created_unix_ns=1)
        await (await bus.bucket(Buckets.RUNS)).put(f"{run_id}.spec", record.to_bytes())
        return Trained(record, bus, ExperienceLog(buffer, run_id), objects, stub, model_folder, scratch, **fields)

    return make


async def forgotten(run):
    """Whether retention has deleted version 0, which no resume needs."""
    return not any("/0-" in path for path in await run.objects.list(f"runs/{run.run_id}/versions"))


@pytest.fixture
def archived(new_run, objects, model_folder, tmp_path):
    """Trains a run on twelve groups, or those that are given, and leaves it as its conductor does at its end."""

    async def make(spec, verdicts=None, groups=range(12), train=None):
        files = {path.name: await objects.put_file(path) for path in sorted(model_folder.iterdir())}
        spec = spec.model_copy(update={"model": spec.model.model_copy(update={"files": files})})
        run = await new_run(spec)
        await run.write(groups, verdicts)
        await (train(run) if train else run.train())
        await until(lambda: forgotten(run))
        await ArchiveWriter(objects, run.log, run.run_id).finish()
        await store_record(objects, run.record)
        return Archived(run, Settings(cache_dir=tmp_path / "cache", worker_id="replay"))

    return make
