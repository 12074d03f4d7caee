"""Teachers that are SGLang servers: what one serves, and whether it has the policy's tokenizer, both asked before the run is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from gradbus.errors import Fault, ServiceAwayError, UserCodeError
from gradbus.spec import RolloutSpec, ServedTeacherSpec, TeacherSpec
from gradbus.user_services.addresses import TEACHER as NAMED
from gradbus.user_services.addresses import AddressPolicy
from gradbus.user_services.keys import ServiceKeys
from gradbus.user_services.sglang import SGLangClient
from gradbus_gateway.intake.model.intake import StoredModel
from gradbus_gateway.intake.spec.service_address import AllowedHosts, address_faults
from gradbus_gateway.intake.spelling import Spelling
from gradbus_gateway.settings import TeacherSettings

_FIELD: Final = "teacher.url"
_SECONDS: Final = 20.0
_COMPARISON_SECONDS: Final = 60.0
"""Of all calls that compare tokenizers."""
_SHOWN: Final = 40
_IDS_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class TeacherServer:
    """A server that has answered."""

    spec: TeacherSpec
    """As given."""
    model_path: str
    weight_version: str
    most_tokens: int | None
    """Of one request."""

    def served(self, policy: StoredModel) -> TeacherSpec:
        """The section with what the server has."""
        found = ServedTeacherSpec(model_path=self.model_path, weight_version=self.weight_version, vocab_size=policy.info.vocab_size)
        return self.spec.model_copy(update={"served": found})

    def unfit(self, policy: StoredModel, rollout: RolloutSpec | None, *, in_environment: bool) -> Iterator[Fault]:
        """Faults of samples that the server would not take, and of a spec that was stored when it had other weights."""
        if (given := self.spec.served) is not None and given != self.served(policy).served:
            had, has = (f"{served.weight_version} of {served.model_path}" for served in (given, self.served(policy).served) if served)
            yield Fault("teacher.served", f"the server has {has}", had, "none: the gateway fills it in")
        if rollout is None or self.most_tokens is None:
            return
        prompt = rollout.max_prompt_tokens or policy.info.context_length - rollout.max_new_tokens
        longest = policy.info.context_length if in_environment else prompt + rollout.max_new_tokens
        if longest > self.most_tokens:
            message = "the longest sample does not fit a request to the teacher's server"
            allowed = f"at most {self.most_tokens}; set rollout.max_prompt_tokens, or start the server with a longer context"
            yield Fault(_FIELD, message, f"{longest} tokens", allowed)


class SubmittedTeachers:
    """Asks the servers that submissions name."""

    def __init__(self, settings: TeacherSettings, *, allow_loopback: bool) -> None:
        self._allowed = AllowedHosts(settings.hosts, allow_loopback, "GRADBUS_TEACHER_HOSTS", NAMED)
        self._policy = AddressPolicy(settings.hosts, allow_loopback, NAMED)
        self._keys = ServiceKeys.of(settings.keys)

    async def found(self, teacher: TeacherSpec, policy: StoredModel | None) -> tuple[TeacherServer | None, list[Fault]]:
        """The server at the URL, or why it cannot be a teacher of this policy."""
        url = teacher.url or ""
        if faults := list(address_faults(url, self._allowed, _FIELD)):
            return None, faults
        try:
            async with self._client(url) as client:
                model, most = await client.served(_SECONDS), await client.most_tokens(_SECONDS)
                return TeacherServer(teacher, model.path, model.weight_version, most), await _size_faults(client, policy)
        except UserCodeError as error:
            return None, [Fault(_FIELD, str(error), url, "the address of an SGLang server that runs")]

    async def tokenizer_fault(self, spelling: Spelling, url: str) -> Fault | None:
        """Whether one of the policy's tokens is another one at the server.

        It is if its text has other ids there, and its id another text: a server may treat text otherwise, as around spaces, and have the
        same tokens.
        """
        try:
            async with asyncio.timeout(_COMPARISON_SECONDS), self._client(url) as client:
                for first, mine in spelling.tokens():
                    if difference := await _difference(client, first, mine):
                        message = "judges the policy's tokens by their ids, and the server's tokenizer is another one"
                        return Fault(_FIELD, message, difference, "a server of a model with the policy's tokenizer")
        except TimeoutError:
            message = f"its tokenizer could not be compared with the policy's within {_COMPARISON_SECONDS:g} s"
            return Fault(_FIELD, message, url, "a server that answers /tokenize faster; give it fewer other requests")
        except UserCodeError as error:
            allowed = "a server with its tokenizer: without --skip-tokenizer-init"
            return Fault(_FIELD, f"its tokenizer cannot be compared with the policy's: {error}", url, allowed)
        return None

    @asynccontextmanager
    async def _client(self, url: str) -> AsyncIterator[SGLangClient]:
        client = SGLangClient(url, self._policy, self._keys)
        try:
            yield client
        finally:
            await client.close()


async def _size_faults(client: SGLangClient, policy: StoredModel | None) -> list[Fault]:
    """Whether the server's vocabulary is smaller than the policy's. Raises ServiceAwayError."""
    if policy is None:
        return []
    try:
        await client.check_token(policy.info.vocab_size - 1, _SECONDS)
    except ServiceAwayError:
        raise
    except UserCodeError as error:
        allowed = f"at least the policy's vocab_size, {policy.info.vocab_size}"
        return [Fault(_FIELD, "has no embeddings for some of the policy's tokens", str(error), allowed)]
    return []


async def _difference(client: SGLangClient, first: int, mine: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    """In words, the first of these tokens, from id `first` on, that is another one at the server; empty if none is."""
    theirs = await client.tokenized([text for text, _ in mine], _SECONDS)
    others = {first + at: (*mine[at], ids) for at, ids in enumerate(theirs) if ids != mine[at][1]}
    if not others:
        return ""
    texts = await client.token_texts(list(others), _SECONDS)
    for (token, (text, ids, found)), there in zip(others.items(), texts, strict=True):
        if there != text:
            shown = f"and has the ids {list(found[:_IDS_SHOWN])} there, not {list(ids[:_IDS_SHOWN])}"
            return f"token {token} is {text[:_SHOWN]!r}, {shown}; there it is {there[:_SHOWN]!r}"
    return ""
