"""Clips of the tabletop world for critics: successes, wrong goals, failures of named kinds, regressions, stagnation.

A clip is what the camera saw at 5 Hz while a script moved the hand, with the remaining work under EVERY goal of the
scene from the simulator's state: a film of one goal being met is also a film of five goals that are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.eyes import Painters
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.world import View
from robot_rl.sim.worlds.tabletop import BLOCKS, GOALS, HALF, PLATES, STROKE, Tabletop
from robot_rl.sim.worlds.tabletop_text import phrasings
from robot_rl.types import Array
from robot_rl.types.options import Count, Pixels

if TYPE_CHECKING:
    from mujoco import MjModel

KINDS = ("success", "pause", "wrong_object", "wrong_place", "drop", "stall", "miss", "regress", "undo")
"""What happens in a clip, relative to what is asked; the first two meet the goal and stay there."""

_EVERY = 2  # control steps per frame
_STEPS = 110  # control steps before the last clip is cut
_OPEN = STROKE - 0.02  # the fingers count as open beyond this, m


class TabletopClips:
    """Scripted clips: the expert with faults.

    Kinds: `success`; `pause` (stands still on the way, then succeeds); `wrong_object`, `wrong_place` (well done, but
    not what was asked); `drop` (lets go on the way); `stall` (stops for good on the way); `miss` (closes beside the
    block and carries air); `regress` (carries the block back to where it lay); `undo` (meets the goal, then takes the
    block to the other plate). Speed, noise and the moment of the fault vary from clip to clip.

    Args:
        camera: of the world.
        size: (height, width) of the frames in pixels.
        num_threads: of the physics.
    """

    kinds = KINDS
    stride_s = 0.2
    """Seconds between frames."""

    def __init__(self, camera: str = "front", size: Pixels = (48, 48), num_threads: Count = 1) -> None:
        self.camera, self.size, self.num_threads = camera, (int(size[0]), int(size[1])), num_threads
        if camera not in Tabletop.cameras:
            raise ValueError(f"camera is '{camera}', expected one of {', '.join(Tabletop.cameras)}")
        self._painters: Painters | None = None

    def facts(self) -> dict[str, object]:
        """What the arrays of `generate` mean: kinds, goals, sentences, rate. Plain values."""
        return {
            "world": "tabletop",
            "camera": self.camera,
            "size": list(self.size),
            "stride_s": self.stride_s,
            "kinds": list(KINDS),
            "successes": ["success", "pause"],
            "goals": [f"{BLOCKS[i]} on {PLATES[j]}" for i, j in GOALS],
            "phrasings": phrasings("train"),
            "held_out_phrasings": phrasings("held_out"),
        }

    def generate(self, kinds: list[str], seed: int) -> dict[str, np.ndarray]:
        """One clip for each entry of `kinds`.

        Args:
            kinds: names from `KINDS`, length C.
            seed: the same kinds and seed give the same clips.

        Returns:
            "frames" (F, H, W, 3) uint8, the clips one after another; "start" (C + 1,) int64, where each begins;
            "work" (F, 6) float32, remaining work [m] under every goal; "done" (F, 6) bool; "goal" (C,) int64, the goal
            that is asked; "kind" (C,) int64 into `KINDS`.

        Raises:
            ValueError: an unknown kind.
        """
        unknown = sorted(set(kinds) - set(KINDS))
        if unknown or not kinds:
            raise ValueError(f"kinds are {unknown or 'empty'}, expected some of {', '.join(KINDS)}")
        world = _Watched()
        count = len(kinds)
        env = make(count, seed, world=world, options=EngineOptions(num_threads=self.num_threads))
        obs, _ = env.reset(seed=seed)
        view = world.view
        scripts = [_Script(kind, np.random.default_rng([seed, i]), i, view) for i, kind in enumerate(kinds)]
        qpos, work, done = [], [], []

        def keep() -> None:
            qpos.append(np.array(view.qpos))
            work.append(np.asarray(world.remaining(view), np.float32))
            done.append(np.asarray(world.satisfies(view)))

        keep()
        for step in range(1, _STEPS + 1):
            state = obs["state"].copy()
            for script in scripts:
                script.pretend(state[script.row], view, work[-1][script.row])
            action = np.asarray(world.expert(state))
            for script in scripts:
                script.disturb(action[script.row], step)
            obs, *_ = env.step(action)
            if step % _EVERY == 0:
                keep()
                for script in scripts:
                    script.frame(view, done[-1][script.row], len(qpos))
            if all(script.end is not None for script in scripts):
                break
        ends = [script.end or len(qpos) for script in scripts]
        plates = {key: np.array(value) for key, value in view.task.items() if key.startswith("plate_")}
        env.close()
        frames = [
            self._pictures(env.physics.model, np.stack([q[i] for q in qpos[:end]]), i, plates)
            for i, end in enumerate(ends)
        ]
        return {
            "frames": np.concatenate(frames),
            "start": np.concatenate([[0], np.cumsum(ends)]).astype(np.int64),
            "work": np.concatenate([np.stack([w[i] for w in work[:end]]) for i, end in enumerate(ends)]),
            "done": np.concatenate([np.stack([d[i] for d in done[:end]]) for i, end in enumerate(ends)]),
            "goal": np.array([script.asked for script in scripts], np.int64),
            "kind": np.array([KINDS.index(kind) for kind in kinds], np.int64),
        }

    def _pictures(self, model: MjModel, qpos: np.ndarray, row: int, plates: dict[str, np.ndarray]) -> np.ndarray:
        self._painters = self._painters or Painters(model, Tabletop.markers)
        here = {key: np.repeat(value[row : row + 1], len(qpos), axis=0) for key, value in plates.items()}
        return self._painters.paint(qpos, here, [self.camera], self.size)[self.camera]


class _Watched(Tabletop):
    """Keeps the engine's view, whose arrays are the present state, and never ends an episode within a clip."""

    view: View

    def __init__(self) -> None:
        super().__init__(seconds=60.0)

    def observe(self, view: View) -> Array:
        self.view = view
        return super().observe(view)


class _Script:
    """One hand: what the expert is told (`pretend`), what becomes of its actions (`disturb`), when the clip ends."""

    def __init__(self, kind: str, random: np.random.Generator, row: int, view: View) -> None:
        self.kind, self.row, self._random = kind, row, random
        self.asked = int(np.asarray(view.task["goal"])[row])
        block, plate = GOALS[self.asked]
        if kind == "wrong_object":
            block = int((block + random.integers(1, len(BLOCKS))) % len(BLOCKS))
        if kind == "wrong_place":
            plate = 1 - plate
        self._block, self._plate = block, plate
        self._speed = random.uniform(0.55, 1.0)
        self._noise = random.uniform(0.0, 0.25)
        self._share = random.uniform(0.15, 0.85)  # of the work or the way, at the fault
        self._rest = int(random.integers(8, 22))  # control steps of a pause
        self._tail = int(random.integers(1, 5)) if kind not in ("stall", "drop") else int(random.integers(3, 9))
        self._aside = random.choice([-1.0, 1.0]) * random.uniform(0.037, 0.048)
        self._home = np.array(view.qpos[row, self._at() : self._at() + 2])
        self._first_work: float | None = None
        self._across: float | None = None
        self._since = -1  # control steps since the fault
        self._phase = 0
        self._last_width = 1.0
        self._tip = np.zeros(3)
        self._met = 0
        self.end: int | None = None

    def _at(self) -> int:
        return 5 + 7 * self._block

    def pretend(self, state: np.ndarray, view: View, work: np.ndarray) -> None:
        """Change one row of the state so that the expert does what this clip shows."""
        goal = GOALS.index((self._block, self._plate))
        self._first_work = self._first_work or float(work[goal])
        tip = self._tip = np.array(view.qpos[self.row, :3])
        opening = float(view.qpos[self.row, 3] + view.qpos[self.row, 4])
        block = np.array(view.qpos[self.row, self._at() : self._at() + 3])
        plate = np.array(view.task[f"plate_{PLATES[self._plate]}"])[self.row]
        held = np.linalg.norm(block - tip) < 0.028 and opening < 2 * HALF + 0.01
        across = float(np.linalg.norm(plate[:2] - block[:2]))
        self._across = self._across or across
        state[20:25] = 0.0
        state[20 + self._block] = 1.0
        state[23 + self._plate] = 1.0
        if self._since >= 0:
            self._since += 1
        elif (
            (self.kind in ("stall", "pause") and work[goal] < self._share * self._first_work)
            or (self.kind == "drop" and held and 0.07 < across < max(self._share * self._across, 0.1))
            or (self.kind == "regress" and held and across < self._share * self._across)
        ):
            self._since = 0
        if self.kind == "regress" and self._since >= 0:
            state[16 + 2 * self._plate : 18 + 2 * self._plate] = (self._home - tip[:2]) / 0.1
            if self._since > 3 and opening > _OPEN and np.linalg.norm(block[:2] - self._home) < 0.03:
                self._phase = 2
        if self.kind == "undo" and self._phase == 1:
            state[23 : 23 + len(PLATES)] = 0.0
            state[23 + 1 - self._plate] = 1.0
        if self.kind == "miss":
            vector = slice(7 + 3 * self._block, 10 + 3 * self._block)
            if self._phase == 0:
                state[vector.start] += self._aside / 0.1
                self._since += self._since >= 0 or opening < 0.012
                if opening < 0.012 and self._since < 0:
                    self._since = 0
                if self._since > 3:
                    self._phase = 1
            if self._phase == 1:
                state[vector] = 0.0  # "it is in the hand"
                if tip[2] < 0.03 and np.linalg.norm(plate[:2] - tip[:2]) < 0.02:
                    self._phase = 2

    def disturb(self, action: np.ndarray, step: int) -> None:
        """Change one row of actions in place."""
        action[:3] = action[:3] * self._speed + self._random.normal(0.0, 1.0, 3) * self._noise * np.abs(action[:3])
        stopped = (self.kind == "stall" and self._since >= 0) or (
            self.kind == "pause" and 0 <= self._since < self._rest
        )
        if stopped:
            action[:3], action[3] = 0.0, self._last_width
        if (self.kind == "drop" and self._since >= 0) or (self.kind == "miss" and self._phase == 2):
            action[:] = (0.0, 0.0, 0.5 if self._since > 2 else 0.0, 1.0)
        np.clip(action, -1.0, 1.0, out=action)
        self._last_width = float(action[3])

    def frame(self, view: View, done: np.ndarray, frames: int) -> None:
        """Count frames after the event that ends this clip."""
        if self.end is not None:
            return
        met = bool(done[GOALS.index((self._block, self._plate))])
        if self.kind in ("success", "pause", "wrong_object", "wrong_place"):
            over = met
        elif self.kind in ("drop", "stall"):
            over = self._since >= 0
        elif self.kind == "undo":
            self._phase = max(self._phase, int(met))
            over = bool(done[GOALS.index((self._block, 1 - self._plate))])
        else:
            over = self._phase == 2
        self._met += over
        if self._met > self._tail:
            self.end = frames
