"""Authentication of callers: a token is looked up by its hash, and the table of rights says what its roles may call."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from gradbus.access import callers_of


def token_hash(token: str | bytes) -> str:
    """SHA-256 of a token, hex: all that a server stores of it. A token is 256 random bits, so it cannot be guessed from its hash."""
    return hashlib.sha256(token.encode() if isinstance(token, str) else token).hexdigest()


class Callers:
    """The roles that may call a server, each with the hash of its token. Roles that share a token share their rights."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)

    def roles_of(self, token: str | bytes) -> frozenset[str]:
        """The roles of the token; none for a wrong token."""
        given = token_hash(token)
        return frozenset([role for role, known in self._hashes.items() if hmac.compare_digest(known, given)])

    @staticmethod
    def allowed(roles: frozenset[str], method: str) -> frozenset[str]:
        """Those of the roles that may call `package.Service/Method`."""
        return roles.intersection(callers_of(method))
