"""Tabletop: a gripper on a gantry, three coloured blocks, two plates, and a sentence that says which block goes where.

The goals share one scene, so the same picture is near one goal and far from another: what a critic or a policy that
listens must tell apart, and one that only looks for motion cannot. Few geoms and no shadows keep pictures cheap on a
software renderer.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

import array_api_compat

from robot_rl.sim.arm import norm, shorten
from robot_rl.sim.arrays import constant
from robot_rl.sim.world import Draw, Reset, View, asset
from robot_rl.sim.worlds.tabletop_text import BLOCKS, GOALS, PLATES, sentence_bytes
from robot_rl.types import Array
from robot_rl.types.options import NotNegative, Positive

HALF = 0.02
"""Half the edge of a block, as in the model, m."""
STROKE = 0.08
"""Metres between the open fingers."""
WORK_MIN = 0.01
"""Remaining work of a goal that is met, m: the floor that keeps shares of it finite."""
GRASP, RELEASE, LIFT = 0.05, 0.03, 0.08
"""Metres that a pending grasp and a pending release count for, and how high a block is carried."""

_FIXED = (0, 2, 6, 3, 5)  # of the nine places: three blocks in corners, a plate on either side
_RADIUS = 0.035  # a block's centre within this of the plate's counts as on it, m
_SPACING, _JITTER = 0.12, 0.015  # of the places that blocks and plates start at, m
_LOW, _HIGH = (-0.17, -0.17, 0.018), (0.17, 0.17, 0.20)
_STEP = 0.03  # m per control step at action 1
_LEASH = 0.05  # m that the command may be ahead of the hand
_HAND = 5  # positions of the hand in qpos: x, y, z, two fingers
_SCALE = 0.1  # m per unit of the vectors in the state


class Tabletop:
    """One of three blocks onto one of two plates, as a sentence asks; success when it lies there, released.

    The hand's own positions come first in `qpos`: x, y, z of the tip [m] and two fingers [m]. `view.task["goal"]` (N,)
    int64 is the row of `GOALS`; "plate_yellow" and "plate_purple" (N, 3) [m] are where the plates lie.

    Args:
        control_hz: decisions per second: 10, 20 or 40.
        seconds: length of an episode.
        reward: "sparse", 1 where the goal is met, or "work", minus the remaining work [m] after the step.
        sentences: what the observation "instruction" (UTF-8 bytes, zeros behind) says: "plain", one sentence for each
            goal, "train" or "held_out" (see `tabletop_text`), drawn with the start; None has no such observation.
        layout: "random", any five of nine places, or "fixed", the same five in every episode.
        jitter: largest shift of a block or plate from its place along each axis, m.
        hand_spread: share of its range from which the start of the hand is drawn; 0 is always the middle.
        only: goals that are drawn, as "<block> on <plate>"; None draws all six.

    Raises:
        ValueError: an option outside these values.
    """

    name: str = "tabletop"
    cameras: tuple[str, ...] = ("front", "top")
    markers: ClassVar[dict[str, str]] = {f"plate_{name}": f"plate_{name}" for name in PLATES}
    task_names: tuple[str, ...] = tuple(f"{BLOCKS[i]} block on {PLATES[j]} plate" for i, j in GOALS)
    """What "task" in the info counts."""

    def __init__(
        self,
        control_hz: Positive = 10.0,
        seconds: Positive = 8.0,
        reward: str = "sparse",
        sentences: str | None = None,
        layout: str = "random",
        jitter: NotNegative = _JITTER,
        hand_spread: NotNegative = 1.0,
        only: Sequence[str] | None = None,
    ) -> None:
        if control_hz not in (10, 20, 40):
            raise ValueError(f"control_hz is {control_hz:g}, expected 10, 20 or 40 (physics runs at 200 Hz)")
        if reward not in ("sparse", "work"):
            raise ValueError(f"reward is '{reward}', expected 'sparse' or 'work'")
        if layout not in ("random", "fixed"):
            raise ValueError(f"layout is '{layout}', expected 'random' or 'fixed'")
        if not 0.0 <= jitter <= _JITTER:
            raise ValueError(f"jitter is {jitter:g} m, expected 0 to {_JITTER:g}: further, neighbours would touch")
        if not 0.0 <= hand_spread <= 1.0:
            raise ValueError(f"hand_spread is {hand_spread:g}, expected a share from 0 to 1")
        self._spread = float(hand_spread)
        self._fixed, self._jitter, self._words = layout == "fixed", float(jitter), None
        if sentences is not None:
            self._words = sentence_bytes(sentences)
        self.instruction_bytes = 0 if self._words is None else self._words.shape[2]
        names = [f"{BLOCKS[i]} on {PLATES[j]}" for i, j in GOALS]
        if only is not None and (not only or not set(only) <= set(names)):
            raise ValueError(f"only is {list(only)}, expected some of {', '.join(names)}")
        self._only = [names.index(name) for name in (names if only is None else only)]
        self.asked_tasks = tuple(self._only)
        self.control_hz = float(control_hz)
        self.episode_steps = round(seconds * control_hz)
        self._reward = reward
        self._step = _STEP * 10.0 / control_hz
        self.action_names = ("tip_dx", "tip_dy", "tip_dz", "gripper_opening")
        self.action_units = ("m",) * 4
        self.action_low = (-self._step,) * 3 + (0.0,)
        self.action_high = (self._step,) * 3 + (STROKE,)
        parts = [f"tip_{axis}" for axis in "xyz"] + [f"lag_{axis}" for axis in "xyz"] + ["opening"]
        parts += [f"tip_to_{block}_{axis}" for block in BLOCKS for axis in "xyz"]
        parts += [f"tip_to_{plate}_plate_{axis}" for plate in PLATES for axis in "xy"]
        parts += [f"goal_{block}" for block in BLOCKS] + [f"goal_{plate}" for plate in PLATES]
        self.obs_names = tuple(parts)

    def mjcf(self) -> str:
        """Gantry, blocks and plates."""
        return asset("tabletop/tabletop.xml")

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """Blocks and plates on five of nine places, jittered; hand anywhere above; any goal."""
        places = xp.argsort(draw.uniform(9), axis=1)[:, : len(BLOCKS) + len(PLATES)]
        if self._fixed:
            places = 0 * places + xp.asarray(_FIXED, device=array_api_compat.device(places))[None, :]
        unit = draw.uniform(4)
        shift = xp.astype(draw.uniform(10, low=-self._jitter, high=self._jitter), xp.float64)
        turn = xp.astype(draw.uniform(len(BLOCKS), low=-0.1, high=0.1), xp.float64)
        x = (xp.astype(places % 3, xp.float64) - 1.0) * _SPACING + shift[:, :5]
        y = (xp.astype(places // 3, xp.float64) - 1.0) * _SPACING + shift[:, 5:]
        zero = xp.zeros_like(x[:, :1])
        where = 0.5 + self._spread * (xp.astype(unit[:, :3], xp.float64) - 0.5)
        tip = constant((-0.13, -0.13, 0.11), x) + where * constant((0.26, 0.26, 0.08), x)
        hand = xp.concat([tip, zero + 0.5 * STROKE, zero + 0.5 * STROKE], axis=1)
        blocks = [
            part
            for i in range(len(BLOCKS))
            for part in (
                x[:, i : i + 1], y[:, i : i + 1], zero + HALF,
                xp.cos(turn[:, i : i + 1]), zero, zero, xp.sin(turn[:, i : i + 1]),
            )
        ]  # fmt: skip
        plates = {
            f"plate_{name}": xp.concat([x[:, i : i + 1], y[:, i : i + 1], zero + 0.002], axis=1)
            for i, name in enumerate(PLATES, start=len(BLOCKS))
        }
        drawn = xp.astype(unit[:, 3] * len(self._only), xp.int64)
        goal: Any = sum(xp.where(drawn == i, xp.full_like(drawn, row), 0) for i, row in enumerate(self._only))
        qpos = xp.concat([hand, *blocks], axis=1)
        task = {"goal": goal, "command": xp.asarray(tip, copy=True), **plates}
        if self._words is not None:  # drawn only where it is said, so that starts without sentences stay what they were
            task["phrase"] = xp.astype(draw.uniform(1)[:, 0] * self._words.shape[1], xp.int64)
        return Reset(qpos, xp.zeros((n, _HAND + 6 * len(BLOCKS)), dtype=xp.float64), hand, task)

    def control(self, view: View, action: Array) -> Array:
        """Position targets of the gantry and the fingers; the command stays within 5 cm of the hand."""
        xp = view.xp
        command = view.task["command"]
        action = xp.astype(action, command.dtype)
        tip = view.qpos[:, :3]
        wanted = xp.clip(command + action[:, :3] * self._step, tip - _LEASH, tip + _LEASH)
        command[...] = xp.clip(wanted, constant(_LOW, command), constant(_HIGH, command))
        finger = (action[:, 3:4] + 1.0) * (0.25 * STROKE)
        return xp.concat([command, finger, finger], axis=1)

    def update(self, view: View) -> None:
        """Nothing to remember."""

    def observe(self, view: View) -> Array:
        """Tip, lag, opening, vectors from the tip to blocks and plates [10 cm], the goal as two one-hots."""
        xp = view.xp
        tip = view.qpos[:, :3]
        blocks, plates = self._blocks(view), self._plates(view)
        opening = self._opening(view)[:, None] * (2.0 / STROKE) - 1.0
        parts = [tip / _SCALE, (view.task["command"] - tip) / _LEASH, opening]
        parts += [(block - tip) / _SCALE for block in blocks]
        parts += [(plate[:, :2] - tip[:, :2]) / _SCALE for plate in plates]
        parts.append(self.one_hot(view.task["goal"]))
        return xp.astype(xp.concat([xp.astype(part, tip.dtype) for part in parts], axis=1), xp.float32)

    def instructions(self, view: View) -> list[str]:
        """N sentences: what is asked, in the words of the observation where it says so."""
        if self._words is not None:
            return [bytes(row.tolist()).rstrip(b"\0").decode() for row in self.instruct(view)]
        rows = [GOALS[int(goal)] for goal in view.task["goal"].tolist()]
        return [f"put the {BLOCKS[i]} block on the {PLATES[j]} plate" for i, j in rows]

    def mistaken(self, state: Array, draw: Array) -> Array:
        """The state under one of the five other goals: block and plate go round by 1 to 5 rows of `GOALS`."""
        xp = array_api_compat.array_namespace(state)
        first, blocks = len(self.obs_names) - 5, len(BLOCKS)
        row = xp.argmax(state[:, first : first + blocks], axis=1) * len(PLATES)
        row = row + xp.argmax(state[:, first + blocks :], axis=1)
        wrong = xp.isfinite(draw)
        shift = 1 + xp.astype(xp.where(wrong, draw, xp.zeros_like(draw)) * (len(GOALS) - 1), xp.int64)
        other = xp.concat([state[:, :first], self.one_hot((row + shift) % len(GOALS))], axis=1)
        return xp.where(wrong[:, None], other, state)

    def one_hot(self, goal: Array) -> Array:
        """(N,) rows of `GOALS` -> (N, 5) float32: three columns for the block, two for the plate."""
        xp = array_api_compat.array_namespace(goal)
        block, plate = goal // len(PLATES), goal % len(PLATES)
        columns = [block == i for i in range(len(BLOCKS))] + [plate == i for i in range(len(PLATES))]
        return xp.astype(xp.stack(columns, axis=1), xp.float32)

    def instruct(self, view: View) -> Array:
        """(N, `instruction_bytes`) uint8: the sentence of each goal."""
        assert self._words is not None
        goal = view.task["goal"]
        words = view.xp.asarray(self._words, device=array_api_compat.device(goal))
        return words[goal, view.task["phrase"]]

    def remaining(self, view: View) -> Array:
        """(N, 6) remaining work [m] under every goal, at least `WORK_MIN`.

        The path that the hand still has to go (to the block, up, across, down), plus `GRASP` while the block is not
        held, plus `RELEASE` while it is not let go, plus `RELEASE` while another block is held.
        """
        xp = view.xp
        tip = view.qpos[:, :3]
        blocks, plates = self._blocks(view), self._plates(view)
        held = [self._is_held(view, block) for block in blocks]
        any_held = held[0] | held[1] | held[2]
        done = self.satisfies(view)
        columns = []
        for column, (i, j) in enumerate(GOALS):
            block = blocks[i]
            across = norm(plates[j][:, :2] - block[:, :2])
            height = xp.clip(block[:, 2] - HALF, 0.0, None)
            carried = LIFT * xp.clip(across / 0.05, 0.0, 1.0)  # a block near its plate need not go up again
            up = xp.clip(carried - height, 0.0, None)
            carry = across + up + (height + up) + RELEASE
            other = xp.astype(any_held & ~held[i], tip.dtype) * RELEASE
            fetch = xp.where(held[i], xp.zeros_like(across), norm(block - tip) + GRASP + other)
            work = xp.where(done[:, column], xp.zeros_like(across), fetch + carry)
            columns.append(xp.clip(work, WORK_MIN, None))
        return xp.stack(columns, axis=1)

    def satisfies(self, view: View) -> Array:
        """(N, 6) bool: the block lies within 3.5 cm of the plate's centre and the hand does not hold it."""
        xp = view.xp
        columns = []
        for i, j in GOALS:
            block, plate = self._blocks(view)[i], self._plates(view)[j]
            there = norm(plate[:, :2] - block[:, :2]) < _RADIUS
            columns.append(there & (block[:, 2] < HALF + 0.006) & ~self._is_held(view, block))
        return xp.stack(columns, axis=1)

    def reward(self, view: View) -> Array:
        """1 at success, or minus the remaining work, m."""
        xp = view.xp
        if self._reward == "sparse":
            return xp.astype(self.success(view), xp.float32)
        return xp.astype(-self._of_goal(view, self.remaining(view)), xp.float32)

    def terminated(self, view: View) -> Array:
        """Never before the time limit: a block that was placed may be taken away again."""
        return view.xp.zeros(view.qpos.shape[0], dtype=view.xp.bool)

    def success(self, view: View) -> Array:
        """The asked block on the asked plate, released."""
        xp = view.xp
        return self._of_goal(view, xp.astype(self.satisfies(view), xp.float32)) > 0.5

    def expert(self, state: Array) -> Array:
        """Down a funnel onto the block, close, up, across, down, open, up."""
        xp = array_api_compat.array_namespace(state)
        first = _HAND + 2
        vectors = [state[:, first + 3 * i : first + 3 * i + 3] * _SCALE for i in range(len(BLOCKS))]
        discs = [state[:, first + 9 + 2 * j : first + 11 + 2 * j] * _SCALE for j in range(len(PLATES))]
        goal = state[:, first + 13 :]
        block: Any = sum(goal[:, i : i + 1] * vectors[i] for i in range(len(BLOCKS)))
        plate: Any = sum(goal[:, 3 + j : 4 + j] * discs[j] for j in range(len(PLATES)))
        height = state[:, 2] * _SCALE
        opening = (state[:, 6] + 1.0) * (0.5 * STROKE)
        aside = norm(block[:, :2])
        held = (norm(block) < 0.022) & (opening < 2 * HALF + 0.012)
        across = norm(plate - block[:, :2])
        lying = height + block[:, 2] < HALF + 0.006
        placed = (across < 0.02) & lying
        zero = xp.zeros_like(height)
        # Fetch: the further aside, the higher above the block, so that open fingers come down around it.
        above = xp.clip(4.0 * (aside - 0.008), zero, zero + 0.07)
        fetch = xp.concat([block[:, :2], (block[:, 2] + above)[:, None]], axis=1)
        # Carry: up first, then across, then down; the hand aims with the block, which may sit off centre in it.
        toward = plate - block[:, :2]
        low = height < HALF + 0.6 * LIFT
        rise = xp.where(across > 0.04, LIFT + HALF - height, HALF - 0.002 - height)
        share = xp.where((across > 0.04) & low, zero, zero + 1.0)[:, None]
        carry = xp.concat([toward * share, rise[:, None]], axis=1)
        away = xp.stack([zero, zero, 0.14 - height], axis=1)
        move = xp.where(held[:, None], carry, fetch)
        move = xp.where(placed[:, None], xp.where((opening > 0.055)[:, None], away, 0.0 * away), move)
        close = held | (norm(block) < 0.012)
        width = xp.where(close & ~placed, zero, zero + STROKE)
        wish = shorten((move - state[:, 3:6] * _LEASH) / self._step)
        return xp.clip(xp.concat([wish, (width * (2.0 / STROKE) - 1.0)[:, None]], axis=1), -1.0, 1.0)

    def _of_goal(self, view: View, columns: Array) -> Array:
        xp = view.xp
        chosen = view.task["goal"][:, None] == xp.arange(len(GOALS), device=array_api_compat.device(columns))[None, :]
        return xp.sum(xp.where(chosen, columns, xp.zeros_like(columns)), axis=1)

    @staticmethod
    def _blocks(view: View) -> list[Array]:
        return [view.qpos[:, _HAND + 7 * i : _HAND + 7 * i + 3] for i in range(len(BLOCKS))]

    @staticmethod
    def _plates(view: View) -> list[Array]:
        return [view.task[f"plate_{name}"] for name in PLATES]

    @staticmethod
    def _opening(view: View) -> Array:
        return view.qpos[:, 3] + view.qpos[:, 4]

    def _is_held(self, view: View, block: Array) -> Array:
        """(N,) bool: around the block, fingers as far apart as it is wide."""
        return (norm(block - view.qpos[:, :3]) < 0.028) & (self._opening(view) < 2 * HALF + 0.010)
