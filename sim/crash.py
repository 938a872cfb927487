"""What remains of a simulation that diverged: a readable error and a file that repeats the step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl.extras import require

if TYPE_CHECKING:
    from mujoco import MjModel


class UnstableSimulationError(FloatingPointError):
    """A copy of the simulation, or a term of its world, gave a value that is not finite.

    Attributes:
        index: the environment.
        key: observation key, "reward" or "physics".
        path: file for `repeat`, or None where nothing could be written.
    """

    def __init__(self, message: str, index: int, key: str, path: str | None) -> None:
        super().__init__(message)
        self.index, self.key, self.path = index, key, path


def model_bytes(model: MjModel) -> np.ndarray:
    """(bytes,) uint8 of a compiled model."""
    mujoco = require("mujoco")
    buffer = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer


def save(folder: str | None, index: int, **content: Any) -> str | None:
    """Write the step to `<folder>/unstable_env<index>_<pid>.npz`.

    Args:
        folder: where; None is the system's folder for temporary files.
        index: the environment.
        **content: model (the compiled model's bytes, randomisation included), mjcf (text), state (nstate,)
            before the step (`mjSTATE_INTEGRATION`), control (substeps, nu), action (A,), step.

    Returns:
        The path, or None where writing failed: the error to report is the divergence, not the full disk.
    """
    path = os.path.join(folder or tempfile.gettempdir(), f"unstable_env{index}_{os.getpid()}.npz")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        np.savez_compressed(path, **content)
    except OSError:
        return None
    return path


def report(
    message: str, index: int, key: str, folder: str | None, content: Mapping[str, Any] | None
) -> UnstableSimulationError:
    """The error to raise, with the step saved.

    Args:
        message: what diverged where, without a full stop.
        index: the environment.
        key: see `UnstableSimulationError`.
        folder: see `save`.
        content: what `save` writes; None where the step cannot be repeated.
    """
    path = save(folder, index, **content) if content else None
    saved = f"repeat it with robot_rl.sim.crash.repeat('{path}')" if path else "its state could not be saved"
    return UnstableSimulationError(f"{message}; {saved}", index, key, path)


def repeat(path: str) -> np.ndarray:
    """Repeat a saved step, with the MuJoCo version that wrote it.

    Args:
        path: file named in the error.

    Returns:
        (substeps, 1 + nq + nv) time, positions and velocities after each physics step, up to the divergence.
    """
    mujoco = require("mujoco")

    with np.load(path, allow_pickle=False) as file:
        model = mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": file["model"].tobytes()})
        data = mujoco.MjData(model)
        mujoco.mj_setState(model, data, file["state"], int(mujoco.mjtState.mjSTATE_INTEGRATION))
        states = []
        for control in file["control"]:
            data.ctrl[:] = control
            mujoco.mj_step(model, data)
            states.append(np.concatenate([[data.time], data.qpos, data.qvel]))
    return np.array(states)
