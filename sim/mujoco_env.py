"""The CPU engine: any world, N copies, stepped by MuJoCo's own thread pool behind Gymnasium's `VectorEnv`.

Episodes that end are reset within the same step (`AutoresetMode.SAME_STEP`). Every step's info holds the world's facts,
"final_obs": the true successor of all N environments (a dict like the observation; where nothing ended it equals it),
"success" (N,) bool, "executed" (N, A) float32, the clipped action, "intervened" (N,) bool, "reward_terms" name -> (N,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
from gymnasium.vector import VectorEnv

from robot_rl.sim import crash, interface
from robot_rl.sim.draw import Streams
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.eyes import Feeling, Painters, Privileged, calibrate, chosen_cameras, tool_pose
from robot_rl.sim.film import Film
from robot_rl.sim.interface import check_actions, check_options, check_saved, part, world_io
from robot_rl.sim.look import dress
from robot_rl.sim.mujoco_physics import Physics
from robot_rl.sim.randomize import Randomize, Randomizer, factor_sizes
from robot_rl.sim.scene import CONTROL, STATE, Sensors, check_reset, check_returned, check_scene
from robot_rl.sim.view_rows import flags, pay, select
from robot_rl.sim.world import Reset, View, World, parts_of
from robot_rl.types import EnvParts, Obs, StateDict
from robot_rl.types.data import all_finite
from robot_rl.types.io import PRIVILEGED

DEFAULTS = EngineOptions()


class MujocoVectorEnv(VectorEnv):
    """N copies of a world; see the module for the contents of `info`.

    Args:
        num_envs: N.
        seed: of resets, randomisation and noise; environment i depends on the seed and i alone.
        device: where the learner runs; the CPU engine hands over NumPy arrays whatever it is.
        world: the task.
        options: threads, pictures, randomisation.
        render_mode: "rgb_array" or None.

    Raises:
        ValueError: an option that the world does not have; says which there are.

    Attributes:
        io: names, shapes and units of what goes in and out.
        world: the task.
        physics: the batch of MuJoCo states.
        at_end: called before ended episodes begin anew, for a last picture.
    """

    at_end: Callable[[], None] | None = None

    def __init__(
        self,
        num_envs: int,
        seed: int,
        device: str = "cpu",
        *,
        world: World,
        options: EngineOptions = DEFAULTS,
        render_mode: str | None = None,
    ) -> None:
        cameras = chosen_cameras(world, options.cameras)
        check_options(options, cameras, num_envs, world, render_mode)
        self.num_envs, self.world, self.o = num_envs, world, options
        self._mjcf = world.mjcf() if options.look is None else dress(world.mjcf(), options.look)
        self.physics = Physics(self._mjcf, num_envs, world.control_hz, num_threads=options.num_threads)
        check_scene(world, self.physics.model)
        self._names = cameras
        first = world.cameras[0] if world.cameras else None
        self._render_camera = options.render_camera or first
        self.render_mode = render_mode
        self._film = Film(cameras, options.camera_every)
        self._feeling = Feeling(world, options.proprio)
        self._shows_goal = options.state and options.proprio is None and not cameras

        actions, components = len(world.action_names), len(world.obs_names)
        image = (*options.camera_size, 3)
        feels, tool = self._feeling.names, self._feeling.tool
        knows = options.critic_state or options.teacher_state
        self._privileged = Privileged(world, options, factor_sizes(self.physics.model)) if knows else None
        known = () if self._privileged is None else self._privileged.names
        self._known_obs = np.zeros((num_envs, len(known)), np.float32)
        feels = known if options.teacher_state else feels
        obs: dict[str, tuple[tuple[int, ...], str]] = {"state": ((len(feels),), "float32")} if options.state else {}
        obs |= {"tool": ((4,), "float32")} if tool else {}
        obs |= {PRIVILEGED: ((len(known),), "float32")} if options.critic_state else {}
        obs |= {f"image.{name}": (image, "uint8") for name in cameras}
        self._offers = parts_of(world)
        self._painters = Painters(self.physics.model, self._offers.markers)
        self._letters = self._offers.instruction_bytes
        if self._letters:
            obs["instruction"] = ((self._letters,), "uint8")
        self.io = world_io(
            world,
            feels if options.state else (),
            obs,
            obs_units={"tool": ("m", "m", "m", "rad")} if tool else {},
            calibration=calibrate(world, self.physics.model, cameras, options.camera_size) if cameras else {},
        )
        interface.introduce(self, self.io, num_envs)

        self._streams = Streams(num_envs, seed)
        self._rows = np.arange(num_envs)
        physics = self.physics
        self._random = Randomizer(
            options.randomize or Randomize(),
            num_envs,
            seed,
            physics.model,
            physics.substeps,
        )
        self._action = np.zeros((num_envs, actions), np.float32)
        self._previous_action = np.zeros((num_envs, actions), np.float32)
        self._step = np.zeros(num_envs, np.int64)
        self._view = View(
            xp=xp,
            qpos=physics.qpos,
            qvel=physics.qvel,
            ctrl=physics.ctrl,
            sensors=Sensors(physics.sensors),
            action=self._action,
            previous_action=self._previous_action,
            step=self._step,
            task={},
        )
        self._state_obs = np.zeros((num_envs, components), np.float32)
        self._last: Obs | None = None

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, object] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start new episodes.

        Args:
            seed: starts all streams anew; one int, or one per environment; None continues them.
            options: {"reset_mask": (N,) bool} resets these environments only.

        Returns:
            Observation and info with "success" (N,) bool, False.
        """
        if seed is not None:
            self._streams.seed(seed)
            self._random.seed(seed)
        mask = (options or {}).get("reset_mask")
        rows = self._rows if mask is None or self._last is None else np.flatnonzero(np.asarray(mask))
        self._reset_rows(rows)
        self._last = self._assemble(self._rows if len(rows) == self.num_envs else rows, self._last)
        return dict(self._last), {"success": np.zeros(self.num_envs, bool)}

    def step(self, actions: Any) -> tuple[Obs, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance all environments by one control step; see the module for the contents of `info`.

        Raises:
            ValueError: wrong shape or a value that is not finite.
            UnstableSimulationError: the physics or a term of the world gave a value that is not finite.
        """
        if self._last is None:
            raise RuntimeError("step() before the first reset(); call reset() once")
        view, world, physics = self._view, self.world, self.physics
        action = check_actions(actions, self.num_envs, self.io)
        self._previous_action[:] = self._action
        control = np.asarray(world.control(view, action))
        self._action[:] = action
        check_returned(world, "control returned", control, physics.ctrl.shape, CONTROL)
        push = self._random.push()
        if push is not None:
            physics.qvel[:, :2] += push
        physics.step(self._random.delay(control))
        self._step += 1
        broken = physics.broken()
        if len(broken):
            self._crash(int(broken[0]), "physics", physics.state[broken[0]])
        world.update(view)
        task = view.task
        for key, value in task.items():
            if isinstance(value, np.ndarray) and value.base is not None:  # a view into what the next step overwrites
                task[key] = value.copy()
        reward, terms = pay(world, view)
        terminated = flags(world.terminated(view), world.name, "terminated")
        success = flags(world.success(view), world.name, "success")
        truncated = (self._step >= world.episode_steps) & ~terminated
        done = terminated | truncated
        final = self._assemble(self._rows, None, ended=done)
        if not all_finite(reward):
            index = int(np.flatnonzero(~np.isfinite(reward))[0])
            self._crash(index, "reward", reward[index : index + 1])
        facts = {key: np.array(value) for key, value in self._offers.say_facts(view).items()}
        obs = final
        if done.any():
            if self.at_end is not None:
                self.at_end()
            rows = np.flatnonzero(done)
            self._reset_rows(rows, ended=True)
            obs = self._assemble(rows, final)
        self._last = obs
        info = {
            "final_obs": final,
            "_final_obs": done,
            "success": success,
            "executed": action,
            "intervened": np.zeros(self.num_envs, bool),
            "reward_terms": terms,
            **facts,
        }
        return dict(obs), reward, terminated, truncated, info

    def observe(self) -> Obs:
        """The current observation again, for example after `load_state_dict`."""
        if self._last is None:
            raise RuntimeError("observe() before the first reset(); call reset() once")
        return dict(self._last)

    def expert(self, obs: Obs | None = None) -> np.ndarray:
        """The world's scripted controller: (N, A) actions in [-1, 1].

        Args:
            obs: an observation; where it has no whole "state", the environment's own state is used.

        Raises:
            ValueError: the world has none.
        """
        seen = self._feeling.columns is None and not self.o.teacher_state
        whole = obs is not None and "state" in obs and seen
        state = obs["state"] if obs is not None and whole else self._state_obs
        return np.clip(np.asarray(self._offers.ask_expert(state), np.float32), -1.0, 1.0)

    @property
    def parts(self) -> EnvParts:
        """Everything that the world has, and exact states."""
        offers = self._offers
        return EnvParts(
            expert=None if offers.expert is None else self.expert,
            mistaken=None if offers.mistaken is None else self._mistake,
            instructions=self._ask(offers.instructions, list),
            task_names=tuple(offers.task_names),
            asked_tasks=tuple(offers.asked_tasks),
            tool=self._ask(offers.tool, lambda found: {key: np.array(value, float) for key, value in found.items()}),
            place=self._ask(offers.place, lambda found: np.array(found, float)),
            stages=self._ask(offers.stages, lambda found: {key: np.array(value, bool) for key, value in found.items()}),
            way_out=offers.way_out,
            goals=offers.goals.terms if offers.goals and self._shows_goal else None,
            saves=True,
        )

    def _ask(self, tell: Callable[[View], Any] | None, answer: Callable[[Any], Any]) -> Callable[[], Any] | None:
        """What the world tells of the present state, as NumPy arrays or lists; None where it tells nothing."""
        return None if tell is None else lambda: answer(tell(self._view))

    def _mistake(self, obs: Obs, draw: np.ndarray) -> np.ndarray:
        assert self._offers.mistaken is not None
        return np.asarray(self._offers.mistaken(obs["state"], draw))

    def render(self) -> tuple[np.ndarray, ...] | None:
        """One (height, width, 3) uint8 frame per environment, or None without render_mode."""
        if self.render_mode is None:
            return None
        size, quality = self.o.render_size, self.o.render_quality
        frames = self._pictures(self._rows, (self._render_camera,), size, quality)[self._render_camera]
        return tuple(frames)

    def close_extras(self, **kwargs: object) -> None:
        """Stop the threads and free the renderer."""
        self.physics.close()
        self._painters.close()

    def state_dict(self) -> StateDict:
        """All that the next steps depend on, as arrays and texts; `load_state_dict` continues bit for bit."""
        out: dict[str, object] = {key: value.copy() for key, value in self._arrays().items()}
        out |= {"started": self._last is not None, "privileged": self._known_obs.copy()}
        out |= {f"task.{key}": np.array(value) for key, value in self._view.task.items()} | self._film.state_dict()
        out |= {f"stream.{key}": value for key, value in self._streams.state_dict().items()}
        out |= {f"random.{key}": value for key, value in self._random.state_dict().items()}
        return out

    def _arrays(self) -> dict[str, np.ndarray]:
        """What is saved by name and filled again in place."""
        own = {"action": self._action, "previous_action": self._previous_action, "step": self._step}
        return {"physics": self.physics.state, **own, "state": self._state_obs}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly as the saved environment would have.

        Raises:
            ValueError: saved from another world, another number of environments or other randomisation options.
        """
        view, physics = self._view, self.physics
        targets = self._arrays() | ({} if self._privileged is None else {"privileged": self._known_obs})
        check_saved(state, targets, self.world, self.num_envs)
        view.task = {key: np.array(value) for key, value in part(state, "task.").items()}
        self._streams.load_state_dict(part(state, "stream."))
        self._random.load_state_dict(part(state, "random."))
        if self._random.options.needs_models and self._random.factors:
            physics.scale(self._rows, self._random.factors)
        physics.load_state(np.asarray(state["physics"]))
        for key, target in targets.items():
            if key != "physics":
                target[...] = np.asarray(state[key])
        self._last = self._assemble(self._rows, None, fresh=False) if bool(state["started"]) else None
        if self._last is not None:
            self._last |= self._film.load_state_dict(state)

    def _reset_rows(self, rows: np.ndarray, *, ended: bool = False) -> None:
        view, count = self._view, len(rows)
        if not count:
            return
        follow = self._offers.reset_after if ended else None
        if follow is None:
            start: Reset = self.world.reset(self._streams.draw(rows), count, xp)
        else:
            start = follow(self._streams.draw(rows), select(view, rows))
        check_reset(self.world, start, count, self.physics.model, view.task)
        drawn_rows, drawn = self._random.restart(rows, start.ctrl)
        if drawn and self._random.options.needs_models:
            self.physics.scale(drawn_rows, drawn)
        self.physics.place(rows, start.qpos, start.qvel, start.ctrl)
        for array in (self._action, self._previous_action, self._step):
            array[rows] = 0
        if not view.task:
            view.task = {
                key: np.zeros((self.num_envs, *np.shape(value)[1:]), np.asarray(value).dtype)
                for key, value in start.task.items()
            }
        for key, value in start.task.items():
            view.task[key][rows] = value

    def _assemble(
        self, rows: np.ndarray, base: Obs | None, *, fresh: bool = True, ended: np.ndarray | None = None
    ) -> Obs:
        """The observation: environments `rows` from the present state, the others from `base`.

        Where episodes have `ended` (N,) bool, their last pictures are taken, due or not.
        """
        whole = len(rows) == self.num_envs
        if fresh:
            view = self._view if whole else select(self._view, rows)
            state = np.asarray(self.world.observe(view), np.float32)
            check_returned(self.world, "observe returned", state, (len(rows), self._state_obs.shape[1]), STATE)
            if not all_finite(state):
                worst = int(np.flatnonzero(~np.isfinite(state).all(axis=1))[0])
                self._crash(int(rows[worst]), "state", state[worst])
            if self._privileged is not None:
                factors = {key: value[rows] for key, value in self._random.factors.items()}
                self._known_obs[rows] = self._privileged.of(state, view, factors)
            self._state_obs[rows] = self._random.noisy(state, rows)
        seen = self._known_obs.copy() if self.o.teacher_state else self._feeling.of(self._state_obs)
        obs: Obs = {"state": seen} if self.o.state else {}
        if self._feeling.tool:
            obs["tool"] = tool_pose(self.world, self._view)
        if self.o.critic_state:
            obs[PRIVILEGED] = self._known_obs.copy()
        if self._letters:
            words = np.zeros((self.num_envs, self._letters), np.uint8) if base is None else base["instruction"].copy()
            assert self._offers.instruct is not None  # a world with letters says its sentence
            words[rows] = self._offers.instruct(self._view if whole else select(self._view, rows))
            obs["instruction"] = words
        if self._names:
            o = self.o
            obs |= self._film.take(
                rows,
                self._step,
                lambda due: self._pictures(due, self._names, o.camera_size, o.camera_quality, o.supersample),
                anew=not fresh,
                ended=ended,
            )
        return obs

    def _pictures(
        self, rows: np.ndarray, cameras: Sequence[str | None], size: tuple[int, int], quality: str = "full", by: int = 1
    ) -> dict[str | None, np.ndarray]:
        task = {key: np.asarray(value)[rows] for key, value in self._view.task.items()}
        return self._painters.paint(self.physics.qpos[rows], task, cameras, size, quality=quality, supersample=by)

    def _crash(self, index: int, key: str, values: object) -> None:
        physics = self.physics
        content = {
            **{"model": physics.model_bytes(index), "mjcf": np.array(self._mjcf), "state": physics.before[index]},
            **{"control": physics.controls(index), "action": self._action[index], "step": self._step[index]},
        }
        bad = np.flatnonzero(~np.isfinite(np.asarray(values)))
        where = f"component {bad[0]} of {key}" if len(bad) else f"{key} (MuJoCo stopped after a warning)"
        mend = "Take a smaller timestep, softer gains or narrower randomisation"
        if key == "reward" and np.isfinite(physics.state[index]).all():
            mend = (
                f"The physics is finite, so {self.world.name}.reward made it: look for a division by 0, a log or a root"
            )
        told = f"environment {index} diverged at step {self._step[index]} of its episode: {where} is not finite"
        raise crash.report(f"{self.world.name}: {told}. {mend}", index, key, self.o.crash_dir, content)


make = MujocoVectorEnv
