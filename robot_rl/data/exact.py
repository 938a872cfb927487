"""Plain values as bytes and back, bit for bit: what a flight recorder keeps.

A value is one letter and what it needs: `N` none, `T` and `F` truth, `i` a whole number as text, `f` eight bytes of a
float64, `s` text, `b` bytes, `a` an array (letter of its dtype, shape, bytes in C order), `t` a tuple or list, `d` a
mapping, `?` something that has no place here. Lengths are four bytes, little-endian. A dataclass is the tuple of its
fields. Nothing is executed when bytes are read, and nothing is allocated beyond their own size.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

DTYPES = "?bBhHiIlLqQefd"
"""Letters of the array types that are kept."""
DEPTH = 16
"""Values may lie in one another so deep."""
_LENGTH = struct.Struct("<I")
_FLOAT = struct.Struct("<d")


class Unreadable(ValueError):
    """Bytes that are no value."""


class Garbage:
    """Stands for something that could not be kept, such as an object handed over by mistake; it is no number.

    Args:
        text: what it looked like.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __float__(self) -> float:
        """Refused, as the original was."""
        raise TypeError(f"no number: {self.text}")

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        """Refused, as the original was."""
        raise TypeError(f"no array: {self.text}")


def pack(value: object) -> bytes:
    """The bytes of a value; never raises for what a caller may have handed over by mistake."""
    found: list[bytes] = []
    _pack(value, found.append, 0)
    return b"".join(found)


def unpack(data: bytes | memoryview) -> Any:
    """The value of some bytes; tuples and lists are tuples, dataclasses the tuples of their fields.

    Raises:
        Unreadable: they are no value, or hold more than one.
    """
    value, at = _unpack(memoryview(data), 0, 0)
    if at != len(data):
        raise Unreadable(f"{len(data) - at} bytes stand behind the value")
    return value


@cache
def _reader(kind: type) -> Callable[[Any], tuple[object, ...]] | None:
    """Fields of a dataclass or named tuple, or None of another class."""
    if issubclass(kind, tuple):
        return tuple
    if not is_dataclass(kind):
        return None
    names = [item.name for item in fields(kind)]
    read = attrgetter(*names)
    return read if len(names) > 1 else lambda value: (read(value),)


def _add_sized(letter: bytes, content: bytes, add: Callable[[bytes], None]) -> None:
    add(letter + _LENGTH.pack(len(content)))
    add(content)


@cache
def _array_head(letter: str, shape: tuple[int, ...]) -> bytes:
    return b"a" + letter.encode() + bytes([len(shape)]) + struct.pack(f"<{len(shape)}I", *shape)


@lru_cache(4096)
def _word(value: str) -> bytes:
    """Names and reasons come again and again."""
    content = value.encode("utf-8", "surrogatepass")
    return b"s" + _LENGTH.pack(len(content)) + content


def _pack_text(value: str, add: Callable[[bytes], None], depth: int) -> None:
    add(_word(value) if len(value) < 64 else _word.__wrapped__(value))


def _pack_int(value: int, add: Callable[[bytes], None], depth: int) -> None:
    if abs(value) < 1 << 127:
        _add_sized(b"i", b"%d" % value, add)
    else:
        _add_sized(b"?", b"int", add)


def _pack_array(value: np.ndarray | np.generic, add: Callable[[bytes], None], depth: int) -> None:
    kind = value.dtype
    if kind.char not in DTYPES or value.ndim > 8:
        _add_sized(b"?", type(value).__name__.encode(), add)
        return
    if not kind.isnative or sys.byteorder != "little":
        value = value.astype(kind.newbyteorder("<"))
    add(_array_head(kind.char, value.shape))
    add(value.tobytes())


def _pack_items(value: tuple[object, ...] | list[object], add: Callable[[bytes], None], depth: int) -> None:
    add(b"t" + _LENGTH.pack(len(value)))
    for item in value:
        _pack(item, add, depth + 1)


def _pack_table(value: dict[object, object], add: Callable[[bytes], None], depth: int) -> None:
    add(b"d" + _LENGTH.pack(len(value)))
    for key, item in value.items():
        _pack_text(str(key), add, depth)
        _pack(item, add, depth + 1)


_BY_TYPE: dict[type, Callable[[Any, Callable[[bytes], None], int], None]] = {
    type(None): lambda value, add, depth: add(b"N"),
    bool: lambda value, add, depth: add(b"T" if value else b"F"),
    np.bool_: lambda value, add, depth: add(b"T" if value else b"F"),
    float: lambda value, add, depth: add(b"f" + _FLOAT.pack(value)),
    str: _pack_text,
    int: _pack_int,
    np.ndarray: _pack_array,
    np.generic: _pack_array,
    tuple: _pack_items,
    list: _pack_items,
    dict: _pack_table,
    bytes: lambda value, add, depth: _add_sized(b"b", value, add),
    Garbage: lambda value, add, depth: _add_sized(b"?", value.text.encode(), add),
}
"""The usual ones come by their very type; subclasses are looked for in this order."""


def _pack(value: object, add: Callable[[bytes], None], depth: int) -> None:
    if depth > DEPTH:
        _add_sized(b"?", b"deeper than is kept", add)
    elif (usual := _BY_TYPE.get(type(value))) is not None:
        usual(value, add, depth)
    elif (read := _reader(type(value))) is not None:
        _pack_items(read(value), add, depth)
    else:
        found = next((how for kind, how in _BY_TYPE.items() if isinstance(value, kind)), None)
        if found is None:
            _add_sized(b"?", type(value).__name__.encode(), add)
        else:
            found(value, add, depth)


def _take(data: memoryview, at: int, size: int) -> tuple[memoryview, int]:
    if at + size > len(data):
        raise Unreadable(f"the value ends after {len(data)} bytes, and {at + size} are needed")
    return data[at : at + size], at + size


def _length(data: memoryview, at: int) -> tuple[int, int]:
    raw, at = _take(data, at, 4)
    return _LENGTH.unpack(raw)[0], at


def _unpack(data: memoryview, at: int, depth: int) -> tuple[Any, int]:
    raw, at = _take(data, at, 1)
    letter = chr(raw[0])
    if letter in "NTF":
        return {"N": None, "T": True, "F": False}[letter], at
    if letter == "f":
        raw, at = _take(data, at, 8)
        return _FLOAT.unpack(raw)[0], at
    if letter == "a":
        return _array(data, at)
    count, at = _length(data, at)
    if letter in "sib?":
        raw, at = _take(data, at, count)
        return _scalar(letter, bytes(raw)), at
    if letter not in "td":
        raise Unreadable(f"{letter!r} begins no value")
    if depth > DEPTH or count > len(data) - at:  # every value is a byte at least
        raise Unreadable(f"{count} values, {depth} deep, in {len(data) - at} bytes")
    items = []
    for _ in range(count if letter == "t" else 2 * count):
        item, at = _unpack(data, at, depth + 1)
        items.append(item)
    if letter == "t":
        return tuple(items), at
    if not all(isinstance(key, str) for key in items[::2]):
        raise Unreadable("a mapping whose keys are no texts")
    return dict(zip(items[::2], items[1::2])), at


def _scalar(letter: str, raw: bytes) -> Any:
    try:
        if letter == "i":
            if len(raw) > 40:
                raise Unreadable(f"a whole number of {len(raw)} digits")
            return int(raw)
        text = raw if letter == "b" else raw.decode("utf-8", "surrogatepass")
    except ValueError as error:
        raise Unreadable(f"{letter!r} holds {raw[:40]!r}") from error
    return Garbage(str(text)) if letter == "?" else text


def _array(data: memoryview, at: int) -> tuple[np.ndarray, int]:
    raw, at = _take(data, at, 2)
    letter, axes = chr(raw[0]), raw[1]
    if letter not in DTYPES or axes > 8:
        raise Unreadable(f"an array of dtype {letter!r} with {axes} axes")
    raw, at = _take(data, at, 4 * axes)
    shape = struct.unpack(f"<{axes}I", raw)
    kind, size = np.dtype(letter).newbyteorder("<"), 1
    for length in shape:
        size *= length
    raw, at = _take(data, at, size * kind.itemsize)
    return np.frombuffer(raw, kind).reshape(shape), at
