"""The loops of the codec, compiled by numba when this module is imported (see `loops`).

Weights are looked at 64 at a time, as a word of 64 bits: vector instructions compare them, and only the bits that are set are
visited. No loop over weights calls a function with its arrays: numba would count references to them at each call, by atomic
instructions that take longer than the work on a word. No loop holds the interpreter. The caller has checked the lengths of what comes
from a delta; indices computed from its content are checked here.

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
_cursor = types.UniTuple(types.int64, 4)


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
def _copy_lanes(typing: Any, old: Any, new: Any, begin: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        lanes = _lanes(context, builder, signature.args[0], given[0], given[2])
        place = builder.gep(context.make_array(signature.args[1])(context, builder, given[1]).data, [given[2]])
        builder.store(lanes, builder.bitcast(place, lanes.type.as_pointer()), align=1)

    return types.void(old, new, types.int64), build


@intrinsic
def _push_bits(typing: Any, numbers: Any, word: Any) -> Any:
    """Doubles 64 numbers, and adds to each a bit of the word."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        lanes = _lanes(context, builder, signature.args[0], given[0], ir.Constant(ir.IntType(64), 0))
        bits = builder.zext(builder.bitcast(given[1], ir.VectorType(ir.IntType(1), LANES)), lanes.type)
        place = context.make_array(signature.args[0])(context, builder, given[0]).data
        builder.store(builder.add(builder.add(lanes, lanes), bits), builder.bitcast(place, lanes.type.as_pointer()), align=1)

    return types.void(numbers, types.int64), build


@intrinsic
def _eight_bytes(typing: Any, content: Any, begin: Any) -> Any:
    """As a word, the lowest first on the little-endian machines that numba supports."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = builder.gep(context.make_array(signature.args[0])(context, builder, given[0]).data, [given[1]])
        return builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)

    return types.int64(content, types.int64), build


@intrinsic
def _count_bits(typing: Any, word: Any) -> Any:
    return types.int64(types.int64), lambda context, builder, signature, given: builder.ctpop(given[0])


@intrinsic
def _lowest_bit(typing: Any, word: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), build


@numba.njit(nogil=True)
def _write_planes(planes: Any, remainders: Any, width: int, stride: int, begin: int) -> None:
    for plane in range(width):
        word = ~_lanes_below(remainders, 0, 1 << width - 1 - plane, 1)
        for byte in range(min(8, stride - begin)):
            planes[plane * stride + begin + byte] = word >> 8 * byte & 255


@numba.njit(nogil=True)
def _quotient_bits(members: Any, width: int) -> int:
    bits, previous = 0, -1
    for member in members:
        bits += (member - previous - 1 >> width) + 1
        previous = member
    return bits


@numba.njit(nogil=True)
def _read_word(content: Any, begin: int, end: int) -> int:
    """The eight bytes from `begin`, or those before `end`, the lowest first."""
    if begin + 8 <= end:
        return _eight_bytes(content, begin)
    word = np.int64(0)
    for byte in range(end - begin):
        word |= np.int64(content[begin + byte]) << 8 * byte
    return word  # type: ignore[return-value]


@numba.njit(nogil=True)
def _read_planes(planes: Any, remainders: Any, width: int, stride: int, begin: int) -> None:
    remainders[:] = 0
    for plane in range(width):
        _push_bits(remainders, _read_word(planes, plane * stride + begin, (plane + 1) * stride))


@intrinsic
def _highest_bit(typing: Any, word: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        zeros = builder.ctlz(given[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 63), zeros)

    return types.int64(types.int64), build


@numba.njit(nogil=True)
def _set_places(words: Any) -> Any:
    """The places of the bits that are set.

    A branch for each word, or for each of its bits, would be mispredicted, and cost more than to write a place that the next one
    overwrites: each word's index, though it may be empty, and three places of each filled word, though it may have one.
    """
    filled = np.empty(len(words), np.int64)
    count = np.uint64(0)
    size = 0
    for index in range(len(words)):
        filled[count] = index
        count += np.uint64(words[index] != 0)
        size += _count_bits(words[index])
    places = np.empty(size + 2, np.int64)
    following = np.uint64(0)
    for index in filled[:count]:
        word, begin, count = words[np.uint64(index)], index << 6, following
        following += np.uint64(_count_bits(word))
        places[count] = begin + _lowest_bit(word)
        word &= word - 1
        places[count + np.uint64(1)] = begin + _lowest_bit(word)
        word &= word - 1
        places[count + np.uint64(2)] = begin + _lowest_bit(word)
        word &= word - 1
        while word:
            places[count + np.uint64(3)] = begin + _lowest_bit(word)
            word &= word - 1
            count += np.uint64(1)
    return places[:size]


@numba.njit(nogil=True)
def _ordered(bits: Any, width: int) -> int:
    """An integer that orders like the float: inverts all bits of a negative float, and the sign bit of any other."""
    value, top = np.int64(bits), np.int64(1) << width - 1
    return value ^ ((-(value >> width - 1) | top) & 2 * top - 1)  # type: ignore[return-value]


@numba.njit(nogil=True)
def _steps(old: Any, new: Any, places: Any) -> Any:
    """The steps from `old` to `new` at these places."""
    steps = np.empty(len(places), old.dtype)
    width = old.itemsize * 8
    for index in range(len(places)):
        place = np.uint64(places[index])
        steps[index] = _ordered(new[place], width) - _ordered(old[place], width)
    return steps


@numba.njit(nogil=True)
def _patch(new: Any, places: Any, steps: Any) -> None:
    width = new.itemsize * 8
    for index in range(len(places)):
        place = np.uint64(places[index])
        new[place] = _stepped(new[place], steps[index], width)


@numba.njit(nogil=True)
def _rank(words: Any, places: Any, seen: int) -> int:
    """Turns the places of bits that are set into their ranks among all of them, before which `seen` come; returns the next rank."""
    before = np.empty(len(words), np.int64)
    for index in range(len(words)):
        before[index] = seen
        seen += _count_bits(words[index])
    for index in range(len(places)):
        word, bit = np.uint64(places[index] >> 6), places[index] & 63
        places[index] = before[word] + _count_bits(words[word] & (np.int64(1) << bit) - 1)
    return seen


@numba.njit(nogil=True)
def _stepped(bits: Any, step: Any, width: int) -> int:
    """The float so many steps away. The inverse of `_ordered`, of whose result the lowest bits count."""
    top = np.int64(1) << width - 1
    value = _ordered(bits, width) + np.int64(step) & 2 * top - 1
    return value ^ (((value >> width - 1) - 1 | top) & 2 * top - 1)


@_for_weights(
    lambda of: types.Tuple((_places, _places, of[::1], of[::1], types.int64))(_given(of), _given(of), types.int64, types.int64, types.int64)
)
def compare(old: Any, new: Any, limit: int, begin: int, seen: int) -> Any:
    """See `Loops`, as for all functions here."""
    mask = (1 << old.itemsize * 8 - 1) - 1
    differing, small = np.zeros((2, len(old) + LANES - 1 >> 6), np.int64)
    for index in range(len(old) >> 6):
        differing[index] = _differing_lanes(old, new, index << 6)
        small[index] = _lanes_below(old, index << 6, mask, limit)
    for place in range(len(old) & -LANES, len(old)):
        differing[-1] |= np.int64(old[place] != new[place]) << (place & 63)
        small[-1] |= np.int64(np.int64(old[place]) & mask < limit) << (place & 63)
    large_places, small_places = _set_places(differing & ~small), _set_places(differing & small)
    large_steps, small_steps = _steps(old, new, large_places), _steps(old, new, small_places)
    seen = _rank(small, small_places, seen)
    large_places += begin
    return large_places, small_places, large_steps, small_steps, seen


@_for_weights(
    lambda of: _cursor(
        _given(of), types.Array(of, 1, "C", aligned=False), types.int64, types.UniTuple(_places, 2), types.UniTuple(of[::1], 2), _cursor
    )
)
def rebuild(old: Any, new: Any, limit: int, places: Any, steps: Any, cursor: Any) -> Any:
    """Lists all small elements, then looks them up."""
    begin, large, done, seen = cursor
    mask = (1 << old.itemsize * 8 - 1) - 1
    words = np.zeros(len(old) + LANES - 1 >> 6, np.int64)
    for index in range(len(old) >> 6):
        words[index] = _lanes_below(old, index << 6, mask, limit)
        _copy_lanes(old, new, index << 6)
    for place in range(len(old) & -LANES, len(old)):
        new[place] = old[place]
        words[-1] |= np.int64(np.int64(old[place]) & mask < limit) << (place & 63)
    small = _set_places(words)
    count = len(small)
    last, end = np.searchsorted(places[0], begin + len(old)), np.searchsorted(places[1], seen + count)
    _patch(new, places[0][large:last] - begin, steps[0][large:last])
    _patch(new, small[places[1][done:end] - seen], steps[1][done:end])
    return begin + len(old), last, end, seen + count


@_compiled(types.Tuple((_bytes, _bytes, types.int64))(_given_places, types.int64))
def write_gaps(members: Any, width: int) -> Any:
    """The remainders of 64 gaps make one word of each plane."""
    bits = _quotient_bits(members, width)
    stride = (len(members) + 7) // 8
    unary, planes = np.zeros(bits + 63 >> 6, np.int64), np.empty(width * stride, np.uint8)
    remainders = np.zeros(LANES, np.uint32)
    word, at, end, previous = 0, 0, -1, -1
    for index in range(len(members)):
        gap = members[index] - previous - 1
        previous = members[index]
        end += (gap >> width) + 1
        if end >> 6 != at:
            unary[np.uint64(at)] = word
            word, at = 0, end >> 6
        word |= np.int64(1) << (end & 63)
        remainders[np.uint64(index & 63)] = gap & (1 << width) - 1
        if index & 63 == 63 or index == len(members) - 1:
            _write_planes(planes, remainders, width, stride, index >> 6 << 3)
            remainders[:] = 0
    unary[at] = word
    return unary.view(np.uint8)[: (bits + 7) // 8], planes, bits


@_for_weights(lambda of: types.Tuple((_places, of[::1], _bytes))(of[::1], types.int64))
def longer(sizes: Any, level: int) -> Any:
    """Looks for them 64 at a time."""
    words = np.zeros(len(sizes) + LANES - 1 >> 6, np.int64)
    for index in range(len(sizes) >> 6):
        words[index] = ~_lanes_below(sizes, index << 6, -1, 1 << level)
    for place in range(len(sizes) & -LANES, len(sizes)):
        words[-1] |= np.int64(sizes[place] >> level != 0) << (place & 63)
    members = _set_places(words)
    kept, plane = np.empty(len(members), sizes.dtype), np.zeros((len(members) + 7) // 8, np.uint8)
    for index in range(len(members)):
        kept[index] = size = sizes[np.uint64(members[index])]
        plane[np.uint64(index >> 3)] |= (np.int64(size) >> _highest_bit(size) - level & 1) << (index & 7)
    return members, kept, plane


@_compiled(types.Tuple((_places, types.int64))(_given_bytes, _given_bytes, types.int64, types.int64, types.int64))
def read_gaps(unary: Any, planes: Any, count: int, width: int, bits: int) -> Any:
    """Lists the ends of the quotients, then adds up the remainders, 64 at a time."""
    words = np.zeros(bits + 63 >> 6, np.int64)
    for index in range(len(words)):
        words[index] = _read_word(unary, index << 3, len(unary))
    if bits & 63:
        words[-1] &= (np.int64(1) << (bits & 63)) - 1
    members = _set_places(words)
    if len(members) != count:
        return members, len(members)
    remainders = np.zeros(LANES, np.uint32)
    total = np.int64(0)
    for begin in range(0, count, LANES):
        _read_planes(planes, remainders, width, (count + 7) // 8, begin >> 3)
        for index in range(begin, min(begin + LANES, count)):
            total += np.int64(remainders[np.uint64(index - begin)])
            members[index] = (members[index] - index << width) + index + total
    return members, count


@_for_weights(lambda of: types.void(of[::1], _given_places, _given_bytes))
def lengthen(sizes: Any, members: Any, plane: Any) -> None:
    """One after another."""
    for index in range(len(members)):
        member = np.uint64(members[index])
        sizes[member] = 2 * sizes[member] + (plane[np.uint64(index >> 3)] >> (index & 7) & 1)


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
