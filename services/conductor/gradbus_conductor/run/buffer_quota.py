"""How much of the buffer one run may hold: a run that would fill it, and so stop every other run, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from gradbus.experience import ExperienceLog, GroupStore

_LOOK_SECONDS = 5.0
"""Between two measurements of log and journals, each of which keeps the buffer busy for some milliseconds."""


class BufferQuota:
    """Watches what one run holds: its log, sampled groups that are not in the log, and the journals of episodes that are played."""

    def __init__(self, log: ExperienceLog, groups: GroupStore, most_bytes: int) -> None:
        self._log = log
        self._groups = groups
        self._most = most_bytes
        self._log_bytes = self._journal_bytes = 0
        self._look_at = 0.0

    async def fault(self, waiting_bytes: int, journals: Callable[[], Iterable[str]]) -> str:
        """Why the run must end, empty as long as it keeps within its quota.

        `waiting_bytes`: of the groups that are not in the log. `journals`: the keys of the journals that there may be.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._log_bytes = (await self._log.size())[1]
            self._journal_bytes = await self._groups.journal_bytes(journals())
        if self._log_bytes + self._journal_bytes + waiting_bytes <= self._most:
            return ""
        return (
            f"the run holds more of the buffer, which all runs share, than the {_mib(self._most)} that one run may hold: "
            f"{_mib(self._log_bytes)} in the log and not in a checkpoint yet, {_mib(waiting_bytes)} sampled and not in the log, "
            f"{_mib(self._journal_bytes)} in journals of episodes that are played; lower "
            "rollout.max_new_tokens, environment.max_turns, rollout.group_size, schedule.groups_per_step, schedule.max_staleness, "
            "teacher.top_k or evaluation.samples and submit again, or have GRADBUS_RUN_BUFFER_BYTES of the conductor raised"
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
