"""Operators of RL post-training on torch tensors: small in memory, exact, and usable without the rest of Gradbus.

One package an operator: `api` has the function and its plain torch reference of the same signature, `cpu` and `triton` compute it.
The batch-invariant operators share a package. `base` has what all stand on.
"""

from gradbus_kernels.operators.base.counter import counter_uniform
from gradbus_kernels.operators.base.dispatch import Ran, provenance, using
from gradbus_kernels.operators.base.softcap import Softcapped, softcapped
from gradbus_kernels.operators.batch_invariant.attention import invariant_attention, invariant_attention_reference
from gradbus_kernels.operators.batch_invariant.embedding import invariant_embedding, invariant_embedding_reference
from gradbus_kernels.operators.batch_invariant.layers import invariant_rms_norm, invariant_rotation, invariant_swiglu
from gradbus_kernels.operators.batch_invariant.logprob import invariant_logprob, invariant_logprob_reference
from gradbus_kernels.operators.batch_invariant.matmul import invariant_matmul, invariant_matmul_reference
from gradbus_kernels.operators.cached_attention.api import cached_attention, copy_rows, rotate_and_cache
from gradbus_kernels.operators.cached_attention.reference import (
    CachedRule,
    LayerCache,
    Places,
    cached_attention_reference,
    copy_rows_reference,
    rotate_and_cache_reference,
)
from gradbus_kernels.operators.decoder_layer.head_norm import HeadNorms
from gradbus_kernels.operators.distillation_loss.api import (
    DistillationLoss,
    TeacherRows,
    linear_distillation_loss,
    linear_distillation_loss_reference,
)
from gradbus_kernels.operators.distillation_loss.rows import linear_teacher_rows
from gradbus_kernels.operators.linear_logprob.api import LinearLogprob, linear_logprob, linear_logprob_reference
from gradbus_kernels.operators.linear_sample.api import linear_sample, linear_sample_reference
from gradbus_kernels.operators.policy_loss.api import PolicyLoss, RatioSummary, policy_loss
from gradbus_kernels.operators.policy_loss.inputs import Curves, PolicySettings, PolicyTokens
from gradbus_kernels.operators.policy_loss.linear import linear_grpo_loss, linear_grpo_loss_reference
from gradbus_kernels.operators.policy_loss.terms import token_weights
from gradbus_kernels.operators.preference_loss.api import PreferenceLoss, preference_loss
from gradbus_kernels.operators.preference_loss.inputs import KtoSettings, PairTokens, PreferenceSettings
from gradbus_kernels.operators.preference_loss.kto import KtoLoss, kto_loss
from gradbus_kernels.operators.preference_loss.ranking import RankingLoss, ranking_loss
from gradbus_kernels.operators.prefix_shared_attention.api import (
    prefix_shared_attention,
    prefix_shared_attention_reference,
    prefix_shared_attention_with_sinks,
    prefix_shared_attention_with_sinks_reference,
)
from gradbus_kernels.operators.prefix_shared_attention.layout import PrefixLayout
from gradbus_kernels.operators.prefix_shared_attention.packing import PackedGroups, pack_groups
from gradbus_kernels.operators.sample.api import sample, sample_at, sample_reference
from gradbus_kernels.operators.sample.reference import Sampled, SamplingParams
from gradbus_kernels.operators.score_centering.api import ScoreCentering, linear_score_centering, linear_score_centering_reference
from gradbus_kernels.operators.selected_logprob.api import SelectedLogprob, selected_logprob, selected_logprob_reference

__all__ = [
    "CachedRule",
    "Curves",
    "DistillationLoss",
    "HeadNorms",
    "KtoLoss",
    "KtoSettings",
    "LayerCache",
    "LinearLogprob",
    "PackedGroups",
    "PairTokens",
    "Places",
    "PolicyLoss",
    "PolicySettings",
    "PolicyTokens",
    "PreferenceLoss",
    "PreferenceSettings",
    "PrefixLayout",
    "Ran",
    "RankingLoss",
    "RatioSummary",
    "Sampled",
    "SamplingParams",
    "ScoreCentering",
    "SelectedLogprob",
    "Softcapped",
    "TeacherRows",
    "cached_attention",
    "cached_attention_reference",
    "copy_rows",
    "copy_rows_reference",
    "counter_uniform",
    "invariant_attention",
    "invariant_attention_reference",
    "invariant_embedding",
    "invariant_embedding_reference",
    "invariant_logprob",
    "invariant_logprob_reference",
    "invariant_matmul",
    "invariant_matmul_reference",
    "invariant_rms_norm",
    "invariant_rotation",
    "invariant_swiglu",
    "kto_loss",
    "linear_distillation_loss",
    "linear_distillation_loss_reference",
    "linear_grpo_loss",
    "linear_grpo_loss_reference",
    "linear_logprob",
    "linear_logprob_reference",
    "linear_sample",
    "linear_sample_reference",
    "linear_score_centering",
    "linear_score_centering_reference",
    "linear_teacher_rows",
    "pack_groups",
    "policy_loss",
    "preference_loss",
    "prefix_shared_attention",
    "prefix_shared_attention_reference",
    "prefix_shared_attention_with_sinks",
    "prefix_shared_attention_with_sinks_reference",
    "provenance",
    "ranking_loss",
    "rotate_and_cache",
    "rotate_and_cache_reference",
    "sample",
    "sample_at",
    "sample_reference",
    "selected_logprob",
    "selected_logprob_reference",
    "softcapped",
    "token_weights",
    "using",
]
