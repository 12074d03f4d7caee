"""One rank's part of a learner: its DeepSpeed engine, and the operations that all ranks do at the same time."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import deepspeed
import numpy as np
import torch
from deepspeed.utils import set_z3_leaf_modules
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

from gradbus import crash_points
from gradbus.algorithms import learner_computes_reference
from gradbus.errors import ModelError, TrainingError
from gradbus.formats.hf_model import transformers_family
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.device_memory import OffDevice
from gradbus_kernels.models.dtypes import DTYPES
from gradbus_kernels.models.lora import adapters_off, add_adapters
from gradbus_kernels.models.mixture.experts import MixtureOfExperts
from gradbus_kernels.operators import PolicyLoss, PolicyTokens, linear_grpo_loss
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.critic.body import own_body
from gradbus_trainer.learners.critic.critic import Critic
from gradbus_trainer.learners.critic.states import ModelStates
from gradbus_trainer.learners.deepspeed.config import deepspeed_config, deepspeed_optimizer
from gradbus_trainer.learners.deepspeed.held_tensors import on_device
from gradbus_trainer.learners.deepspeed.model_shards import agreed, load_shards, stored_weights, whole_shape
from gradbus_trainer.learners.deepspeed.parameter_state import ParameterState
from gradbus_trainer.learners.deepspeed.policy import Policy, hidden_states, logprobs_at
from gradbus_trainer.learners.deepspeed.rank_states import PolicyStates, RankStates, joined
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.learners.deepspeed.shares import Piece, idle_piece, pieces_of
from gradbus_trainer.learners.determinism import fix_order_of_sums
from gradbus_trainer.learners.gradient_step import GradientStep, check_gradient
from gradbus_trainer.learners.loss_inputs import policy_settings, policy_tokens, with_base_reference
from gradbus_trainer.learners.preference import LogProbs, PreferenceLossSettings, preference_settings, weighed_by
from gradbus_trainer.learners.probe import version_probe
from gradbus_trainer.step.batch import Batch, TokenTotals, TrainSample
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

MOMENTS = ("exp_avg", "exp_avg_sq")
RAISED_BY_ALL = (ModelError, TrainingError)
"""Errors that every rank raises at the same point: the ranks still agree on the state."""
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
# Compiled at first use and only for inference; a rank killed meanwhile leaves a lock for which all later ranks wait forever.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class RankEngine:
    """Every public method is called on all ranks, in the same order."""

    def __init__(self, folder: Path, spec: RunSpec, ranks: Ranks) -> None:
        """Raises ModelError on every rank if the model cannot be loaded on one of them."""
        torch.set_num_threads(spec.trainer.threads)
        fix_order_of_sums(ranks.device)
        self._spec = spec
        self._settings = policy_settings(spec.algorithm)
        self._preference = preference_settings(spec)
        self._learner_computes_reference = learner_computes_reference(spec)
        self._ranks = ranks
        model = self._load(folder)
        self._vocab_size, self._tempered = model.vocab_size, model.tempered
        lora = spec.trainer.lora
        self._named: dict[str, Parameter] = dict(model.named_parameters()) if lora is None else add_adapters(model, lora, spec.seed)
        self.shapes = {name: whole_shape(parameter) for name, parameter in self._named.items()}
        """Shapes of the trained weights: all weights, or the adapters."""
        # DeepSpeed makes its float32 weights from those in bf16: rank 0 puts the exact ones back.
        exact = self._exact(folder) if spec.trainer.dtype == "bf16" and ranks.rank == 0 else {}
        # Ranks may choose other experts, so ZeRO-3 gathers a layer's experts together, not one when it is used.
        set_z3_leaf_modules(model, [MixtureOfExperts], raise_if_not_found=False)
        if lora is not None:
            _cast(self._named.values(), DTYPES[spec.trainer.dtype])
        self._engine, *_ = deepspeed.initialize(
            model=Policy(model),
            optimizer=deepspeed_optimizer(spec.trainer, list(self._named.values())),
            config=deepspeed_config(spec.trainer, sum(shape.numel() for shape in self.shapes.values())),
        )
        ranks.set_deadlines()
        self._state = ParameterState(self._engine, spec.trainer, ranks)
        self._has_moments = False
        self._off_device: OffDevice | None = None
        self.critic = self._open_critic(folder, model)
        """The same on every rank."""
        if spec.trainer.dtype == "bf16":
            self.restore(0, exact)

    def train(self, batch: Batch, rate: float) -> StepMetrics:
        """This rank's share of one step; the metrics of all ranks together, with this rank's phases.

        Raises TrainingError on every rank, with the weights unchanged, when the gradient is not finite.
        """
        if self._preference is not None:
            return self._optimise_preference(batch, rate, self._preference)
        if self.critic is None:
            return self._optimise(batch, rate)
        return self.critic.train(batch, StepMetrics(noop=True, learning_rate=rate), partial(self._optimise, rate=rate))

    def of_critic(self, name: str) -> torch.Tensor:
        """A tensor of the critic. It is whole on every rank, so only one is asked."""
        return cast("Critic", self.critic).tensors()[name]

    def _optimise(self, batch: Batch, rate: float) -> StepMetrics:
        """The policy's update."""
        pieces = pieces_of(batch, self._spec, self._ranks.rank, self._ranks.size)
        norm, step = self._step(pieces, batch.totals, rate)
        check_gradient(norm, batch.step)
        self._ranks.reduce(step.stats.sums, step.stats.largest)
        return step.metrics(batch, rate, norm)

    def _optimise_preference(self, batch: Batch, rate: float, settings: PreferenceLossSettings) -> StepMetrics:
        """The update by the loss of the batch's pairs or labelled responses, which every rank computes for all."""

        def base() -> LogProbs:
            with adapters_off(self._engine.module):
                return self._present_logprobs(batch)

        present = partial(self._present_logprobs, batch)
        weighed = weighed_by(batch, present, base if self._learner_computes_reference else None, settings)
        return weighed.metrics_of(self._optimise(weighed.batch, rate))

    @torch.no_grad()
    def _present_logprobs(self, batch: Batch) -> LogProbs:
        """The log-probabilities of each sample's tokens by the model as it is."""
        at_head = logprobs_at(self._tempered(self._spec.rollout.temperature))
        pieces = pieces_of(batch, self._spec, self._ranks.rank, self._ranks.size, whole_samples=True)
        found = [self._engine.module(piece.samples, self._ranks.device, at_head)[0].float().cpu().numpy() for piece in pieces]
        rows = joined(self._ranks, batch, np.concatenate(found), [len(sample.token_ids) for sample in batch.samples])
        return [row.astype(np.float32) for row in rows]

    def weight(self, name: str) -> torch.Tensor:
        """A trained weight, whole, float32."""
        crash_points.reached(f"mid-gather-{self._ranks.rank}")
        return self._state.weight(self._named[name])

    def moment(self, name: str, moment: str) -> torch.Tensor:
        """A moment of a trained weight, whole, float32. There are none before the first step."""
        return self._state.moment(self._named[name], moment)

    def probe(self) -> VersionProbe:
        """See `Learner`; in the dtype of the forward pass."""
        module = self._engine.module
        return version_probe(module, self._vocab_size, lambda rows: module(rows, self._ranks.device, logprobs_at(self._tempered(1.0))))

    def restore(self, updates: int, source: Mapping[str, torch.Tensor], *, with_critic: bool = False) -> None:
        """Takes weights and moments from rank 0's `source`, one tensor at a time; no moments after 0 `updates`."""
        if updates and not self._has_moments:
            self._make_moments()
        for name, parameter in self._named.items():
            self._state.set_weight(parameter, self._broadcast(source.get(name), self.shapes[name]))
            for moment in MOMENTS if self._has_moments else ():
                value = source.get(f"{name}.{moment}") if updates else torch.zeros(self.shapes[name])
                self._state.set_moment(parameter, moment, self._broadcast(value, self.shapes[name]))
        self._state.set_updates(updates)
        if self.critic is not None:
            shapes = self.critic.shapes if with_critic else {}
            self.critic.restore(LazyTensors(shapes, lambda name: self._broadcast(source.get(name), shapes[name])))

    def release(self) -> None:
        """Moves everything that DeepSpeed holds on the device to host memory.

        Not by its own `offload_states`, which knows neither stage 0 nor, in stage 3, another AdamW than its own.
        """
        critic = [] if self.critic is None else self.critic.held
        self._off_device = OffDevice([*on_device(self._engine, self._ranks.device), *critic])

    def resume(self) -> None:
        """Does nothing if nothing was released."""
        if self._off_device is not None:
            self._off_device.reload()
            self._off_device = None

    def close(self) -> None:
        """Frees the engine's memory."""
        self._engine.destroy()

    def _load(self, folder: Path) -> CausalLM:
        """The model, in stage 3 divided among the ranks, otherwise on this rank's device; one tensor at a time passes through the host."""
        trainer, ranks = self._spec.trainer, self._ranks
        dtype = DTYPES[trainer.dtype]
        agreed(ranks, lambda: _check_own_decoder(folder))
        if trainer.deepspeed.zero_stage == 3:
            model = load_shards(folder, dtype, deepspeed_config(trainer, 1), ranks)
        else:
            model = agreed(ranks, lambda: cast("CausalLM", load_causal_lm(folder, dtype, str(ranks.device))))
        model.set_checkpointing(trainer.gradient_checkpointing)
        return model

    def _open_critic(self, folder: Path, model: CausalLM) -> Critic | None:
        """A critic of the policy's hidden states, or of a model that each rank holds whole."""
        settings = self._spec.trainer.critic
        if settings is None:
            return None
        source: PolicyStates | ModelStates = self._hidden
        if settings.kind != "head":
            body = agreed(self._ranks, lambda: own_body(folder, self._spec, settings, self._ranks.device))
            source = ModelStates(body, self._spec.trainer.micro_batch_tokens)
        width = whole_shape(model.head_weight)[1]
        return Critic(self._spec, settings, RankStates(self._spec, self._ranks, width, source))

    def _hidden(self, samples: Sequence[TrainSample]) -> torch.Tensor:
        found: torch.Tensor = self._engine.module(samples, self._ranks.device, hidden_states)
        return found

    def _exact(self, folder: Path) -> Mapping[str, torch.Tensor]:
        """The trained weights before any cast: as the folder stores them, and adapters as they begin."""
        if self._spec.trainer.lora is None:
            return stored_weights(folder, self.shapes)
        return {name: parameter.detach().clone() for name, parameter in self._named.items()}

    def _step(self, pieces: list[Piece], totals: TokenTotals, rate: float) -> tuple[float, GradientStep]:
        step = GradientStep()
        for number, piece in enumerate(pieces, 1):
            self._engine.set_gradient_accumulation_boundary(number == len(pieces))
            tokens = policy_tokens(piece.samples, piece.weights, totals, self._settings, self._ranks.device)
            if self._learner_computes_reference and self._settings.kl:
                at_head = logprobs_at(self._tempered(self._spec.rollout.temperature))
                base = partial(self._engine.module, piece.samples, self._ranks.device, at_head)
                tokens = with_base_reference(tokens, self._engine.module, base)
            step.accumulate(tokens, partial(self._loss, piece.samples, tokens), self._backward)
            crash_points.reached(f"mid-step-{self._ranks.rank}")
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        return step.update(self._clip_and_step), step

    def _backward(self, total: torch.Tensor) -> None:
        # The weights are shares of the whole step; DeepSpeed takes the mean over the ranks, and this makes it the sum.
        self._engine.backward(total * self._ranks.size)

    def _loss(self, samples: Sequence[TrainSample], tokens: PolicyTokens) -> PolicyLoss:
        """Computed with its gradients in the head's forward pass; `total` has passed DeepSpeed's hooks."""
        temperature = self._tempered(self._spec.rollout.temperature)
        found: list[PolicyLoss] = []

        def total(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            found.append(linear_grpo_loss(hidden, weight, ids, tokens, self._settings, temperature=temperature))
            return found[0].total

        attached = self._engine(samples, self._ranks.device, total)
        return replace(found[0], total=attached)

    def _clip_and_step(self) -> float:
        """The norm before clipping; not finite if nothing was changed."""
        if self._spec.trainer.deepspeed.zero_stage == 0:
            norm = float(clip_grad_norm_(self._named.values(), self._spec.trainer.max_grad_norm))
            if not math.isfinite(norm):
                self._engine.zero_grad()
                return norm
            self._engine.step()
        else:
            self._engine.step()
            norm = float(self._engine.get_global_grad_norm()) if self._engine.was_step_applied() else self._forget_gradients()
        self._has_moments = self._has_moments or math.isfinite(norm)
        return norm

    def _forget_gradients(self) -> float:
        """With an offload in bf16 DeepSpeed 0.19.8 would add the next step's gradients to those that are not finite."""
        chosen = self._spec.trainer.deepspeed
        if chosen.zero_stage < 3 and chosen.offload != "none":
            sums = self._engine.optimizer.averaged_gradients
            sums.update(dict.fromkeys(sums))
        return math.inf

    def _make_moments(self) -> None:
        """ZeRO makes the moments in its first step; a step without gradient at a rate of 0 changes nothing else."""
        one = np.zeros(1, np.int32)
        zero = np.zeros(1, np.float32)
        self._step([idle_piece(TrainSample(one, one, zero, np.zeros(1, bool), zero, zero))], TokenTotals(1), 0.0)

    def _broadcast(self, value: torch.Tensor | None, shape: torch.Size) -> torch.Tensor:
        """Rank 0's tensor, on this rank's device."""
        whole = torch.empty(shape) if value is None else value.to(torch.float32, copy=True).contiguous()
        self._ranks.broadcast(whole)
        return whole.to(self._ranks.device)


def _check_own_decoder(folder: Path) -> bool:
    """Raises ModelError for a model that transformers computes: it uses weights outside the modules that own them."""
    if family := transformers_family(folder):
        raise ModelError(f'DeepSpeed does not train {family.architecture}; set trainer.backend = "torch"')
    return True


@torch.no_grad()
def _cast(parameters: Iterable[Parameter], dtype: torch.dtype) -> None:
    """As DeepSpeed casts a model that it divides itself."""
    for parameter in parameters:
        parameter.data = parameter.data.to(dtype)
