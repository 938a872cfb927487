"""Terrain: any robot on legs with a card crosses slopes, stairs and rubble, which get harder with its success."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from robot_rl.sim.arrays import constant
from robot_rl.sim.terrain import KINDS, LEVELS, TILE, Ground, Kind, lay_tiles
from robot_rl.sim.world import Draw, Reset, View, heading
from robot_rl.sim.worlds.walk import Walk
from robot_rl.types import Array
from robot_rl.types.card import Card
from robot_rl.types.options import Interval, NotNegative, Positive, Whole

if TYPE_CHECKING:
    from robot_rl.sim.legs_scene import LegsScene

WAY, NEAR = TILE, 0.3
"""From a start to its goal on the other side of the tile, and how near counts as there [m]."""
HEADING_GAIN = 1.0
"""Commanded turning per error of heading [1/s]."""
ALIVE = 1.0
"""What each step pays. Without it steps cost more than they pay as long as a policy cannot walk, and it learned to fall
at once (36 of 750 steps after 450,000); with sums below 0 counted as 0, none of them says what would be better."""
SCAN = tuple((0.2 * i, 0.2 * j) for i in range(-2, 5) for j in range(-2, 3))
"""Places ahead and to the left of the trunk where the ground's height is told to critics and teachers [m]."""
Level = Annotated[int, Field(ge=0, lt=LEVELS)]


class Terrain(Walk):
    """Walk across a tile of ground from one side to the other, and back.

    State, actions and reward are those of walk, so that a policy deploys as one of walk does and feels nothing of the
    ground but by its legs; with these differences: the commanded turning heads for the goal, start and goal change
    places where it is reached, heights are above the ground, a foot may be higher than the clock asks for, tilt and
    bounce cost a quarter, since a slope asks for both, feet that are not lifted in time cost four times as much, errors
    of velocity and turning are paid up to .4 in place of .25, and every step pays `ALIVE`. Success: the first goal has
    been reached without a fall; evaluations say it for each kind of ground.

    Who reached it begins the next episode on a tile one level harder, who did not come half way one easier; behind the
    hardest any level follows. Evaluations draw any of `levels` for every episode.

    Args:
        levels: [easiest, hardest] that are drawn, of 0 to 7.
        kinds: of ground.
        map_seed: of what is random in tiles: with another one the ground is such as training has not seen.
        step: height of stairs and of the highest rubble on level 7 [m]; .14 is a third of the Go2's leg.
        curriculum: start at the easiest level and change it by success; else every episode draws one.
        forward: range of the commanded forward speed [m/s].
        lift: as in walk.
        robot: as in walk.

    Raises:
        ValueError: a range is not two numbers in order, no card, or one that does not fit its model.

    Source: Rudin et al., Learning to Walk in Minutes (2021), section 3: tiles, levels by success and the scan of
    heights; numbers ours.
    """

    name = "terrain"
    episode_steps = 750
    low, sharp, clock = 0.35, 0.4, 120.0
    eval_options: Mapping[str, object] = {"curriculum": False}

    def __init__(
        self,
        levels: tuple[Level, Level] = (0, LEVELS - 1),
        kinds: tuple[Kind, ...] = KINDS,
        map_seed: Whole = 0,
        step: Positive = 0.14,
        curriculum: bool = True,
        forward: Interval = (0.3, 0.6),
        lift: NotNegative = 0.08,
        robot: Card | None = None,
    ) -> None:
        super().__init__(forward, side=(0.0, 0.0), lift=lift, robot=robot)
        if levels[0] > levels[1]:
            raise ValueError(f"levels is {list(levels)}, expected [easiest, hardest]")
        self._levels, self._curriculum = levels, curriculum
        self._ask, self._step, self.task_names = (tuple(kinds), map_seed), float(step), tuple(kinds)

    @cached_property
    def ground(self) -> Ground:
        """The tiles."""
        return lay_tiles(*self._ask, step=self._step)

    @cached_property
    def scene(self) -> LegsScene:
        """Of the card, with the tiles."""
        from robot_rl.sim.legs_scene import on_ground  # loads MuJoCo, which other engines do without

        found = super().scene
        return replace(found, xml=on_ground(found.xml, self.ground))

    def reset(self, draw: Draw, n: int, xp: ModuleType) -> Reset:
        """As walk's, at one of the four sides of a tile, looking across.

        Args:
            draw: random numbers of the environments that reset.
            n: how many those are.
            xp: array namespace.

        Returns:
            Initial states; also task "level", "goal" (n,) int64, level and kind of the tile, "begin", "end" (n, 2) [m],
            "far" (n,) how much of the way was made [m], "crossed" (n,) bool.
        """
        low, high = self._levels
        level = low + xp.floor(draw.uniform() * (1 if self._curriculum else high - low + 1))
        return self._on_tile(draw, xp.astype(level, xp.int64), n, xp)

    def reset_after(self, draw: Draw, view: View) -> Reset:
        """Initial states behind an episode: a level up or down, by how far it came.

        Args:
            draw: random numbers of the environments that reset.
            view: the final state of these n environments.
        """
        xp, task, (low, high) = view.xp, view.task, self._levels
        if not self._curriculum:
            return self.reset(draw, len(view.step), xp)
        level = task["level"] + xp.astype(task["crossed"], xp.int64) - xp.astype(task["far"] < 0.5 * WAY, xp.int64)
        any_level = low + xp.astype(xp.floor(draw.uniform() * (high - low + 1)), xp.int64)
        level = xp.where(level > high, any_level, xp.clip(level, low, high))
        return self._on_tile(draw, level, len(view.step), xp)

    def _on_tile(self, draw: Draw, level: Array, n: int, xp: ModuleType) -> Reset:
        start, chance = super().reset(draw, n, xp), draw.uniform(3)
        kind = xp.astype(xp.floor(chance[:, 0] * len(self.task_names)), xp.int64)
        side, aside = 0.5 * math.pi * xp.floor(4.0 * chance[:, 1]), chance[:, 2:] - 0.5
        along = xp.stack([xp.cos(side), xp.sin(side)], axis=1)
        across = xp.stack([-along[:, 1], along[:, 0]], axis=1)
        middles = constant(self.ground.middles.reshape(-1, 2), start.qpos)
        middle = xp.take(middles, level * len(self.task_names) + kind, axis=0) + aside * across
        begin, end = middle - 0.5 * WAY * along, middle + 0.5 * WAY * along
        zero = 0.0 * side
        turned = xp.stack([xp.cos(0.5 * side), zero, zero, xp.sin(0.5 * side)], axis=1)
        qpos = xp.concat([begin, start.qpos[:, 2:3], turned, start.qpos[:, 7:]], axis=1)
        task = {"level": level, "goal": kind, "begin": begin, "end": end}
        return replace(start, qpos=qpos, task={**start.task, **task, "far": zero, "crossed": zero > 0.0})

    def update(self, view: View) -> None:
        """How far the trunk has come, and the turning that heads for the goal."""
        super().update(view)
        xp, task = view.xp, view.task
        gap = xp.astype(task["end"] - view.qpos[:, :2], task["end"].dtype)
        left = xp.sqrt(xp.sum(gap**2, axis=1))
        there = left < NEAR
        task["far"] = xp.where(task["crossed"], task["far"], xp.maximum(task["far"], WAY - left))
        task["crossed"] = task["crossed"] | there
        begin, end = task["begin"], task["end"]
        task["end"] = xp.where(there[:, None], begin, end)
        task["begin"] = xp.where(there[:, None], end, begin)
        error = xp.atan2(gap[:, 1], gap[:, 0]) - xp.astype(heading(view), gap.dtype)
        turn = HEADING_GAIN * xp.atan2(xp.sin(error), xp.cos(error))
        turn = xp.clip(turn, float(self._low[2]), float(self._high[2]))
        command = task["command"]
        task["command"] = xp.concat([command[:, :2], xp.astype(turn, command.dtype)[:, None]], axis=1)

    def above(self, place: Array) -> Array:
        """(N,) how high places (N, 3) are above the ground [m]."""
        return place[:, 2] - self.ground.at(place[:, :2])

    def miss(self, height: Array, wanted: Array) -> Array:
        """(N,) by how much a foot is lower than the clock asks for [m]; beside a stair it has to be higher."""
        return (height - wanted) * (height < wanted)

    def privileged_names(self) -> tuple[str, ...]:
        """Names of what `privileged` tells."""
        return (*super().privileged_names(), *(f"ground_{x:.1f}_{y:.1f}" for x, y in SCAN))

    def privileged(self, view: View) -> Array:
        """(N, 4 + F + 35): that of walk above the ground, and the ground's height above the trunk's at `SCAN` [m]."""
        xp, yaw = view.xp, heading(view)[:, None]
        ahead, left = (constant([place[i] for place in SCAN], view.qpos)[None, :] for i in (0, 1))
        x = view.qpos[:, :1] + xp.cos(yaw) * ahead - xp.sin(yaw) * left
        y = view.qpos[:, 1:2] + xp.sin(yaw) * ahead + xp.cos(yaw) * left
        scan = self.ground.at(xp.stack([x, y], axis=-1)) - view.qpos[:, 2:3]
        return xp.concat([super().privileged(view), scan], axis=1)

    def reward_terms(self, view: View) -> dict[str, Array]:
        """The weighted parts of the reward, name -> (N,)."""
        terms = super().reward_terms(view)
        terms = {**terms, "bounce": 0.25 * terms["bounce"], "tilt": 0.25 * terms["tilt"]}
        return {**terms, "alive": 0.0 * terms["fall"] + ALIVE}

    def success(self, view: View) -> Array:
        """(N,) bool, the first goal has been reached."""
        return view.task["crossed"] & ~self.terminated(view)
