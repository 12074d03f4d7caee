"""Prepares the buffer and object storage for the services."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx2
import obstore
from obstore.store import S3Store
from redis.exceptions import RedisError

from gradbus.buffer import load_functions, open_buffer
from gradbus.errors import SettingsError
from gradbus.process import ProcessSettings

_VALID = timedelta(minutes=5)
_ANSWER_SECONDS = 10.0


async def prepare_stores(settings: ProcessSettings) -> None:
    """Loads the buffer's functions, and creates the S3 bucket of GRADBUS_OBJECTS_URL if it is missing.

    Raises SettingsError when one of them does not answer or refuses.
    """
    await prepare_buffer(settings)
    if urlsplit(settings.objects_url).scheme == "s3":
        await make_bucket(settings)


async def prepare_buffer(settings: ProcessSettings) -> None:
    """Loads the buffer's functions. Raises SettingsError when the buffer does not answer or refuses."""
    client = open_buffer(settings.buffer)
    try:
        await load_functions(client)
    except (RedisError, OSError, TimeoutError) as error:
        raise SettingsError(f"the buffer at {settings.buffer_url} does not load the functions ({error}); check that it runs") from None
    finally:
        await client.aclose()


async def make_bucket(settings: ProcessSettings) -> None:
    """Creates the bucket of GRADBUS_OBJECTS_URL if it is missing. Raises SettingsError when the server does not answer or refuses."""
    bucket = urlsplit(settings.objects_url).netloc
    pair: Any = {name: secret.get_secret_value() for name, secret in settings.objects_credentials.items()}
    # None of our client libraries creates buckets; S3 needs only a signed PUT of the bucket itself.
    url = await asyncio.to_thread(obstore.sign, S3Store(bucket, config=pair), "PUT", "", _VALID)
    try:
        async with httpx2.AsyncClient(timeout=_ANSWER_SECONDS) as client:
            answer = await client.put(url)
    except httpx2.HTTPError as error:
        raise SettingsError(f"object storage {settings.objects_url} does not answer ({error}); check AWS_ENDPOINT_URL") from None
    if answer.status_code not in {HTTPStatus.OK, HTTPStatus.CONFLICT}:
        raise SettingsError(f"object storage refuses the bucket {bucket} ({answer.status_code}: {answer.text[:200]}); create it by hand")
