"""Checks that this machine samples the same bits as the other workers of a deterministic run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gradbus.bus import Bucket, Conflict
from gradbus.errors import SettingsError
from gradbus.formats.tokens import pack_ids
from gradbus.ids import sample_seed
from gradbus_rollout.engines.base import Engine, PromptGroup

_SAMPLES = 4


async def check_determinism(engine: Engine, prompt_ids: Sequence[int], run_id: str, probes: Bucket) -> None:
    """Samples a fixed prompt with the loaded version (the base model) and compares the digest with that of the run's first worker.

    The first worker writes its digest into `probes`. Raises SettingsError when the bits differ: this worker must not join the run.
    """
    seeds = tuple(sample_seed(0, "probe", 0, n) for n in range(_SAMPLES))
    (group,) = await engine.generate([PromptGroup("probe", tuple(prompt_ids), seeds)])
    content = b"".join(pack_ids(sample.token_ids) + sample.logprobs for sample in group.completions)
    digest = hashlib.sha256(content).hexdigest().encode()
    try:
        await probes.create(run_id, digest)
    except Conflict:
        stored = await probes.get(run_id)
        if stored is not None and stored.value != digest:
            message = f"this machine ({engine.name}) samples other bits than the run's first worker; "
            raise SettingsError(message + "use the same CPU, torch and threads, or set deterministic = false") from None
