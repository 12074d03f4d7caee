"""Model folders and datasets that a hostile submission damages before it is sent."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from gradbus_hostile.damage import as_scorer

Json = dict[str, Any]
_GOOD_ROWS: Final = 64


class Material:
    """Makes damaged copies of a good spec's model and data, each in a folder of its own."""

    def __init__(self, folder: Path, good: Mapping[str, Any]) -> None:
        """`good` is a spec that works, with paths of a model folder and of a dataset."""
        self._folder = folder
        self._good = good
        self._serial = itertools.count()

    def spec(self, **changes: Any) -> Json:
        """The good spec with other sections; a section that is a mapping replaces the fields that it names."""
        body = copy.deepcopy(dict(self._good))
        for section, value in changes.items():
            replaces = section in {"model", "reward"} or not isinstance(value, Mapping)
            body[section] = value if replaces else {**body.get(section, {}), **value}
        return body

    def grader(self, source: str, **changes: Any) -> Json:
        """The good spec with a Python grader; `changes` are other sections, and `timeout_seconds` of the reward's."""
        timeout = {name: changes.pop(name) for name in ("timeout_seconds",) if name in changes}
        return self.spec(reward={"grader": {"type": "python", "source": source}, **timeout}, **changes)

    def rows(self, lines: Iterable[str], **changes: Any) -> Json:
        """The good spec with a dataset of these lines."""
        path = self._fresh() / "rows.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        return self.spec(data={"train": str(path)}, **changes)

    def model(self, damage: Callable[[Path], None], lines: Iterable[str] = ()) -> Json:
        """The good spec with a damaged copy of its model, and with these rows if there are any."""
        folder = Path(shutil.copytree(self._good["model"]["path"], self._fresh() / "model"))
        damage(folder)
        body = self.rows(lines) if lines else self.spec()
        return body | {"model": {"path": str(folder)}}

    def scorer(self, damage: Callable[[Path], None]) -> Json:
        """The good spec with a damaged reward model: a copy of its model with a head that scores."""
        folder = Path(shutil.copytree(self._good["model"]["path"], self._fresh() / "scorer"))
        as_scorer(folder)
        damage(folder)
        return self.spec(reward={"model": {"path": str(folder)}})

    def given(self, kind: object, lines: Iterable[str], **changes: Any) -> Json:
        """A spec on given responses: the good one without the sections of runs that sample, with a dataset of these lines."""
        body = self.rows(lines, **changes)
        unread = {"rollout", "reward", "algorithm", "evaluation", "weights"} - changes.keys()
        body["data"].pop("eval", None)
        body["schedule"] = {name: value for name, value in body["schedule"].items() if name not in {"mode", "max_staleness"}}
        return {name: value for name, value in body.items() if name not in unread} | {"kind": kind}

    def own(self, path: object) -> Path | None:
        """The path, if it was made here."""
        return Path(path) if isinstance(path, str) and Path(path).is_relative_to(self._folder) else None

    def _fresh(self) -> Path:
        folder = self._folder / str(next(self._serial))
        folder.mkdir(parents=True)
        return folder


def row(prompt: object = "sun and", **columns: object) -> str:
    """A line of a dataset."""
    return json.dumps({"prompt": prompt, "answer": "moon", **columns})


def labelled(prompt: object = "sun and", completion: object = "moon", label: object = True) -> str:
    """A row with a completion and its label."""
    return json.dumps({"prompt": prompt, "completion": completion, "label": label})


def pair(prompt: object = "sun and", chosen: object = "moon", rejected: object = "sun") -> str:
    """A line of a dataset of pairs."""
    return json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected})


def chat(text: str = "sun and", role: str = "user") -> str:
    """A line of a dataset whose prompt is one message."""
    return row([{"role": role, "content": text}])


def good_rows(count: int = _GOOD_ROWS) -> list[str]:
    """Rows without fault."""
    return [row()] * count


def good_chats(count: int = _GOOD_ROWS) -> list[str]:
    """Rows with messages, without fault."""
    return [chat()] * count
