"""Does every pass over a dataset and reads rows of it; prints the memory that was resident at most, in KiB: `resident.py FILE FOLDER`."""

import sys
from pathlib import Path

from gradbus.datasets.prepare import DatasetFile, RowPlan
from gradbus.datasets.row_file import RowFile
from gradbus.datasets.work import PrepareWork, PromptsWork
from gradbus.spec import RowColumns


def largest_kib() -> int:
    """The largest resident memory of this program; `getrusage` would count the process that started it as well."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    given, folder = map(Path, sys.argv[1:])
    rows, prompts, plan = folder / "rows", folder / "prompts", RowPlan(columns=RowColumns())
    info = PrepareWork(files=[DatasetFile("", given)], plan=plan, out=rows, most_bytes=1 << 40).done()
    PromptsWork(rows=rows, columns=plan.columns, out=prompts).done()
    for path in (rows, prompts):
        file = RowFile(path)
        assert len(file) == info.rows
        assert file[0]
        assert file[info.rows - 1]
    print(info.rows, largest_kib())
