"""Files of meshes: which are read, and the triangles of those that MuJoCo does not read itself."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from robot_rl.extras import find_fault

_PLAIN = (".obj", ".msh")
"""Forms that MuJoCo reads, beside STL in bytes."""
_FACES = 200_000
"""The most faces of an STL that it reads."""


def is_readable(mesh: Path) -> bool:
    """Whether MuJoCo reads it, or `triangles`."""
    kind = mesh.suffix.lower()
    if kind == ".dae":
        return not find_fault("collada") and _collada(mesh, mesh.stat().st_mtime_ns) is not None
    if kind != ".stl":
        return kind in _PLAIN
    with mesh.open("rb") as stream:
        head = stream.read(84)
    count = int.from_bytes(head[80:], "little")
    if mesh.stat().st_size != 84 + 50 * count:  # one in words, cut off, or what Git LFS leaves in its place
        return head.lstrip().startswith(b"solid")
    return 0 < count <= _FACES


def triangles(mesh: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Corners (N, 3) and faces (M, 3) of a COLLADA file or of an STL in words; None for what MuJoCo reads itself."""
    if mesh.suffix.lower() == ".dae":
        return _collada(mesh, mesh.stat().st_mtime_ns)
    data = mesh.read_bytes()
    count = int.from_bytes(data[80:84], "little")
    if mesh.suffix.lower() != ".stl" or len(data) == 84 + 50 * count or not data.lstrip().startswith(b"solid"):
        return None
    corners = np.array([line.split()[1:4] for line in data.splitlines() if line.split()[:1] == [b"vertex"]], float)
    return corners, np.arange(len(corners)).reshape(-1, 3)


@lru_cache(maxsize=128)
def _collada(path: Path, _written: int) -> tuple[np.ndarray, np.ndarray] | None:
    """In metres, its nodes put where they belong; its up axis does not count, as in RViz. None: broken, or empty."""
    import collada
    from collada.common import DaeBrokenRefError, DaeError, DaeUnsupportedError
    from collada.polylist import BoundPolylist
    from collada.triangleset import BoundTriangleSet

    try:
        read = collada.Collada(str(path), ignore=[DaeUnsupportedError, DaeBrokenRefError])
        shapes = [] if read.scene is None else list(read.scene.objects("geometry"))
        parts = [part for shape in shapes for part in shape.primitives()]
    except (DaeError, ValueError, KeyError, IndexError):  # as it raises at files that are cut off
        return None
    parts = [part.triangleset() if isinstance(part, BoundPolylist) else part for part in parts]
    corners = [part.vertex[part.vertex_index].reshape(-1, 3) for part in parts if isinstance(part, BoundTriangleSet)]
    if not sum(map(len, corners)):
        return None
    metres = read.assetInfo.unitmeter if read.assetInfo is not None else None
    found, places = np.unique(np.concatenate(corners) * (metres or 1.0), axis=0, return_inverse=True)
    return found, places.reshape(-1, 3)
