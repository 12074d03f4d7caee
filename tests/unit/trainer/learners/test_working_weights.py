"""Training in bfloat16: float32 weights for the optimiser, rounded ones for the passes."""

import pytest
import torch

from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.learners.working_weights import WorkingWeights, add_gradient
from gradbus_trainer.step.batch import Batch
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.scratch import Scratch

BF16 = {"dtype": "bf16", "learning_rate": 1e-3}


def gradients(folder, spec, batch):
    """AdamW's first moment after one unclipped step is (1 - beta1) · gradient."""
    learner = TorchLearner(folder, spec)
    learner.train(batch)
    scale = 1.0 - spec.trainer.betas[0]
    return {name: tensor / scale for name, tensor in learner.optimizer_tensors().items() if name.endswith(".exp_avg")}


def error(found, expected):
    """Of all tensors together, relative."""
    difference = sum((found[name] - expected[name]).pow(2).sum() for name in expected)
    return float((difference / sum(tensor.pow(2).sum() for tensor in expected.values())).sqrt())


def test_a_published_version_has_the_bits_of_the_weights_in_use(model_folder, make_spec, make_batch, tmp_path):
    learner = TorchLearner(model_folder, make_spec(trainer=BF16))
    for step in range(3):
        learner.train(Batch(step, make_batch().samples))
    exact = {name: tensor.clone() for name, tensor in learner.weights().items()}
    assert all(tensor.dtype == torch.float32 for tensor in exact.values())
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in exact.values()), "the optimiser's weights are not rounded"
    file = export_version(3, learner.weights(), False, Scratch(tmp_path), torch.bfloat16).file
    (folder := tmp_path / "version").mkdir()
    (folder / "model.safetensors").write_bytes(file.path.read_bytes())
    (folder / "config.json").write_bytes((model_folder / "config.json").read_bytes())
    samples = make_batch().samples
    with torch.no_grad():
        served, _ = packed_logprobs(load_causal_lm(folder, torch.bfloat16), samples, 1.0)
        trained, _ = learner._logprobs(learner._model, samples, 1.0)
    assert torch.equal(served, trained)


def test_adapters_begin_at_the_same_float32_numbers(model_folder, make_spec):
    exact, masters = (TorchLearner(model_folder, make_spec(trainer=trainer | {"lora": {"rank": 4}})).weights() for trainer in ({}, BF16))
    assert exact.keys() == masters.keys()
    assert all(torch.equal(exact[name], masters[name]) for name in exact)


def test_gradients_are_those_of_float32_up_to_rounding(model_folder, make_spec, make_batch):
    expected = gradients(model_folder, make_spec(), make_batch())
    assert error(gradients(model_folder, make_spec(trainer=BF16), make_batch()), expected) < 0.05


def test_gradients_of_micro_batches_are_added_up_in_float32(model_folder):
    model = load_causal_lm(model_folder)
    weights = WorkingWeights(model, {"norm": model.model.norm.weight}, torch.bfloat16)
    for _ in range(300):
        model.model.norm.weight.sum().backward()
    assert model.model.norm.weight.grad is None
    assert weights.masters["norm"].grad.unique().tolist() == [300.0], "sums in bfloat16 end at 256"


def test_a_token_that_occurs_thousands_of_times_keeps_its_gradient(model_folder):
    model = load_causal_lm(model_folder, torch.bfloat16)
    table = model.model.embed_tokens
    table(torch.full((1, 5000), 3)).sum().backward()
    assert table.weight.grad[3].tolist() == [4992.0] * table.weight.shape[1], "5000 in bfloat16; sums in bfloat16 end at 256"
    assert not table.weight.grad[4].any()


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_the_loss_goes_the_way_of_float32(model_folder, make_spec, make_batch, lora):
    samples = make_batch().samples

    def last(**trainer):
        learner = TorchLearner(model_folder, make_spec(trainer={"learning_rate": 1e-3, "lora": lora} | trainer))
        return [learner.train(Batch(step, samples)).loss.total for step in range(20)]

    exact, rounded = last(), last(dtype="bf16")
    assert exact[-1] < exact[0]
    assert rounded[-1] - rounded[0] == pytest.approx(exact[-1] - exact[0], rel=0.05)


def test_checkpointing_changes_no_bit(model_folder, make_spec, make_batch):
    for dtype in ("fp32", "bf16"):
        plain, checkpointed = (
            gradients(model_folder, make_spec(trainer={"dtype": dtype, "gradient_checkpointing": chosen}), make_batch())
            for chosen in (False, True)
        )
        assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_lies_in_columns_moves_each_weight_by_its_own_element(dtype):
    """A product by oneDNN leaves such gradients; fused AdamW would update the weights in the order of memory."""
    torch.manual_seed(0)
    start, gradient = torch.randn(5, 3), torch.randn(5, 3).to(dtype)
    moved = []
    for one in (gradient, gradient.t().contiguous().t()):
        weight = torch.nn.Parameter(start.clone())
        add_gradient(weight, one)
        torch.optim.AdamW([weight], lr=0.1, fused=True).step()
        moved.append(weight.detach())
    assert torch.equal(*moved)
