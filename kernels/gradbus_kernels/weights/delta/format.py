"""The bytes of a weight delta, for `api` (torch tensors) and `file` (files). No torch here.

A tensor is coded in chunks by `chunk`; a chunk whose delta is not smaller than its elements is stored whole.

Layout, integers in LEB128 unless stated: `GBWD`, one byte of format version, the checksum of the rest, the number of tensors; then
for each tensor, in order of name: name and dtype (length, UTF-8), number of dimensions, shape, digest of the old and of the new
tensor, and for each chunk its length and its content. Length 0: no change; the length of the chunk: the new elements; otherwise a
delta. Checksum and digests are XXH3-128, 16 bytes. They detect accidents: a wrong base, damage in transit, a memory fault. They do
not authenticate the writer of a delta; the caller checks a digest of the bytes from a trusted source, as it does for whole weights.

Threads encode and apply, each a tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np
from xxhash import xxh3_128, xxh3_128_digest

from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, DeltaError, Reader, Writer
from gradbus_kernels.weights.delta.chunk import FloatFormat, Visit, apply_chunk, blocks, encode_chunk
from gradbus_kernels.weights.delta.loops import Bits, Loops, loops_for
from gradbus_kernels.weights.threads import submit

MAGIC: Final = b"GBWD"
VERSION: Final = 2
CHUNK: Final = 1 << 22
"""Elements of a chunk. Part of the format."""
DIGEST_BYTES: Final = 16
FORMATS: Final[Mapping[str, FloatFormat]] = {
    form.name: form for form in (FloatFormat("F32", 32, 23), FloatFormat("F16", 16, 10), FloatFormat("BF16", 16, 7))
}
"""Supported formats, by safetensors' names."""


_Result = TypeVar("_Result")


class FlatTensor(NamedTuple):
    """A tensor as its bits."""

    form: FloatFormat
    shape: tuple[int, ...]
    bits: Bits
    """All elements in row-major order."""


class WrongBaseError(DeltaError):
    """The given tensors are not the base of the delta."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"the weights delta starts from another version ({fault}); apply it to that one, or fetch the whole version")


def encode_tensors(old: Mapping[str, FlatTensor], new: Mapping[str, FlatTensor], loops: Loops | None = None) -> bytes:
    """The delta from `old` to `new`, the same by any `loops`. Raises DeltaError where names, shapes or formats do not match."""
    if old.keys() != new.keys():
        raise DeltaError(f"tensors {sorted(old.keys() ^ new.keys())} are in one version only; publish the whole version")
    loops = loops or _loops(old)
    out = Writer()
    out.number(len(old))
    for written in _each(old, lambda name: _written(name, old[name], new[name], loops)):
        out.append(written)
    body = out.done()
    return b"".join([MAGIC, bytes([VERSION]), xxh3_128_digest(body), body])


def apply_tensors(
    delta: bytes | memoryview, old: Mapping[str, FlatTensor], new: Mapping[str, FlatTensor], loops: Loops | None = None
) -> None:
    """Fills `new`, of the same names, shapes and formats as `old` and in memory of its own. Raises as `apply_delta` does."""
    loops = loops or _loops(old)
    source = _open(delta)
    count = source.number(source.left)
    if count != len(old):
        raise WrongBaseError(f"it was made from {count} tensors, here are {len(old)}")
    parts, fault = _parts(source, old)
    _each({name: old[name] for name in parts}, lambda name: _apply(name, parts[name], old[name], new[name], loops))
    if fault:
        raise fault
    if source.left:
        raise DamagedDeltaError(f"{source.left} bytes are left over")


def flat_digest(name: str, tensor: FlatTensor) -> bytes:
    """XXH3-128 over name, dtype, shape (as a delta spells them) and the elements in row-major order."""
    return _digest(_header(name, tensor), tensor.bits)


def _loops(tensors: Mapping[str, FlatTensor]) -> Loops:
    return loops_for(sum(tensor.bits.nbytes for tensor in tensors.values()))


def _digest(header: bytes, bits: Bits) -> bytes:
    digest = xxh3_128(header)
    digest.update(bits.data)
    return digest.digest()


def _each(tensors: Mapping[str, FlatTensor], work: Callable[[str], _Result]) -> list[_Result]:
    """Has `work` done on each tensor by threads, the largest first. Results in order of name, of which the first error is raised."""
    by_size = sorted(tensors, key=lambda name: -tensors[name].bits.nbytes)
    begun = {name: submit(partial(work, name), tensors[name].bits.nbytes) for name in by_size}
    try:
        return [begun[name].result() for name in sorted(tensors)]
    finally:
        for future in begun.values():
            future.cancel()
        wait(begun.values())  # after an error too: they write into the caller's memory


def _written(name: str, old: FlatTensor, new: FlatTensor, loops: Loops) -> Writer:
    header = _header(name, old)
    if header != _header(name, new):
        raise DeltaError(f"tensor {name} has another shape or dtype in the new version; publish the whole version")
    digests = xxh3_128(header), xxh3_128(header)
    body = Writer()
    for chunk in _chunks(old.bits):
        before, after = old.bits[chunk], new.bits[chunk]
        content = encode_chunk(before, after, old.form, loops, _added(digests, before, after))
        whole = after.tobytes() if len(content) >= after.nbytes else content
        body.number(len(whole))
        body.raw(whole)
    out = Writer()
    for part in (header, *(digest.digest() for digest in digests)):
        out.raw(part)
    out.append(body)
    return out


class _Part(NamedTuple):
    """What a delta has of one tensor."""

    digests: tuple[bytes, bytes]
    """Of the old and the new tensor."""
    chunks: list[memoryview]
    damage: DamagedDeltaError | None
    """What ended the reading of the chunks too early."""


def _parts(source: Reader, old: Mapping[str, FlatTensor]) -> tuple[dict[str, _Part], DeltaError | None]:
    """The parts by name, and what is wrong after them."""
    parts: dict[str, _Part] = {}
    try:
        for name in sorted(old):
            parts[name] = _part(source, name, old[name])
            if parts[name].damage:
                break  # its own error, once its base is known to be right
    except DeltaError as error:
        return parts, error
    return parts, None


def _part(source: Reader, name: str, old: FlatTensor) -> _Part:
    if not source.accept(_header(name, old)):
        raise WrongBaseError(f"it does not name tensor {name}, {old.form.name} of shape {list(old.shape)}, where that stands")
    digests = bytes(source.raw(DIGEST_BYTES)), bytes(source.raw(DIGEST_BYTES))
    contents: list[memoryview] = []
    try:
        contents.extend(source.raw(source.number(old.bits[chunk].nbytes)) for chunk in _chunks(old.bits))
    except DamagedDeltaError as error:
        return _Part(digests, contents, error)
    return _Part(digests, contents, None)


def _apply(name: str, part: _Part, old: FlatTensor, new: FlatTensor, loops: Loops) -> None:
    header = _header(name, old)
    digests = xxh3_128(header), xxh3_128(header)
    damage = part.damage
    try:
        for chunk, content in zip(_chunks(old.bits), part.chunks, strict=False):
            before, after = old.bits[chunk], new.bits[chunk]
            _read_chunk(content, before, after, old.form, loops, _added(digests, before, after))
    except DamagedDeltaError as error:
        damage = error
    if (_digest(header, old.bits) if damage else digests[0].digest()) != part.digests[0]:
        raise WrongBaseError(f"tensor {name} has other elements")
    if damage:
        raise damage
    if digests[1].digest() != part.digests[1]:
        raise DamagedDeltaError(f"tensor {name} comes out with other elements")


def _added(digests: tuple[xxh3_128, xxh3_128], old: Bits, new: Bits) -> Visit:
    """Adds a block to both digests."""

    def add(block: slice) -> None:
        for digest, bits in zip(digests, (old, new), strict=True):
            digest.update(bits[block].data)

    return add


def _header(name: str, tensor: FlatTensor) -> bytes:
    out = Writer()
    for text in (name, tensor.form.name):
        out.number(len(text.encode()))
        out.raw(text.encode())
    for number in (len(tensor.shape), *tensor.shape):
        out.number(number)
    return out.done()


def _read_chunk(content: memoryview, old: Bits, new: Bits, form: FloatFormat, loops: Loops, visit: Visit) -> None:
    if content and len(content) != new.nbytes:
        apply_chunk(content, old, new, form, loops, visit)
        return
    given = np.frombuffer(content, new.dtype) if content else old
    for block in blocks(new):
        np.copyto(new[block], given[block])
        visit(block)


def _open(delta: bytes | memoryview) -> Reader:
    source = Reader(delta)
    if not source.accept(MAGIC):
        raise DamagedDeltaError("it does not begin as one")
    version = source.raw(1)[0]
    if version != VERSION:
        raise DeltaError(f"the weights delta has format {version}, this build reads {VERSION}; install one build everywhere")
    checksum = source.raw(DIGEST_BYTES)
    body = source.raw(source.left)
    if xxh3_128_digest(body) != checksum:
        raise DamagedDeltaError("its checksum does not match")
    return Reader(body)


def _chunks(bits: Bits) -> Iterator[slice]:
    return (slice(begin, begin + CHUNK) for begin in range(0, len(bits), CHUNK))
