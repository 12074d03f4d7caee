"""One rank's part of training a reward model: the scores of its rows, and their part of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import pad

from gradbus.algorithms import Coefficients
from gradbus.errors import TrainingError
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import VersionProbe
from gradbus_kernels.models.reward.model import RewardModel, load_reward_model
from gradbus_kernels.operators import RankingLoss
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.deepspeed.rank_states import joined
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.learners.deepspeed.sharded.config import deepspeed_config
from gradbus_trainer.learners.deepspeed.sharded.loading import REWARD_MODELS, agreed, load_shards
from gradbus_trainer.learners.deepspeed.sharded.model import ShardedModel
from gradbus_trainer.learners.deepspeed.shares import Piece, idle_sample, pieces_of, rows_before
from gradbus_trainer.learners.gradient_step import PhaseClock, check_gradient
from gradbus_trainer.learners.reward_model import NO_PROBE, ranked, ranking_metrics
from gradbus_trainer.step.batch import Batch


class RankRewardModel:
    """Every public method is called on all ranks, in the same order.

    The loss needs both scores of each pair, which two ranks may have. So all ranks get all scores and compute the loss's derivative by
    each, and the pass of a row then adds its part of the gradient.
    """

    critic = None

    def __init__(self, folder: Path, spec: RunSpec, ranks: Ranks) -> None:
        """Raises ModelError on every rank if the model cannot be loaded on one of them."""
        self._spec = spec
        self._ranks = ranks
        self._center = spec.preference.center if spec.preference else 0.0
        scorer = self._load(folder)
        self.model = ShardedModel(scorer, dict(scorer.named_parameters()), spec.trainer, ranks)

    def train(self, batch: Batch, before: StepMetrics, coefficients: Coefficients | None) -> StepMetrics:  # noqa: ARG002 - it has none
        """See `RankModel`. Of the batch the samples 2·b and 2·b + 1 are pair b."""
        phase = PhaseClock()
        pieces = pieces_of(batch, self._spec, self._ranks.rank, self._ranks.size)
        loss = (self._in_one_pass if len(pieces) == 1 else self._in_two_passes)(batch, pieces, phase)
        with phase("optimise"):
            norm = check_gradient(self.model.update(before.learning_rate), batch.step)
        return ranking_metrics(before, batch, loss, norm, phase.recorded)

    def probe(self) -> VersionProbe:
        """See `RankModel`. Raises TrainingError."""
        raise TrainingError(NO_PROBE)

    def idle_pass(self) -> None:
        """See `RankModel`."""
        for sample in self.model.passes([idle_sample()]):
            self.model.backward(0.0 * self.model([sample], self._ranks.device).sum())

    def _in_one_pass(self, batch: Batch, pieces: Sequence[Piece], phase: PhaseClock) -> RankingLoss:
        """The loss, whose gradient is added: each rank has one micro-batch, and the pass with a gradient gives its scores."""
        (piece,) = self.model.passes(pieces)
        with phase("forward"):
            scores = self.model(piece.samples, self._ranks.device)
            loss, (by_score,) = self._ranked(batch, pieces, [scores.detach()])
        with phase("backward"):
            self.model.backward(scores.dot(by_score.to(scores)))
        return loss

    def _in_two_passes(self, batch: Batch, pieces: Sequence[Piece], phase: PhaseClock) -> RankingLoss:
        """The loss, whose gradient is added: a pass without gradients gives the scores of all micro-batches."""
        with phase("forward"):
            with torch.no_grad():
                found = [self.model.network(piece.samples, self._ranks.device) for piece in pieces]
            loss, by_score = self._ranked(batch, pieces, found)
        for piece, part in zip(self.model.passes(pieces), by_score, strict=True):
            with phase("backward"):
                scores = self.model(piece.samples, self._ranks.device)
                self.model.backward(scores.dot(part.to(scores)))
        return loss

    def _ranked(self, batch: Batch, pieces: Sequence[Piece], scores: Sequence[torch.Tensor]) -> tuple[RankingLoss, Sequence[torch.Tensor]]:
        """The loss by this rank's `scores` and the others', and its derivative by those of each piece, 0 by those of idle rows."""
        own = torch.cat(list(scores)).cpu().numpy()
        every = joined(self._ranks, batch, own, [1] * len(batch.samples))
        loss, by_score = ranked(torch.from_numpy(np.concatenate(every)).float(), self._center)
        begin, end = (rows_before(batch, self._ranks.rank + after, self._ranks.size) for after in (0, 1))
        padded = pad(by_score[begin:end], (0, len(own) - (end - begin)))
        return loss, torch.split(padded, [len(piece.samples) for piece in pieces])

    def _load(self, folder: Path) -> RewardModel:
        """The model, in stage 3 divided among the ranks, otherwise on this rank's device."""
        trainer, ranks = self._spec.trainer, self._ranks
        if trainer.deepspeed.zero_stage == 3:
            model = load_shards(REWARD_MODELS, folder, torch.float32, deepspeed_config(trainer, 1), ranks)
        else:
            model = agreed(ranks, lambda: load_reward_model(folder, torch.float32, str(ranks.device)))
        model.model.checkpointing = trainer.gradient_checkpointing
        return model
