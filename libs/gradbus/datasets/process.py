"""`python -m gradbus.datasets.process`: does one pass over a dataset, within bounds.

Reads the work as a line of JSON and writes the outcome as JSON. It also ends when its input does: the service is gone.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

from gradbus.aio.order_input import read_order
from gradbus.datasets.work import WORK, Outcome
from gradbus.errors import DatasetError

_MAX_MEMORY: Final = 1 << 30
"""Bytes of data: Parquet of a kilobyte may unpack to any number."""


def main() -> int:
    """Does what the order on the input says."""
    work = WORK.validate_json(read_order())
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome = Outcome(info=work.done())
    except DatasetError as error:
        outcome = Outcome(error=str(error))
    except MemoryError:
        outcome = Outcome(error="a part of the dataset does not fit into memory; write Parquet with smaller row groups")
    except OSError as error:
        outcome = Outcome(error=f"the dataset cannot be read or written ({error.strerror}); the operator sees that the disk has room")
    sys.stdout.write(outcome.model_dump_json())
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    # At once: a daemon thread waits for the input.
    status = main()
    os._exit(status)
