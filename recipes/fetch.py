"""Downloads a recipe's model and dataset, and writes the rows that its specs read.

    pip install huggingface-hub pyarrow
    python recipes/fetch.py maths|code|chat|tools [FOLDER]

A gated model needs `hf auth login`, or HF_TOKEN. Nothing is downloaded twice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
RECIPES: Final = ("maths", "code", "chat", "tools")
FETCHED: Final = HERE.parent / ".gradbus" / "recipes"
_WANTED: Final = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.json"]


def rows_of(recipe: str) -> ModuleType:
    """A recipe's module `rows`, by its path: `code` is a name of Python's own."""
    found = spec_from_file_location(f"{recipe}_rows", HERE / recipe / "rows.py")
    if found is None or found.loader is None:
        raise SystemExit(f"the recipe {recipe} has no rows.py; choose one of {', '.join(RECIPES)}")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def write_rows(recipe: str, raw: Iterable[dict[str, Any]], path: Path) -> int:
    """Writes the recipe's rows of a dataset as JSON Lines; returns their number. Rows that it leaves out are not written."""
    rows = [row for row in map(rows_of(recipe).row, raw) if row is not None]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def fetch(recipe: str, folder: Path) -> None:
    """Fills `folder` with `model/`, `train.jsonl` and `eval.jsonl`."""
    from huggingface_hub import hf_hub_download, snapshot_download  # noqa: PLC0415 - not needed by the CPU twins
    from pyarrow import parquet  # noqa: PLC0415 - the same

    source = rows_of(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{source.MODEL}: {snapshot_download(source.MODEL, local_dir=folder / 'model', allow_patterns=_WANTED)}")
    for split, name in source.FILES.items():
        file = hf_hub_download(source.DATASET, name, repo_type="dataset")
        written = write_rows(recipe, parquet.read_table(file).to_pylist(), folder / f"{split}.jsonl")
        print(f"{source.DATASET}: {written:,} rows in {folder / split}.jsonl")


def main() -> None:
    """Downloads one recipe's files."""
    parser = argparse.ArgumentParser(description="Downloads a recipe's model and dataset.")
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("folder", type=Path, nargs="?", help="default: where the recipe's specs look")
    options = parser.parse_args()
    fetch(options.recipe, options.folder or FETCHED / options.recipe)


if __name__ == "__main__":
    main()
