"""`python -m gradbus_trainer.replay`: trains a run again from its archive, with object storage alone.

Reads the order as a line of JSON and writes lines of JSON; ends with status 0, or with 1 after a failure. It also ends when its input
does: the command is gone. Settings: GRADBUS_* variables, of which it needs those of object storage, the device and the cache folder.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping

from pydantic import BaseModel

from gradbus.aio.order_input import read_order
from gradbus.control.replay import ReplayFailure, ReplayOrder, ReplayResult
from gradbus.errors import GradbusError, first_line
from gradbus.run_files.record import find_record
from gradbus.run_files.versions import read_versions
from gradbus.telemetry import configure_logging
from gradbus_trainer.replay.plan import ReplayPlan
from gradbus_trainer.settings import Settings, choose_accelerator

_Write = Callable[[BaseModel], None]


def main() -> int:
    """Does what the order on the input says."""
    write = _writer()
    order = ReplayOrder.model_validate_json(read_order())
    try:
        settings = Settings()
        configure_logging("replay", settings.log_level)
        write(asyncio.run(_replay(settings, order, write)))
    except ModuleNotFoundError as error:
        write(ReplayFailure(message=f"the package {error.name} is not installed; a replay trains here, so install gradbus[trainer]"))
        return 1
    except GradbusError as error:
        write(ReplayFailure(message=str(error)))
        return 1
    except Exception as error:  # noqa: BLE001 - the boundary of the process: the reason goes to the command
        reason = f"{type(error).__name__}: {first_line(error)}"
        write(ReplayFailure(message=f"the replay failed ({reason}); the archive may be damaged, or this is a fault of Gradbus: report it"))
        return 1
    return 0


async def _replay(settings: Settings, order: ReplayOrder, write: _Write) -> ReplayResult:
    objects = settings.open_objects()
    record = await find_record(objects, order.run)
    plan = ReplayPlan.of(order, record, await read_versions(objects, record.run_id))
    _set(plan.variables())
    choose_accelerator(settings.device)
    from gradbus_trainer.replay.replay import replay

    return await replay(settings, objects, plan, anyway=order.anyway, report=write)


def _set(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value


def _writer() -> _Write:
    """Writes to the process's standard output, which from now on nothing else uses: what libraries print goes to standard error."""
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def write(line: BaseModel) -> None:
        lines.write(f"{line.model_dump_json()}\n")
        lines.flush()

    return write


if __name__ == "__main__":
    sys.exit(main())
