"""Imitate a recorded motion, with starts drawn from it (reference state initialisation)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Literal
from xml.etree import ElementTree

import numpy as np
from array_api_compat import array_namespace

from robot_rl.extras import require
from robot_rl.sim import motion_clip, motion_reward
from robot_rl.sim.arrays import constant
from robot_rl.sim.motion_reward import Motion
from robot_rl.sim.world import Draw, Reset, View, gymnasium_model
from robot_rl.types import Array
from robot_rl.types.options import Interval, NotNegative, Options, Positive, Whole

_GROUND = "floor"


class ImitateOptions(Options):
    """What is imitated, and how likeness is paid."""

    clip: str = "hopper"
    """Recording, see `motion_clip`; "hopper" is one cycle of a hop (2.9 m/s) that comes with the package."""
    model: str = "hopper"
    """"hopper", "walker2d", "half_cheetah" or "ant" of the installed gymnasium."""
    control_hz: Positive = 62.5
    """Decisions per second; the clip is resampled to it."""
    seconds: Positive = 8.0
    """Length of an episode."""
    start: Literal["clip", "first", "rest"] = "clip"
    """Where episodes start: any frame of the reference, velocities too; its first frame; or the model's rest pose, at
    the first frame's phase."""
    noise: NotNegative = 0.005
    """Half width of the uniform noise [rad, m] on the positions of a start."""
    sees: Literal["phase", "reference"] = "phase"
    """What the state says of the reference."""
    reward: Literal["additive", "product"] = "additive"
    """DeepMimic's, or SkillMimic's factor of the body."""
    effector: Literal["sum", "mean"] = "sum"
    """Of the end effectors' squared errors."""
    pose_scale: Positive | None = None
    """How fast the additive reward's pose part falls with the mean squared error of the joints; null is the source's
    2/15 per joint, made for 15 joints."""
    touch: tuple[str, ...] = ("torso",)
    """Bodies that must not touch the ground."""
    max_tilt: Positive | None = math.pi / 2
    """[rad], null for no bound."""
    max_lag: NotNegative | None = None
    """[m], null for no bound."""
    episode: Whole = 0
    """Of the recording."""
    clip_start: NotNegative = 1.0
    """[s] of the recording to leave out; not read where the clip is a cycle already, like the next two."""
    clip_seconds: Positive | None = None
    """How much of it to use, null: all."""
    period: Interval | None = (0.25, 1.5)
    """[shortest, longest] cycle [s] to look for; null: no cycle, the clip ends."""


class Imitate:
    """Move one of Gymnasium's MuJoCo bodies as a recording does.

    State: positions without the root's place on the ground, velocities over 10, the root's lead over the reference on
    the ground [m], and either the phase as sine and cosine (`sees: phase`) or the reference's joint angles and speeds
    over 10 of the next control step and of 0.1 s later, less the present ones (`sees: reference`). Action: motors,
    [-1, 1]. Reward in [0, 1] per step, 0 with a fall. The episode ends with a fall (a body of `touch` on the ground, or
    the root turned more than `max_tilt` away from the reference, or further than `max_lag` from it) and at the last
    frame of a clip that is no cycle. Success: the full episode without a fall.

    Args:
        options: what is imitated, and how likeness is paid.

    Raises:
        ValueError: an option or the recording does not fit.
        FileNotFoundError: no such recording or model.

    Source: Peng et al., DeepMimic (2018), sections 5.3 and 6; xbpeng/DeepMimic. Ours: motors in place of servos, the
    root's lead in the state, `max_lag`, cycles found in a recording, frames at the rate of control.
    """

    name = "imitate"
    cameras: tuple[str, ...] = ("track",)

    def __init__(self, options: ImitateOptions) -> None:
        self.o, o = options, options
        self.control_hz, self.episode_steps = o.control_hz, round(o.seconds * o.control_hz)
        if self.episode_steps < 1:
            raise ValueError(f"{o.seconds} seconds at control_hz={o.control_hz} are no step; expected at least one")
        self._load(o.model, o.touch)
        self._reference()
        self._scale = motion_reward.scales(self._joints)
        if o.pose_scale is not None:
            self._scale["pose"] = o.pose_scale

    def _load(self, model: str, touch: tuple[str, ...]) -> None:
        """The model with the sensors that are compared, and what follows from it."""
        tree = ElementTree.fromstring(gymnasium_model(model))
        bodies = list(tree.iter("body"))
        for i, body in enumerate(bodies):
            body.set("name", body.get("name") or f"body{i}")
        names = [str(body.get("name")) for body in bodies]
        unknown = sorted(set(touch) - set(names))
        if unknown:
            raise ValueError(f"touch names {unknown}; the bodies of {model} are {names}")
        ends = [str(body.get("name")) for body in bodies if body.find("body") is None]
        trunk, self._ends, self._touch = names[0], len(ends), touch
        sensor = ElementTree.SubElement(tree, "sensor")

        def add(kind: str, name: str, **what: str) -> None:
            ElementTree.SubElement(sensor, kind, {"name": name, **what})

        for kind in ("framepos", "framequat", "framelinvel", "frameangvel"):
            add(kind, kind, objtype="xbody", objname=trunk)
        add("subtreelinvel", "mass_velocity", body=trunk)
        for i, end in enumerate(ends):
            add("framepos", f"end{i}", objtype="body", objname=end)
        for name in touch:
            add("distance", f"gap_{name}", body1=name, geom2=_GROUND, cutoff="1")
        self._xml = ElementTree.tostring(tree, encoding="unicode")
        mujoco = require("mujoco")
        self._model = made = mujoco.MjModel.from_xml_string(self._xml)
        kinds = [int(kind) for kind in made.jnt_type]
        joint = mujoco.mjtJoint
        free, slide, hinge = int(joint.mjJNT_FREE), int(joint.mjJNT_SLIDE), int(joint.mjJNT_HINGE)
        self._free = kinds[0] == free
        head = 1 if self._free else 3
        if (not self._free and kinds[:3] != [slide, slide, hinge]) or set(kinds[head:]) != {hinge}:
            raise ValueError(f"{model} has joints {kinds}; expected a free or planar root, then hinges only")
        self._position, self._speed, self._ground = (7, 6, 2) if self._free else (3, 3, 1)
        self._joints = len(kinds) - head
        self._rest = np.array(made.qpos0)
        gear = made.actuator_gear[:, 0]
        drives = [int(made.actuator_trnid[i, 0]) for i in range(made.nu)]
        self.action_names = tuple(made.actuator(i).name or made.joint(j).name for i, j in enumerate(drives))
        self.action_low, self.action_high = tuple((-gear).tolist()), tuple(gear.tolist())
        self.action_units = ("N*m",) * made.nu
        # of each motor: which hinge it drives
        self._driven = [int(made.jnt_qposadr[j]) - self._position for j in drives]

    def _reference(self) -> None:
        """The recording as a clip at the rate of control, and what its frames look like to the reward."""
        o = self.o
        clip = motion_clip.read(o.clip, self._model, actions=len(self.action_names), episode=o.episode)
        if not clip.loop:
            clip = motion_clip.section(clip, o.clip_start, o.clip_seconds)
            if o.period is not None:
                clip = motion_clip.cycle(clip, *o.period, self._ground)
        clip = motion_clip.resample(clip, self.control_hz)
        qpos = clip.qpos.copy()
        if self._free:
            qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
        self.clip, self._frames, self._qpos = clip, len(qpos), qpos
        if not clip.loop:
            self.episode_steps = min(self.episode_steps, self._frames - 1)
        from robot_rl.sim.mujoco_physics import mujoco, sensors  # loads MuJoCo, which other worlds do without

        data, rows = mujoco.MjData(self._model), []
        for frame, velocity in zip(qpos, clip.qvel):
            data.qpos[:], data.qvel[:] = frame, velocity
            mujoco.mj_forward(self._model, data)
            rows.append(data.sensordata.copy())
        self._wanted = self._motion(array_namespace(qpos), qpos, clip.qvel, sensors(self._model, np.stack(rows)))
        joints = self._joints
        names = [self._model.joint(i).name or f"joint{i}" for i in range(self._model.njnt)][-joints:]
        seen = [f"qpos[{i}]" for i in range(self._ground, self._model.nq - joints)] + names
        seen += [f"qvel[{i}]/10" for i in range(self._model.nv)]
        seen += [f"lead_{axis}" for axis in "xy"[: self._ground]]
        if self.o.sees == "phase":
            seen += ["sin_phase", "cos_phase"]
        else:
            seen += [
                f"{w}_{name}_{kind}" for w in ("next", "later") for kind in ("angle", "speed/10") for name in names
            ]
        self.obs_names = tuple(seen)

    def mjcf(self) -> str:
        """Gymnasium's model with the sensors that the reward reads."""
        return self._xml

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """A frame of the reference, position and velocity, or the rest pose (see `start`).

        Returns:
            Initial states; task "frame": (n,) int64, the reference's frame at the start, "likeness": (n,) the reward
            and "fallen": (n,) bool of the present step.
        """
        chance, noise = draw.uniform(1), draw.uniform(self._model.nq, low=-self.o.noise, high=self.o.noise)
        # a clip that ends is started early enough to have a step left
        last = self._frames if self.clip.loop else self._frames - 1
        frame = xp.astype(xp.clip(xp.floor(chance[:, 0] * last), 0, last - 1), xp.int64)
        if self.o.start != "clip":
            frame = xp.zeros_like(frame)
        qpos, qvel = constant(self._qpos, noise)[frame], constant(self.clip.qvel, noise)[frame]
        if self.o.start == "rest":
            qpos, qvel = xp.zeros_like(qpos) + constant(self._rest, noise)[None, :], xp.zeros_like(qvel)
        mask = np.ones(self._model.nq)
        mask[3 : 7 if self._free else 3] = 0.0  # a quaternion stays of unit length
        qpos = qpos + noise * constant(mask, noise)[None, :]
        zero = noise[:, 0] * 0.0
        task = {"frame": frame, "likeness": zero, "fallen": zero > 0.0}
        return Reset(qpos, qvel, noise[:, :1] * constant(np.zeros((1, self._model.nu)), noise), task)

    def control(self, view: View, action: Array) -> Array:
        """Motors take the normalised action; the model's gears turn it into torques."""
        return action

    def update(self, view: View) -> None:
        """Compare with the reference, once for reward, end and success."""
        xp = view.xp
        now, wanted = self._pair(view)
        if self.o.reward == "product":
            likeness = motion_reward.product(now, wanted, xp)
        else:
            found = motion_reward.errors(now, wanted, xp, effector=self.o.effector)
            likeness = motion_reward.additive(found, self._scale, xp)
        fallen = self._fallen(view, now, wanted)
        view.task["fallen"] = fallen
        likeness = xp.where(fallen, xp.zeros_like(likeness), likeness)
        view.task["likeness"] = xp.astype(likeness, view.task["likeness"].dtype)

    def observe(self, view: View) -> Array:
        """(N, S) in the order of `obs_names`."""
        xp = view.xp
        frame, cycles = self._now(view)
        place = self._move(constant(self._wanted.place, view.qpos)[frame], cycles, view)
        lead = view.qpos[:, : self._ground] - place[:, : self._ground]
        parts = [view.qpos[:, self._ground :], view.qvel / 10.0, lead]
        if self.o.sees == "phase":
            turn = 2.0 * math.pi * xp.astype(frame, view.qpos.dtype) / self._frames
            if not self.clip.loop:  # half a turn: the end of a clip is not its beginning
                turn = turn / 2.0
            parts += [xp.sin(turn)[:, None], xp.cos(turn)[:, None]]
        else:
            joint, speed = view.qpos[:, self._position :], view.qvel[:, self._speed :]
            for ahead in (1, max(round(0.1 * self.control_hz), 2)):
                later, _ = self._now(view, ahead)
                parts += [
                    constant(self._wanted.joint, view.qpos)[later] - joint,
                    (constant(self._wanted.joint_speed, view.qpos)[later] - speed) / 10.0,
                ]
        return xp.concat([xp.astype(part, xp.float32) for part in parts], axis=1)

    def reward(self, view: View) -> Array:
        """How alike the motion is to the reference, in [0, 1]; 0 with a fall."""
        return view.task["likeness"]

    def errors(self, view: View) -> dict[str, Array]:
        """name -> (N,), the parts of the additive reward before their exponentials."""
        return motion_reward.errors(*self._pair(view), view.xp, effector=self.o.effector)

    def terminated(self, view: View) -> Array:
        """A fall, or the end of a clip that is no cycle."""
        fallen = view.task["fallen"]
        return fallen if self.clip.loop else fallen | (view.task["frame"] + view.step >= self._frames - 1)

    def success(self, view: View) -> Array:
        """The full episode, or the rest of the clip, without a fall."""
        over = view.step >= self.episode_steps
        if not self.clip.loop:
            over = over | (view.task["frame"] + view.step >= self._frames - 1)
        return over & ~view.task["fallen"]

    def expert(self, state: Array) -> Array:
        """A spring and damper towards the reference's joints and, with `sees: phase`, the recorded actions.

        It replays more than it balances: bodies that can fall do so within seconds.
        """
        xp = array_namespace(state)
        if self.o.sees == "phase":
            turn = xp.atan2(state[:, -2], state[:, -1]) / (2.0 * math.pi) * (1.0 if self.clip.loop else 2.0)
            frame = xp.astype(xp.round((turn - xp.floor(turn)) * self._frames), xp.int64) % self._frames
            first = self._position - self._ground
            joint = state[:, first : first + self._joints]
            first += self._joints + self._speed
            speed = state[:, first : first + self._joints] * 10.0
            gap = constant(self._wanted.joint, state)[frame] - joint
            gap = gap + 0.1 * (constant(self._wanted.joint_speed, state)[frame] - speed)
            known = constant(self.clip.action, state)[frame]
        else:
            ahead = state[:, -4 * self._joints : -2 * self._joints]
            gap, known = ahead[:, : self._joints] + ahead[:, self._joints :], 0.0
        return xp.clip(known + gap[:, self._driven], -1.0, 1.0)

    def _now(self, view: View, ahead: int = 0) -> tuple[Array, Array]:
        """(N,) frame of the reference `ahead` steps from now, and how many cycles it is in."""
        frame = view.task["frame"] + view.step + ahead
        if not self.clip.loop:
            return view.xp.clip(frame, 0, self._frames - 1), view.xp.zeros_like(frame)
        return frame % self._frames, frame // self._frames

    def _move(self, place: Array, cycles: Array, view: View) -> Array:
        """Places of the reference after so many cycles."""
        stride = np.concatenate([self.clip.stride, [0.0]])
        return place + view.xp.astype(cycles, place.dtype)[:, None] * constant(stride, place)[None, :]

    def _pair(self, view: View) -> tuple[Motion, Motion]:
        frame, cycles = self._now(view)
        found = {name: constant(value, view.qpos)[frame] for name, value in vars(self._wanted).items()}
        found["place"] = self._move(found["place"], cycles, view)
        return self._motion(view.xp, view.qpos, view.qvel, view.sensors), Motion(**found)

    def _motion(self, xp: ModuleType, qpos: Array, qvel: Array, sensors: Mapping[str, Array]) -> Motion:
        place, turn = sensors["framepos"], sensors["framequat"]
        w, x, y, z = (turn[:, i] for i in range(4))
        heading = xp.atan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z))
        c, s, ends = xp.cos(heading), xp.sin(heading), []
        for i in range(self._ends):
            away = sensors[f"end{i}"] - place
            flat = [c * away[:, 0] + s * away[:, 1], c * away[:, 1] - s * away[:, 0]]
            ends.append(xp.stack([*flat, sensors[f"end{i}"][:, 2]], axis=1))
        return Motion(
            joint=qpos[:, self._position :],
            joint_speed=qvel[:, self._speed :],
            effector=xp.stack(ends, axis=1),
            place=place,
            turn=turn,
            velocity=sensors["framelinvel"],
            spin=sensors["frameangvel"],
            mass_velocity=sensors["mass_velocity"],
        )

    def _fallen(self, view: View, now: Motion, wanted: Motion) -> Array:
        xp = view.xp
        fallen = xp.zeros(view.qpos.shape[0], dtype=xp.bool)
        for name in self._touch:
            fallen = fallen | (view.sensors[f"gap_{name}"][:, 0] <= 0.0)
        if self.o.max_tilt is not None:
            fallen = fallen | (motion_reward.angle_between(now.turn, wanted.turn, xp) > self.o.max_tilt)
        if self.o.max_lag is not None:
            fallen = fallen | (xp.sum((now.place - wanted.place) ** 2, axis=1) > self.o.max_lag**2)
        return fallen
