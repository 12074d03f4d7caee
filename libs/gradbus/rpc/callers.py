"""Who calls: a token is looked up by its hash, and the table of rights says what its role may call."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from gradbus.access import callers_of


def token_hash(token: str | bytes) -> str:
    """What a server keeps of a caller's token: SHA-256, hex. A token is 256 random bits, so there is nothing to guess."""
    return hashlib.sha256(token.encode() if isinstance(token, str) else token).hexdigest()


class Callers:
    """The roles that may call a server, each by the hash of its token; roles that share a token share their rights."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)

    def roles_of(self, token: str | bytes) -> frozenset[str]:
        """The roles the token stands for; none for a wrong one."""
        given = token_hash(token)
        return frozenset([role for role, known in self._hashes.items() if hmac.compare_digest(known, given)])

    @staticmethod
    def may_call(roles: frozenset[str], method: str) -> bool:
        """Whether one of the roles may call `package.Service/Method`."""
        return not roles.isdisjoint(callers_of(method))
