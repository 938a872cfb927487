"""Where and how far the fingers of a hand close on a cube: found by trying it, as their shapes alone do not say it.

Every try is of the whole hand in its own frame: a slab under the cube in place of the floor, fingers that close, and
take the cube's weight when the slab is gone.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.robot_model import mujoco
from robot_rl.sim.robot_probe import corners_in
from robot_rl.sim.tool import bodies_below
from robot_rl.types.card import GripperCard

if TYPE_CHECKING:
    from mujoco import MjData, MjSpec

CUBE, GRASP, _SLAB = "cube", "robot_rl_grasp", "robot_rl_slab"
_SLACK = 0.03  # how much wider than the cube fingers open for it, where they can [m]
_LEAST = 0.006  # ... and at least [m]
_SLIP = 0.006  # by which a cube that is held may sink in a second [m]
_FORCE = 25.0  # of one finger on the cube [N]: less slips when the arm hurries, more bends linkages and soft contacts
_GAIN = (0.05, 8.0)  # what servos are made weaker or stiffer by for it
_UNSTRAINED = 0.7  # part of their largest effort with which fingers press at most that have a servo each
_LAG, _SPEED = 0.06, 60.0  # s that fingers are behind their command, and rad/s at which they would swing without
_AWAY = (0.0, 0.0, 50.0)
_TIP = 0.02  # of the fingers, in whose middle the cube is held [m]
_SIDE, _STEP = 0.12, 0.002  # how far aside the cube is looked for, and how densely [m]


@dataclass(frozen=True)
class Grip:
    """How a hand grasps a cube.

    Attributes:
        place: (3,) middle of the cube in the frame of `GRASP`: y is how the fingers close, z points away from the
            hand [m].
        beside: by how much of y that is off where the fingers then hold it [m].
        opened: share of the card's range, 0 closed to 1 open, at which the fingers go around it.
        held: share at which they hold it.
        gain: of the fingers' servos, in units of the card's, with which they press by about `_FORCE`.
    """

    place: tuple[float, float, float]
    beside: float
    opened: float
    held: float
    gain: float


class HandTrial:
    """A model with a hand, a cube, and the frame `GRASP` in which both are seen.

    Args:
        spec: of it; the cube is free and has no gravity compensation of its own. Not changed.
        card: of the fingers.
        rest: {joint: position} of the arm's joints, which stay there.
        half: half the cube's edge [m].
    """

    def __init__(self, spec: MjSpec, card: GripperCard, rest: dict[str, float], half: float) -> None:
        spec = spec.copy()
        spec.body(CUBE).gravcomp = 1.0
        spec.option.noslip_iterations = 0  # what holds without that pass holds with it; forces are told without
        slab = spec.worldbody.add_body(name=_SLAB, mocap=True)
        slab.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.2, 0.2, 0.01], friction=[0.4, 0.005, 0.0001])
        self._card, self._half, self._model = card, half, spec.compile()
        self._rest = {int(self._model.joint(name).qposadr[0]): value for name, value in rest.items()}
        self._cube = self._model.body(CUBE)
        self._slab = int(self._model.body_mocapid[self._model.body(_SLAB).id])
        self._free = int(self._model.joint(CUBE).qposadr[0])
        self._finger = int(self._model.joint(card.joints[0]).qposadr[0])
        self._arm = [i for i in range(self._model.nu) if self._model.actuator(i).name in rest]
        self._hand = [(self._model.actuator(n).id, int(self._model.joint(n).dofadr[0])) for n in card.joints]
        self._armature = self._model.dof_armature.copy()
        self._across = 0.0  # where the tips are along the frame's x [m]
        self._press(1.0)
        self._site = self._model.site(GRASP).id
        own = set(range(self._model.njnt)) - {self._model.joint(name).id for name in (*rest, CUBE)}
        self._moving = bodies_below(self._model, [int(self._model.jnt_bodyid[joint]) for joint in own])  # linkages, too

    def find(self) -> Grip | str:
        """The grip, or what is wrong: a sentence without the arm's name."""
        settled = [(share, self._settle(share)) for share in (0.4, 0.6, 0.8, 1.0)]
        corners = [self._corners(data) for data in (*(data for _, data in settled), self._settle(0.2))]
        end = float(max(points[:, 2].max() for points in corners))
        tips = corners[0][corners[0][:, 2] > corners[0][:, 2].max() - _TIP, 0]
        self._across = float(0.5 * (tips.min() + tips.max()))
        slackest = 0.0
        holds: list[tuple[bool, Grip]] = []
        for depth in end + self._half * np.array([0.25, 0.0, -0.25, -0.5, -0.75, -1.0]):
            gaps = [(share, *self._gap(data, float(depth))) for share, data in settled]
            # the least that is wide enough; a jaw that opens far has the most room half open
            share, middle, slack = next((gap for gap in gaps if gap[2] >= _SLACK), max(gaps, key=lambda gap: gap[2]))
            slackest = max(slack, slackest)
            if slack >= _LEAST and (grip := self._try(share, middle, float(depth))) is not None:
                holds.append((slack >= _SLACK, grip))
        if not holds:
            edge = 200.0 * self._half
            if slackest < _LEAST:
                return f"its open fingers leave no room for a cube of {edge:.1f} cm and 0.6 cm beside it"
            return f"its fingers go around a cube of {edge:.1f} cm and do not hold it: not grasped, or dropped"
        roomy = [grip for wide, grip in holds if wide] or [grip for _, grip in holds]
        return roomy[len(roomy) // 2]

    def _start(self, share: float) -> MjData:
        data = mujoco.MjData(self._model)
        for at, value in self._rest.items():
            data.qpos[at] = value
        data.ctrl[self._arm] = list(self._rest.values())
        self._command(data, share)
        data.mocap_pos[self._slab], data.qpos[self._free : self._free + 3] = _AWAY, (0.0, 0.0, 40.0)
        return data

    def _command(self, data: MjData, share: float) -> None:
        opened, closed = np.array(self._card.open), np.array(self._card.closed)
        data.ctrl[[servo for servo, _ in self._hand]] = closed + share * (opened - closed)

    def _share(self, data: MjData) -> float:
        opened, closed = self._card.open[0], self._card.closed[0]
        return float((data.qpos[self._finger] - closed) / (opened - closed))

    def _run(self, data: MjData, seconds: float) -> None:
        for _ in range(round(seconds / self._model.opt.timestep)):
            mujoco.mj_step(self._model, data)

    def _press(self, gain: float) -> None:
        """Give the fingers servos of a gain."""
        kp, kd, armature = servo_of(self._card, gain)
        for servo, dof in self._hand:
            self._model.actuator_gainprm[servo, 0], self._model.actuator_biasprm[servo, 1:3] = kp, (-kp, -kd)
            self._model.dof_armature[dof] = max(armature, self._armature[dof])

    def _settle(self, share: float) -> MjData:
        """The hand alone with its fingers at a share."""
        data = self._start(share)
        self._run(data, 0.6)
        return data

    def _frame(self, data: MjData) -> tuple[np.ndarray, np.ndarray]:
        return np.array(data.site_xpos[self._site]), np.array(data.site_xmat[self._site]).reshape(3, 3)

    def _put(self, data: MjData, aside: float, depth: float) -> None:
        """The cube, and the slab below it, at a place of the frame."""
        origin, turn = self._frame(data)
        quat = np.zeros(4)
        mujoco.mju_mat2Quat(quat, turn.flatten())
        data.qpos[self._free : self._free + 3] = origin + turn @ (self._across, aside, depth)
        data.qvel[self._cube.dofadr[0] : self._cube.dofadr[0] + 6] = 0.0
        data.qpos[self._free + 3 : self._free + 7] = data.mocap_quat[self._slab] = quat
        data.mocap_pos[self._slab] = origin + turn @ (self._across, aside, depth + self._half + 0.0105)

    def _corners(self, data: MjData) -> np.ndarray:
        """(K, 3) corners of the fingers in the frame [m]."""
        model, (origin, turn), found = self._model, self._frame(data), []
        for geom in np.flatnonzero(model.geom_contype | model.geom_conaffinity).tolist():
            if int(model.geom_bodyid[geom]) in self._moving:
                own = corners_in(model, geom) @ data.geom_xmat[geom].reshape(3, 3).T
                found.append((data.geom_xpos[geom] - origin + own) @ turn)
        return np.concatenate(found or [np.zeros((1, 3))])

    def _gap(self, data: MjData, depth: float) -> tuple[float, float]:
        """Middle of where the cube is free between the fingers, aside of the frame, and how long that is [m]: of the
        longest gap that the commanded finger closes, along y, or of the longest of all where it closes none. A jaw that
        stands out of the way leaves one of nearly `_SLACK` before what it closes on."""
        asides, probe = np.arange(-_SIDE, _SIDE, _STEP), copy(data)
        blockers = [self._blockers(probe, float(aside), depth) for aside in asides]
        edges = np.flatnonzero(np.diff([not found for found in blockers]))
        best = (False, 0.0, 0.0)
        if len(self._hand) == 1 and len(edges) and not blockers[0] and not blockers[edges[0] + 1] & self._moving:
            best = (True, _SLACK - _STEP, float(asides[edges[0]] - 0.5 * _SLACK))
        for first, last in pairwise(edges):
            if not blockers[last]:  # blocked on either side
                low, high = asides[first + 1], asides[last]
                closes = bool(blockers[first] & self._moving)
                best = max(
                    best, (closes, float(high - low + _STEP), float(0.5 * (low + high))), key=lambda gap: gap[:2]
                )
        return best[2], best[1]

    def _blockers(self, data: MjData, aside: float, depth: float) -> set[int]:
        """Bodies that touch a cube at a place of the frame."""
        self._put(data, aside, depth)
        data.mocap_pos[self._slab] = _AWAY
        mujoco.mj_fwdPosition(self._model, data)
        geoms = {int(geom) for i in self._touching(data) for geom in data.contact[i].geom}
        return {int(self._model.geom_bodyid[geom]) for geom in geoms} - {int(self._cube.id)}

    def _touching(self, data: MjData) -> list[int]:
        """Contacts of the cube."""
        geom = int(self._cube.geomadr[0])
        return [i for i in range(data.ncon) if geom in data.contact[i].geom]

    def _try(self, share: float, aside: float, depth: float) -> Grip | None:
        """Close on a cube that stands there, and lift it."""
        gain = 1.0
        found = self._close(share, aside, depth, gain)
        for _ in range(3):
            if found is None or 0.8 < found[1] / _FORCE < 1.25:
                break
            gain = float(np.clip(gain * _FORCE / max(found[1], 1.0), *_GAIN))
            found = self._close(share, aside, depth, gain)
        if found is not None and gain > (most := self._most(found[2])):
            gain = most
            found = self._close(share, aside, depth, gain)
        if found is None:
            return None
        (_, y, z), _, held, sunk = found
        if sunk > _SLIP or abs(z - depth) > self._half:
            return None
        # A finger that stands still pushes nothing: the cube waits a little off it.
        beside = float(np.clip(aside - y, -0.25 * _SLACK, 0.25 * _SLACK))
        return Grip(
            place=(self._across, float(y) + beside, float(z)), beside=beside, opened=share, held=held, gain=gain
        )

    def _most(self, held: float) -> float:
        """The gain up to which fingers with servos of their own hold what is between them where it is: beyond their
        largest effort two that press alike let it slide to either side."""
        if len(self._hand) == 1:
            return _GAIN[1]
        limits = [float(self._model.actuator_forcerange[servo, 1]) for servo, _ in self._hand]
        pulls = [self._card.kp * held * abs(a - b) for a, b in zip(self._card.open, self._card.closed, strict=True)]
        return max(
            _UNSTRAINED * min(limit / max(pull, 1e-9) for limit, pull in zip(limits, pulls, strict=True)), _GAIN[0]
        )

    def _close(
        self, share: float, aside: float, depth: float, gain: float
    ) -> tuple[np.ndarray, float, float, float] | None:
        """Where the cube is held (3,) [m], force of a finger [N], share of open, how far it sinks in a second [m]."""
        model = self._model
        self._press(gain)
        data = self._settle(share)
        self._put(data, aside, depth)
        turn = self._frame(data)[1]
        model.opt.gravity[:] = 9.81 * turn[:, 2]  # arm and hand are compensated
        self._command(data, 0.0)
        self._run(data, 0.8)
        before, held, force = self._observe(data), self._share(data), self._force(data)
        data.mocap_pos[self._slab] = _AWAY
        model.body_gravcomp[self._cube.id] = 0.0
        self._run(data, 1.0)
        after = self._observe(data)
        model.body_gravcomp[self._cube.id] = 1.0
        sunk = float(np.linalg.norm(after - before))
        return None if not np.isfinite(sunk) or held < 0.02 else (before, force, held, sunk)

    def _observe(self, data: MjData) -> np.ndarray:
        origin, turn = self._frame(data)
        return turn.T @ (data.qpos[self._free : self._free + 3] - origin)

    def _force(self, data: MjData) -> float:
        """Of the fingers on the cube: half the sum along the frame's y [N]."""
        total, force, turn = 0.0, np.zeros(6), self._frame(data)[1]
        for i in self._touching(data):
            mujoco.mj_contactForce(self._model, data, i, force)
            total += abs(float(force[0] * (data.contact[i].frame[:3] @ turn[:, 1])))
        return 0.5 * total


def servo_of(card: GripperCard, gain: float) -> tuple[float, float, float]:
    """kp, kd and least armature of a finger's joint: light fingers on stiff servos would shake what they hold."""
    kp = gain * card.kp
    return kp, _LAG * kp, kp / _SPEED**2
