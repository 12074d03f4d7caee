"""What all resources servers of NeMo Gym have in common: a cookie for each session, JSON bodies, statuses, and samples to be masked."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from gradbus.errors import UserCodeError
from gradbus.user_services.addresses import AddressPolicy
from gradbus.user_services.http import HttpResponse
from gradbus_environment.answers import AnswerError
from gradbus_environment.contract import Document
from gradbus_environment.worlds.json_client import JsonClient, JsonRequest, json_object

_OK: Final = 200
_FAULTS: Final = frozenset({422, 500})
"""The row, or what the server's code did with it."""
_MAX_COOKIES: Final = 16
_MAX_SHOWN: Final = 400

_Read = TypeVar("_Read")


class GymFaultError(UserCodeError):
    """The server's code raised, or refused the row."""


class InvalidEpisodeError(UserCodeError):
    """The server says that the sample must not be trained, or the row cannot be played."""


@dataclass(slots=True)
class GymEpisode:
    """One session of a server."""

    name: str
    """Of the episode and its attempt."""
    item: Document
    """The row."""
    cookies: dict[str, str] = field(default_factory=dict)
    output: list[Document] = field(default_factory=list)
    """Items of the turns so far, for a server that judges them at the end."""
    is_repeatable: bool = False
    """The same step may be asked again."""
    seconds: float = 0.0
    """For all requests of the present turn; the caller keeps this deadline."""
    closes: bool = False
    """The server wants to be told that the episode is over."""
    is_midway: bool = False
    """A request of the present turn had an answer: the turn cannot begin anew."""
    is_lost: bool = False
    """A step failed, and whether the world went on is unknown."""


class GymServer:
    """Requests below the server's URL."""

    def __init__(self, url: str, policy: AddressPolicy) -> None:
        self.client = JsonClient(url, policy)
        self.name = self.client.name

    async def ask(self, episode: GymEpisode, path: str, body: Document) -> Document:
        """The object that it answers. Raises InvalidEpisodeError, GymFaultError, UserCodeError and AnswerError."""
        response, said = await self._call(episode, JsonRequest("POST", path, body, accepted=frozenset({_OK, *_FAULTS})), _with_object)
        if response.status != _OK:
            raise GymFaultError(f"{self.name} failed at {path}: {response.status} {_shown(response)}")
        inner = [one for one in (said, said.get("info"), said.get("instance_config")) if isinstance(one, dict)]
        if any(one.get("mask_sample") is True for one in inner):
            raise InvalidEpisodeError(f"{self.name} masks the sample (mask_sample)")
        failures = [one[key] for one in inner for key in ("_ng_failure_class", "failure_kind") if one.get(key)]
        if failures:
            raise UserCodeError(f"{self.name} failed at {path}: {str(failures[0])[:_MAX_SHOWN]}")
        return said

    async def call_tool(self, episode: GymEpisode, name: str, arguments: Document, accepted: Container[int]) -> HttpResponse:
        """What a tool answers with one of the statuses."""
        response, _ = await self._call(episode, JsonRequest("POST", f"/{name}", arguments, accepted=accepted), lambda found: (found, None))
        return response

    async def _call(
        self, episode: GymEpisode, request: JsonRequest, read: Callable[[HttpResponse], tuple[HttpResponse, _Read]]
    ) -> tuple[HttpResponse, _Read]:
        """Sends the session's cookies, and keeps those that come back."""
        if episode.cookies:
            request = replace(request, headers={"cookie": "; ".join(f"{name}={value}" for name, value in episode.cookies.items())})
        found = await self.client.call(request, read, episode.seconds)
        _keep_cookies(episode.cookies, [value for name, value in found[0].headers if name == "set-cookie"])
        episode.is_midway = True
        return found


def _with_object(response: HttpResponse) -> tuple[HttpResponse, Document]:
    return response, json_object(response) if response.status == _OK else {}


def _keep_cookies(cookies: dict[str, str], given: Sequence[str]) -> None:
    """They go to this server alone, in this session alone, whatever their attributes say."""
    for one in given:
        name, equals, value = one.partition(";")[0].strip().partition("=")
        if not equals or not name or not one.isascii():
            raise AnswerError("it sent a cookie that is none")
        cookies[name] = value
    if len(cookies) > _MAX_COOKIES:
        raise AnswerError(f"it sent more than {_MAX_COOKIES} cookies")


def _shown(response: HttpResponse) -> str:
    text = response.body[:_MAX_SHOWN].decode("utf-8", "replace")
    try:
        said = json.loads(response.body)
    except (ValueError, RecursionError):
        return text
    return said[:_MAX_SHOWN] if isinstance(said, str) else text
