"""Constants and small linear systems on arrays of any kind, in a form that a CUDA graph can capture.

Making a tensor out of Python numbers copies from the host, which a captured graph must not do. Terms of a world
therefore take their constants from `constant`, which makes each one once per kind, dtype and device.
"""

from __future__ import annotations

import array_api_compat
import numpy as np

from robot_rl.types import Array

_CONSTANTS: dict[tuple[object, ...], Array] = {}


def constant(values: object, like: Array, *, dtype: object = None) -> Array:
    """`values` as an array of the kind and on the device of `like`; the same object every time, never to be changed.

    Args:
        values: nested tuples or lists of numbers, or a NumPy array.
        like: what the array will be used with.
        dtype: of the result; None takes that of `like`.
    """
    dtype = like.dtype if dtype is None else dtype
    host = np.asarray(values)
    torched = array_api_compat.is_torch_array(like)
    device = str(array_api_compat.device(like)) if torched else "numpy"
    key = (host.tobytes(), host.shape, host.dtype.str, str(dtype), device)
    found = _CONSTANTS.get(key)
    if found is None:
        xp = array_api_compat.array_namespace(like)
        found = xp.asarray(host.tolist(), dtype=dtype, device=array_api_compat.device(like))
        if isinstance(found, np.ndarray):
            found.flags.writeable = False
        _CONSTANTS[key] = found
    return found


def host(value: object) -> np.ndarray:
    """Any array or tensor as a NumPy array."""
    return np.asarray(value.detach().cpu() if array_api_compat.is_torch_array(value) else value)


def cross(a: Array, b: Array) -> Array:
    """Cross product along the last axis, which NumPy's and torch's own functions broadcast differently."""
    ax, ay, az = (a[..., i] for i in range(3))
    bx, by, bz = (b[..., i] for i in range(3))
    xp = array_api_compat.array_namespace(a)
    return xp.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], axis=-1)


def solve_definite(matrix: Array, right: Array) -> Array:
    """Solve symmetric positive definite systems `matrix @ x = right`.

    Tensors are eliminated column by column without pivoting, which definiteness allows: torch's own solver reads an
    error code back to the host at every call. NumPy arrays take NumPy's solver.

    Args:
        matrix: (N, n, n), n small.
        right: (N, n, 1).

    Returns:
        (N, n, 1).
    """
    xp = array_api_compat.array_namespace(matrix)
    if not array_api_compat.is_torch_array(matrix):
        return xp.linalg.solve(matrix, right)
    size = matrix.shape[-1]
    joined = xp.concat([matrix, right], axis=-1)
    rows = []
    for _ in range(size):
        pivot = joined[:, :1] / joined[:, :1, :1]  # (N, 1, what is left)
        rows.append(pivot[:, 0, 1:])
        joined = joined[:, 1:, 1:] - joined[:, 1:, :1] * pivot[..., 1:]
    answer: list[object] = []
    for column in range(size - 1, -1, -1):
        row = rows[column]  # (N, size - column): entries right of the pivot, then the right-hand side
        value = row[:, -1]
        for k, known in enumerate(reversed(answer)):
            value = value - row[:, k] * known
        answer.append(value)
    return xp.stack(answer[::-1], axis=-1)[..., None]
