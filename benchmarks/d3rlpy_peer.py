"""d3rlpy, which several benchmarks measure beside us, without what it imports and they do not need."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


def peer() -> Any:
    """d3rlpy, or None where it cannot be imported.

    It imports scikit-learn for a method that is not measured here; where that is missing an empty stand-in is enough.
    """
    if "d3rlpy" in sys.modules:
        return sys.modules["d3rlpy"]
    borrowed: list[str] = []
    try:
        importlib.import_module("sklearn.neighbors")
    except ImportError:
        outer, inner = types.ModuleType("sklearn"), types.ModuleType("sklearn.neighbors")
        setattr(inner, "NearestNeighbors", lambda **_: None)  # noqa: B010  (a module has no such attribute to type)
        sys.modules["sklearn"], sys.modules["sklearn.neighbors"] = outer, inner
        borrowed = ["sklearn", "sklearn.neighbors"]
    try:
        return importlib.import_module("d3rlpy")
    except ImportError:
        return None
    finally:
        for name in borrowed:
            del sys.modules[name]
