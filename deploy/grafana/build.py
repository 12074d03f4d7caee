"""Writes the dashboards: `python deploy/grafana/build.py`. A test holds the committed files to its output."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from boards import BOARDS  # noqa: E402 - imported from the folder of this file


def written() -> dict[Path, str]:
    """The path and the content of each dashboard."""
    return {HERE / "dashboards" / f"{board.uid}.json": json.dumps(board.as_json(), indent=1) + "\n" for board in BOARDS}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
        print(path.relative_to(HERE))
