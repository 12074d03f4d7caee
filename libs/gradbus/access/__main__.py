"""`python -m gradbus.access` prints docs/access.md."""

from __future__ import annotations

import sys

from gradbus.access.markdown import render_markdown

if __name__ == "__main__":
    sys.stdout.write(render_markdown())
