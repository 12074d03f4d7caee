"""How a run begins: with its model, or with the adapters of the version from which it starts."""

import threading

import pytest
from safetensors.torch import save

from gradbus.errors import ModelError
from gradbus.objects import ObjectStore
from gradbus_kernels.weights.digest import weights_digest
from gradbus_trainer.checkpoints import state
from gradbus_trainer.checkpoints.state import begin
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.tensors.scratch import Scratch

LORA = {"trainer": {"learning_rate": 1e-2, "lora": {"rank": 2}}}


@pytest.fixture
def objects(tmp_path):
    return ObjectStore.open((tmp_path / "objects").as_uri())


@pytest.fixture
async def parent(model_folder, make_spec, make_batch, objects):
    """The adapters of a run after a step, and the spec of a run that begins with them."""
    spec = make_spec(**LORA)
    learner = TorchLearner(model_folder, spec)
    learner.train(make_batch())
    weights = {name: tensor.detach().clone() for name, tensor in learner.weights().items()}
    lineage = {"base": "m", "ancestors": [{"run": "run-1", "name": "first", "version": 1, "digest": weights_digest(weights)}]}
    model = {"run": "run-1", "version": 1, "files": {}, "adapters": await objects.put_blob(save(weights)), "lineage": lineage}
    return weights, make_spec(**LORA, model=model)


async def test_a_run_begins_with_the_bits_of_the_adapters_and_trains_on_from_there(parent, model_folder, make_batch, objects, tmp_path):
    weights, spec = parent
    learner = TorchLearner(model_folder, spec)
    assert weights_digest(dict(learner.weights().items())) != weights_digest(weights)
    begun = await begin(objects, learner, Scratch(tmp_path / "scratch"), spec)
    assert (begun.step, weights_digest(dict(learner.weights().items()))) == (0, weights_digest(weights))
    assert dict(learner.optimizer_tensors().items()) == {}, "the optimiser is new"
    learner.train(make_batch())
    assert weights_digest(dict(learner.weights().items())) != weights_digest(weights)


async def test_the_adapters_are_compared_beside_the_event_loop(parent, model_folder, objects, tmp_path, monkeypatch):
    """Which renews the lease meanwhile."""
    _, spec = parent
    threads = []

    def digest(tensors):
        threads.append(threading.current_thread())
        return weights_digest(tensors)

    monkeypatch.setattr(state, "weights_digest", digest)
    await begin(objects, TorchLearner(model_folder, spec), Scratch(tmp_path / "scratch"), spec)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_adapters_of_another_version_or_shape_are_refused(parent, model_folder, make_spec, objects, tmp_path):
    _, spec = parent
    [ancestor] = spec.model.lineage.ancestors
    other = ancestor.model_copy(update={"digest": "sha256:" + "0" * 64})
    lineage = spec.model.lineage.model_copy(update={"ancestors": (other,)})
    wrong = spec.model_copy(update={"model": spec.model.model_copy(update={"lineage": lineage})})
    learner = TorchLearner(model_folder, wrong)
    with pytest.raises(ModelError, match="fork the run again"):
        await begin(objects, learner, Scratch(tmp_path / "scratch"), wrong)
    larger = TorchLearner(model_folder, make_spec(trainer={"lora": {"rank": 3}}))
    with pytest.raises(ModelError, match="has shape"):
        await begin(objects, larger, Scratch(tmp_path / "scratch"), spec)


async def test_a_run_of_its_own_begins_with_its_model(model_folder, make_spec, objects, tmp_path):
    learner = TorchLearner(model_folder, make_spec(**LORA))
    before = weights_digest(dict(learner.weights().items()))
    await begin(objects, learner, Scratch(tmp_path / "scratch"), make_spec(**LORA))
    assert weights_digest(dict(learner.weights().items())) == before
