"""N copies of one MuJoCo model, stepped by MuJoCo's own thread pool (`mujoco.batch`).

Every copy is a row of numbers that determines all that follows, the solver's warm start included: the result is that of
`mj_step` in a loop, bit for bit and on any number of threads. MuJoCo's step computes sensors before it integrates, so
after a step the stages that the model's sensors need are computed once more, for the state that is kept.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from robot_rl.extras import require
from robot_rl.sim import crash
from robot_rl.sim.headless import load_mujoco
from robot_rl.types import Array
from robot_rl.types.data import all_finite

if TYPE_CHECKING:
    from mujoco import MjModel

mujoco = load_mujoco()

OLDEST = (3, 17)
"""The first MuJoCo with `mujoco.batch`."""
_NONE = np.zeros(0, np.int64)
T = TypeVar("T", bound=Array)


class Physics:
    """A batch of MuJoCo states and the pool that steps them.

    Args:
        xml: the model as MJCF text.
        num_envs: N copies.
        control_hz: calls of `step` per simulated second; each makes `substeps` physics steps.
        num_threads: threads of the pool; None takes the processors available to this process, at most N.

    Raises:
        ImportError: MuJoCo is older than `OLDEST`.
        ValueError: `control_hz` is no whole number of physics steps.

    Attributes:
        model: the nominal model.
        state: (N, nstate) all that the next step depends on (`mjSTATE_INTEGRATION`); `qpos`, `qvel`, `ctrl` and `time`
            are views into it. What is written there counts from the next call on.
        before: (N, nstate) the same before the last step.
        sensors: sensor name -> (N, dim) values that belong to `state`, read-only.
    """

    def __init__(self, xml: str, num_envs: int, control_hz: float, *, num_threads: int | None = None) -> None:
        check_version(mujoco.__version__)
        self.model = model = mujoco.MjModel.from_xml_string(xml)
        # A diverging copy must stay visible as such; MuJoCo's silent return to the initial pose would hide it.
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self.substeps = substeps(control_hz, float(model.opt.timestep))
        self.num_threads = _threads(num_threads, num_envs)
        self._batch = require("mujoco.batch").Batch(model, num_envs, self.num_threads)
        self.state, self._warning = self._batch.state, self._batch.warning
        self.time, self.qpos, self.qvel, self.ctrl = (self._batch.bind(x) for x in ("time", "qpos", "qvel", "ctrl"))
        self.before = self.state.copy()
        self.sensors: dict[str, np.ndarray] = {}
        self._stage = int(mujoco.mjtStage.mjSTAGE_NONE)
        if model.nsensor:
            self._stage = int(model.sensor_needstage.max())
            self.sensors = sensors(model, self._batch.bind("sensordata"))
        self._control: np.ndarray = self.ctrl[:, None]

    def place(self, rows: np.ndarray, qpos: Array, qvel: Array, ctrl: Array) -> None:
        """Put copies `rows` into a new state, with sensor values that belong to it.

        Args:
            rows: (n,) indices, ascending.
            qpos: (n, nq).
            qvel: (n, nv).
            ctrl: (n, nu) controls in force.
        """
        self._open().reset(rows, stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        self.qpos[rows] = qpos
        self.qvel[rows] = qvel
        self.ctrl[rows] = ctrl
        self._sense(rows)

    def step(self, control: np.ndarray) -> None:
        """Advance all copies by `substeps` physics steps.

        Args:
            control: (N, nu), held for all of them, or (N, substeps, nu).
        """
        batch = self._open()
        np.copyto(self.before, self.state)
        if control.ndim == 2:
            self.ctrl[:] = control
            self._control = self.ctrl[:, None]
            batch.step(nstep=self.substeps, stage=self._stage)
        else:
            self._control = control
            batch.rollout(self.substeps, control, record=())
            self._sense(None)

    def broken(self) -> np.ndarray:
        """(n,) indices of copies that are not finite, or about which MuJoCo warned since their reset."""
        if all_finite(self.state) and not np.count_nonzero(self._warning):
            return _NONE
        return np.flatnonzero(~np.isfinite(self.state).all(axis=1) | self._warning.any(axis=(1, 2)))

    def controls(self, row: int) -> np.ndarray:
        """(substeps, nu) what the last step applied to one copy."""
        return np.array(np.broadcast_to(self._control[row], (self.substeps, self.model.nu)))

    def model_bytes(self, row: int) -> np.ndarray:
        """(bytes,) uint8, the compiled model of one copy, its randomisation included."""
        return crash.model_bytes(self._open().get_model(row))

    def load_state(self, state: np.ndarray) -> None:
        """Continue from a copy of `state`, with the sensor values that belong to it."""
        self._open().reset(stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        self.state[:] = state
        self._sense(None)

    def scale(self, rows: np.ndarray, factors: dict[str, np.ndarray]) -> None:
        """Set the models of copies `rows` to nominal values times factors.

        Args:
            rows: (n,) indices, ascending.
            factors: name -> (n, size) as `randomize.factor_sizes` says; absent names stay as they are.
        """
        batch = self._open()
        for name, fields in SCALED_FIELDS.items():
            if name not in factors:
                continue
            for field in fields:
                nominal = getattr(self.model, field)
                if not nominal.size:
                    continue
                factor = factors[name].reshape(len(rows), -1, *(1,) * (nominal.ndim - 1))
                if name == "gain":  # the first three parameters; further ones are no forces
                    batch.expand(field)[rows, :, :3] = nominal[:, :3] * factor
                else:
                    batch.expand(field)[rows] = nominal * factor
        if "mass" in factors:
            batch.set_const(rows)

    def close(self) -> None:
        """Stop the threads."""
        self._batch = None

    def _sense(self, rows: np.ndarray | None) -> None:
        """Bring the sensor values of copies `rows`, or all, to their state."""
        if self._stage:
            self._open().forward(rows, self._stage)

    def _open(self) -> Any:
        if self._batch is None:
            raise RuntimeError("the environment is closed; make a new one")
        return self._batch


SCALED_FIELDS = {
    "mass": ("body_mass", "body_inertia"),
    "friction": ("geom_friction", "pair_friction"),
    "damping": ("dof_damping",),
    "gain": ("actuator_gainprm", "actuator_biasprm"),
}
"""Fields of the model that a factor multiplies."""


def check_version(version: str) -> None:
    """Refuse a MuJoCo that cannot step many copies.

    Args:
        version: `mujoco.__version__`.

    Raises:
        ImportError: it is older than `OLDEST`.
    """
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise ImportError(
            f"MuJoCo {version} is installed, and our worlds are stepped by mujoco.batch, which came with {wanted}: "
            f"pip install 'mujoco>={wanted}'"
        )


def _threads(wanted: int | None, num_envs: int) -> int:
    if wanted is None:
        wanted = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    elif wanted < 1:
        raise ValueError(f"num_threads is {wanted}, expected at least 1 (or null for all processors)")
    return min(wanted, num_envs)


def substeps(control_hz: float, timestep: float) -> int:
    """Physics steps per control step.

    Raises:
        ValueError: they are no whole number.
    """
    exact = 1.0 / (control_hz * timestep)
    if round(exact) < 1 or abs(exact - round(exact)) > 1e-6 * exact:
        raise ValueError(
            f"control_hz {control_hz:g} with a model timestep of {timestep:g} s gives {exact:g} physics steps per "
            "control step, expected a whole number >= 1; change either"
        )
    return round(exact)


def sensors(model: MjModel, sensordata: T) -> dict[str, T]:
    """Name -> (N, dim) views into the (N, all) sensor values."""
    found = {}
    for i in range(model.nsensor):
        start, size = int(model.sensor_adr[i]), int(model.sensor_dim[i])
        name = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_SENSOR, i)
        if name:
            found[name] = sensordata[:, start : start + size]
    return found
