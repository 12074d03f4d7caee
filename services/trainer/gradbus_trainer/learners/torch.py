"""The learner on plain torch, one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from gradbus.algorithms import Coefficients, learner_computes_reference
from gradbus.errors import SettingsError
from gradbus.memory.allocator import keep_freed_memory
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.causal_lm import head_inputs, load_causal_lm, load_weights, packed_logprobs
from gradbus_kernels.models.device_memory import OffDevice
from gradbus_kernels.models.dtypes import DTYPES
from gradbus_kernels.models.invariant_decoder import invariant_packed_logprobs
from gradbus_kernels.models.language_model import LanguageModel
from gradbus_kernels.models.lora import adapters_off, add_adapters
from gradbus_kernels.models.packing import TokenSequence
from gradbus_kernels.operators import PolicyLoss, PolicyTokens, policy_loss
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.critic.body import open_body
from gradbus_trainer.learners.critic.critic import Critic, divided
from gradbus_trainer.learners.critic.states import ModelStates
from gradbus_trainer.learners.data_parallel import DataParallelThreads, accumulate_in_turn
from gradbus_trainer.learners.determinism import fix_order_of_sums
from gradbus_trainer.learners.gradient_step import GradientStep, before_step, check_gradient
from gradbus_trainer.learners.loss_inputs import loss_at_head, policy_settings, policy_tokens, with_base_reference
from gradbus_trainer.learners.optimizer import AdamW
from gradbus_trainer.learners.policy_step import PolicyPasses, PolicyStep
from gradbus_trainer.learners.probe import version_probe
from gradbus_trainer.learners.working_weights import WorkingWeights
from gradbus_trainer.step.batch import Batch, TrainSample, micro_batches
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

_PORTIONS: Final = 4
"""Of a batch for each thread, so that all end at about the same time, though one may be slower."""
Forward = Callable[[LanguageModel, Sequence[TokenSequence], float], tuple[torch.Tensor, torch.Tensor]]
"""Log-probabilities and entropies of all response tokens."""


class TorchLearner:
    """AdamW over gradients accumulated from packed micro-batches. Bits are fixed for a fixed number of threads (CPU) or kind of GPU.

    Several threads of a CPU compute micro-batches side by side, after one has computed the reference log-probabilities of a run that
    trains adapters; with `numerics = "batch_invariant"` they share each product.
    """

    def __init__(self, model_folder: Path, spec: RunSpec, device: str = "cpu") -> None:
        """Loads the model; sets the process's torch threads and its allocator to keep memory. Raises ModelError."""
        threads, side_by_side = spec.trainer.threads, _side_by_side(spec, device)
        torch.set_num_threads(1 if side_by_side else threads)
        keep_freed_memory(sparing=spec.trainer.gradient_checkpointing)
        fix_order_of_sums(device)
        self._spec = spec
        self._settings = policy_settings(spec.algorithm)
        self._learner_computes_reference = learner_computes_reference(spec)
        self._step = 0
        lora, dtype = spec.trainer.lora, DTYPES[spec.trainer.dtype]
        # The optimiser's weights are float32; frozen ones are only used by the passes.
        self._model = load_causal_lm(model_folder, torch.float32 if lora is None else dtype, device)
        self._model.set_checkpointing(spec.trainer.gradient_checkpointing)
        if spec.rollout.routing_replay:
            self._model.replay_routes()
        self._logprobs = _logprobs_for(spec, device)
        trained = self._model.trained_parameters() if lora is None else add_adapters(self._model, lora, spec.seed)
        self._working = None if dtype == torch.float32 else WorkingWeights(self._model, trained, dtype)
        self._named = trained if self._working is None else self._working.masters
        """The float32 weights: the model's own, or those that its own are rounded from."""
        self._optimizer = AdamW(self._named, spec.trainer)
        self._portions, self._accumulate = 1, accumulate_in_turn
        if side_by_side:
            self._portions = _PORTIONS * threads
            self._accumulate = DataParallelThreads(threads, list(trained.values()), list(self._named.values())).accumulate
        self._critic: Critic | None = None
        if (critic := spec.trainer.critic) is not None:
            body = open_body(model_folder, spec, critic, self._model)
            self._critic = Critic(spec, critic, ModelStates(body, spec.trainer.micro_batch_tokens))
        self._policy_step = PolicyStep(spec, self._critic)
        self._off_device: OffDevice | None = None

    @property
    def trained_parameters(self) -> int:
        """See `Learner`."""
        return sum(parameter.numel() for parameter in self._named.values())

    def train(self, batch: Batch, coefficients: Coefficients | None = None) -> StepMetrics:
        """See `Learner`. A loss is divided by the counts of its whole update, so micro-batches only bound memory."""
        if coefficients is not None:
            self._settings = policy_settings(self._spec.algorithm, coefficients)
        metrics = before_step(batch, self._step, self._spec)
        if batch.has_weight:
            try:
                passes = PolicyPasses(self._present_logprobs, self._base_logprobs, self._update)
                metrics = self._policy_step.train(batch, metrics, passes)
            finally:
                self._optimizer.forget_gradient()
        self._step = batch.step + 1
        return metrics

    def weights(self) -> LazyTensors:
        """See `Learner`."""
        return LazyTensors.of(self._stored())

    def optimizer_tensors(self) -> LazyTensors:
        """See `Learner`."""
        moments = self._optimizer.tensors()
        return moments if self._critic is None else moments | self._critic.tensors()

    def probe(self) -> VersionProbe:
        """See `Learner`."""

        def forward(sequences: Sequence[TokenSequence]) -> tuple[torch.Tensor, torch.Tensor]:
            return self._logprobs(self._model, sequences, 1.0)

        return version_probe(self._model, self._model.vocab_size, forward)

    def restore(self, step: int, weights: Mapping[str, torch.Tensor], optimizer_tensors: Mapping[str, torch.Tensor]) -> None:
        """See `Learner`."""
        moments, of_critic = divided(optimizer_tensors, self._critic)
        self._optimizer.check(moments)
        if self._critic is not None:
            self._critic.restore(of_critic)
        load_weights(self._stored(), weights)
        self._optimizer.restore(moments)
        self._round()
        self._step = step

    def release(self) -> None:
        """See `Learner`. The weights of the passes are dropped if they are made from float32 ones."""
        dropped = [] if self._working is None else self._working.tensors
        others = {id(tensor) for tensor in dropped}
        model = (tensor for tensor in chain(self._model.parameters(), self._model.buffers()) if id(tensor) not in others)
        critic = [] if self._critic is None else self._critic.held
        self._off_device = OffDevice([*self._named.values(), *self._optimizer.tensors().values(), *model, *critic], dropped)

    def resume(self) -> None:
        """See `Learner`."""
        if self._off_device is not None:
            self._off_device.reload()
            self._off_device = None
            self._round()

    def _stored(self) -> Mapping[str, torch.Tensor]:
        """The trained weights as versions have them; adapters have their names already."""
        return self._named if self._spec.trainer.lora else self._model.stored(self._named)

    @torch.no_grad()
    def _present_logprobs(self, batch: Batch) -> list[NDArray[np.float32]]:
        """The log-probabilities of each sample's tokens, `[T]`, by the model as it is."""
        parts: list[NDArray[np.float32]] = []
        for samples in micro_batches(batch, self._spec.trainer.micro_batch_tokens, self._model.shares_prompts):
            found, _ = self._logprobs(self._model, samples, self._spec.rollout.temperature)
            parts += [part.numpy() for part in torch.split(found.float().cpu(), [len(sample.token_ids) for sample in samples])]
        return parts

    def _base_logprobs(self, batch: Batch) -> list[NDArray[np.float32]]:
        """The same without the adapters."""
        with adapters_off(self._model):
            return self._present_logprobs(batch)

    def _update(self, batch: Batch, rate: float) -> StepMetrics:
        self._optimizer.forget_gradient()
        step = GradientStep()
        self._accumulate(step, ((tokens, partial(self._loss, samples, tokens)) for samples, tokens in self._micro_batches(batch)))
        norm = step.update(lambda: self._clip_and_step(batch.step, rate))
        return step.metrics(batch, rate, norm)

    def _clip_and_step(self, step: int, rate: float) -> float:
        norm = check_gradient(self._optimizer.clip_gradient(), step)
        self._optimizer.step(rate)
        self._round()
        return norm

    def _round(self) -> None:
        if self._working is not None:
            self._working.round()

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Sequence[TrainSample], PolicyTokens]]:
        spec, totals, weights = self._spec, batch.totals, iter(batch.row_weights(self._spec))
        budget, whole = spec.trainer.micro_batch_tokens, self._settings.needs_sequences
        for samples in micro_batches(batch, budget, self._model.shares_prompts, self._portions, whole_samples=whole):
            tokens = policy_tokens(samples, list(islice(weights, len(samples))), totals, self._settings, self._model.device)
            if self._learner_computes_reference and self._settings.kl:
                base = partial(self._logprobs, self._model, samples, spec.rollout.temperature)
                tokens = with_base_reference(tokens, self._model, base)
            yield samples, tokens

    def _loss(self, samples: Sequence[TrainSample], tokens: PolicyTokens) -> PolicyLoss:
        temperature = self._spec.rollout.temperature
        if self._spec.numerics == "fast":
            return loss_at_head(head_inputs(self._model, samples), samples, tokens, self._settings, self._model.tempered(temperature))
        return policy_loss(*self._logprobs(self._model, samples, temperature), tokens, self._settings)


def _side_by_side(spec: RunSpec, device: str) -> bool:
    """Whether threads compute micro-batches, and not products."""
    return spec.trainer.threads > 1 and spec.numerics == "fast" and torch.device(device).type == "cpu"


def _logprobs_for(spec: RunSpec, device: str) -> Forward:
    """The forward pass that the run's `numerics` selects."""
    if spec.numerics == "fast":
        return packed_logprobs
    if device != "cpu":
        raise SettingsError(
            f'numerics = "batch_invariant" runs on a CPU and GRADBUS_DEVICE is {device}; set it to cpu, or numerics = "fast"'
        )
    return invariant_packed_logprobs
