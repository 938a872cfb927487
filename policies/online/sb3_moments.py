"""Observation statistics of Stable-Baselines3's `VecNormalize`, read without executing anything of its pickle.

SB3 saves the whole wrapper: spaces, random generators, statistics. Only arrays and numbers are built here; every class
that the file names becomes an empty record with the attributes it was saved with, so no code of the file, of SB3 or of
gym runs (`pickle` documents overriding `find_class` for this).
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import plain_pickle

NAME = "vecnormalize.pkl"
Moments = tuple[np.ndarray, np.ndarray, float]


class _Reader(plain_pickle.ArrayUnpickler):
    """Every class but those of arrays is inert."""

    def other(self, module: str, name: str) -> Any:
        return plain_pickle.Inert


def find(agent: Path) -> Path | None:
    """The statistics that lie where SB3 and its zoo put them: beside the zip, or in the folder of its name."""
    places = (agent.parent / NAME, agent.with_suffix("") / NAME, agent.with_suffix(".vecnormalize.pkl"))
    return next((path for path in places if path.exists()), None)


def load(path: Path, size: int) -> Moments | None:
    """Mean (S,), reciprocal scale (S,) and clip of the normalised observations; None where the wrapper left them alone.

    Args:
        path: `vecnormalize.pkl` as SB3 saves it, or a .npz with `mean`, `var` and optionally `epsilon`, `clip_obs`.
        size: S, inputs of the agent.

    Raises:
        ValueError: neither of the two, damaged, of another size, or no finite numbers.
    """
    found = _from_npz(path) if path.suffix == ".npz" else _from_pickle(path)
    if found is None:
        return None
    mean, var, epsilon, limit = found
    if mean.shape != (size,) or var.shape != (size,):
        raise ValueError(f"{path} has mean {mean.shape} and var {var.shape}, expected ({size},) as the agent's input")
    finite = np.isfinite(mean).all() and np.isfinite(var).all() and math.isfinite(epsilon)
    if not finite or (var + epsilon <= 0).any() or not limit > 0:
        raise ValueError(f"{path} holds statistics that are not finite or not positive; export them again")
    return mean, (1.0 / np.sqrt(var + epsilon)).astype(np.float32), limit


def _from_npz(path: Path) -> tuple[np.ndarray, np.ndarray, float, float]:
    try:
        with np.load(path, allow_pickle=False) as file:
            mean, var = file["mean"].astype(np.float32), file["var"].astype(np.float32)
            return mean, var, float(file.get("epsilon", 1e-8)), float(file.get("clip_obs", 10.0))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no .npz with arrays 'mean' and 'var' ({error})") from error


def _from_pickle(path: Path) -> tuple[np.ndarray, np.ndarray, float, float] | None:
    try:
        wrapper = plain_pickle.load(path, _Reader)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error})") from error
    except plain_pickle.BROKEN as error:
        raise ValueError(
            f"{path} is no readable pickle of VecNormalize ({type(error).__name__}: {error}); nothing of it was "
            "executed. Save the wrapper again with venv.save(path)"
        ) from error
    facts = wrapper.__dict__ if isinstance(wrapper, plain_pickle.Inert) else {}
    if facts.get("norm_obs") is False:
        return None
    rms = facts.get("obs_rms")
    moments = rms.__dict__ if isinstance(rms, plain_pickle.Inert) else {}
    mean, var = moments.get("mean"), moments.get("var")
    epsilon, limit = facts.get("epsilon", 1e-8), facts.get("clip_obs", 10.0)
    numbers = all(isinstance(x, (int, float, np.number)) for x in (epsilon, limit))
    arrays = all(isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in (mean, var))
    if not arrays or not numbers:
        raise ValueError(
            f"{path} holds no observation statistics of VecNormalize for plain vectors (obs_rms.mean, obs_rms.var); "
            "nothing of it was executed. Save the wrapper with venv.save(path), or export a .npz with mean and var"
        )
    return np.asarray(mean, np.float32), np.asarray(var, np.float32), float(epsilon), float(limit)
