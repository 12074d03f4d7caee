"""One rank's part of training a policy: its micro-batches of each update, and the critic beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch.nn import Parameter

from gradbus.algorithms import Coefficients, learner_computes_reference
from gradbus.errors import ModelError
from gradbus.formats.hf_model import transformers_family
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.dtypes import DTYPES
from gradbus_kernels.models.lora import adapters_off, add_adapters
from gradbus_kernels.operators import PolicyLoss, PolicyTokens
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.critic.body import own_body
from gradbus_trainer.learners.critic.critic import Critic
from gradbus_trainer.learners.critic.states import ModelStates
from gradbus_trainer.learners.deepspeed.policy import Policy, hidden_states, logprobs_at
from gradbus_trainer.learners.deepspeed.rank_states import PolicyStates, RankStates, joined
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.learners.deepspeed.sharded.config import deepspeed_config
from gradbus_trainer.learners.deepspeed.sharded.loading import POLICIES, agreed, load_shards, stored_weights, whole_shape
from gradbus_trainer.learners.deepspeed.sharded.model import ShardedModel
from gradbus_trainer.learners.deepspeed.shares import Piece, idle_piece, idle_sample, pieces_of
from gradbus_trainer.learners.gradient_step import GradientStep, check_gradient
from gradbus_trainer.learners.loss_inputs import loss_at_head, policy_settings, policy_tokens, with_base_reference
from gradbus_trainer.learners.policy_step import PolicyPasses, PolicyStep
from gradbus_trainer.learners.preference import LogProbs
from gradbus_trainer.learners.probe import version_probe
from gradbus_trainer.step.batch import Batch, TokenTotals, TrainSample


class RankPolicy:
    """Every public method is called on all ranks, in the same order."""

    def __init__(self, folder: Path, spec: RunSpec, ranks: Ranks) -> None:
        """Raises ModelError on every rank if the model cannot be loaded on one of them."""
        self._spec = spec
        self._settings = policy_settings(spec.algorithm)
        self._ranks = ranks
        decoder = self._load(folder)
        self._vocab_size, self._tempered = decoder.vocab_size, decoder.tempered
        lora, rounded = spec.trainer.lora, spec.trainer.dtype == "bf16"
        trained = dict(decoder.named_parameters()) if lora is None else add_adapters(decoder, lora, spec.seed)
        # DeepSpeed makes its float32 weights from those in bf16: rank 0 puts the exact ones back.
        exact = self._exact(folder, trained) if rounded and ranks.rank == 0 else {}
        if lora is not None:
            _cast(trained.values(), DTYPES[spec.trainer.dtype])
        self.model = ShardedModel(Policy(decoder), trained, spec.trainer, ranks)
        self.critic = self._open_critic(folder, whole_shape(decoder.head_weight)[1])
        self._step = PolicyStep(spec, self.critic)
        if rounded:
            self.model.restore(0, exact, self.idle_pass)

    def train(self, batch: Batch, before: StepMetrics, coefficients: Coefficients | None) -> StepMetrics:
        """See `RankModel`."""
        if coefficients is not None:
            self._settings = policy_settings(self._spec.algorithm, coefficients)
        return self._step.train(batch, before, PolicyPasses(self._present_logprobs, self._base_logprobs, self._update))

    def probe(self) -> VersionProbe:
        """See `RankModel`; in the dtype of the forward pass."""
        network = self.model.network
        return version_probe(network, self._vocab_size, lambda rows: network(rows, self._ranks.device, logprobs_at(self._tempered(1.0))))

    def idle_pass(self) -> None:
        """See `RankModel`."""
        self._accumulate([idle_piece(idle_sample())], TokenTotals(1))

    def _update(self, batch: Batch, rate: float) -> StepMetrics:
        pieces = pieces_of(batch, self._spec, self._ranks.rank, self._ranks.size)
        step = self._accumulate(pieces, batch.totals)
        norm = check_gradient(step.update(lambda: self.model.update(rate)), batch.step)
        self._ranks.reduce(step.stats.sums, step.stats.largest)
        self._ranks.sum(step.stats.step_kl)
        return step.metrics(batch, rate, norm)

    def _base_logprobs(self, batch: Batch) -> LogProbs:
        """Those of each sample's tokens by the model without its adapters."""
        with adapters_off(self.model.network):
            return self._present_logprobs(batch)

    @torch.no_grad()
    def _present_logprobs(self, batch: Batch) -> LogProbs:
        """The log-probabilities of each sample's tokens by the model as it is."""
        pieces = pieces_of(batch, self._spec, self._ranks.rank, self._ranks.size, whole_samples=True)
        found = [self._logprobs(piece.samples)[0].float().cpu().numpy() for piece in pieces]
        rows = joined(self._ranks, batch, np.concatenate(found), [len(sample.token_ids) for sample in batch.samples])
        return [row.astype(np.float32) for row in rows]

    def _logprobs(self, samples: Sequence[TrainSample]) -> tuple[torch.Tensor, torch.Tensor]:
        at_head = logprobs_at(self._tempered(self._spec.rollout.temperature))
        found: tuple[torch.Tensor, torch.Tensor] = self.model.network(samples, self._ranks.device, at_head)
        return found

    def _accumulate(self, pieces: Sequence[Piece], totals: TokenTotals) -> GradientStep:
        """The gradient of an update. The weights of the pieces are shares of the whole update."""
        step = GradientStep()
        computes_reference = learner_computes_reference(self._spec) and self._settings.kl
        for piece in self.model.passes(pieces):
            tokens = policy_tokens(piece.samples, piece.weights, totals, self._settings, self._ranks.device)
            if computes_reference:
                tokens = with_base_reference(tokens, self.model.network, partial(self._logprobs, piece.samples))
            step.accumulate(tokens, partial(self._loss, piece.samples, tokens), self.model.backward)
        return step

    def _loss(self, samples: Sequence[TrainSample], tokens: PolicyTokens) -> PolicyLoss:
        """Computed with its gradients in the head's forward pass; `total` has passed DeepSpeed's hooks."""
        temperature = self._tempered(self._spec.rollout.temperature)
        found: list[PolicyLoss] = []

        def total(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            found.append(loss_at_head((hidden, weight, ids), samples, tokens, self._settings, temperature))
            return found[0].total

        attached = self.model(samples, self._ranks.device, total)
        return replace(found[0], total=attached)

    def _load(self, folder: Path) -> CausalLM:
        """The model, in stage 3 divided among the ranks, otherwise on this rank's device; one tensor at a time passes through the host."""
        trainer, ranks = self._spec.trainer, self._ranks
        dtype = DTYPES[trainer.dtype]
        agreed(ranks, lambda: _check_own_decoder(folder))
        if trainer.deepspeed.zero_stage == 3:
            model = load_shards(POLICIES, folder, dtype, deepspeed_config(trainer, 1), ranks)
        else:
            model = agreed(ranks, lambda: cast("CausalLM", load_causal_lm(folder, dtype, str(ranks.device))))
        model.set_checkpointing(trainer.gradient_checkpointing)
        if self._spec.rollout.routing_replay:
            model.replay_routes()
        return model

    def _open_critic(self, folder: Path, width: int) -> Critic | None:
        """A critic of the policy's hidden states, of this width, or of a model that each rank holds whole."""
        settings = self._spec.trainer.critic
        if settings is None:
            return None
        source: PolicyStates | ModelStates = self._hidden
        if settings.kind != "head":
            body = agreed(self._ranks, lambda: own_body(folder, self._spec, settings, self._ranks.device))
            source = ModelStates(body, self._spec.trainer.micro_batch_tokens)
        return Critic(self._spec, settings, RankStates(self._spec, self._ranks, width, source))

    def _hidden(self, samples: Sequence[TrainSample]) -> torch.Tensor:
        found: torch.Tensor = self.model.network(samples, self._ranks.device, hidden_states)
        return found

    def _exact(self, folder: Path, trained: Mapping[str, Parameter]) -> Mapping[str, torch.Tensor]:
        """The trained weights before any cast: as the folder stores them, and adapters as they begin."""
        if self._spec.trainer.lora is None:
            return stored_weights(folder, {name: whole_shape(parameter) for name, parameter in trained.items()})
        return {name: parameter.detach().clone() for name, parameter in trained.items()}


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
