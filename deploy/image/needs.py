"""Writes the requirements of pyproject.toml: core.txt, and one file for each extra, so that an image changes only with its own list."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
for name, wanted in {"core": project["dependencies"], **project["optional-dependencies"]}.items():
    Path(f"{name}.txt").write_text("\n".join(wanted))
