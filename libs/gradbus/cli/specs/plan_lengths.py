"""The lengths of prompts that a plan takes from the dataset, where dataset and tokenizer are on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gradbus.errors import DatasetError, ModelError

if TYPE_CHECKING:
    from gradbus.datasets.lengths import Lengths
    from gradbus.datasets.prepare import DatasetFile
    from gradbus.spec import RunSpec

_ROWS: Final = 1000
"""Of each file; a thousand short prompts take tenths of a second."""
_FILES: Final = 8
"""Of each part of a mixture, or of the dataset."""
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "config.json")


def dataset_lengths(spec: RunSpec, base: Path, model: Path) -> Lengths | str:
    """Of the first rows of the dataset's first files; or in words why they are not measured.

    Nothing is downloaded: a dataset in a bucket or on the hub is not measured.
    """
    if not (model / "tokenizer.json").is_file():
        return f"{model} has no tokenizer.json"
    if spec.environment is not None:
        return "the environment writes the conversations"
    try:
        return _measured(spec, base, model)
    except (DatasetError, ModelError, OSError) as error:
        return str(error)


def _measured(spec: RunSpec, base: Path, model: Path) -> Lengths:
    from gradbus.cli.specs.data import parts_of
    from gradbus.datasets.lengths import mixed, read_lengths
    from gradbus.datasets.prepare import RowPlan
    from gradbus.spec.kinds import columns_of
    from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits

    plan = RowPlan(columns=columns_of(spec.kind, spec.data), filter=spec.data.filter)
    limits = PromptLimits(1 if spec.trains_given else spec.rollout.max_new_tokens, spec.rollout.max_prompt_tokens)
    found: list[tuple[Lengths, float]] = []
    with _without_weights(model) as folder:
        encoder = PromptEncoder(folder, limits)
        for name, sources, names, weight in parts_of(spec.data):
            if name == "eval":
                continue
            files = [file for source in ([sources] if isinstance(sources, str) else sources) for file in _files(source, base)]
            lengths = read_lengths(files[:_FILES], plan.model_copy(update={"names": names}), encoder, _ROWS)
            if lengths is None:
                raise DatasetError(f"of the first rows of {name} a submission would take none; see `gradbus data check`")
            found.append((lengths, weight or 1.0))
    return mixed(part for part in found if part[1] > 0.0)


def _files(source: str, base: Path) -> list[DatasetFile]:
    """Raises DatasetError for what is not on this machine, and OSError."""
    from gradbus.client.dataset_files import local_path
    from gradbus.datasets.folder import data_files
    from gradbus.datasets.prepare import DatasetFile

    path = local_path(base, source)
    if path is None:
        raise DatasetError(f"{source} is not on this machine")
    return [DatasetFile(file.name, file) for file in data_files(path)]


@contextmanager
def _without_weights(model: Path) -> Iterator[Path]:
    """A folder with the model's tokenizer, whose weights are empty: a plan needs none, and the folder may have none."""
    with tempfile.TemporaryDirectory(prefix="gradbus-plan-") as name:
        folder = Path(name)
        for file in _TOKENIZER_FILES:
            if (model / file).is_file():
                (folder / file).symlink_to((model / file).absolute())
        (folder / "model.safetensors").touch()
        yield folder
