"""The check: an environment is described, played in two processes, and compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc

from gradbus.environment_check.plan import plan_episode
from gradbus.environment_check.play import Played, Player
from gradbus.environment_check.report import Difference, Report, count, first_difference, shown
from gradbus.spec.sections import EnvironmentSpec
from gradbus.v1.environment_service_pb2 import DETERMINISM_RECORDED, DETERMINISM_SEEDED, DescribeRequest, DescribeResponse

if TYPE_CHECKING:  # the module of stubs has no such class when it runs
    from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceAsyncStub

APART_SECONDS: Final = 1.1
"""Between the two processes: a clock that counts whole seconds then differs."""
_DESCRIBE_SECONDS: Final = 60.0
_MAX_PROBLEMS: Final = 5
_DECLARED: Final[Mapping[int, Literal["seeded", "recorded"]]] = {DETERMINISM_SEEDED: "seeded", DETERMINISM_RECORDED: "recorded"}


@dataclass(frozen=True, slots=True)
class Checked:
    """What is checked."""

    section: EnvironmentSpec
    items: Sequence[Mapping[str, Any]]
    """Rows of the dataset, which the episodes take in turn."""
    episodes: int = 8
    is_scored: bool = False
    """The run has a `[reward]` too, so the environment need not give one."""


async def check_environment(stub: EnvironmentServiceAsyncStub, checked: Checked) -> Report:
    """Plays the episodes in one process, then in reverse order in another one, so that what one episode leaves behind is seen in others."""
    report = Report()
    section_json = checked.section.model_dump_json(exclude_none=True)
    players = [Player(stub, run_id, section_json, checked.section.step_seconds) for run_id in ("check-first", "check-second")]
    descriptions = [await _described(player, report) for player in players]
    first, second = descriptions
    if first is None or second is None:
        return report
    _take_description(report, first)
    plans = [plan_episode(number, checked.items[number % len(checked.items)], first.tools) for number in range(checked.episodes)]
    one = [await players[0].play(plan) for plan in plans]
    await asyncio.sleep(APART_SECONDS)
    other = [await players[1].play(plan) for plan in reversed(plans)][::-1]
    count(report, one)
    is_mcp = (checked.section.service or "").startswith("mcp+")
    report.problems += _faults(one, other, needs_reward=not (is_mcp or checked.is_scored))
    if is_mcp and not checked.is_scored:
        report.notes.append("an MCP server gives no rewards, so a run with it needs a [reward]")
    differences = [_described_difference(first, second), *(first_difference(*pair) for pair in zip(one, other, strict=True))]
    report.difference = next((found for found in differences if found), None)
    _judge(report)
    return report


async def _described(player: Player, report: Report) -> DescribeResponse | None:
    try:
        request = DescribeRequest(run_id=player.run_id, environment_json=player.section_json)
        described: DescribeResponse = await player.stub.Describe(request, timeout=_DESCRIBE_SECONDS)
    except grpc.aio.AioRpcError as error:
        report.problems = [f"it cannot be used: {error.details()}"]
        return None
    return described


def _take_description(report: Report, described: DescribeResponse) -> None:
    report.name, report.digest = described.name, described.digest
    report.sandbox = described.sandbox
    report.declared = _DECLARED.get(described.determinism, "none")
    report.tools = [
        {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters_json or "{}")}
        for tool in described.tools
    ]


def _described_difference(first: DescribeResponse, second: DescribeResponse) -> Difference | None:
    if first == second:
        return None
    return Difference(-1, "describe", "description", shown(str(first)), shown(str(second)))


def _faults(*processes: Sequence[Played], needs_reward: bool) -> list[str]:
    """Failures that no policy may cause, each once."""
    found: dict[str, None] = {}
    for played in (episode for process in processes for episode in process):
        fault = played.fault
        if fault is not None:
            found[f"{fault.where}: {shown(fault.answer.reason)}"] = None
        elif needs_reward and not played.has_reward:
            found[
                "an episode ended without any reward, which masks its sample; return one from step() or reward(), or check with "
                "--scored if the run has a [reward]"
            ] = None
    problems = list(found)
    return problems[:_MAX_PROBLEMS] + ([f"and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else [])


def _judge(report: Report) -> None:
    """Says what the difference means."""
    if report.difference is None:
        if report.declared != "seeded":
            consequence = "refuses it" if report.declared == "none" else "is so by the records of its episodes alone"
            report.notes.append(
                f"it does not call itself seeded, so a run with deterministic = true {consequence}; no difference was found: "
                'if it depends on seed and calls alone, answer /describe with "determinism": "seeded"'
            )
        return
    where = (
        "its description" if report.difference.where == "describe" else f"episode {report.difference.episode}, {report.difference.where}"
    )
    text = (
        f"the same calls had another answer in another process ({where}); let it depend on its seed and calls alone: "
        "no clock, no random numbers of its own seeding, no id() or order of objects in sets, nothing kept between episodes"
    )
    (report.problems if report.declared == "seeded" else report.notes).append(text)
