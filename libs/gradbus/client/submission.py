"""A spec on its way to the gateway: read, with its local files uploaded, and with the gateway's faults in its own words."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gradbus.client.calls import Call, put_reward
from gradbus.client.spec_file import load_spec
from gradbus.client.steps import Steps, of_run
from gradbus.client.upload import Upload, inline_sources, merged_faults, upload_local_files, with_local_names
from gradbus.errors import Fault, SpecError
from gradbus.resources.reward import RewardResource
from gradbus.spec import RunSpec, refuse_unstorable

Json = dict[str, Any]
SpecSource = RunSpec | Mapping[str, Any] | Path | str
"""A spec as a model, as a dict, or the path of a TOML file."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Submission:
    """A spec whose files are stored."""

    body: Json
    """As it is sent."""
    written: Mapping[str, Any]
    """As it was given."""
    folder: Path
    """Of its files."""
    faults: Sequence[Fault]
    """Of files that could not be uploaded."""

    def send(self, call: Callable[[Json], Call[Result]]) -> Steps[Result]:
        """The answer to the call with its body. Raises SpecError with the faults of both sides."""
        try:
            answer: Result = yield call(self.body)
        except SpecError as error:
            raise SpecError(merged_faults(self.faults, [self._as_written(fault) for fault in error.faults])) from None
        return answer

    def _as_written(self, fault: Fault) -> Fault:
        return with_local_names(self.written, self.folder, fault)


def change_scorer(run: str, scorer: Mapping[str, Any], base_dir: Path) -> Steps[RewardResource]:
    """Gives a run another scorer, whose files are below `base_dir`. Raises SpecError with the faults of both sides."""
    body: Json = {"reward": copy.deepcopy(dict(scorer))}
    refuse_unstorable(body)
    local = [replace(fault, path=fault.path.removeprefix("reward.")) for fault in inline_sources(body, base_dir)]
    try:
        return (yield from of_run(run, lambda run_id: put_reward(run_id, body["reward"])))
    except SpecError as error:
        raise SpecError(merged_faults(local, error.faults)) from None


def prepare(spec: SpecSource, base_dir: Path | None, upload: Upload) -> Submission:
    """Uploads the files of a spec. Raises SpecError for one that cannot be read, or that no JSON can carry."""
    written, folder = _read(spec)
    refuse_unstorable(written)
    folder = base_dir or folder
    body, faults = upload_local_files(written, folder, upload)
    return Submission(body, written, folder, faults)


def _read(spec: SpecSource) -> tuple[Mapping[str, Any], Path]:
    """The spec, and the folder of its files: a TOML file's own, else the current one."""
    if isinstance(spec, RunSpec):
        return spec.model_dump(mode="json", exclude_unset=True), Path.cwd()
    if isinstance(spec, Path | str):
        return load_spec(Path(spec)), Path(spec).parent
    return spec, Path.cwd()
