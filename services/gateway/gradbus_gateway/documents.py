"""`python -m gradbus_gateway.documents docs`: writes OpenAPI, the run spec's JSON Schema, and the pages of model families and metrics."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gradbus.formats.families_page import families_page
from gradbus.spec import RunSpec
from gradbus.telemetry.registry.page import metrics_page
from gradbus_gateway.app import create_app


def documents() -> dict[str, str]:
    """The documents, by file name."""
    contents = {"openapi.json": create_app().openapi(), "run-spec.schema.json": RunSpec.model_json_schema()}
    found = {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in contents.items()}
    return {**found, "families.md": families_page(), "metrics.md": metrics_page()}


if __name__ == "__main__":
    for name, text in documents().items():
        (Path(sys.argv[1]) / name).write_text(text)
