"""A robot on legs: its trunk moves freely over a plane, its driver turns targets and gains into torques."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl.legs import Trunk
from robot_rl.sim.model_text import write_xml
from robot_rl.sim.plant import ModelPlant, WorldPlant
from robot_rl.sim.robot_model import add_floor, floor_gaps, load, mujoco
from robot_rl.sim.world import World

if TYPE_CHECKING:
    from mujoco import MjSpec

SWING = np.array([2.0, 2.0, 1.0]) / 3.0
"""Axis about which a trunk swings in its harness."""


class LegsPlant(ModelPlant):
    """What stands behind the bridge's simulated robot in pd mode.

    The driver's law tau = kp (target - q) + kd (speed - qd) + tau_ff runs at every physics step, cut at the joints'
    largest effort. After a reset the trunk hangs in a harness, its feet on the ground, until `release`: as a robot on
    legs is held while nobody drives it.

    Args:
        model: path of URDF or MJCF; what touches is the floor, see `legs` of `robot_model.load`.
        joints: names, in the order of all vectors here.
        base: body that the legs carry; it gets a free joint where the file has none.
        kd: (J,) [N m s/rad] of the damping when commands stop.
        effort: (J,) largest effort [N m].
        timestep: longest of the physics [s]; None = the model's.
        home: (J,) first position; None keeps the model's.

    Raises:
        ValueError: a joint or body that the model has not.
    """

    def __init__(
        self,
        model: str,
        joints: Sequence[str],
        *,
        base: str,
        kd: Sequence[float],
        effort: Sequence[float],
        timestep: float | None = None,
        home: Sequence[float] | None = None,
    ) -> None:
        spec = load(model, legs=True).spec
        add_floor(spec)
        free_trunk(spec, base)
        spec.compile()
        self._started = False
        self._damping = np.array(kd, float)
        super().__init__(write_xml(spec), joints, mode="effort", kd=kd, effort=effort, timestep=timestep, home=home)
        self._body = int(self._model.body(base).id)
        joint = int(self._model.body_jntadr[self._body])
        self._root, self._spin = int(self._model.jnt_qposadr[joint]), int(self._model.jnt_dofadr[joint])
        self._started = True
        self.reset(0)

    @property
    def trunk(self) -> Trunk:  # type: ignore[override]  # of legs it is never None
        """As the simulation knows it."""
        data, root, spin = self._data, self._root, self._spin
        w, x, y, z = data.qpos[root + 3 : root + 7]
        turn = data.xmat[self._body].reshape(3, 3)
        return Trunk(
            position=data.qpos[root : root + 3].copy(),
            orientation=np.array([x, y, z, w]),
            velocity=turn.T @ data.qvel[spin : spin + 3],
            angular_velocity=data.qvel[spin + 3 : spin + 6].copy(),
            # held by the harness it stands still, whatever the solver thinks it would do without
            acceleration=turn.T @ ((0.0 if self.hanging else data.qacc[spin : spin + 3]) - self._model.opt.gravity),
        )

    @property
    def hanging(self) -> bool:
        """Whether the harness holds the trunk."""
        return self._held is not None

    def reset(self, seed: int) -> None:
        """Back to the first position, upright in the harness, feet on the ground."""
        self._held: np.ndarray | None = None
        self._lift = self._sway = self._swings_since = 0.0
        super().reset(seed)
        if not self._started:
            return
        root = slice(self._root, self._root + 7)
        self._data.qpos[root.start + 3 : root.stop] = [1.0, 0.0, 0.0, 0.0]
        self._data.qpos[root.start + 2] += self._clearance()
        mujoco.mj_forward(self._model, self._data)
        self._held = self._data.qpos[root].copy()

    def release(self) -> None:
        """Open the harness; a robot that nobody drives falls."""
        self._held = None

    def hang(self, lift: float, sway: float) -> None:
        """Lift the harness [m], and swing the trunk in it by `sway` [rad] there and back every 3 s, as a hand does."""
        self._lift, self._sway, self._swings_since = lift, sway, self.time

    def hold(self) -> None:
        """Damping, as a driver does when commands stop coming."""
        count = len(self.names)
        self._goal = np.stack([self.position, *np.zeros((3, count)), self._damping])

    def _step(self) -> None:
        super()._step()
        if self._held is None:
            return
        rate = 2.0 * np.pi / 3.0
        phase = rate * (self.time - self._swings_since)
        angle, speed = self._sway * np.sin(phase), self._sway * rate * np.cos(phase)
        self._data.qpos[self._root : self._root + 7] = self._held
        self._data.qpos[self._root + 2] += self._lift
        self._data.qpos[self._root + 3 : self._root + 7] = [np.cos(0.5 * angle), *np.sin(0.5 * angle) * SWING]
        self._data.qvel[self._spin : self._spin + 6] = [0.0, 0.0, 0.0, *speed * SWING]

    def _drive(self) -> None:
        target, speed, feed, kp, kd = self._goal
        q, v = self._data.qpos[self._qpos], self._data.qvel[self._dof]
        force = kp * (target - q) + kd * (speed - v) + feed
        self._data.qfrc_applied[self._dof] = np.clip(force, -self._effort, self._effort)

    def _clearance(self) -> float:
        """How far the trunk has to rise so that the lowest shape just touches the floor [m]; negative: sink."""
        mujoco.mj_forward(self._model, self._data)
        return -min(floor_gaps(self._model, self._data).values())


def free_trunk(spec: MjSpec, base: str) -> None:
    """Give a body of an editable model a free joint where it has none.

    Raises:
        ValueError: the model has no such body, or it hangs from another one.
    """
    body = spec.body(base)
    if body is None:
        raise ValueError(f"the model has no body '{base}' that legs could carry; see base in the card")
    if body.parent.name != "world":
        raise ValueError(
            f"body '{base}' is joined to '{body.parent.name}', expected the topmost body of the robot; see base"
        )
    if not any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in body.joints):
        body.add_freejoint()


def make_plant(
    joints: Sequence[str],
    *,
    make_world: Callable[[Mapping[str, object]], World],
    base: str = "",
    world: str,
    options: Mapping[str, object],
    seed: int,
    model: str,
    home: Sequence[float] | None,
    **drive: Any,
) -> ModelPlant:
    """A robot on legs where a trunk is named, the robot of a world where one is named, else that of a model.

    Args:
        joints: names, in the order of the plant's vectors.
        make_world: makes the world of a node with `name` and options.
        base: body that the legs carry; "" = none.
        world: name, or "".
        options: arguments of the world.
        seed: of its resets and tasks.
        model: path of MJCF or URDF; read where there is no world.
        home: first position of a model.
        drive: mode, gains, largest effort and physics step; legs take no mode and no kp.
    """
    if base:
        kept = {key: drive[key] for key in ("kd", "effort", "timestep")}
        return LegsPlant(model, joints, base=base, home=home, **kept)
    if world:
        return WorldPlant(make_world({"name": world, **options}), joints, seed=seed, **drive)
    return ModelPlant(model, joints, home=home, **drive)
