"""N copies of one MuJoCo model, stepped by MuJoCo's own thread pool (`mujoco.rollout`).

All state lies in arrays whose first axis is the copy. MuJoCo's step computes sensors before it integrates, so the last
sensor values of a plain rollout belong to the state one physics step ago. Models with sensors are therefore stepped
once more than asked: the extra step's state is thrown away and its sensor values are those of the state that is kept.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from robot_rl.extras import require
from robot_rl.sim.headless import prefer_headless

prefer_headless()
mujoco = require("mujoco")
rollout = require("mujoco.rollout")

_FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS
_NONE = np.zeros(0, np.int64)


class Physics:
    """A batch of MuJoCo states and the pool that steps them.

    Args:
        xml: the model as MJCF text.
        num_envs: N copies.
        control_hz: calls of `step` per simulated second; each makes `substeps` physics steps.
        num_threads: threads of the pool; None takes the processors available to this process, at most N.
        separate_models: whether each copy gets a model of its own, for `scale`.

    Raises:
        ValueError: `control_hz` is no whole number of physics steps.

    Attributes:
        state: (N, nstate) full physics state; `qpos`, `qvel` and `time` are views into it, overwritten by every step.
        before: (N, nstate) the same before the last step, with the `warmstart_before` (N, nv) of that step.
        sensors: sensor name -> (N, dim) views into `sensordata`.
        ctrl: (N, nu) controls of the last physics step.
        timestep: seconds of one physics step.
        chunk_size: copies that a thread of the pool takes at a time.
    """

    def __init__(
        self,
        xml: str,
        num_envs: int,
        control_hz: float,
        *,
        num_threads: int | None = None,
        separate_models: bool = False,
    ) -> None:
        self.model = model = mujoco.MjModel.from_xml_string(xml)
        # A diverging copy must stay visible as such; MuJoCo's silent return to the initial pose would hide it.
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self.num_envs = num_envs
        self.substeps = substeps = _substeps(control_hz, model.opt.timestep)
        threads = _threads(num_threads, num_envs)
        self.num_threads = threads
        self.timestep = float(model.opt.timestep)
        self._rate = 1.0 / self.timestep
        # Handing a chunk to the pool costs about 10 us, so few of them; two per thread still even out the load.
        self.chunk_size = max(-(-num_envs // (2 * threads)), min(8, -(-num_envs // threads)))
        self._pool: Any = rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._data = [mujoco.MjData(model) for _ in range(threads)]
        self._models = [_copy(model) for _ in range(num_envs)] if separate_models else [model] * num_envs
        self._separate = separate_models

        nstate = mujoco.mj_stateSize(model, int(_FULL))
        total = substeps + (1 if model.nsensordata else 0)
        self._states = np.zeros((num_envs, total, nstate))
        self.state = self._states[:, substeps - 1]  # where the pool leaves the newest state
        self.before = np.zeros((num_envs, nstate))
        self.warmstart = np.zeros((num_envs, model.nv))
        self.warmstart_before = np.zeros_like(self.warmstart)
        self.sensordata = np.zeros((num_envs, model.nsensordata))
        self._sensordatas = np.zeros((num_envs, total, model.nsensordata))
        self._control = np.zeros((num_envs, total, model.nu))
        self._velocity = slice(1 + model.nq, 1 + model.nq + model.nv)
        self.time = self.state[:, 0]
        self.qpos = self.state[:, 1 : 1 + model.nq]
        self.qvel = self.state[:, self._velocity]
        self.ctrl = self._control[:, substeps - 1]
        self.sensors = _named(model, self.sensordata)
        self._initial = np.zeros(nstate)
        mujoco.mj_getState(model, mujoco.MjData(model), self._initial, int(_FULL))

    def place(self, rows: np.ndarray, qpos: Any, qvel: Any, ctrl: Any) -> None:
        """Put copies `rows` into a new state, with sensor values that belong to it.

        Args:
            rows: (n,) indices.
            qpos: (n, nq).
            qvel: (n, nv).
            ctrl: (n, nu) controls in force.
        """
        self.state[rows] = self._initial
        self.qpos[rows] = qpos
        self.qvel[rows] = qvel
        self.warmstart[rows] = 0.0
        self._control[rows] = np.asarray(ctrl, np.float64)[:, None, :]
        self.forward(rows)

    def forward(self, rows: np.ndarray) -> None:
        """Recompute the sensor values of copies `rows` from their state."""
        if not self.model.nsensordata or not len(rows):
            return
        state = np.empty((len(rows), 1, self.state.shape[1]))
        sensor = np.empty((len(rows), 1, self.sensordata.shape[1]))
        self._run(
            [self._models[i] for i in rows],
            self.state[rows],
            self.warmstart[rows],
            self._control[rows, -1:],
            state,
            sensor,
        )
        self.sensordata[rows] = sensor[:, 0]

    def step(self, control: np.ndarray) -> None:
        """Advance all copies by `substeps` physics steps.

        Args:
            control: (N, nu), held for all of them, or (N, substeps, nu).
        """
        steps = self.substeps
        np.copyto(self.before, self.state)
        if control.ndim == 2:
            self._control[:] = control[:, None, :]
        else:
            self._control[:, :steps] = control
            self._control[:, steps:] = control[:, -1:]
        self._run(self._models, self.before, self.warmstart, self._control, self._states, self._sensordatas)
        self.warmstart, self.warmstart_before = self.warmstart_before, self.warmstart
        # The pool does not hand out the solver's warm start. The last finite difference of the velocity is within a few
        # per mille of it, is a function of the state alone, and spares most of the solver's iterations.
        earlier = self.before if steps == 1 else self._states[:, steps - 2]
        np.subtract(self.qvel, earlier[:, self._velocity], out=self.warmstart)
        self.warmstart *= self._rate
        if self.sensordata.shape[1]:
            np.copyto(self.sensordata, self._sensordatas[:, -1])

    def broken(self) -> np.ndarray:
        """(n,) indices of copies that the last step left non-finite or that MuJoCo stopped because of a warning."""
        shortest = (self.substeps - 0.5) * self.timestep
        elapsed = self.time - self.before[:, 0]
        # one product over everything is the cheapest test that NaN and infinity do not pass
        if math.isfinite(np.vdot(self.state, self.state)) and elapsed.min() > shortest:
            return _NONE
        return np.flatnonzero(~np.isfinite(self.state).all(axis=1) | ~(elapsed > shortest))

    def controls(self, row: int) -> np.ndarray:
        """(substeps, nu) what the last step applied to one copy."""
        return self._control[row, : self.substeps].copy()

    def model_bytes(self, row: int) -> np.ndarray:
        """(bytes,) uint8, the compiled model of one copy, its randomisation included."""
        model = self._models[row]
        buffer = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, buffer)
        return buffer

    def set_control(self, ctrl: np.ndarray) -> None:
        """Restore `ctrl` (N, nu) after a load."""
        self._control[:] = ctrl[:, None, :]

    def sizes(self) -> dict[str, int]:
        """How many factors each randomised quantity has."""
        model = self.model
        return {"mass": model.nbody, "friction": 1, "damping": model.nv, "gain": model.nu}

    def scale(self, rows: np.ndarray, factors: dict[str, np.ndarray]) -> None:
        """Set the models of copies `rows` to nominal values times factors.

        Args:
            rows: (n,) indices; the constructor was given `separate_models`.
            factors: name -> (n, size) as in `sizes`; absent names stay as they are.
        """
        nominal = self.model
        for k, row in enumerate(rows):
            model = self._models[row]
            if "mass" in factors:
                model.body_mass[:] = nominal.body_mass * factors["mass"][k]
                model.body_inertia[:] = nominal.body_inertia * factors["mass"][k][:, None]
            if "friction" in factors:
                model.geom_friction[:] = nominal.geom_friction * factors["friction"][k]
                if model.npair:
                    model.pair_friction[:] = nominal.pair_friction * factors["friction"][k]
            if "damping" in factors:
                model.dof_damping[:] = nominal.dof_damping * factors["damping"][k]
            if "gain" in factors:
                gain = factors["gain"][k][:, None]
                model.actuator_gainprm[:, :3] = nominal.actuator_gainprm[:, :3] * gain
                model.actuator_biasprm[:, :3] = nominal.actuator_biasprm[:, :3] * gain
            if "mass" in factors:
                mujoco.mj_setConst(model, self._data[0])

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _run(
        self,
        models: list[Any],
        state: np.ndarray,
        warmstart: np.ndarray,
        control: np.ndarray,
        states: np.ndarray,
        sensordatas: np.ndarray,
    ) -> None:
        if self._pool is None:
            raise RuntimeError("the environment is closed; make a new one")
        self._pool.rollout(
            models,
            self._data,
            state,
            control,
            skip_checks=True,
            nstep=control.shape[1],
            initial_warmstart=warmstart,
            state=states,
            sensordata=sensordatas,
            chunk_size=self.chunk_size,
        )


def _threads(wanted: int | None, num_envs: int) -> int:
    if wanted is None:
        affinity = getattr(os, "sched_getaffinity", None)
        wanted = len(affinity(0)) if affinity else os.cpu_count() or 1
    elif wanted < 1:
        raise ValueError(f"num_threads is {wanted}, expected at least 1 (or null for all processors)")
    return min(wanted, num_envs)


def _substeps(control_hz: float, timestep: float) -> int:
    exact = 1.0 / (control_hz * timestep)
    if round(exact) < 1 or abs(exact - round(exact)) > 1e-6 * exact:
        raise ValueError(
            f"control_hz {control_hz:g} with a model timestep of {timestep:g} s gives {exact:g} physics steps per "
            "control step, expected a whole number >= 1; change either"
        )
    return round(exact)


def _copy(model: Any) -> Any:
    return model.__copy__()


def _named(model: Any, sensordata: np.ndarray) -> dict[str, np.ndarray]:
    sensors = {}
    for i in range(model.nsensor):
        start, size = int(model.sensor_adr[i]), int(model.sensor_dim[i])
        name = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_SENSOR, i)
        if name:
            sensors[name] = sensordata[:, start : start + size]
    return sensors
