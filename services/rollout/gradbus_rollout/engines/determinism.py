"""Whether this machine samples the same bits as the others of its run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gradbus.bus import Bucket, Conflict
from gradbus.errors import SettingsError
from gradbus.ids import sample_seed
from gradbus_rollout.engines.base import Engine, PromptGroup
from gradbus_rollout.tasks.samples import int32_bytes

_SAMPLES = 4


async def check_determinism(engine: Engine, prompt_ids: Sequence[int], run_id: str, probes: Bucket) -> None:
    """Samples a fixed prompt with the version held (the base model) and compares with the run's first worker.

    Raises SettingsError when the bits differ: this worker must not join a deterministic run.
    """
    seeds = tuple(sample_seed(0, "probe", 0, n) for n in range(_SAMPLES))
    (group,) = await engine.generate([PromptGroup("probe", tuple(prompt_ids), seeds)])
    content = b"".join(int32_bytes(sampled.token_ids) + sampled.logprobs for sampled in group.completions)
    digest = hashlib.sha256(content).hexdigest().encode()
    try:
        await probes.create(run_id, digest)
    except Conflict:
        stored = await probes.get(run_id)
        if stored is not None and stored.value != digest:
            message = f"this machine ({engine.name}) samples other bits than the run's first worker; "
            raise SettingsError(message + "use the same CPU, torch and threads, or set deterministic = false") from None
