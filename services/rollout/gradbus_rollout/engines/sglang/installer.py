"""Installs one set of weights in the server, and proves that it arrived.

The server answers 200 even to an update that changed nothing, so its answer is no proof. The proof: after the update the server
takes a snapshot of its tensors, overwrites them with noise, reads the same files again and compares tensor by tensor. They are
equal only if the files decide every tensor of the server, and then the digest of the files is the digest of the server's weights.
(slime's `--check-weight-update-equal` uses the same three actions.) A server without these actions is asked for log-probabilities.
"""

from __future__ import annotations

from typing import Final

from gradbus import crash_points
from gradbus.errors import AttestationError, EngineError
from gradbus.telemetry import get_logger
from gradbus_rollout.engines.base import ExpectedLogprobs
from gradbus_rollout.engines.server.logprob_proof import prove_weights
from gradbus_rollout.engines.server.version_folder import LoadedVersion
from gradbus_rollout.engines.sglang.api import MemoryTag, ServerApi

UNPROVEN: Final = "gradbus-unproven"
"""Label of weights between a release or the update and the proof. A sample that carries it is discarded."""
_DIFFERENT: Final = "check tensor equality failed"
_NO_PROOF: Final = (
    "the server's /weights_checker does not answer, and this version came without a probe; start SGLang with its weight checker, "
    "or train the run anew with this trainer"
)
_log = get_logger(__name__)


class Installer:
    """Installs weights in one server, each time with the best proof that the server can give."""

    def __init__(self) -> None:
        self._compares = True
        self._previous: ExpectedLogprobs | None = None

    async def install(self, api: ServerApi, version: LoadedVersion, missing: set[MemoryTag] | None = None) -> None:
        """Updates the server from the version's folder and proves it; the server must not be decoding.

        A server that was released takes the memory that it is `missing`: that of the weights first, so that the update has room. Then the
        probe is asked for too, which also sees tensors that are neither parameters nor buffers.
        Raises AttestationError when the weights did not arrive, EngineError when the server fails or cannot prove anything.
        """
        folder = str(version.folder.absolute())
        await _take(api, "weights", missing)
        is_proven = self._compares and await self._compare(api, version, folder)
        if not is_proven:
            await api.update_from_disk(folder, UNPROVEN)
        await _take(api, "kv_cache", missing)
        if not is_proven and version.probe is None:
            raise EngineError("refused", _NO_PROOF)
        if version.probe is not None and (missing is not None or not is_proven):
            await prove_weights(api, version.version, version.probe, self._previous)
        await api.label(version.label)
        self._previous = version.probe

    async def _compare(self, api: ServerApi, version: LoadedVersion, folder: str) -> bool:
        """Update, noise, update again, comparison. False, now and for every later load, for a server without these actions."""
        await api.update_from_disk(folder, UNPROVEN)
        try:
            await api.check_weights("snapshot")
            await api.check_weights("reset_tensors")
            crash_points.reached("mid-load")
            await api.update_from_disk(folder)
            await api.check_weights("compare")
        except EngineError as error:
            if _DIFFERENT in str(error):
                raise AttestationError(f"the server did not take all of version {version.version} ({error}); it is loaded again") from error
            if error.state != "refused":
                raise
            _log.warning("server_cannot_compare", error=str(error), instead="log-probabilities of a fixed text, by the trainer's")
            self._compares = False
        return self._compares


async def _take(api: ServerApi, tag: MemoryTag, missing: set[MemoryTag] | None) -> None:
    if missing and tag in missing:
        await api.resume_memory(tag)
        missing.remove(tag)
