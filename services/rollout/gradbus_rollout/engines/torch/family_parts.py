"""What families choose from: norms, activation, multipliers, windows and rotary embeddings, chosen once for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from torch import Tensor
from torch.nn import functional

from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.models.layer_parts import GATED, NORMS, norms_by_kind, scaled_by
from gradbus_kernels.operators.base.softcap import softcap_in_place
from gradbus_kernels.operators.batch_invariant.layers import gated, normed_rows

Pairwise = Callable[[Tensor, Tensor], Tensor]
"""Of rows and a norm's weight, or of gates and ups."""


class FamilyParts:
    """Functions and constants of a model's forward."""

    def __init__(self, config: ModelConfig, on_gpu: bool = False) -> None:
        """`on_gpu`: norms and gated units are the trainer's operators, each of which a GPU computes in one kernel."""
        norms: Mapping[str, Callable[..., Tensor]] = NORMS if on_gpu else _NORMS
        places = {place for _, place in config.family.norms}
        self.norm: Pairwise = partial(norms[config.family.norm_kind], eps=config.norms.eps)
        """RMSNorm of rows, with its weight."""
        self.before = self.norm if "before_attention" in places else _unnormed
        """What attention and feed-forward part do with the hidden states first."""
        self.after = self.norm if "after_attention" in places else _unnormed
        """What happens to their outputs."""
        self.changes_outputs = "after_attention" in places or config.multipliers.residual != 1.0
        """Whether an output is more than its product."""
        self.gated: Pairwise = _GATED[config.family.activation[1]]
        """Of gates and ups."""
        self.gate: Callable[[Tensor], Tensor] = GATED[config.family.activation[1]] if on_gpu else self._gate
        """Of gates and ups side by side, `[N, 2 I]`."""
        self.scale = config.multipliers.scores
        self.scaled_embeddings, self.scaled_outputs = (
            scaled_by(factor) for factor in (config.multipliers.embedding, config.multipliers.hidden)
        )
        self.bounded_logits: Callable[[Tensor], Tensor] = _bounded_by(config.multipliers.logits_softcap)
        self.ropes = list({id(rope): rope for rope in config.ropes}.values())
        """The distinct rotary embeddings; None: none."""
        self.rope_of_layer = [next(at for at, kind in enumerate(self.ropes) if kind is rope) for rope in config.ropes]
        self.windows = list(dict.fromkeys(config.windows))
        """The distinct windows."""
        self.window_of_layer = [self.windows.index(window) for window in config.windows]

    def _gate(self, gate_up: Tensor) -> Tensor:
        return self.gated(*gate_up.chunk(2, dim=-1))


def _unnormed(x: Tensor, weight: Tensor | None) -> Tensor:  # noqa: ARG001 - in the place of a norm
    return x


def _bounded_by(softcap: float) -> Callable[[Tensor], Tensor]:
    """Puts softcap · tanh(x / softcap) in the place of a logit x, in float32; 0: changes nothing."""
    return (lambda x: softcap_in_place(x.float(), softcap)) if softcap else lambda x: x


_NORMS: Final[Mapping[str, Callable[..., Tensor]]] = norms_by_kind(normed_rows)
_GATED: Final[Mapping[str, Pairwise]] = {
    "silu": gated,
    "gelu_pytorch_tanh": partial(gated, activation=partial(functional.gelu, approximate="tanh")),
}
