"""Pickles of arrays, read without executing anything of the file: the one list of what may be built.

Arrays are built here and not by NumPy's own `__setstate__`, which believes what a file says of shapes, fields and
offsets. Before anything is built the opcodes are read once: a length that exceeds the file, or a place in the memo
beyond what the file can have stored, is refused, because the unpickler would allocate it.
"""

from __future__ import annotations

import mmap
import pickle
import pickletools
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

_CORE = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
BROKEN = (
    pickle.UnpicklingError, EOFError, ValueError, AttributeError, ImportError, LookupError, TypeError, MemoryError,
    OverflowError, RecursionError,
)  # fmt: skip
"""What a damaged or hostile pickle raises."""


class NotPlain(pickle.UnpicklingError):
    """The file asks for a class or function that is neither an array nor a plain container; the text is its name."""


class Inert:
    """Stands for any object of a file: takes what it is given, keeps attributes, does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update({key: value for key, value in state.items() if isinstance(key, str)})


class ArrayUnpickler(pickle.Unpickler):
    """Builds arrays, scalars and built-in containers; every other global goes to `other`."""

    def find_class(self, module: str, name: str) -> Any:
        """What a global of the file stands for."""
        if (module, name) == ("numpy", "ndarray"):
            return "ndarray"  # nothing that could be called: arrays come from _reconstruct and _frombuffer only
        if (module, name) == ("numpy", "dtype"):
            return _Kind
        if module in _CORE and name in ("_reconstruct", "scalar"):
            return _Array if name == "_reconstruct" else _scalar
        if module in _NUMERIC and name == "_frombuffer":
            return _from_buffer
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("_codecs", "encode"):
            return _encode  # how protocol 2 writes bytes
        if (module, name) in (("__builtin__", "bytes"), ("builtins", "bytes")):
            return _nothing  # ... and none at all
        return self.other(module, name)

    def other(self, module: str, name: str) -> Any:
        """Refuse it; a subclass may give `Inert` instead.

        Raises:
            NotPlain: always.
        """
        raise NotPlain(f"{module}.{name}")


def load(path: Path, kind: type[ArrayUnpickler] = ArrayUnpickler) -> Any:
    """Content of a pickle; the arrays in it are real ones.

    Args:
        path: the file.
        kind: what becomes of other classes.

    Raises:
        OSError: it cannot be opened.
        NotPlain: it asks for something else than arrays and containers.
        pickle.UnpicklingError: or another of `BROKEN`: it is damaged or claims more than it holds.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _check(data)
        data.seek(0)
        return arrays_of(kind(data, encoding="latin1").load())


def arrays_of(value: object, _done: dict[int, object] | None = None, _depth: int = 0) -> Any:
    """Plain containers with every array in them made real; an array that is there twice stays one."""
    done = {} if _done is None else _done
    if _depth > 100:
        raise pickle.UnpicklingError("containers lie in one another more than 100 deep")
    if id(value) in done:
        return done[id(value)]
    found = value
    if isinstance(value, (_Array, _Kind)):
        found = value.real()
    elif isinstance(value, dict):
        found = {key: arrays_of(item, done, _depth + 1) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        found = type(value)(arrays_of(item, done, _depth + 1) for item in value)
    elif isinstance(value, Inert):
        done[id(value)] = value
        for key, item in vars(value).items():
            value.__dict__[key] = arrays_of(item, done, _depth + 1)
    done[id(value)] = found
    return found


def _check(data: mmap.mmap) -> None:
    """Every length lies within the file, every place of the memo within what can have been stored."""
    opcodes: Any = pickletools.genops(data)  # pyright: ignore[reportArgumentType]  (it reads, as a file does)
    for count, (opcode, claim, position) in enumerate(opcodes, 1):
        if opcode.name == "FRAME" and claim > len(data) - (position or 0):
            raise pickle.UnpicklingError(f"a frame claims {claim:,} bytes, the file has {len(data):,}")
        if "PUT" in opcode.name and int(claim) > count:
            raise pickle.UnpicklingError(f"the memo is written at {int(claim):,} after {count:,} instructions")


class _Kind:
    """A number type, from "f8" and the byte order that the state adds; nothing else of a dtype is taken over."""

    def __init__(self, name: object, *_: object) -> None:
        self._name, self._order = name, "="

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or any(item is not None for item in state[2:5]):
            raise pickle.UnpicklingError("an array has fields or parts of its own, expected plain numbers")
        self._order = str(state[1])

    def real(self) -> np.dtype:
        if not isinstance(self._name, str) or len(self._name) > 8 or self._order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError(f"{self._name!r} is no type of numbers")
        kind = np.dtype(self._name).newbyteorder("=" if self._order == "|" else self._order)
        if kind.kind not in "biufcSU" or not 0 < kind.itemsize <= 4096:
            raise pickle.UnpicklingError(f"an array is of {kind}, expected numbers")
        return kind


class _Array:
    """An array before its state is there."""

    def __init__(self, *_: object) -> None:
        self._state: Any = None

    def __setstate__(self, state: object) -> None:
        self._state = state

    def real(self) -> np.ndarray:
        if self._state is None:
            raise pickle.UnpicklingError("an array has no content")
        _, shape, kind, fortran, raw = self._state
        if isinstance(kind, _Kind) and kind._name == "O8" and isinstance(raw, list):
            raise pickle.UnpicklingError("an array holds Python objects, expected numbers")
        return _from_buffer(raw, kind, shape, "F" if fortran else "C").real()


class _Made(_Array):
    """An array that is there already; what else the file wants to do to it is refused."""

    def __init__(self, value: np.ndarray) -> None:
        self._value = value

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("an array is given its content twice")

    def real(self) -> np.ndarray:
        return self._value


def _from_buffer(raw: object, kind: object, shape: Any, order: object = "C", axes: Any = None) -> _Made:
    if not isinstance(kind, _Kind) or not isinstance(raw, (bytes, bytearray, str)):
        raise pickle.UnpicklingError("an array's content is no bytes of a known type")
    data = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 wrote them as text
    sizes = tuple(int(n) for n in shape)
    flat = np.frombuffer(bytearray(data), kind.real())
    made = flat.reshape(sizes, order="F" if order == "F" else "C")
    return _Made(made if axes is None else made.transpose([int(axis) for axis in axes]))  # NumPy 2.3: order "K"


def _scalar(kind: object, raw: object = None) -> Any:
    if not isinstance(raw, (bytes, str)):
        raise pickle.UnpicklingError("a number without content")
    return _from_buffer(raw, kind, (1,)).real()[0]


def _encode(text: object, encoding: object = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}, expected latin1")
    return text.encode("latin1")


def _nothing() -> bytes:
    return b""
