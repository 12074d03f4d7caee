"""The check of a model's weights by their headers: nothing of the tensors themselves is read, except of a tied head that is stored too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from gradbus.errors import ModelError
from gradbus.formats.frozen import frozen_names
from gradbus.formats.hf_model import CONFIG, INDEX, read_object, transformers_family, weight_files, weight_map
from gradbus.formats.model_config import ModelConfig, Shape, correction_shapes, read_model_config, redundant_shapes, tensor_shapes
from gradbus.formats.safetensors import StoredTensor, check_tensors, have_equal_values, read_headers, refuse_tensors

_DTYPES: Final = frozenset({"F64", "F32", "F16", "BF16"})
HEADS: Final = ("lm_head.weight", "embed_out.weight", "language_model.lm_head.weight")
"""What families call the head."""
_NEVER_READ: Final = (".rotary_emb.inv_freq", ".masked_bias")
"""Ends of the names of tensors that older folders store and no forward reads."""
_EMBEDDINGS: Final = ("emb", "wte", "shared")
"""Parts of the names that families give the embedding."""
_MOST_COMPARED: Final = 8
"""Tensors that are compared with a tied head: each comparison may read a whole file."""


@dataclass(frozen=True, slots=True)
class TiedHead:
    """A head that is stored beside the embedding to which config.json ties it."""

    head: StoredTensor
    embeddings: tuple[StoredTensor, ...]
    """Tensors of the head's shape, one of which is the embedding: what it is called in other families, transformers alone knows.

    The first _MOST_COMPARED of them, those before the others whose name is like an embedding's.
    """


@dataclass(frozen=True, slots=True)
class NamePlan:
    """The tensors of every version of a model: the names of its base folder, except tensors that no forward reads."""

    trained: Mapping[str, StoredTensor]
    """Where the folder stores each weight of the decoder, in the order of `tensor_shapes`, or of names."""
    frozen: Mapping[str, StoredTensor]
    """Where it stores what no run trains (`frozen_names`), in order of name; a version carries it with the same bits."""
    tied_head: TiedHead | None = None
    """No version carries it. None if the folder stores none."""


def read_name_plan(folder: Path) -> NamePlan:
    """The plan of names of a model of any family. Raises ModelError for weights that are not the model's, as far as their headers say.

    What tensors a family has that transformers computes is known to transformers alone: the trainer checks their names and shapes.
    """
    family = transformers_family(folder)
    if family is None:
        return check_weights(folder, read_model_config(folder))
    found, config = _stored(folder), read_object(folder / CONFIG)
    tied = family.is_tied(config)
    frozen = {name: found[name] for name in sorted(frozen_names(found))}
    redundant = {name for name, tensor in found.items() if (tied and name in HEADS) or _is_never_read(name, tensor.shape)}
    trained = {name: found[name] for name in sorted(found.keys() - frozen.keys() - redundant)}
    if not trained:
        raise ModelError(f"the weights have {len(found)} tensors, none of which is trained (docs/weights.md); take the model's own files")
    _refuse_quantised(trained)
    return NamePlan(trained, frozen, _tied_head(found.keys() & set(HEADS) if tied else (), found, trained))


def check_weights(folder: Path, config: ModelConfig, head: Mapping[str, Shape] | None = None) -> NamePlan:
    """The plan of names. Raises ModelError unless the weights are exactly the tensors of a model with `config`, in floating point.

    Beside them there may be frozen tensors, and what older folders store and no forward reads (`redundant_shapes`).
    `head`: name to shape of what a model has in place of a head for tokens.
    What routers add to their scores (`correction_shapes`) is frozen, and needed.
    """
    found = _stored(folder)
    redundant = redundant_shapes(config)
    needed = {**tensor_shapes(config), **(head or {})}
    frozen = {name: found[name] for name in sorted(frozen_names(found))}
    read = {name: tensor for name, tensor in found.items() if name not in frozen}
    corrections = correction_shapes(config)
    check_tensors({name: frozen[name] for name in frozen.keys() & corrections.keys()}, corrections)
    check_tensors(read, needed | {name: redundant[name] for name in read.keys() & redundant.keys()})
    _refuse_quantised(read | {name: frozen[name] for name in corrections})
    trained = {name: found[name] for name in needed}
    heads = found.keys() & {config.family.head} if config.tied and head is None else ()
    return NamePlan(trained, frozen, _tied_head(heads, found, {config.family.embedding: trained[config.family.embedding]}))


def check_vocabulary(plan: NamePlan, vocabulary: int) -> None:
    """Raises ModelError unless a matrix has a row for each of so many tokens. That is known of every family, without its shapes."""
    if not any(tensor.shape[:1] == (vocabulary,) and len(tensor.shape) == 2 for tensor in plan.trained.values()):
        raise ModelError(
            f"config.json states vocab_size = {vocabulary}, and no matrix of the weights has so many rows; take config.json and weights "
            "that belong together"
        )


def check_tied_head(plan: NamePlan) -> None:
    """Raises ModelError if the folder stores a tied head that is not the embedding. Reads both in parts."""
    tied = plan.tied_head
    if tied is not None and not any(have_equal_values(tied.head, embedding) for embedding in tied.embeddings):
        refuse_other_head()


def refuse_other_head() -> NoReturn:
    """Raises ModelError for a stored head that is not the embedding, although config.json ties the two."""
    raise ModelError(
        "the weights have a head of their own but config.json ties it; set tie_word_embeddings to false there, or remove the head from the "
        "weights if the embedding is the model's head"
    )


def _tied_head(heads: Collection[str], found: Mapping[str, StoredTensor], trained: Mapping[str, StoredTensor]) -> TiedHead | None:
    if not heads:
        return None
    head = found[min(heads)]
    _refuse_quantised({name: found[name] for name in heads})
    same_shape = [name for name, tensor in trained.items() if tensor.shape == head.shape]
    likely = sorted(same_shape, key=lambda name: not any(part in name for part in _EMBEDDINGS))
    return TiedHead(head, tuple(trained[name] for name in likely[:_MOST_COMPARED]))


def _is_never_read(name: str, shape: tuple[int, ...]) -> bool:
    """Frequencies of rotary embeddings, and causal masks, which GPT-2 and others call biases of their attention."""
    return name.endswith(_NEVER_READ) or (name.endswith(".bias") and len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3])


def _stored(folder: Path) -> dict[str, StoredTensor]:
    files = weight_files(folder)
    found = read_headers([folder / name for name in files])
    if files != ("model.safetensors",):
        _check_index(folder, found)
    return found


def _refuse_quantised(tensors: Mapping[str, StoredTensor]) -> None:
    refuse_tensors({name for name, tensor in tensors.items() if tensor.dtype not in _DTYPES}, "are quantised or no floating-point numbers")


def _check_index(folder: Path, found: dict[str, StoredTensor]) -> None:
    stated = weight_map(folder)
    wrong = {name for name, file in stated.items() if name not in found or found[name].file.name != file}
    if wrong := wrong | (found.keys() - stated.keys()):
        shown = ", ".join(sorted(wrong)[:3])
        raise ModelError(f"{INDEX} and the weight files disagree about {len(wrong)} tensors ({shown}); save the model again")
