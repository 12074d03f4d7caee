"""The files of a dataset that a spec names: on this machine, in object storage, or of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from gradbus.datasets.folder import SUFFIXES, data_files, dataset_names
from gradbus.datasets.json_values import json_value
from gradbus.datasets.jsonl import as_line
from gradbus.errors import DatasetError, StorageError, first_line

_BUCKETS: Final = ("s3", "gs", "az")
_HUB: Final = "hub"
_HUB_OPTIONS: Final = ("config", "split", "revision")
_PIECE_BYTES: Final = 1 << 22


def dataset_files(source: str, base_dir: Path, scratch: Path) -> list[Path] | None:
    """The files of a source, those from elsewhere below `scratch`; None if this machine does not have it.

    Raises DatasetError, StorageError, OSError.
    """
    scheme = urlsplit(source).scheme if ":" in source else ""
    if scheme in _BUCKETS:
        return _from_bucket(source, scratch)
    if scheme == _HUB:
        return [_from_hub(source, scratch)]
    path = local_path(base_dir, source)
    return None if path is None else data_files(path)


def local_path(base_dir: Path, given: object) -> Path | None:
    """The path that `given` names relative to `base_dir`, if there is one."""
    if not isinstance(given, str) or not given:
        return None
    try:
        path = base_dir / Path(given).expanduser()
    except RuntimeError:  # `~name` of a user who is not known here
        return None
    return path if path.exists() else None


def _from_bucket(url: str, scratch: Path) -> list[Path]:
    """The object of a url, or the objects below it, in the order of a folder's files. Credentials come from the environment."""
    import obstore  # noqa: PLC0415 - not needed for files of this machine
    from obstore.store import from_url  # noqa: PLC0415

    parts = urlsplit(url)
    key = parts.path.strip("/")
    with _storage_errors(url):
        store = from_url(f"{parts.scheme}://{parts.netloc}")
        listed = [item["path"] for batch in obstore.list(store, key or None) for item in batch]
    folder = f"{key}/" if key else ""
    below = dataset_names((name.removeprefix(folder) for name in listed), url)
    names = [key] if key.endswith(SUFFIXES) else [folder + name for name in below]
    if not names:
        raise DatasetError(f"{url} has no dataset; name an object, or a folder of objects that end in one of {', '.join(SUFFIXES)}")
    scratch.mkdir(parents=True)
    files = [scratch / f"{at:04d}" for at in range(len(names))]
    for name, file in zip(names, files, strict=True):
        with _storage_errors(f"{parts.scheme}://{parts.netloc}/{name}"), file.open("wb") as out:
            for piece in obstore.get(store, name).stream(min_chunk_size=_PIECE_BYTES):
                out.write(piece)
    return files


@contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError  # noqa: PLC0415

    try:
        yield
    except (BaseError, OSError) as error:
        raise StorageError(f"cannot read {what}: {first_line(error)}; check the url, and the credentials in the environment") from None


def _from_hub(source: str, scratch: Path) -> Path:
    """The rows of a dataset of the hub, as JSON Lines: `hub:owner/name?config=main&split=train&revision=...`."""
    parts = urlsplit(source)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if not parts.path or not options.keys() <= set(_HUB_OPTIONS):
        raise DatasetError(f"{source} is no dataset of the hub; write hub:owner/name, with ?config=, &split= and &revision= as needed")
    try:
        from datasets import load_dataset  # noqa: PLC0415 - an extra
    except ImportError:
        raise DatasetError("the hub's datasets are read by `datasets`, which is not installed; install gradbus[hub-data]") from None
    scratch.mkdir(parents=True)
    try:
        found = load_dataset(
            parts.path, options.get("config"), split=options.get("split", "train"), revision=options.get("revision"), streaming=True
        )
        with (scratch / "rows").open("wb") as out:
            for number, row in enumerate(found, start=1):
                out.write(as_line({name: json_value(value, f"row {number}", name) for name, value in row.items()}))
    except DatasetError:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary to a library that raises whatever its readers do
        raise DatasetError(
            f"cannot read {source}: {first_line(error)}; see its name, config and split, and HF_TOKEN if it is gated"
        ) from None
    return scratch / "rows"
