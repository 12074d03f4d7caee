"""Datasets in files of one test."""

import io
import itertools
import json
from functools import partial

import pytest

from gradbus.datasets.prepare import DatasetFile, RowPlan, write_rows
from gradbus.datasets.prompts import write_prompts
from gradbus.spec import RowColumns

ROOM = 1 << 30


@pytest.fixture
def written(tmp_path):
    """A file with this content."""
    names = itertools.count()

    def write(content):
        path = tmp_path / f"given-{next(names)}"
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def prepared(written):
    """(facts, stored bytes) of contents of files, or of files, one after the other."""

    def prepare(*contents, columns=None, most_bytes=ROOM, **plan):
        out = io.BytesIO()
        files = [DatasetFile("", content if not isinstance(content, bytes) else written(content)) for content in contents]
        info = write_rows(files, RowPlan(columns=columns or RowColumns(), **plan), out, most_bytes)
        return info, out.getvalue()

    return prepare


@pytest.fixture
def prompts_of(written):
    """What workers see of a dataset's rows."""

    def prompts(content, columns):
        out = io.BytesIO()
        write_prompts(written(content), columns, out)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    return prompts


@pytest.fixture
def readers(prepared, prompts_of):
    """Both passes over a dataset."""
    return [lambda data, columns: prepared(data, columns=columns), partial(prompts_of)]
