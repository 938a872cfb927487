"""A scripted trot for robots on four legs and more whose legs have three joints: no gait of anybody's own, a beginning.

Where a foot goes for which joints is fitted to the model, so that no geometry of legs is assumed.
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property

import array_api_compat
import numpy as np

from robot_rl.sim.arrays import constant
from robot_rl.sim.legs_scene import FOOT, LegsScene
from robot_rl.sim.robot_model import mujoco
from robot_rl.types import Array
from robot_rl.types.card import Card

_DEGREE, _UNIT = 4, 0.1  # of the polynomial, and of its arguments [m]
_AROUND, _SAMPLES, _ERROR = 0.9, 1500, 0.04  # joints that it is fitted to [rad], how many, largest mean error [rad]
_POWERS = [p for p in itertools.product(range(_DEGREE + 1), repeat=3) if sum(p) <= _DEGREE]


class Trot:
    """Diagonal legs step together: stance feet sweep backwards with the commanded velocity, others return in an arc.

    Args:
        card: of the robot.
        scene: its model.
        offset: (F,) phase of each foot [periods]; feet are in the air during the first half.
        lift: how high feet are lifted [m].
        period: of the gait [s].

    Source: Raibert, Legged Robots That Balance (1986): symmetric sweep of the stance foot under the hip.
    """

    gain, turn = 1.6, 0.78
    """How much faster than commanded feet sweep, and of this for turning."""
    bias, sink = -0.058, -0.012
    """How far ahead of the trunk's mass feet are set, and how far stance feet push down [m]."""
    level, level_rate = 0.52, 0.058
    """By how much the length of a stance leg answers tilt [1] and its rate [s], per lever."""
    front, rear, air = 0.75, 1.055, 0.51
    """Shares of the weight that front and rear legs lead for, and how much of that is left in the air."""

    def __init__(self, card: Card, scene: LegsScene, offset: np.ndarray, *, lift: float, period: float) -> None:
        self._card, self._scene = card, scene
        self._offset, self._lift, self._period = offset, lift, period

    @cached_property
    def _legs(self) -> list[tuple[list[int], np.ndarray, np.ndarray]] | None:
        """Per foot its three joints, polynomial (P, 3) from place to joints, and (3,) lead [rad] that carries its share
        of the weight; None where legs are of another kind."""
        model = mujoco.MjModel.from_xml_string(self._scene.xml)
        data = mujoco.MjData(model)
        random = np.random.default_rng(0)
        found = []
        data.qpos[:] = self._scene.stand
        mujoco.mj_forward(model, data)
        trunk = int(model.body(self._card.base).id)
        self._shift = float(data.subtree_com[trunk][0] - self._scene.feet[:, 0].mean())
        kp = np.array([joint.kp for joint in self._card.joints])
        load = np.array([0.0, 0.0, 9.81 * float(model.body_subtreemass[trunk]) / (0.5 * len(self._offset))])
        for i in range(len(self._offset)):
            site = int(model.site(f"{FOOT}{i}").id)
            data.qpos[:] = self._scene.stand
            mujoco.mj_forward(model, data)
            turn = np.zeros((3, model.nv))
            mujoco.mj_jacSite(model, data, turn, None, site)
            own = [j for j in range(model.nv - 6) if np.abs(turn[:, 6 + j]).max() > 1e-6]
            if len(own) != 3 or len(self._offset) < 4:
                return None
            begin = data.site_xpos[site].copy()
            moved, places = random.uniform(-_AROUND, _AROUND, (_SAMPLES, 3)), np.zeros((_SAMPLES, 3))
            for row, place in zip(moved, places):
                data.qpos[[7 + j for j in own]] = self._scene.stand[[7 + j for j in own]] + row
                mujoco.mj_kinematics(model, data)
                place[:] = (data.site_xpos[site] - begin) / _UNIT
            near = np.abs(places).max(axis=1) < 1.3
            terms = np.stack([np.prod(places[near] ** np.array(power), axis=1) for power in _POWERS], axis=1)
            fit = np.linalg.lstsq(terms, moved[near], rcond=None)[0]
            if np.sqrt(np.mean((terms @ fit - moved[near]) ** 2)) > _ERROR * 2.0:
                return None
            found.append((own, fit, -turn[:, [6 + j for j in own]].T @ load / kp[own]))
        return found

    def act(self, state: Array, reach: float) -> Array:
        """(N, J) actions of states (N, S) as the world walk observes them; zeros where legs are of another kind."""
        xp = array_api_compat.array_namespace(state)
        count = len(self._card.joints)
        if self._legs is None:
            return 0.0 * state[:, :count]
        rate, tilt, command = state[:, :3] / 0.25, state[:, 3:6], state[:, 6:9] / constant((2.0, 2.0, 1.0), state)
        turn = self.turn * command[:, 2]
        phase = xp.atan2(state[:, -2], state[:, -1]) / (2.0 * math.pi)
        columns = [0.0 * phase] * count  # joints of no leg, of an arm on its back, stay at home
        for (x, y, _), offset, (own, fit, lead) in zip(self._scene.feet, self._offset, self._legs):
            leg = phase + float(offset)
            leg = leg - xp.floor(leg)
            swing = leg < 0.5
            along = 2.0 * leg - xp.astype(~swing, leg.dtype)
            sweep = xp.where(swing, -0.5 * xp.cos(math.pi * along), 0.5 - along) * (0.5 * self._period * self.gain)
            level = x * (self.level * tilt[:, 0] + self.level_rate * rate[:, 1])
            level = level + y * (self.level * tilt[:, 1] - self.level_rate * rate[:, 0])
            place = [
                (command[:, 0] - turn * float(y)) * sweep + self.bias + self._shift,
                (command[:, 1] + turn * float(x)) * sweep,
                xp.where(swing, self._lift * xp.sin(math.pi * along), -self.sink - level),
            ]
            place = [xp.clip(value / _UNIT, -1.3, 1.3) for value in place]
            terms = [place[0] ** a * place[1] ** b * place[2] ** c for a, b, c in _POWERS]
            for k, j in enumerate(own):
                angle = sum(float(fit[i, k]) * term for i, term in enumerate(terms))
                share = self.front if x > 0.0 else self.rear
                angle = angle + float(lead[k]) * share * xp.where(swing, xp.zeros_like(leg) + self.air, 1.0)
                columns[j] = angle / reach
        return xp.clip(xp.stack(columns, axis=1), -1.0, 1.0)
