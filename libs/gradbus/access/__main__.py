"""`python -m gradbus.access` prints the table as docs/access.md has it."""

from __future__ import annotations

import sys

from gradbus.access.markdown import page

if __name__ == "__main__":
    sys.stdout.write(page())
