"""What a run needs before anything is dispatched: its rows, and the same rows without their answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from gradbus.control.runs import RunRecord
from gradbus.formats.jsonl import iterate, prompts_object
from gradbus.objects import ObjectStore
from gradbus_conductor.groups.data_order import DataOrder


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows as JSON text, which only the conductor and the scorer see, and the digest of what workers see."""

    items: tuple[str, ...]
    prompts: str
    """Digest of the prompts object."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run's data."""

    train: Dataset
    evaluation: Dataset | None
    order: DataOrder


async def prepare(objects: ObjectStore, record: RunRecord) -> Prepared:
    """Reads the datasets and stores their prompts. Doing it again changes nothing: all names are digests.

    Raises DatasetError, ObjectMissingError.
    """
    spec = record.spec
    train = await _dataset(objects, spec.data.train, spec.data.prompt)
    evaluation = await _dataset(objects, spec.data.eval, spec.data.prompt, spec.evaluation.samples) if spec.data.eval else None
    return Prepared(train, evaluation, DataOrder(spec.data.train, len(train.items), spec.seed))


async def _dataset(objects: ObjectStore, digest: str, column: str, most: int | None = None) -> Dataset:
    content = await objects.get_blob(digest)
    # In a thread: a large dataset takes longer than a lease lasts unrenewed.
    items, prompts = await asyncio.to_thread(_rows, content, column)
    return Dataset(items[:most], await objects.put_blob(prompts))


def _rows(content: bytes, column: str) -> tuple[tuple[str, ...], bytes]:
    return tuple(json.dumps(row, ensure_ascii=False) for row in iterate(content)), prompts_object(content, column)
