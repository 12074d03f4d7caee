"""`python -m gradbus_gateway.documents docs`: writes what the code knows of the documents.

These are the OpenAPI document, the run spec's JSON Schema, the pages of families and metrics, and the tables of presets and estimators.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gradbus.algorithms.page import algorithms_page
from gradbus.formats.families_page import families_page
from gradbus.spec import RunSpec
from gradbus.telemetry.registry.page import metrics_page
from gradbus_gateway.app import create_app


def documents(docs: Path) -> dict[str, str]:
    """The documents, by file name, for the folder that has them."""
    contents = {"openapi.json": create_app().openapi(), "run-spec.schema.json": RunSpec.model_json_schema()}
    found = {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in contents.items()}
    pages = {"families.md": families_page(), "metrics.md": metrics_page()}
    return {**found, **pages, "algorithms.md": algorithms_page((docs / "algorithms.md").read_text())}


if __name__ == "__main__":
    for name, text in documents(Path(sys.argv[1])).items():
        (Path(sys.argv[1]) / name).write_text(text)
