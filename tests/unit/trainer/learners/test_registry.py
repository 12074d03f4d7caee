"""The learner that a spec selects, and the specs that a process refuses."""

import os
from importlib.util import find_spec

import pytest

from gradbus.errors import SettingsError
from gradbus_trainer.learners.registry import Learners
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.settings import Settings, TorchrunRank


def test_a_process_without_torchrun_is_the_only_rank():
    assert TorchrunRank.of({}) == TorchrunRank(rank=0, size=1, local_rank=0)
    assert TorchrunRank.of({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}) == TorchrunRank(rank=9, size=16, local_rank=1)


def test_torch_is_the_default(model_folder, make_spec):
    learners = Learners(Settings(), TorchrunRank())
    learners.start()
    assert isinstance(learners.open(model_folder, make_spec()), TorchLearner)
    learners.close()


def test_more_threads_than_processors_are_refused(model_folder, make_spec, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(SettingsError, match=r"trainer\.threads = 3, but this machine has 2 processors; set it to at most 2"):
        Learners(Settings(), TorchrunRank()).open(model_folder, make_spec(trainer={"threads": 3}))


def test_several_ranks_cannot_be_one_process(model_folder, make_spec):
    with pytest.raises(SettingsError, match="2 ranks; start the trainer without torchrun"):
        Learners(Settings(), TorchrunRank(size=2)).open(model_folder, make_spec())


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="DeepSpeed is here")
def test_a_trainer_without_deepspeed_says_what_to_install(model_folder, make_spec):
    with pytest.raises(SettingsError, match=r"gradbus\[trainer-deepspeed\]"):
        Learners(Settings(), TorchrunRank()).open(model_folder, make_spec(trainer={"backend": "deepspeed"}))


@pytest.mark.parametrize("placement", ["shared", "timed"])
def test_several_ranks_do_not_share_one_device_with_an_engine(make_spec, model_folder, placement):
    spec = make_spec(rollout={"placement": placement}, trainer={"backend": "deepspeed"})
    with pytest.raises(SettingsError, match="has 2 ranks; start the trainer without torchrun"):
        Learners(Settings(), TorchrunRank(size=2)).open(model_folder, spec)
