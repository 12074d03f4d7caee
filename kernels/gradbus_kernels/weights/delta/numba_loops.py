"""The loops of the codec, compiled by numba when this module is imported (see `loops`).

Weights are looked at 64 at a time, as a word of 64 bits: vector instructions compare them, and only the bits that are set are
visited. No loop holds the interpreter. The caller has checked the lengths of what comes from a delta; indices computed from its
content are checked here.

The machine code is kept beside the source like Python's own, or in the user's cache folder (`NUMBA_CACHE_DIR` names another). Where
neither can be written, every process compiles for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 64

_places = types.Array(types.int64, 1, "C")
_bytes = types.Array(types.uint8, 1, "C")
_given_places = types.Array(types.int64, 1, "C", readonly=True)
_given_bytes = types.Array(types.uint8, 1, "C", readonly=True)


def _given(element: Any) -> Any:
    return types.Array(element, 1, "C", readonly=True, aligned=False)


def _compiled(*signatures: Any) -> Callable[[Callable[..., Any]], Any]:
    def compile_now(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(list(signatures), nogil=True, cache=True)(function)
        except Exception:  # noqa: BLE001 -- no folder to keep machine code in, a full disk, a damaged file: it is made anew
            return numba.njit(list(signatures), nogil=True)(function)

    return compile_now


def _for_weights(signature: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Any]:
    return _compiled(signature(types.uint16), signature(types.uint32))


def _lanes(context: Any, builder: Any, kind: Any, array: Any, begin: Any) -> Any:
    """Loads 64 elements, at any address."""
    vector = ir.VectorType(context.get_value_type(kind.dtype), LANES)
    place = builder.gep(context.make_array(kind)(context, builder, array).data, [begin])
    return builder.load(builder.bitcast(place, vector.as_pointer()), align=1)


def _repeated(builder: Any, value: Any) -> Any:
    empty = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))


@intrinsic
def _differing_lanes(typing: Any, old: Any, new: Any, begin: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        first, second = (_lanes(context, builder, kind, array, given[2]) for kind, array in zip(signature.args, given[:2], strict=False))
        return builder.bitcast(builder.icmp_unsigned("!=", first, second), ir.IntType(64))

    return types.int64(old, new, types.int64), build


@intrinsic
def _lanes_below(typing: Any, array: Any, begin: Any, mask: Any, limit: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        masked = builder.and_(_lanes(context, builder, signature.args[0], given[0], given[1]), _repeated(builder, given[2]))
        return builder.bitcast(builder.icmp_unsigned("<", masked, _repeated(builder, given[3])), ir.IntType(64))

    return types.int64(array, types.int64, array.dtype, array.dtype), build


@intrinsic
def _count_bits(typing: Any, word: Any) -> Any:
    return types.int64(types.int64), lambda context, builder, signature, given: builder.ctpop(given[0])


@intrinsic
def _lowest_bit(typing: Any, word: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), build


@numba.njit(nogil=True)
def _differing(old: Any, new: Any, begin: int) -> int:
    """A bit for each of the 64 elements from `begin`, or for those that there are."""
    if begin + LANES <= len(old):
        return _differing_lanes(old, new, begin)
    word = np.int64(0)
    for lane in range(len(old) - begin):
        if old[begin + lane] != new[begin + lane]:
            word |= np.int64(1) << lane
    return word  # type: ignore[return-value]


@numba.njit(nogil=True)
def _small(old: Any, begin: int, limit: int) -> int:
    mask = (1 << old.itemsize * 8 - 1) - 1
    if begin + LANES <= len(old):
        return _lanes_below(old, begin, mask, limit)
    word = np.int64(0)
    for lane in range(len(old) - begin):
        if np.int64(old[begin + lane]) & mask < limit:
            word |= np.int64(1) << lane
    return word  # type: ignore[return-value]


@numba.njit(nogil=True)
def _write_planes(planes: Any, remainders: Any, width: int, stride: int, begin: int) -> None:
    for plane in range(width):
        word = ~_lanes_below(remainders, 0, 1 << width - 1 - plane, 1)
        for byte in range(min(8, stride - begin)):
            planes[plane * stride + begin + byte] = word >> 8 * byte & 255


@numba.njit(nogil=True)
def _read_word(content: Any, begin: int, end: int) -> int:
    """The eight bytes from `begin`, or those before `end`, the lowest first."""
    word = np.int64(0)
    if begin + 8 <= end:
        for byte in range(8):
            word |= np.int64(content[begin + byte]) << 8 * byte
    else:
        for byte in range(end - begin):
            word |= np.int64(content[begin + byte]) << 8 * byte
    return word  # type: ignore[return-value]


@numba.njit(nogil=True)
def _read_planes(planes: Any, remainders: Any, width: int, stride: int, begin: int) -> None:
    remainders[:] = 0
    for plane in range(width):
        word = _read_word(planes, plane * stride + begin, (plane + 1) * stride)
        for lane in range(LANES):
            remainders[lane] = 2 * remainders[lane] + (word >> lane & 1)


@numba.njit(nogil=True)
def _list_bits(word: int, at: int, places: Any, count: int) -> int:
    """Lists the set bits of a word of weights; returns the new count.

    Two are written in any case, beyond the end of the list if there are none: a branch for each would be mispredicted, and cost more.
    """
    bits = _count_bits(word)
    places[count] = at + _lowest_bit(word)
    word &= word - 1
    places[count + 1] = at + _lowest_bit(word)
    for index in range(2, bits):
        word &= word - 1
        places[count + index] = at + _lowest_bit(word)
    return count + bits


@numba.njit(nogil=True)
def _ordered(bits: Any, width: int) -> int:
    """An integer that orders like the float: inverts all bits of a negative float, and the sign bit of any other."""
    value, top = np.int64(bits), np.int64(1) << width - 1
    return value ^ ((-(value >> width - 1) | top) & 2 * top - 1)  # type: ignore[return-value]


@numba.njit(nogil=True)
def _from_ordered(ordered: int, width: int) -> int:
    """The inverse of `_ordered`; of `ordered`, the lowest bits count."""
    top = np.int64(1) << width - 1
    value = ordered & 2 * top - 1
    return value ^ (((value >> width - 1) - 1 | top) & 2 * top - 1)  # type: ignore[return-value]


@_for_weights(lambda of: types.Tuple((_places, of[::1], of[::1]))(_given(of), _given(of), types.int64))
def changes(old: Any, new: Any, begin: int) -> Any:
    """See `Loops`, as for all functions here."""
    found = np.empty(len(old) + 2, np.int64)
    count = 0
    for at in range(0, len(old), LANES):
        count = _list_bits(_differing(old, new, at), at, found, count)
    places, before, after = np.empty(count, np.int64), np.empty(count, old.dtype), np.empty(count, old.dtype)
    for index in range(count):
        place = found[index]
        places[index], before[index], after[index] = begin + place, old[place], new[place]
    return places, before, after


@_for_weights(lambda of: types.Tuple((_places, _places, of[::1], of[::1]))(_given_places, of[::1], of[::1], types.int64))
def split(places: Any, before: Any, after: Any, limit: int) -> Any:
    """Writes each element to both lists and lets the wrong one forget it, so that there is no branch."""
    size = len(places) + 1
    large, small = np.empty(size, np.int64), np.empty(size, np.int64)
    large_steps, small_steps = np.empty(size, before.dtype), np.empty(size, before.dtype)
    width = before.itemsize * 8
    count = 0
    for index in range(len(places)):
        step = _ordered(after[index], width) - _ordered(before[index], width)
        large[index - count] = small[count] = places[index]
        large_steps[index - count] = small_steps[count] = step
        count += (np.int64(before[index]) & (1 << width - 1) - 1) < limit
    others = len(places) - count
    return large[:others].copy(), small[:count].copy(), large_steps[:others].copy(), small_steps[:count].copy()


@_for_weights(lambda of: types.Tuple((_places, types.int64))(_given(of), types.int64, _given_places))
def ranks(old: Any, limit: int, places: Any) -> Any:
    """Counts the small elements before each word, then before each place in its word."""
    words = np.empty((len(old) + 63) // LANES, np.int64)
    before = np.empty(len(words), np.int64)
    seen = 0
    for index in range(len(words)):
        words[index] = _small(old, index * LANES, limit)
        before[index] = seen
        seen += _count_bits(words[index])
    found = np.empty(len(places), np.int64)
    for index in range(len(places)):
        word, bit = places[index] >> 6, places[index] & 63
        found[index] = before[word] + _count_bits(words[word] & (np.int64(1) << bit) - 1)
    return found, seen


@_for_weights(lambda of: types.Tuple((_places, types.int64))(_given(of), types.int64, _given_places, types.int64, types.int64))
def locate(old: Any, limit: int, ranks: Any, seen: int, begin: int) -> Any:
    """Lists all small elements, then looks them up."""
    small = np.empty(len(old) + 2, np.int64)
    count = 0
    for at in range(0, len(old), LANES):
        count = _list_bits(_small(old, at, limit), at, small, count)
    inside = np.searchsorted(ranks, seen + count)
    places = np.empty(inside, np.int64)
    for index in range(inside):
        places[index] = begin + small[ranks[index] - seen]
    return places, count


@_for_weights(lambda of: types.void(types.Array(of, 1, "C", aligned=False), _given_places, of[::1]))
def patch(new: Any, places: Any, steps: Any) -> None:
    """One element after another."""
    width = new.itemsize * 8
    for index in range(len(places)):
        bits = _ordered(new[places[index]], width) + np.int64(steps[index])
        new[places[index]] = _from_ordered(bits, width)


@_compiled(types.Tuple((_bytes, _bytes, types.int64))(_given_places, types.int64))
def write_gaps(members: Any, width: int) -> Any:
    """The remainders of 64 gaps make one word of each plane."""
    bits, previous = 0, -1
    for member in members:
        bits += (member - previous - 1 >> width) + 1
        previous = member
    stride = (len(members) + 7) // 8
    unary, planes = np.zeros((bits + 7) // 8, np.uint8), np.empty(width * stride, np.uint8)
    remainders = np.zeros(LANES, np.uint32)
    end = previous = -1
    for index, member in enumerate(members):
        gap = member - previous - 1
        previous = member
        end += (gap >> width) + 1
        unary[end >> 3] |= 1 << (end & 7)
        remainders[index & 63] = gap & (1 << width) - 1
        if index & 63 == 63 or index == len(members) - 1:
            _write_planes(planes, remainders, width, stride, index >> 6 << 3)
            remainders[:] = 0
    return unary, planes, bits


@_compiled(types.Tuple((_places, types.int64))(_given_bytes, _given_bytes, types.int64, types.int64, types.int64))
def read_gaps(unary: Any, planes: Any, count: int, width: int, bits: int) -> Any:
    """Goes from one set bit of the quotients to the next."""
    members, remainders = np.zeros(count, np.int64), np.zeros(LANES, np.int64)
    stride = (count + 7) // 8
    found = total = 0
    for at in range(0, bits, 64):
        word = _read_word(unary, at >> 3, len(unary))
        if bits - at < 64:
            word &= (np.int64(1) << bits - at) - 1
        for _ in range(_count_bits(word)):
            if found < count:
                if found & 63 == 0:
                    _read_planes(planes, remainders, width, stride, found >> 3)
                total += remainders[found & 63]
                members[found] = (at + _lowest_bit(word) - found << width) + found + total
            found += 1
            word &= word - 1
    return members, found


@_compiled(_places(_given_places, types.int64))
def others(members: Any, size: int) -> Any:
    """Fills what lies between the members."""
    found = np.empty(size - len(members), np.int64)
    count = following = 0
    for place in range(size):
        if following < len(members) and members[following] == place:
            following += 1
        else:
            found[count] = place
            count += 1
    return found
