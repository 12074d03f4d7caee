"""A version into the server, and the proof that it arrived.

The server answers 200 to an update that moved nothing, so its word is no proof. What is: after the update its tensors are
kept aside, overwritten with noise, read from the same files again and compared, tensor by tensor. They are equal only if
reading those files decides every tensor that the server holds. The files' own digest is then the digest of what it holds.
(slime's `--check-weight-update-equal` uses the same three actions.) A server that refuses them is asked for log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus import crash_points
from gradbus.errors import AttestationError, EngineError
from gradbus.telemetry import get_logger
from gradbus_rollout.engines.base import VersionProbe
from gradbus_rollout.engines.server.proof import prove_weights
from gradbus_rollout.engines.sglang.api import ServerApi

_UNPROVEN: Final = "gradbus-unproven"
"""Label of weights between the update and the proof: a sample that shows it is thrown away."""
_DIFFERENT: Final = "check tensor equality failed"
_DIGEST_SHOWN: Final = 12
_NO_PROOF: Final = (
    "the server's /weights_checker does not answer, and this version came without a probe; start SGLang with its weight checker, "
    "or train the run anew with this trainer"
)
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A version as it was, or is to be, installed."""

    version: int
    digest: str
    folder: Path
    probe: VersionProbe | None = None
    """What the trainer computes with it."""

    @property
    def label(self) -> str:
        """What the server calls it: step and the digest's head, so that no other weights bear the same name."""
        return f"{self.version}-{self.digest.removeprefix('sha256:')[:_DIGEST_SHOWN]}"


class Installer:
    """Brings versions into one server, the proof each time the best that it can give."""

    def __init__(self) -> None:
        self._compares = True
        self._before: VersionProbe | None = None

    async def install(self, api: ServerApi, held: LoadedVersion) -> None:
        """Brings `held` in and proves it; the server must not be decoding.

        Raises AttestationError when the weights did not arrive, EngineError when the server fails or cannot prove anything.
        """
        folder = str(held.folder.absolute())
        if not (self._compares and await self._compared(api, held, folder)):
            await api.update_from_disk(folder, _UNPROVEN)
            if held.probe is None:
                raise EngineError("refused", _NO_PROOF)
            await prove_weights(api, held.version, held.probe, self._before)
        await api.label(held.label)
        self._before = held.probe

    async def _compared(self, api: ServerApi, held: LoadedVersion, folder: str) -> bool:
        """Noise, the files again, compared; False, from then on at once, for a server without these actions."""
        await api.update_from_disk(folder, _UNPROVEN)
        try:
            await api.check_weights("snapshot")
            await api.check_weights("reset_tensors")
            crash_points.reached("mid-load")
            await api.update_from_disk(folder)
            await api.check_weights("compare")
        except EngineError as error:
            if _DIFFERENT in str(error):
                raise AttestationError(f"the server did not take all of version {held.version} ({error}); it is loaded again") from error
            if error.state != "refused":
                raise
            _log.warning("server_cannot_compare", error=str(error), instead="log-probabilities of a fixed text, by the trainer's")
            self._compares = False
        return self._compares
