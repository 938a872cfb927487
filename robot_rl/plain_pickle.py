"""Pickles of arrays, read without executing anything of the file: the one list of what may be built."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

_GLOBALS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("collections", "OrderedDict"),
    ("_codecs", "encode"),  # how protocol 2 writes bytes
}


class ArrayUnpickler(pickle.Unpickler):
    """Builds arrays, dtypes, scalars and built-in containers; every other global goes to `other`."""

    def find_class(self, module: str, name: str) -> Any:
        """What a global of the file stands for."""
        if (module, name) not in _GLOBALS:
            return self.other(module, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy.core was renamed in NumPy 2
            return super().find_class(module, name)

    def other(self, module: str, name: str) -> Any:
        """Refuse it; a subclass may give a class that does nothing instead.

        Raises:
            pickle.UnpicklingError: always; its text is the global.
        """
        raise pickle.UnpicklingError(f"{module}.{name}")
