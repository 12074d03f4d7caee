"""DeepSpeed trains every family as plain torch does."""

import pytest
import torch
from deepspeed_lab import leader
from family_lab import FAMILIES, make_model, save
from learner_lab import SPEC, batch, deepspeed_spec

from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.tensors.base_folder import BaseFolder

pytestmark = pytest.mark.engines
STEPS = 3


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    # A bias of keys that are not turned has no gradient but rounding, which AdamW makes as large as any other.
    changes = {"attention_bias": False} if request.param in {"glm4", "glm4_moe"} else {}
    return save(make_model(request.param, **FAMILIES[request.param] | changes), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def expected(folder):
    """Weights by plain torch."""
    return trained(TorchLearner(folder, SPEC))


def trained(learner):
    for step in range(STEPS):
        learner.train(batch(step))
    return {name: tensor.clone() for name, tensor in learner.weights().items()}


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_every_stage_ends_in_plain_torchs_weights(folder, expected, stage):
    pytest.importorskip("deepspeed")
    from gradbus_trainer.learners.deepspeed.learner import DeepSpeedLearner

    learner = DeepSpeedLearner(folder, deepspeed_spec(zero_stage=stage), leader())
    BaseFolder(folder).check_identity(learner.weights(), torch.float32)
    found = trained(learner)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0.0, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
