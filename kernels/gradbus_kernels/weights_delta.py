"""What changed between two versions of the weights, bit for bit, in little more than its entropy.

    delta = encode_delta(old, new)
    new = apply_delta(delta, old)

An RL step changes about one bf16 weight in a hundred, mostly by one unit in the last place. `weights_delta_chunk`
says how changes are coded. A tensor is coded in chunks; a chunk whose delta is no smaller than itself goes whole.

Layout, integers in LEB128 unless told: `GBWD`, one byte of format version, the checksum of all that follows, the
number of tensors; then for each, in order of name: name and dtype (length, UTF-8), number of dimensions, shape, digest
of the old and of the new tensor, and for each chunk its length and its content. Length 0: nothing changed; as long as
the chunk: the new elements; else a delta. Checksum and digests are XXH3-128, 16 bytes. They guard against accidents: the
wrong base, damage in transit, a fault in memory. Whoever writes a delta decides what it holds, so the caller
authenticates it as it does whole weights, by a digest of its bytes from a source it trusts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_128, xxh3_128_digest

from gradbus_kernels.weights_delta_bytes import DamagedDeltaError, DeltaError, Reader, Writer
from gradbus_kernels.weights_delta_chunk import Bits, FloatFormat, apply_chunk, encode_chunk

MAGIC: Final = b"GBWD"
VERSION: Final = 1
CHUNK: Final = 1 << 22
"""Elements of a chunk. Part of the format."""
DIGEST_BYTES: Final = 16
FORMATS: Final[Mapping[torch.dtype, FloatFormat]] = {
    torch.float32: FloatFormat("F32", 32, 23),
    torch.float16: FloatFormat("F16", 16, 10),
    torch.bfloat16: FloatFormat("BF16", 16, 7),
}


class WrongBaseError(DeltaError):
    """The tensors at hand are not the ones the delta starts from."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"the weights delta starts from another version ({fault}); apply it to that one, or fetch the whole version")


def encode_delta(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> bytes:
    """How `old` becomes `new`: the same names, shapes and dtypes (float32, float16, bfloat16), any device.

    Raises DeltaError where the two do not match or a dtype is not supported.
    """
    if old.keys() != new.keys():
        raise DeltaError(f"tensors {sorted(old.keys() ^ new.keys())} are in one version only; publish the whole version")
    out = Writer()
    out.number(len(old))
    for name in sorted(old):
        _write_tensor(out, name, old[name], new[name])
    body = out.done()
    return b"".join([MAGIC, bytes([VERSION]), xxh3_128_digest(body), body])


def apply_delta(delta: bytes | memoryview, old: Mapping[str, Tensor], into: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The new version, on the CPU; `old` is left as it is.

    `into` gives memory to reuse: contiguous CPU tensors of the same names, shapes and dtypes that share none with `old`.
    Raises WrongBaseError if `old` is not the version the delta was made from, DamagedDeltaError if the delta is not as
    it was written. After an error the contents of `into` must not be used.
    """
    source = _open(delta)
    count = source.number(source.left)
    if count != len(old):
        raise WrongBaseError(f"it was made from {count} tensors, here are {len(old)}")
    new = {name: _read_tensor(source, name, old[name], _target(name, old[name], into)) for name in sorted(old)}
    if source.left:
        raise DamagedDeltaError(f"{source.left} bytes are left over")
    return new


def tensor_digest(name: str, tensor: Tensor) -> bytes:
    """XXH3-128 over name, dtype, shape (as a delta spells them) and the elements in row-major order."""
    return _digest(_header(name, tensor), _bits(tensor))


def _digest(header: bytes, bits: Bits) -> bytes:
    digest = xxh3_128(header)
    digest.update(bits.data)
    return digest.digest()


def _write_tensor(out: Writer, name: str, old: Tensor, new: Tensor) -> None:
    header = _header(name, old)
    if header != _header(name, new):
        raise DeltaError(f"tensor {name} has another shape or dtype in the new version; publish the whole version")
    before, after = _bits(old), _bits(new)
    for part in (header, _digest(header, before), _digest(header, after)):
        out.raw(part)
    for chunk in _chunks(before):
        content = encode_chunk(before[chunk], after[chunk], FORMATS[old.dtype])
        whole = after[chunk].tobytes() if len(content) >= after[chunk].nbytes else content
        out.number(len(whole))
        out.raw(whole)


def _read_tensor(source: Reader, name: str, old: Tensor, new: Tensor) -> Tensor:
    header = _header(name, old)
    if not source.accept(header):
        raise WrongBaseError(f"it does not name tensor {name}, {old.dtype} of shape {list(old.shape)}, where that stands")
    before, after = _bits(old), _bits(new)
    digests = bytes(source.raw(DIGEST_BYTES)), bytes(source.raw(DIGEST_BYTES))
    if _digest(header, before) != digests[0]:
        raise WrongBaseError(f"tensor {name} has other elements")
    for chunk in _chunks(before):
        content = source.raw(source.number(before[chunk].nbytes))
        _read_chunk(content, before[chunk], after[chunk], FORMATS[old.dtype])
    if _digest(header, after) != digests[1]:
        raise DamagedDeltaError(f"tensor {name} comes out with other elements")
    return new


def _read_chunk(content: memoryview, old: Bits, new: Bits, form: FloatFormat) -> None:
    if len(content) == new.nbytes:
        np.copyto(new, np.frombuffer(content, new.dtype))
        return
    np.copyto(new, old)
    if len(content):
        apply_chunk(content, old, new, form)


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


def _target(name: str, old: Tensor, into: Mapping[str, Tensor] | None) -> Tensor:
    if into is None:
        return torch.empty(old.shape, dtype=old.dtype)
    given = into.get(name)
    if given is None or given.dtype != old.dtype or given.shape != old.shape or not given.is_contiguous() or given.is_cuda:
        raise DeltaError(f"`into` has no contiguous CPU tensor {name} of the old one's shape and dtype; allocate it so")
    if given.numel() and given.untyped_storage().data_ptr() == old.untyped_storage().data_ptr():
        raise DeltaError(f"`into` and `old` share the memory of tensor {name}; give memory of its own")
    return given


def _header(name: str, tensor: Tensor) -> bytes:
    form = FORMATS.get(tensor.dtype)
    if form is None:
        raise DeltaError(f"tensor {name} is {tensor.dtype}; a delta takes {', '.join(map(str, FORMATS))}; publish the whole version")
    out = Writer()
    for text in (name, form.name):
        out.number(len(text.encode()))
        out.raw(text.encode())
    for number in (tensor.dim(), *tensor.shape):
        out.number(number)
    return out.done()


def _bits(tensor: Tensor) -> Bits:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    width = FORMATS[tensor.dtype].width
    return flat.view(torch.int32 if width == 32 else torch.int16).numpy().view(f"u{width // 8}")


def _chunks(bits: Bits) -> Iterator[slice]:
    return (slice(begin, begin + CHUNK) for begin in range(0, len(bits), CHUNK))
