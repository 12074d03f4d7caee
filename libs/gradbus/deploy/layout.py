"""Where the workers of one machine compute: the table of `gradbus up --layout layout.toml`, and the variables that follow from it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradbus.errors import StackError

CPU: Final = "cpu"
_DEVICE: Final = re.compile(r"cpu|cuda:(\d{1,3})")
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_NODES: Final = Path("/dev")
_OTHER_DRIVERS: Final = ("dxg", "kfd")
"""GPUs that are not counted: WSL's and ROCm's."""
_DEEPSPEED: Final = "deepspeed"


class WorkerLayout(BaseModel):
    """The devices of one worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    devices: tuple[str, ...] = Field(min_length=1)
    """`cpu` or `cuda:N`, where N counts the GPUs that this process sees."""

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on GPUs."""
        return CPU not in self.devices


class Layout(BaseModel):
    """The workers of a machine, in order of their names: the first of `trainers` is `trainer-0`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trainers: tuple[WorkerLayout, ...] = Field(min_length=1)
    """One rank a device; those of several devices are DeepSpeed's, under torchrun."""
    rollouts: tuple[WorkerLayout, ...] = Field(min_length=1)
    """A server that is launched divides its model over all devices of its worker."""
    reference: WorkerLayout = WorkerLayout(devices=(CPU,))

    def worker(self, name: str) -> WorkerLayout | None:
        """The devices of a process by its name, e.g. `trainer-0`; None for a process that computes nothing."""
        role, _, number = name.partition("-")
        if role == "reference":
            return self.reference
        workers = {"trainer": self.trainers, "rollout": self.rollouts}.get(role)
        return workers[int(number)] if workers else None

    def named(self) -> Iterator[tuple[str, WorkerLayout]]:
        """Every worker with its place in the table."""
        for role, workers in (("trainers", self.trainers), ("rollouts", self.rollouts)):
            yield from ((f"{role}[{number}]", worker) for number, worker in enumerate(workers))
        yield "reference", self.reference


def read_layout(file: Path) -> Layout:
    """The table in `file`. Raises StackError, which names every fault of its form."""
    try:
        return Layout.model_validate(tomllib.loads(file.read_text()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StackError(f"the layout {file} cannot be read ({reason}); give --layout a TOML file") from None
    except ValidationError as error:
        faults = [f"{_place(fault['loc'])}: {fault['msg']}" for fault in error.errors(include_input=False, include_url=False)]
        raise _refused(faults) from None


def check_layout(layout: Layout, environment: Mapping[str, str]) -> None:
    """Raises StackError, with all faults, for a layout that this machine or the operator's `environment` cannot serve."""
    faults = [f"{place}: {fault}" for place, worker in layout.named() for fault in _device_faults(worker, environment)]
    if len(layout.reference.devices) > 1:
        faults.append("reference: it computes on one device; give it one")
    faults += _rank_faults(layout) + _server_faults(layout, environment)
    if faults:
        raise _refused(faults)


def check_device(device: str, environment: Mapping[str, str]) -> None:
    """Raises StackError if `device`, the operator's GRADBUS_DEVICE, is a GPU by a number that is not here."""
    if device.startswith("cuda:") and (faults := list(_device_faults(WorkerLayout(devices=(device,)), environment))):
        raise StackError(f"GRADBUS_DEVICE: {'; '.join(faults)}")


def device_environment(devices: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that computes on these devices: it sees no other GPU, and its first one is the current one.

    A kernel that is launched on the current device then finds its tensors there, whatever the GPU's number is outside.
    """
    if CPU in devices:
        return {"GRADBUS_DEVICE": CPU}
    return {"GRADBUS_DEVICE": "cuda", _VISIBLE: ",".join(_visible_name(device, environment) for device in devices)}


def _device_faults(worker: WorkerLayout, environment: Mapping[str, str]) -> Iterator[str]:
    unknown = [device for device in worker.devices if not _DEVICE.fullmatch(device)]
    if unknown:
        yield f"no device is named {', '.join(unknown)}; write cpu, or cuda:0, cuda:1 and so on"
        return
    if len({device == CPU for device in worker.devices}) > 1:
        yield "its devices are cpu and GPUs; give it one kind"
    twice = sorted({device for device in worker.devices if device != CPU and worker.devices.count(device) > 1})
    if twice:
        yield f"{', '.join(twice)} is there twice; give each rank a GPU of its own"
    seen = _gpus(environment)
    if seen is not None and (missing := sorted({device for device in worker.devices if device != CPU and _number(device) >= seen})):
        visible = f" ({_VISIBLE} is {environment[_VISIBLE]!r})" if _VISIBLE in environment else ""
        yield f"{', '.join(missing)} is not here, {seen} GPUs are visible{visible}; name one that is, or cpu"


def _rank_faults(layout: Layout) -> list[str]:
    sizes = {len(trainer.devices) for trainer in layout.trainers}
    faults = []
    if len(sizes) > 1:
        faults.append("trainers: a run goes to any free trainer, so all need the same number of devices; lay them out alike")
    if sizes != {1} and (missing := [name for name in (_DEEPSPEED, "torch") if find_spec(name) is None]):
        wanted = f"ranks on several devices need {' and '.join(missing)}"
        faults.append(f"trainers: {wanted}; install gradbus[trainer-deepspeed], or give each trainer one device")
    return faults


def _server_faults(layout: Layout, environment: Mapping[str, str]) -> list[str]:
    divided = [f"rollouts[{number}]" for number, worker in enumerate(layout.rollouts) if len(worker.devices) > 1]
    if not divided:
        return []
    faults = []
    if environment.get("GRADBUS_SGLANG_URL"):
        faults.append("a server that runs already (GRADBUS_SGLANG_URL) has its own devices; unset it, or name one device")
    if re.search(r"--tp\b|--tp-size|--tensor-parallel-size", environment.get("GRADBUS_SGLANG_ARGUMENTS", "")):
        faults.append("GRADBUS_SGLANG_ARGUMENTS sets the number of devices too; remove --tp-size there")
    return [f"{', '.join(divided)}: {fault}" for fault in faults]


def _gpus(environment: Mapping[str, str]) -> int | None:
    """Number of GPUs that this process sees; None where that is not known."""
    if _VISIBLE in environment:
        return len(_names(environment[_VISIBLE]))
    if any((_NODES / name).exists() for name in _OTHER_DRIVERS):
        return None
    return sum(1 for node in _NODES.glob("nvidia[0-9]*") if node.name.removeprefix("nvidia").isdigit())


def _visible_name(device: str, environment: Mapping[str, str]) -> str:
    """A GPU as CUDA_VISIBLE_DEVICES names it: its number, or its name among those that this process sees."""
    names = _names(environment[_VISIBLE]) if _VISIBLE in environment else ()
    return names[_number(device)] if names else str(_number(device))


def _names(visible: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in visible.split(",") if name.strip())


def _number(device: str) -> int:
    return int(device.partition(":")[2])


def _place(location: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".") or "the table"


def _refused(faults: Sequence[str]) -> StackError:
    lines = "\n".join(f"  {fault}" for fault in faults)
    return StackError(f"the layout has {len(faults)} fault(s); correct each and start again:\n{lines}")
