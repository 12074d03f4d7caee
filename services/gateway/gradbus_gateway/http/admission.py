"""Admission of requests: what a key or an address may do at a time. Beyond that a request is refused with 429 and `Retry-After`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gradbus.telemetry.registry import RefusalCause
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.refusals import count_refusal
from gradbus_gateway.http.slots import Slots, Turns
from gradbus_gateway.http.token_buckets import TokenBuckets
from gradbus_gateway.settings import RequestLimits

_SLOT_SECONDS: Final = 2
"""When to try again for a slot: nobody knows when one will be free."""


class Admissions:
    """The buckets and slots of this process."""

    def __init__(self, limits: RequestLimits) -> None:
        self.keys = TokenBuckets(limits.requests_per_second, limits.request_burst)
        self.addresses = TokenBuckets(limits.unauthenticated_per_second, limits.unauthenticated_burst)
        self.sign_ins = TokenBuckets(limits.sign_ins_per_minute / 60, limits.sign_in_burst)
        self.requests = Slots(limits.requests)
        self.followers = Slots(limits.followers, limits.followers_total)
        self.uploads = Slots(limits.uploads, limits.uploads_total)
        self.lists = Turns(limits.lists)


class Admission:
    """One request: who sent it, and the slots that it holds until `end`."""

    def __init__(self, admissions: Admissions, address: str) -> None:
        self._all = admissions
        self._address = address
        self._key_id = ""
        self._held: list[Callable[[], None]] = []

    def check_address(self) -> None:
        """Raises the problem 429 if the address has sent too many requests without a valid key."""
        if wait := self._all.addresses.wait(self._address):
            raise self._too_many("address_rate", "this address sends too many requests without a valid API key; send a key", wait)

    def authenticated(self, key_id: str) -> None:
        """Counts the request for its key. Raises the problem 429."""
        if self._key_id:
            return
        self._key_id = key_id
        if wait := self._all.keys.take(key_id):
            raise self._too_many("key_rate", f"key {key_id} sends too many requests a second; send fewer", wait)
        self._hold(self._all.requests, "key_requests", f"key {key_id} has too many requests in progress; wait for some of them")

    def follow(self) -> None:
        """Makes the request a follower, which holds another kind of slot. Raises the problem 429."""
        held = self._held.copy()
        message = f"key {self._key_id}, or all keys together, follow too many event streams; close some, or read them in pages"
        self._hold(self._all.followers, "followers", message)
        for release in held:
            release()
            self._held.remove(release)

    def upload(self) -> None:
        """Counts the request as an upload. Raises the problem 429."""
        self._hold(self._all.uploads, "uploads", f"key {self._key_id}, or all keys together, upload too much at a time; upload in turn")

    async def take_list_turn(self) -> None:
        """Waits until the key may read a list: a long page keeps the process busy for a moment, and many would do so for seconds."""
        key_id = self._key_id
        await self._all.lists.take(key_id)
        self._held.append(lambda: self._all.lists.release(key_id))

    def sign_in(self) -> None:
        """Counts a sign-in link of the key or, without a key, an attempt of the address to sign in. Raises the problem 429."""
        if wait := self._all.sign_ins.take(self._source):
            raise self._too_many("sign_ins", "too many sign-in links, or attempts to sign in; wait a moment", wait)

    def end(self) -> None:
        """Gives all slots back. A request without a valid key is counted for its address."""
        for release in self._held:
            release()
        self._held.clear()
        if not self._key_id:
            self._all.addresses.take(self._address)

    def _hold(self, slots: Slots, cause: RefusalCause, message: str) -> None:
        key_id = self._key_id
        if not slots.take(key_id):
            raise self._too_many(cause, message, _SLOT_SECONDS)
        self._held.append(lambda: slots.release(key_id))

    def _too_many(self, cause: RefusalCause, detail: str, wait: float) -> ProblemError:
        count_refusal(cause, self._source)
        return ProblemError(429, "too-many-requests", detail, retry_after=max(1, math.ceil(wait)))

    @property
    def _source(self) -> str:
        return f"key {self._key_id}" if self._key_id else self._address
