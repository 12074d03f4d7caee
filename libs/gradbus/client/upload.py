"""Makes a spec independent of this machine: uploads its local files and names them by digest, and inlines a grader's source."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradbus.client.dataset_files import dataset_files, local_path
from gradbus.errors import DatasetError, Fault, ModelError, StorageError
from gradbus.formats.hf_model import ModelInfo, check_model_folder
from gradbus.formats.model_weights import check_tied_head, check_vocabulary, read_name_plan
from gradbus.formats.reward_model import check_reward_folder
from gradbus.ids import digest_of_file, is_digest

Upload = Callable[[Path, str], None]
Json = dict[str, Any]
_FILES = {"model": ("path",), "reward.model": ("path",), "teacher": ("path",), "data": ("train", "eval")}


def upload_local_files(spec: Mapping[str, Any], base_dir: Path, upload: Upload) -> tuple[Json, list[Fault]]:
    """Uploads the local files of `spec`. Returns a copy that names them by digest, and the faults of files that cannot be uploaded.

    A path that does not exist here stays unchanged, because the server may have it.
    """
    body: Json = copy.deepcopy(dict(spec))
    faults = [*_upload_model(body.get("model"), base_dir, upload, _check_policy), *_upload_data(body.get("data"), base_dir, upload)]
    found = _upload_model(body.get("teacher"), base_dir, upload, _check_policy)
    faults.extend(replace(fault, path="teacher") for fault in found)
    reward = body.get("reward")
    if isinstance(reward, dict):
        found = _upload_model(reward.get("model"), base_dir, upload, check_reward_folder)
        faults.extend(replace(fault, path=f"reward.{fault.path}") for fault in found)
    return body, [*faults, *inline_sources(body, base_dir)]


def inline_sources(body: Json, base_dir: Path) -> list[Fault]:
    """Replaces each `file` of graders and environment by its text. Returns the faults of files that cannot be read."""
    reward = body.get("reward")
    graders = _inline_rewards(reward, base_dir) if isinstance(reward, dict) else ()
    return [*graders, *_inline_source(body.get("environment"), base_dir, "environment")]


def merged_faults(local: Sequence[Fault], remote: Sequence[Fault]) -> list[Fault]:
    """The faults of both sides. For the same field the local fault is kept, because only this side has seen the file."""
    return [*local, *(far for far in remote if not any(_related(near.path, far.path) for near in local))]


def with_local_names(spec: Mapping[str, Any], base_dir: Path, fault: Fault) -> Fault:
    """The server's fault in terms of `spec` as written: local file names in place of digests, and the searched path of a missing file."""
    section, _, field = fault.path.rpartition(".")
    part: object = spec
    for name in section.split("."):
        part = part.get(name) if isinstance(part, Mapping) else None
    written = part.get(field) if isinstance(part, Mapping) and field in _FILES.get(section, ()) else None
    if not isinstance(written, str):
        return fault
    if fault.given == written and not is_digest(written):
        message = f"neither on this machine nor on the server: {fault.message}"
        allowed = "a path relative to the spec's folder" + (f", or a hub id with `{section}.revision`" if field == "path" else "")
        return replace(fault, message=message, given=str(base_dir.absolute() / written), allowed=allowed)
    return replace(fault, given=written)


def _related(one: str, other: str) -> bool:
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


def _check_policy(folder: Path) -> ModelInfo:
    info = check_model_folder(folder)
    plan = read_name_plan(folder)
    check_vocabulary(plan, info.vocab_size)
    check_tied_head(plan)
    return info


def _upload_model(model: object, base_dir: Path, upload: Upload, check: Callable[[Path], ModelInfo]) -> Iterator[Fault]:
    """Replaces a model folder by the digests of its files."""
    if not isinstance(model, dict) or "files" in model:
        return
    try:
        if folder := local_path(base_dir, model.get("path")):
            model["files"] = {name: _uploaded(folder / name, upload) for name in check(folder).files}
    except ModelError as error:
        model["files"] = {}
        yield Fault("model", str(error), model["path"])
    except OSError as error:
        yield Fault("model", f"cannot be read: {error}", model["path"])


def _upload_data(data: object, base_dir: Path, upload: Upload) -> Iterator[Fault]:
    """Replaces each dataset by the digests of its files."""
    if not isinstance(data, dict):
        return
    parts = data["mixture"] if isinstance(data.get("mixture"), list) else []
    fields = [("data", data, field) for field in _FILES["data"]]
    fields += [(f"data.mixture.{at}", part, "source") for at, part in enumerate(parts) if isinstance(part, dict)]
    for where, section, field in fields:
        if not section.get(field):
            continue
        try:
            with TemporaryDirectory(prefix="gradbus-data-") as scratch:
                section[field] = _uploaded_sources(section[field], base_dir, Path(scratch), upload)
        except OSError as error:
            yield Fault(f"{where}.{field}", f"cannot be read: {error.strerror}", str(section[field]), "JSON Lines or Parquet")
        except (DatasetError, StorageError) as error:
            yield Fault(f"{where}.{field}", str(error), str(section[field]))


def _uploaded_sources(given: object, base_dir: Path, scratch: Path, upload: Upload) -> object:
    """The digests of the files of all sources; what is not on this machine stays as it is."""
    sources = given if isinstance(given, list) else [given]
    found: list[object] = []
    for at, source in enumerate(sources):
        files = dataset_files(source, base_dir, scratch / str(at)) if isinstance(source, str) else None
        found.extend([source] if files is None else [_uploaded(path, upload) for path in files])
    return found[0] if len(found) == 1 and not isinstance(given, list) else found


def _uploaded(path: Path, upload: Upload) -> str:
    if not path.stat().st_size:
        raise OSError(errno.ENODATA, "the file is empty", str(path))
    digest = digest_of_file(path)
    upload(path, digest)
    return digest


def _inline_rewards(reward: Json, base_dir: Path) -> Iterator[Fault]:
    """Of the scorers that train and of their shadows."""
    shadows, changes = reward.get("shadow"), reward.get("changes")
    scorers: dict[str, object] = {"reward": reward}
    scorers |= {f"reward.shadow.{name}": shadow for name, shadow in shadows.items()} if isinstance(shadows, dict) else {}
    scorers |= {f"reward.changes.{n}": change for n, change in enumerate(changes)} if isinstance(changes, list) else {}
    for path, scorer in scorers.items():
        if isinstance(scorer, dict):
            yield from _inline_graders(scorer.get("grader"), base_dir, f"{path}.grader")


def _inline_graders(grader: object, base_dir: Path, where: str) -> Iterator[Fault]:
    """Replaces the `file` of a Python grader by its source, also in the parts of a `multi` grader."""
    if not isinstance(grader, dict):
        return
    parts = grader.get("graders")
    for name, part in parts.items() if isinstance(parts, dict) else ():
        yield from _inline_graders(part, base_dir, f"{where}.graders.{name}")
    if grader.get("type") == "python":
        yield from _inline_source(grader, base_dir, where)


def _inline_source(section: object, base_dir: Path, where: str) -> Iterator[Fault]:
    """Replaces the `file` of a section by its text, as `source`."""
    if not isinstance(section, dict) or not isinstance(section.get("file"), str):
        return
    path = base_dir / section["file"]
    try:
        section["source"] = path.read_text()
        del section["file"]
    except (OSError, ValueError) as error:
        yield Fault(f"{where}.file", f"cannot be read: {error}", str(path), "a text file, relative to the spec's folder")
