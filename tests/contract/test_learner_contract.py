"""The contract between the train loop and every learner. Add a learner to LEARNERS to test it."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from deepspeed_lab import leader
from learner_lab import LORA_SPEC, SPEC, batch, deepspeed_spec, make_model
from safetensors.torch import load, save
from transformers import LlamaForCausalLM

from gradbus.errors import ModelError, TrainingError
from gradbus.formats.peft import adapter_shapes
from gradbus_kernels.models.device_memory import OffDevice
from gradbus_kernels.models.lora import merged_weights
from gradbus_kernels.operators import provenance
from gradbus_kernels.operators.base import dispatch
from gradbus_load.stub_learner import StubLearner
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch, TrainSample


def deepspeed_learner(folder, spec, **settings):
    """One rank, in this process."""
    pytest.importorskip("deepspeed")
    if settings.get("optimizer") == "cpu_adam" and not (shutil.which("g++") and shutil.which("ninja")):
        pytest.skip("DeepSpeed compiles cpu_adam: needs g++ and ninja")
    from gradbus_trainer.learners.deepspeed.learner import DeepSpeedLearner

    return DeepSpeedLearner(folder, deepspeed_spec(spec, **settings), leader())


def torch_learner(folder, spec, **settings):
    return TorchLearner(folder, spec.model_copy(update={"trainer": spec.trainer.model_copy(update=settings)}))


LEARNERS = {"torch": TorchLearner, "stub": StubLearner}
LEARNERS["torch-checkpointing"] = partial(torch_learner, gradient_checkpointing=True)
LEARNERS["torch-bf16"] = partial(torch_learner, dtype="bf16")
LEARNERS["torch-threads"] = partial(torch_learner, threads=2)
DEEPSPEED = {f"deepspeed-{stage}": partial(deepspeed_learner, zero_stage=stage) for stage in range(4)}
DEEPSPEED["deepspeed-2-offload"] = partial(deepspeed_learner, zero_stage=2, offload="optimizer")
DEEPSPEED["deepspeed-2-cpu_adam"] = partial(deepspeed_learner, zero_stage=2, offload="optimizer", optimizer="cpu_adam")
DEEPSPEED["deepspeed-3-cpu_adam"] = partial(deepspeed_learner, zero_stage=3, offload="all", optimizer="cpu_adam")
DEEPSPEED["deepspeed-3-checkpointing"] = partial(deepspeed_learner, zero_stage=3, gradient_checkpointing=True)
BF16 = {f"deepspeed-{stage}-bf16": partial(deepspeed_learner, zero_stage=stage, dtype="bf16") for stage in (1, 2, 3)}
BF16 |= {f"{name}-offload": partial(BF16[name], offload="optimizer") for name in ("deepspeed-1-bf16", "deepspeed-2-bf16")}
BF16["deepspeed-2-bf16-cpu_adam"] = partial(deepspeed_learner, zero_stage=2, dtype="bf16", offload="optimizer", optimizer="cpu_adam")
ALL = LEARNERS | DEEPSPEED | BF16
WITH_ADAPTERS = [
    "torch",
    "torch-checkpointing",
    "torch-bf16",
    "torch-threads",
    "deepspeed-0",
    "deepspeed-2",
    "deepspeed-3",
    "deepspeed-3-checkpointing",
    "deepspeed-2-bf16",
    "deepspeed-3-bf16",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def marked(names):
    """Each with its spec: all of them train every weight, some adapters too."""

    def case(name, spec, also=""):
        return pytest.param((name, spec), marks=[] if name in LEARNERS else pytest.mark.engines, id=name + also)

    return [case(name, SPEC) for name in sorted(names)] + [case(name, LORA_SPEC, "-lora") for name in WITH_ADAPTERS if name in names]


@pytest.fixture(params=marked(ALL))
def make_learner(request, folder):
    name, spec = request.param
    return lambda: ALL[name](folder, spec)


@pytest.fixture(params=marked(DEEPSPEED))
def pair(request, folder):
    """Two makers: of a learner that computes what the torch learner does, up to rounding, and of that one."""
    name, spec = request.param
    return lambda: DEEPSPEED[name](folder, spec), lambda: TorchLearner(folder, spec)


def merged(base, adapters):
    return {name: weight for name, weight, _ in merged_weights(base.items(), adapters, LORA_SPEC.trainer.lora.scale)}


def copies(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def bits(tensors):
    return {name: (tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes()) for name, tensor in tensors.items()}


def state(learner):
    return bits(learner.weights()), bits(learner.optimizer_tensors())


def trained(learner, steps):
    metrics = [learner.train(batch(step)) for step in steps]
    return metrics, state(learner)


def test_the_same_batches_give_the_same_bits(make_learner):
    assert trained(make_learner(), range(4)) == trained(make_learner(), range(4))


@pytest.mark.parametrize("checkpoint", [0, 1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_restored_learner_goes_on_to_the_same_bits(make_learner, checkpoint):
    straight = make_learner()
    trained(straight, range(checkpoint))
    stored = save(dict(straight.weights())), save(dict(straight.optimizer_tensors()))
    resumed = make_learner()
    trained(resumed, range(2))  # state of its own, which restore must replace
    resumed.restore(checkpoint, *(load(blob) for blob in stored))
    assert state(resumed) == state(straight)
    assert trained(resumed, range(checkpoint, 5)) == trained(straight, range(checkpoint, 5))


def test_a_learner_that_leaves_the_device_around_each_step_trains_the_same_bits(make_learner, monkeypatch):
    left, reload = [], OffDevice.reload

    def reload_over_noise(self):
        """As on a device, the memory that comes back holds anything."""
        left.extend(self._kept)
        for storage, size in self._sizes:
            storage.resize_(size)
            torch.empty(0, dtype=torch.uint8).set_(storage).fill_(0x7F)
        reload(self)

    monkeypatch.setattr(OffDevice, "reload", reload_over_noise)
    straight, moving = make_learner(), make_learner()
    moving.resume()
    metrics = []
    for step in range(4):
        moving.release()
        moving.resume()
        metrics.append(moving.train(batch(step)))
    moving.release()
    moving.resume()
    assert (metrics, state(moving)) == trained(straight, range(4))
    assert left


def test_a_step_moves_every_weight_and_reports_itself(make_learner):
    learner = make_learner()
    before = copies(learner.weights())
    metrics = learner.train(batch(0))
    after = learner.weights()
    assert [name for name in before if torch.equal(before[name], after[name])] == []
    assert (metrics.noop, metrics.tokens) == (False, sum(batch(0).trainable_counts))
    assert metrics.grad_norm > 0.0
    assert metrics.learning_rate == pytest.approx(1e-2 / 3)


@pytest.mark.parametrize(
    "name", ["torch", "torch-bf16", *(pytest.param(name, marks=pytest.mark.engines) for name in sorted(DEEPSPEED | BF16))]
)
def test_the_loss_is_fused_with_the_head(name, folder, monkeypatch):
    monkeypatch.setattr(dispatch, "_ran", {})
    ALL[name](folder, SPEC).train(batch(0))
    assert provenance()["linear_grpo_loss"].implementation == "cpu"


def test_a_batch_without_weight_changes_nothing_and_says_so(make_learner):
    learner, other = make_learner(), make_learner()
    trained(learner, [0])
    before = state(learner)
    assert learner.train(Batch(1, [])).noop
    assert state(learner) == before
    trained(other, [0])
    assert trained(learner, [2]) == trained(other, [2])


def test_tensors_are_read_one_at_a_time_and_as_they_are_then(make_learner):
    """In any order, and none or some of them: two ranks would fall apart otherwise."""
    learner = make_learner()
    learner.train(batch(0))
    moments = learner.optimizer_tensors()
    name = max(name for name in moments if name.endswith(".exp_avg"))
    before = moments[name].clone()
    learner.train(batch(1))
    assert not torch.equal(moments[name], before)
    for tensors in (moments, learner.weights()):
        assert {key: tensor.shape for key, tensor in tensors.items()} == dict(tensors.shapes)
        assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in tensors.values())


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in LEARNERS else pytest.mark.engines) for name in sorted(ALL)])
def test_weights_are_those_of_the_folder_under_its_names_or_what_is_added_to_them(name, folder):
    base = load((folder / "model.safetensors").read_bytes())
    assert bits(ALL[name](folder, SPEC).weights()) == bits(base)
    if name not in WITH_ADAPTERS:
        return
    adapters = ALL[name](folder, LORA_SPEC).weights()
    shapes = {name: tuple(tensor.shape) for name, tensor in adapters.items()}
    assert shapes == adapter_shapes({name: tensor.shape for name, tensor in base.items()}, LORA_SPEC.trainer.lora)
    assert bits(merged(base, adapters)) == bits(base)


def test_a_probe_is_what_a_model_of_the_merged_weights_computes(make_learner, folder):
    learner = make_learner()
    if not any("lora" in name for name in learner.weights()):
        pytest.skip("every weight is trained: no run asks for it")
    for step in range(3):
        learner.train(batch(step))
    probe, base = learner.probe(), load((folder / "model.safetensors").read_bytes())
    ids = torch.tensor(np.frombuffer(probe.token_ids, "<i4").copy())[None].long()
    bf16 = learner._spec.trainer.dtype == "bf16"
    for part, weights in ((probe.logprobs, merged(base, learner.weights())), (probe.base_logprobs, base)):
        model = LlamaForCausalLM.from_pretrained(folder)
        model.load_state_dict(weights, strict=False)
        with torch.no_grad():
            expected = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
        np.testing.assert_allclose(np.frombuffer(part, "<f4"), expected, atol=0.1 if bf16 else 1e-5)
    assert probe.logprobs != probe.base_logprobs


def test_optimiser_state_is_named_by_parameter(make_learner):
    learner = make_learner()
    assert learner.optimizer_tensors() == {}
    learner.train(batch(0))
    expected = {f"{name}.{moment}" for name in learner.weights() for moment in ("exp_avg", "exp_avg_sq", "step")}
    assert learner.optimizer_tensors().keys() == expected
    sizes = [tensor.numel() for name, tensor in learner.optimizer_tensors().items() if name.endswith(".exp_avg")]
    assert learner.trained_parameters == sum(sizes)


def test_learning_makes_rewarded_tokens_likelier(make_learner):
    """The sign of the whole chain: reward one token, punish another, and watch the ratio of the next batch."""
    learner = make_learner()
    if isinstance(learner, StubLearner):
        pytest.skip("it moves weights the same way whatever the samples")
    prompt, one = np.array([3, 4], np.int32), np.ones(1, bool)

    def sample(token, advantage):
        return TrainSample(prompt, np.array([token], np.int32), np.array([-3.0], np.float32), one, np.array([advantage], np.float32))

    before = learner.train(Batch(0, [sample(5, 1.0), sample(6, -1.0)])).loss.policy
    after = learner.train(Batch(1, [sample(5, 1.0), sample(6, -1.0)])).loss.policy
    assert after < before


def test_a_gradient_that_is_not_finite_changes_nothing(make_learner):
    learner, clean = make_learner(), make_learner()
    trained(learner, [0])
    before = state(learner)
    poison = [
        TrainSample(
            np.array([3], np.int32), np.array([4], np.int32), np.zeros(1, np.float32), np.ones(1, bool), np.full(1, np.nan, np.float32)
        )
    ]
    with pytest.raises(TrainingError, match="step 1 is not finite"):
        learner.train(Batch(1, poison))
    assert state(learner) == before
    trained(clean, [0])
    assert trained(learner, [1]) == trained(clean, [1])


def test_a_step_behind_the_restored_one_is_refused(make_learner):
    learner = make_learner()
    learner.restore(5, learner.weights(), learner.optimizer_tensors())
    with pytest.raises(TrainingError, match="step 4 is behind"):
        learner.train(batch(4))


def test_the_state_of_another_model_is_refused(make_learner):
    learner = make_learner()
    weights = dict(learner.weights())
    with pytest.raises(ModelError, match="another model"):
        learner.restore(1, weights, {"elsewhere.exp_avg": torch.zeros(1)})
    name, tensor = weights.popitem()
    with pytest.raises(ModelError, match="another model"):
        learner.restore(1, weights, {})
    with pytest.raises(ModelError, match=f"{name}.*start from the run's own model"):
        learner.restore(1, weights | {name: torch.zeros(*tensor.shape, 2)}, {})


def test_a_checkpoint_of_the_other_kind_is_refused(folder):
    full, lora = TorchLearner(folder, SPEC), TorchLearner(folder, LORA_SPEC)
    with pytest.raises(ModelError, match=r"another model.*lora_A"):
        lora.restore(1, full.weights(), {})
    with pytest.raises(ModelError, match="another model"):
        full.restore(1, lora.weights(), {})


def test_a_reference_without_adapters_gives_the_loss_that_a_reference_service_gives(folder):
    """A whole model with the merged weights, and log-probabilities as the service computes them."""
    from gradbus_reference.model import ReferenceModel

    lora = TorchLearner(folder, LORA_SPEC)
    trained(lora, range(6))
    whole = TorchLearner(folder, LORA_SPEC.model_copy(update={"trainer": SPEC.trainer}))
    base = load((folder / "model.safetensors").read_bytes())
    whole.restore(6, merged(base, lora.weights()), {})
    rows = batch(6).samples
    answers = ReferenceModel(folder).logprobs(rows, SPEC.rollout.temperature)
    expected = whole.train(Batch(6, [replace(row, reference_logprobs=answer) for row, answer in zip(rows, answers, strict=True)]))
    found = lora.train(Batch(6, rows))
    assert expected.loss.kl > 1e-4
    assert vars_of(found.loss) == pytest.approx(vars_of(expected.loss), rel=1e-6, abs=1e-6)
    assert vars_of(found.ratio) == pytest.approx(vars_of(expected.ratio), rel=1e-5)


def assert_alike(tensors, others):
    """Relative to each tensor's size: sums over tokens and ranks are taken in another order, and AdamW divides by small numbers."""
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        scale = float(others[name].abs().max())
        torch.testing.assert_close(tensor, others[name], rtol=0.0, atol=2e-5 * scale, msg=lambda text, name=name: f"{name}: {text}")


def assert_same_steps(metrics, others):
    for one, other in zip(metrics, others, strict=True):
        assert (one.noop, one.tokens, one.learning_rate) == (other.noop, other.tokens, other.learning_rate)
        shown, expected = ([m.grad_norm, *vars_of(m.loss), *vars_of(m.ratio)] for m in (one, other))
        assert shown == pytest.approx(expected, rel=2e-5, abs=2e-6)


def vars_of(part):
    return [getattr(part, name) for name in part.__slots__]


def test_loss_gradients_and_weights_are_the_torch_learners(pair):
    """The moments are the gradients' means, so these tell them apart too."""
    other, plain = (make() for make in pair)
    metrics, expected = ([learner.train(batch(step)) for step in range(5)] for learner in (other, plain))
    assert_same_steps(metrics, expected)
    assert_alike(other.weights(), plain.weights())
    assert_alike(other.optimizer_tensors(), plain.optimizer_tensors())


@pytest.mark.parametrize("forth", [True, False], ids=["from torch", "to torch"])
def test_a_checkpoint_goes_from_one_learner_to_another(pair, forth):
    target, source = (make() for make in (pair if forth else pair[::-1]))
    trained(source, range(3))
    target.restore(3, source.weights(), source.optimizer_tensors())
    assert state(target) == state(source), "the same bits"
    assert_same_steps([target.train(batch(3))], [source.train(batch(3))])
    assert_alike(target.weights(), source.weights())
