"""One client for a folder and for S3, Google and Azure buckets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url
from obstore.store import ObjectStore as Backend

from gradbus.aio.tasks import map_bounded
from gradbus.errors import CorruptRecordError, ObjectMissingError, SettingsError, StorageError, first_line
from gradbus.ids import digest_of, digest_of_file, digest_of_stream, is_digest
from gradbus.objects.durable import link_file, remove_partial_files, sync_files, write_file
from gradbus.objects.paths import blob_path, checked_path
from gradbus.telemetry import WireOperation

if TYPE_CHECKING:
    from obstore import GetResult

_HASH_IN_THREAD_BYTES = 1 << 22
_SMALL_BYTES = 1 << 16
"""To hand over so little to the backend's threads and to be woken by them takes twice the time of writing it."""
_PARALLEL = 16
_PART_BYTES = 1 << 24
_PIECE_BYTES = 1 << 20
_PARALLEL_PARTS = 4
_MAX_PARTS = 10_000
"""The limit of S3 for one object."""
_PUT = WireOperation("objects", {"gradbus.operation": "put"})
_GET = WireOperation("objects", {"gradbus.operation": "get"})


class ObjectStore:
    """Blobs by digest, and objects by path. Every write is atomic: a reader sees a whole object or none.

    Each method raises StorageError when the store does not answer or refuses.
    """

    def __init__(self, backend: Backend, url: str, root: Path | None = None) -> None:
        self._backend = backend
        self._root = root
        self.url = url

    @classmethod
    def open(cls, url: str, credentials: Mapping[str, str] | None = None) -> ObjectStore:
        """Opens `file:///folder`, `s3://bucket/prefix`, `gs://...` or `az://...`.

        `credentials` are options of the store such as `access_key_id`. Endpoints, and credentials that are not given, come from the
        environment. Raises SettingsError when the url names no store.
        """
        parts = urlsplit(url)
        if parts.scheme == "file":
            root = Path(unquote(parts.path))
            if parts.netloc or not root.is_absolute() or root == Path("/"):
                raise SettingsError(f"{url} names no folder; give an absolute one: file:///folder")
            return cls(_folder(root), url, root)
        if parts.scheme not in {"s3", "gs", "az"} or not parts.netloc:
            raise SettingsError(f"{url} is no object storage; give file:///folder, s3://bucket, gs://bucket or az://container")
        options: Any = dict(credentials or {})  # each kind of store has a type of its own for them
        try:
            return cls(from_url(url, config=options), url)
        except (BaseError, ValueError) as error:
            raise SettingsError(f"cannot use object storage {url}: {first_line(error)}; check the url and the credentials") from None

    async def put_blob(self, data: bytes | memoryview) -> str:
        """Stores `data` and returns its digest. Writes nothing if the blob is stored already."""
        large = len(data) > _HASH_IN_THREAD_BYTES
        digest = await asyncio.to_thread(digest_of, data) if large else digest_of(data)
        path = blob_path(digest)
        # A file of another length was left by a power cut.
        if await self._size(path) != len(data):
            await self.put(path, data)
        return digest

    async def put_file(self, path: Path) -> str:
        """`put_blob` for a file, which is not read into memory as a whole. The file must not change any more."""
        with self._errors(str(path)):
            digest, size, is_stored = await asyncio.to_thread(self._linked, path)
        target = blob_path(digest)
        if not is_stored and await self._size(target) != size:
            with self._errors(target), _PUT.measured(size):
                await obstore.put_async(self._backend, target, path, chunk_size=_part_bytes(size), max_concurrency=_PARALLEL_PARTS)
        return digest

    async def put_open_file(self, file: IO[bytes], size: int) -> str:
        """`put_blob` for the first `size` bytes, which are all, of an open file that does not change meanwhile.

        Read in pieces, and not mapped: mapped pages would count as the process's memory.
        """
        with self._errors("a file"):
            file.seek(0)
            digest = await asyncio.to_thread(digest_of_stream, file)
        target = blob_path(digest)
        if await self._size(target) != size:
            file.seek(0)
            with self._errors(target), _PUT.measured(size):
                await obstore.put_async(self._backend, target, file, chunk_size=_part_bytes(size), max_concurrency=_PARALLEL_PARTS)
        return digest

    async def get_blob(self, digest: str) -> bytes:
        """The blob's bytes. Raises ObjectMissingError, or CorruptRecordError when they do not match the digest."""
        data = await self._read(blob_path(digest), f"blob {digest}")
        large = len(data) > _HASH_IN_THREAD_BYTES
        found = await asyncio.to_thread(digest_of, data) if large else digest_of(data)
        if found != digest:
            raise CorruptRecordError(f"blob {digest} in {self.url} has the digest {found}; remove it and store it again")
        return data

    async def blob_file(self, digest: str, spare: Path) -> Path:
        """A read-only file with the blob's bytes: the store's own file if the store is a folder, else `spare`, written in pieces.

        Raises ObjectMissingError, or CorruptRecordError when the bytes do not match the digest.
        """
        path = self.local_path(digest)
        with self._errors(f"blob {digest}"):
            if path is None:
                path = await self._downloaded(digest, spare)
            found = await asyncio.to_thread(digest_of_file, path)
        if found != digest:
            raise CorruptRecordError(f"blob {digest} in {self.url} has the digest {found}; remove it and store it again")
        return path

    async def get_blob_part(self, digest: str, begin: int, end: int) -> bytes:
        """Bytes `begin` to `end` (exclusive) of the blob, without a check of the digest. Raises ObjectMissingError, or CorruptRecordError
        when the blob is too short."""
        with self._errors(f"blob {digest}"), _GET.measured() as reading:
            content = bytes(await obstore.get_range_async(self._backend, blob_path(digest), start=begin, end=end))
            reading.payload_bytes = len(content)
        if len(content) != end - begin:
            raise CorruptRecordError(f"blob {digest} in {self.url} ends before byte {end}; remove it and store it again")
        return content

    async def open_blob(self, digest: str) -> tuple[int, AsyncGenerator[bytes]]:
        """The blob's size and its bytes in pieces, which are read as they are asked for and not checked against the digest.

        Raises ObjectMissingError; StorageError also while the pieces are read.
        """
        path = blob_path(digest)
        with self._errors(f"blob {digest}"):
            answer = await obstore.get_async(self._backend, path)
        return answer.meta["size"], self._pieces(digest, answer)

    async def has_blob(self, digest: str) -> bool:
        """Whether the blob is stored; its bytes are not read."""
        return await self.blob_size(digest) is not None

    async def blob_size(self, digest: str) -> int | None:
        """Bytes of the blob, which are not read; None if it is not stored."""
        return await self._size(blob_path(digest))

    async def has_blobs(self, digests: Iterable[str]) -> bool:
        """Whether all these blobs are stored."""
        paths = [blob_path(digest) for digest in digests]
        if self._root:
            return await asyncio.to_thread(all, map(Path.is_file, [self._root / path for path in paths]))
        return None not in await asyncio.gather(*map(self._size, paths))

    async def blobs_between(self, first: datetime, last: datetime) -> list[str]:
        """Digests of the blobs that were last written between two moments."""
        with self._errors("blobs"):
            found = [item async for batch in obstore.list(self._backend, "blobs") for item in batch]
        written = (f"sha256:{item['path'].rpartition('/')[2]}" for item in found if first < item["last_modified"] < last)
        return [digest for digest in written if is_digest(digest)]

    async def delete_blob(self, digest: str) -> None:
        """Removes the blob; no error if there is none."""
        await self.delete(blob_path(digest))

    async def remove_partial_files(self) -> None:
        """Removes blobs that killed processes left half written. In a bucket its lifecycle rules do that."""
        if self._root:
            with self._errors("a partial blob"):
                await asyncio.to_thread(remove_partial_files, self._root / "blobs")

    async def make_durable(self, digests: Iterable[str]) -> None:
        """Returns once the blobs would outlive a power cut: syncs a folder, asks a bucket whether it has them.

        Raises ObjectMissingError for the first missing blob.
        """
        await self._sync([blob_path(digest) for digest in digests])

    async def put(self, path: str, data: bytes | memoryview, *, durable: bool = False) -> None:
        """Writes or replaces the object at `path`; with `durable`, so that it outlives a power cut."""
        with self._errors(path), _PUT.measured(len(data)):
            if self._root and len(data) <= _SMALL_BYTES:
                write_file(self._root / checked_path(path), data)
            else:
                await obstore.put_async(self._backend, checked_path(path), data)
        if durable:
            await self._sync([path])

    async def get(self, path: str) -> bytes:
        """The object at `path`. Raises ObjectMissingError."""
        return await self._read(path, path)

    async def list(self, prefix: str) -> list[str]:
        """Paths of all objects below the folder `prefix`, sorted, each once.

        A server may list an object twice that several writers stored at the same moment; rclone does.
        """
        with self._errors(prefix):
            found = await obstore.list(self._backend, checked_path(prefix)).collect_async()
        return sorted({item["path"] for item in found})

    async def folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly below the folder `prefix`, sorted."""
        with self._errors(prefix):
            found = await obstore.list_with_delimiter_async(self._backend, checked_path(prefix))
        return sorted(path.rpartition("/")[2] for path in found["common_prefixes"])

    async def has_any(self, prefix: str) -> bool:
        """Whether there is an object below the folder `prefix`; a deletion may leave an empty one."""
        with self._errors(prefix):
            async for batch in obstore.list(self._backend, checked_path(prefix), chunk_size=1):
                if batch:
                    return True
        return False

    async def delete(self, path: str) -> None:
        """Removes the object at `path`; no error if there is none."""
        try:
            with self._errors(path):
                file = self._root / checked_path(path) if self._root else None
                if file and file.stat().st_size <= _SMALL_BYTES:
                    file.unlink()
                else:  # a large file's blocks take a file system a while to free
                    await obstore.delete_async(self._backend, checked_path(path))
        except ObjectMissingError:
            return

    @property
    def is_folder(self) -> bool:
        """Whether the store is a folder, whose files a reader can map."""
        return self._root is not None

    def local_path(self, digest: str) -> Path | None:
        """The blob's file if the store is a folder, so that a reader can map it; the file may not exist."""
        return self._root / blob_path(digest) if self._root else None

    async def _read(self, path: str, what: str) -> bytes:
        with self._errors(what), _GET.measured() as reading:
            answer = await obstore.get_async(self._backend, checked_path(path))
            content = bytes(await answer.bytes_async())
            reading.payload_bytes = len(content)
            return content

    async def _pieces(self, digest: str, answer: GetResult) -> AsyncGenerator[bytes]:
        with self._errors(f"blob {digest}"), _GET.measured() as reading:
            async for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                reading.payload_bytes += len(piece)
                yield bytes(piece)

    async def _downloaded(self, digest: str, path: Path) -> Path:
        with _GET.measured() as reading, path.open("wb") as file:
            answer = await obstore.get_async(self._backend, blob_path(digest))
            async for piece in answer.stream(min_chunk_size=_PART_BYTES):
                reading.payload_bytes += await asyncio.to_thread(file.write, piece)
        return path

    def _linked(self, path: Path) -> tuple[str, int, bool]:
        """Digest and size of a file, and whether the store has it: a folder takes it by a link, where it can."""
        digest, size = digest_of_file(path), path.stat().st_size
        if self._root is None:
            return digest, size, False
        target = self._root / blob_path(digest)
        if target.is_file() and target.stat().st_size == size:
            return digest, size, True
        with _PUT.measured(size):
            return digest, size, link_file(path, target)

    async def _size(self, path: str) -> int | None:
        try:
            with self._errors(path):
                if self._root:  # takes a thousandth of what the backend's threads take to hand over the answer
                    return (self._root / path).stat().st_size
                return (await obstore.head_async(self._backend, path))["size"]
        except ObjectMissingError:
            return None

    async def _sync(self, paths: Sequence[str]) -> None:
        if self._root:
            with self._errors("a sync"):
                await asyncio.to_thread(sync_files, self._root, paths)
            return
        for path, size in zip(paths, await map_bounded(self._size, paths, _PARALLEL), strict=True):
            if size is None:
                raise ObjectMissingError(f"{path} is not in {self.url}; store it before it is committed")

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            name = f" ({error.filename})" if error.filename else ""
            raise ObjectMissingError(f"{what} is not in {self.url}{name}; it must be stored again") from None
        except (BaseError, OSError) as error:
            needs = "can be written to" if self._root else "runs and lets these credentials read and write"
            raise StorageError(
                f"object storage {self.url} failed on {what}: {first_line(error)}; check that it {needs} and has room, and try again"
            ) from error


def _part_bytes(size: int) -> int:
    return max(_PART_BYTES, -(-size // _MAX_PARTS))


def _folder(root: Path) -> LocalStore:
    try:
        return LocalStore(prefix=root, mkdir=True)
    except (BaseError, OSError) as error:
        raise SettingsError(f"cannot use the folder {root}: {first_line(error)}; set GRADBUS_OBJECTS_URL to a writable one") from None
