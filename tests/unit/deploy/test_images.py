"""The Dockerfiles: read here, built by the tests of tests/compose."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKERFILES = sorted([*ROOT.glob("services/*/*Dockerfile"), *ROOT.glob("examples/rewards/*/Dockerfile")])
BASES = {"${PYTHON_IMAGE}", "${DEBIAN_IMAGE}", "${SGLANG_IMAGE}", "core", "torch", "extra"}
each_image = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))


def test_every_image_of_trainer_and_reference_computes_the_families_of_transformers():
    paths = [path for path in DOCKERFILES if path.parent.name in {"trainer", "reference"}]
    assert len(paths) == 4
    assert all("-r families.txt" in path.read_text() for path in paths)


@each_image
def test_an_image_has_a_pinned_base_and_an_ordinary_user(path):
    text = path.read_text()
    assert re.search(r"^ARG (PYTHON|DEBIAN|SGLANG)_IMAGE=[\w/]+:v?\d+\.\d+[\w.-]*$", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) <= BASES
    assert re.findall(r"^USER (.*)", text, re.MULTILINE)[-1] == "10001:10001"


@each_image
def test_what_an_image_copies_is_in_the_repository_and_sent_to_docker(path):
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+)$", path.read_text(), re.MULTILINE) for name in line.split()[:-1]
    ]
    assert copied
    for name in copied:
        assert list(ROOT.glob(name)), f"{path.name} copies {name}, which is not there"
        assert sent(name), f"{path.name} copies {name}: let it through in .dockerignore"


def sent(name: str) -> bool:
    """Whether `.dockerignore` lets a path through: it leaves all out but the paths that begin with `!`."""
    parents = [Path(name), *Path(name).parents]
    patterns = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    return any(fnmatch(str(parent), pattern) for parent in parents for pattern in patterns)


@pytest.mark.parametrize("stage", ["core", "torch"])
def test_a_shared_stage_is_the_same_in_every_dockerfile_so_that_it_is_built_once(stage):
    pattern = re.compile(rf"^FROM \S+ AS {stage}\n.*?(?=^FROM|^#|\Z)", re.MULTILINE | re.DOTALL)
    stages = [found[0] for path in DOCKERFILES if (found := pattern.findall(path.read_text()))]
    assert len(stages) >= 3
    assert len(set(stages)) == 1
