"""An arm of several links reaches for a point in space, observed limb by limb as vectors in the world's frame."""

from __future__ import annotations

import itertools
import math

import numpy as np

from robot_rl.types import IOSpec
from robot_rl.types.options import Count, Interval, Positive

_LENGTH = 0.3
_SWING, _BEND = 1.2, 2.0  # limits of the joint about the vertical and of the others [rad]
_RATE, _LAG = 3.0, 0.1  # rad/s at action 1; s until two thirds of a command are followed
_VECTORS = ("position", "gravity", "target", "velocity", "spin", "axis0", "axis1", "axis2")
_NUMBERS = ("angle0", "angle1", "has_axis0", "has_axis1", "height", "length")


class Limbs:
    """A base that stands in some heading, and links of 0.3 m behind it; the tip is to reach a point.

    Limb 0 is the base. The first link turns about the vertical (within 1.2 rad of the heading) and bends about a
    horizontal axis, the others bend only. Actions are rates of the joints, followed with a lag; the weight of what a
    bending joint carries pulls it down. Everything in "state" is in the world's frame: an arm that stands in another
    heading sees other numbers, although nothing else is different. Per limb: vectors from the base to its middle, of
    gravity (unit), from its end to the target, of its velocity, rate of turn / 3 and its joints' axes (zero where there
    is none), then numbers. Reward: minus the distance [m] of the tip from the target. Success: within 5 cm.

    Args:
        links: of the arm, at least 1.
        heading: [low, high] of the base's heading [degrees], drawn anew for every episode.
        sag: [rad/s] that the joint at the base of a straight, level arm sinks.
        seconds: length of an episode.

    Raises:
        ValueError: an option out of range.

    Source: the vectors per limb after alpc91/SGRL; the world is ours.
    """

    def __init__(
        self, links: Count = 3, heading: Interval = (-30.0, 30.0), sag: Positive = 0.5, seconds: Positive = 2.0
    ) -> None:
        if links < 1 or len(heading) != 2 or heading[0] > heading[1] or seconds < 0.1:
            raise ValueError(
                f"links, heading, seconds are {links}, {list(heading)}, {seconds}; expected at least 1, [low, high] in "
                "degrees and at least 0.1"
            )
        self.links, self.episode_steps, self._dt = links, round(seconds * 20), 0.05
        self._heading, self._sag = np.radians(np.asarray(heading, float)), sag
        joints = [(1, 0), (1, 1), *((i, 0) for i in range(2, links + 1))]
        self._limit = np.array([_SWING] + [_BEND] * links)
        seen: list[str] = []
        for i in range(links + 1):
            seen += [f"limb{i}.{name}.{axis}" for name in _VECTORS for axis in "xyz"]
            seen += [f"limb{i}.{name}" for name in _NUMBERS]
        self.io = IOSpec(
            {"state": ((len(seen),), "float32")}, tuple(f"limb{i}.axis{j}" for i, j in joints),
            (-_RATE,) * len(joints), (_RATE,) * len(joints), ("rad/s",) * len(joints), control_hz=20.0,
            obs_names=tuple(seen),
        )  # fmt: skip

    def start(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Any heading of the range, joints near the middle, a target in front of the arm."""
        heading = rng.uniform(*self._heading)
        away = heading + rng.uniform(-0.8, 0.8)
        rise = rng.uniform(-0.5, 1.0)
        far = _LENGTH * self.links * rng.uniform(0.5, 0.9)
        aim = np.array([math.cos(away) * math.cos(rise), math.sin(away) * math.cos(rise), math.sin(rise)])
        return {
            "heading": np.array(heading),
            "angle": rng.uniform(-0.3, 0.3, self.links + 1) * self._limit,
            "rate": np.zeros(self.links + 1),
            "target": far * aim,
        }

    def _frames(self, state: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, links + 1, 3) ends of the links, the base first; (rows, joints, 3) axes; (rows, links, 3) links."""
        swing = state["heading"] + state["angle"][:, 0]
        pitch = np.cumsum(state["angle"][:, 1:], 1)
        c, s, level = np.cos(swing)[:, None], np.sin(swing)[:, None], np.cos(pitch)
        link = _LENGTH * np.stack([c * level, s * level, -np.sin(pitch)], 2)
        ends = np.concatenate([np.zeros_like(link[:, :1]), np.cumsum(link, 1)], 1)
        bend = np.stack([-s, c, np.zeros_like(s)], 2)  # turning about it lowers the link
        upright = np.zeros_like(bend)
        upright[..., 2] = 1.0
        return ends, np.concatenate([upright, np.repeat(bend, self.links, 1)], 1), link

    def _distance(self, state: dict[str, np.ndarray]) -> np.ndarray:
        return np.linalg.norm(self._frames(state)[0][:, -1] - state["target"], axis=1)

    def step(self, state: dict[str, np.ndarray], action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Follow the commanded rates, less what the weight adds."""
        ends, axes, link = self._frames(state)
        command = _RATE * action.astype(float)
        middles = ends[:, :-1] + link / 2
        for j in range(1, self.links + 1):  # torque of the links behind a joint, 1 for the whole arm level
            lever = (middles[:, j - 1 :] - ends[:, j - 1 : j]).sum(1)
            torque = np.cross(lever, [0.0, 0.0, -1.0]) / (_LENGTH * self.links**2 / 2)
            command[:, j] += self._sag * (torque * axes[:, j]).sum(1)
        state["rate"] = state["rate"] + (command - state["rate"]) * (1.0 - math.exp(-self._dt / _LAG))
        moved = state["angle"] + self._dt * state["rate"]
        state["angle"] = np.clip(moved, -self._limit, self._limit)
        state["rate"] = np.where(moved == state["angle"], state["rate"], 0.0)
        far = self._distance(state)
        return -far, np.zeros(len(far), bool), far < 0.05

    def observe(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """(rows, (links + 1) 30)."""
        ends, axes, link = self._frames(state)
        rows, rate = len(ends), state["rate"]
        vectors = np.zeros((rows, self.links + 1, len(_VECTORS), 3))
        numbers = np.zeros((rows, self.links + 1, len(_NUMBERS)))
        vectors[:, :, 1, 2] = -1.0
        vectors[:, :, 2] = state["target"][:, None] - ends
        spin = np.cumsum(rate[..., None] * axes, 1)[:, 1:]  # of link i: of all joints up to its own
        velocity = np.zeros((rows, 3))
        for i in range(self.links):
            vectors[:, i + 1, 0] = ends[:, i] + link[:, i] / 2
            vectors[:, i + 1, 3] = velocity + np.cross(spin[:, i], link[:, i] / 2)
            velocity = velocity + np.cross(spin[:, i], link[:, i])
        vectors[:, 1:, 4] = spin / 3.0
        vectors[:, 1, 5:7] = axes[:, :2]
        vectors[:, 2:, 5] = axes[:, 2:]
        share = state["angle"] / self._limit
        numbers[:, 1, 0:2] = share[:, :2]
        numbers[:, 2:, 0] = share[:, 2:]
        numbers[:, 1:, 2], numbers[:, 1, 3] = 1.0, 1.0
        numbers[:, :, 4] = ends[..., 2]
        numbers[:, 1:, 5] = _LENGTH
        return np.concatenate([vectors.reshape(rows, self.links + 1, -1), numbers], 2).reshape(rows, -1).astype("f4")

    def expert(self, obs: np.ndarray) -> np.ndarray:
        """Transposed Jacobian: every joint turns by what brings the tip towards the target."""
        seen = np.asarray(obs, float).reshape(len(obs), self.links + 1, -1)
        vectors = seen[..., : 3 * len(_VECTORS)].reshape(*seen.shape[:2], len(_VECTORS), 3)
        miss, ends = vectors[:, -1, 2], vectors[:, :1, 2] - vectors[:, :, 2]
        action = np.zeros((len(obs), self.links + 1))
        for j, (limb, axis) in enumerate([(1, 5), (1, 6), *((i, 5) for i in range(2, self.links + 1))]):
            lever = ends[:, -1] - ends[:, limb - 1]
            action[:, j] = (vectors[:, limb, axis] * np.cross(lever, miss)).sum(1)
        return np.clip(12.0 * action, -1.0, 1.0).astype(np.float32)

    def picture(self, state: dict[str, np.ndarray], row: int) -> np.ndarray:
        """From above on the left, from the side on the right: links blue, tip red, target green."""
        frame = np.full((208, 424, 3), 245, np.uint8)
        ends = self._frames(state)[0][row]
        spots = [
            (a + (b - a) * t, (50, 90, 200), 2) for a, b in itertools.pairwise(ends) for t in np.linspace(0, 1, 24)
        ]
        spots += [(state["target"][row], (60, 170, 80), 6), (ends[-1], (200, 60, 50), 3)]
        scale = 96 / (_LENGTH * self.links)
        for spot, colour, half in spots:
            for offset, (u, v) in ((104, (spot[0], spot[1])), (320, (math.hypot(spot[0], spot[1]), spot[2]))):
                column, line = int(offset + scale * u), int(104 - scale * v)
                frame[max(line - half, 0) : line + half, max(column - half, 0) : column + half] = colour
        return frame
