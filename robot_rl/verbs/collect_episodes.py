"""Collect episodes with any policy or a world's scripted expert."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robot_rl.atomic import write_json
from robot_rl.data.episode import EpisodeBuilder
from robot_rl.data.recorder import Recorder, Recording
from robot_rl.loops.evaluate import evaluate
from robot_rl.types import Action, Array, Episode, IOSpec, Obs, Options, Policy, PolicyParts, Step
from robot_rl.types.options import Average, Count, NotNegative, Positive, Share, Whole

LOGP = "action_log_probs"
"""Per-step column: log-density of the action under the policy that took it, as in D4RL's `infos/action_log_probs`."""


class OperatorOptions(Options):
    """How a person at the controls differs from a script."""

    noise: NotNegative = 0.0
    """Standard deviation of Gaussian noise on the expert's actions in [-1, 1]; with level on all agents'."""
    noise_time: NotNegative = 0.0
    """s over which the expert's noise stays alike (Ornstein-Uhlenbeck: correlation e^(-t / noise_time)); 0 = new at
    every step."""
    pauses: Average = 0.0
    """Share of the time in which the expert stands still: moves are 0, the gripper as it was told last."""
    pause_time: Positive = 0.3
    """Mean length of a pause, s."""
    mistakes: Share = 0.0
    """Share of episodes in which the expert does something else than what is asked."""
    seed: Whole = 0
    """Of everything random."""


STEADY = OperatorOptions()


class ExpertPolicy:
    """The scripted expert of a world as a `Policy`, with the noise and the pauses of an operator where asked."""

    def __init__(self, env: Any, options: OperatorOptions = STEADY) -> None:
        """Wrap `env.parts.expert`.

        Raises:
            ValueError: the environment has no scripted expert, or nothing that could be done by mistake.
        """
        o = options
        if env.parts.expert is None:
            raise ValueError(
                "this environment has no scripted expert; choose one of our worlds (env=reach, env=pick ...) "
                "or collect with a trained policy, path=runs/train/<run>, or uniform actions, level=random"
            )
        self._mistaken = env.parts.mistaken if o.mistakes else None
        if o.mistakes and self._mistaken is None:
            raise ValueError("this world asks for one thing only, so nothing else could be done by mistake: mistakes=0")
        self._mistakes = o.mistakes
        self._wrong: np.ndarray | None = None  # (B,) in [0, 1): which mistake; NaN: none
        self.io = env.io
        self._expert, self._noise, self._rng = env.parts.expert, o.noise, np.random.default_rng(o.seed)
        tick = 1.0 / env.io.control_hz
        self._keep = float(np.exp(-tick / o.noise_time)) if o.noise_time > 0 else 0.0
        # Two-state chain: the share of time in a pause is begin / (begin + end).
        self._end = min(tick / o.pause_time, 1.0)
        self._begin, self._share = min(self._end * o.pauses / (1.0 - o.pauses), 1.0), o.pauses
        self._moves = np.array([name != "gripper_opening" for name in env.io.action_names])
        self._drift: np.ndarray | None = None  # (B, A) the noise now
        self._still = np.zeros(0, bool)  # (B,) in a pause
        self._fresh = np.zeros(0, bool)  # (B,) an episode begins
        self._last = np.zeros((0, 0), np.float32)

    @property
    def parts(self) -> PolicyParts:
        """Noise that can be repeated."""
        return PolicyParts(reseed=self.reseed)

    def reseed(self, seed: int) -> None:
        """Noise, pauses and mistakes from here on are those of this seed."""
        self._rng = np.random.default_rng(seed)
        self._drift = self._wrong = None

    def reset(self, rows: Array | None = None) -> None:
        """Noise and pauses of these rows begin anew; the expert itself has no memory."""
        if rows is None:
            self._drift = self._wrong = None
            return
        if self._wrong is not None and len(self._wrong) == len(rows):
            self._wrong = np.where(np.asarray(rows, bool), self._draw_mistakes(len(rows)), self._wrong)
        if self._drift is not None and len(self._fresh) == len(rows):
            self._fresh |= np.asarray(rows, bool)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The expert's action; with noise and pauses unless `deterministic`."""
        if self._mistaken is not None and not deterministic:
            count = len(obs["state"])
            if self._wrong is None or len(self._wrong) != count:
                self._wrong = self._draw_mistakes(count)
            obs = {**obs, "state": self._mistaken(obs, self._wrong)}
        action = np.asarray(self._expert(obs), np.float32)
        if deterministic or not (self._noise or self._share):
            return Action(value=np.clip(action, -1.0, 1.0))
        if self._drift is None or self._drift.shape != action.shape:
            self._drift, self._last = np.zeros_like(action), action
            self._still, self._fresh = np.zeros(len(action), bool), np.ones(len(action), bool)
        if self._noise:
            draw = self._rng.normal(0.0, self._noise, action.shape).astype(np.float32)
            keep = np.where(self._fresh, 0.0, self._keep)[:, None]  # an episode begins in the stationary distribution
            self._drift = (keep * self._drift + np.sqrt(1.0 - keep**2) * draw).astype(np.float32)
            action = action + self._drift
        if self._share:
            chance = self._rng.random(len(action))
            going_on = np.where(self._still, chance >= self._end, chance < self._begin)
            self._still = np.where(self._fresh, chance < self._share, going_on)
            held = np.where(self._moves, 0.0, np.where(self._fresh[:, None], action, self._last))
            action = np.where(self._still[:, None], held, action).astype(np.float32)
        self._fresh[:] = False
        self._last = action
        return Action(value=np.clip(action, -1.0, 1.0))

    def _draw_mistakes(self, count: int) -> np.ndarray:
        chance = self._rng.random(count)
        return np.where(chance < self._mistakes, self._rng.random(count), np.nan)


class WithDensity:
    """A policy whose sampled actions come with their log-density, where it can tell it (`log_prob`)."""

    def __init__(self, policy: Policy) -> None:
        self.io, self._policy, self.parts = policy.io, policy, policy.parts

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory of these rows."""
        self._policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The policy's answer, with `logp` (B,) unless the action is the mode."""
        action = self._policy.act(obs, deterministic=deterministic)
        if deterministic or action.logp is not None or self.parts.log_prob is None:
            return action
        logp = self.parts.log_prob(obs, torch.as_tensor(action.value))
        return replace(action, logp=logp.cpu().numpy() if isinstance(action.value, np.ndarray) else logp)


class BesidePictures:
    """A policy in a world that shows pictures beside what it reads: they are recorded, and it does not see them.

    Args:
        policy: what acts.
        io: the world's interface; what it has beyond the policy's own is kept from the policy.
    """

    def __init__(self, policy: Policy, io: IOSpec) -> None:
        self.io, self._policy, self._keys = io, policy, tuple(policy.io.obs)
        density = policy.parts.log_prob
        read = None if density is None else lambda obs, action: density(self._select(obs), action)
        self.parts = replace(policy.parts, log_prob=read, at_interval=None)

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory of these rows."""
        self._policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The policy's answer to what it knows."""
        return self._policy.act(self._select(obs), deterministic=deterministic)

    def _select(self, obs: Obs) -> Obs:
        return {key: obs[key] for key in self._keys}


class KeepOptions(Options):
    """Which episodes are kept."""

    episodes: Count = 20
    """To record."""
    only_success: bool = False
    """Leave out episodes without success."""
    per_task: Count | None = None
    """Keep this many of each task of the world (tabletop), whatever episodes= says."""
    deterministic: bool = False
    """The policy's best action; false draws one."""


def keep_steps(
    env: Any,
    policy: Policy,
    options: KeepOptions,
    *,
    seed: int,
    on_episode: Callable[[int], object] = lambda _: None,
    max_rounds: int = 20,
    work: Path | None = None,
) -> list[Episode]:
    """Run a policy until enough episodes are kept, with the log-density of its actions where it can tell it.

    With `work` every kept episode is on the disk when it has ended, and the same call goes on where it was stopped: the
    round that was cut is played again from its seed, and what was recorded of it is kept instead of what comes again.

    Args:
        env: vector environment.
        policy: what acts.
        options: which are kept.
        seed: of the first reset.
        on_episode: called with the number of kept episodes.
        max_rounds: rounds of as many attempts before giving up.
        work: folder of kept episodes; their `meta` tells "round" and "place" (environment, how manieth episode of it).

    Raises:
        RuntimeError: too few successes in all rounds.
        ValueError: `per_task` where the environment has no tasks.
    """
    episodes, per_task, only_success = options.episodes, options.per_task, options.only_success
    earlier = [] if work is None or not any(work.glob("segment-*")) else list(Recording(work))
    begin = max((int(e.meta["round"]) for e in earlier), default=0)
    kept = [e for e in earlier if e.meta["round"] < begin]
    tried = 0
    names = env.parts.task_names
    room: dict[int, int] = dict.fromkeys(env.parts.asked_tasks, per_task or 0)
    if per_task is not None:
        if not names:
            raise ValueError(f"per_task is {per_task}, and this environment has no tasks; leave it null")
        episodes = per_task * len(room)
    for episode in earlier:
        task = int(episode.meta.get("task", -1))
        room[task] = room.get(task, 0) - 1
    reseed = policy.parts.reseed if work is not None else None
    if policy.parts.log_prob is not None:
        policy = WithDensity(policy)
    with ExitStack() as stack:
        recorder = None if work is None else stack.enter_context(Recorder(work))
        for round_ in range(begin, max_rounds):
            wanted = max(episodes - len(kept), 2 * len(names) * (per_task is not None))
            here = [e for e in earlier if e.meta["round"] == round_]
            there = {tuple(e.meta["place"]) for e in here}
            kept.extend(here)
            on_episode(len(kept))

            def take(episode: Episode, there: set[tuple[int, ...]] = there, round_: int = round_) -> None:
                nonlocal tried
                tried += 1
                task = int(episode.meta.get("task", -1))
                if tuple(episode.meta["place"]) in there or (per_task is not None and not room.get(task, 0) > 0):
                    return
                if len(kept) < episodes and (not only_success or episode.meta.get("success", False)):
                    room[task] = room.get(task, 0) - 1
                    if recorder is not None:
                        episode.meta["round"] = round_
                        recorder.append(episode)
                    kept.append(episode)
                    on_episode(len(kept))

            if reseed is not None:
                reseed(seed + round_)
            once = options.deterministic
            episodes_of(env, policy, episodes=wanted, seed=seed + round_, deterministic=once, on_episode=take)
            if len(kept) >= episodes:
                return kept
    if per_task is not None:
        short = ", ".join(f"{names[task]} lacks {left}" for task, left in room.items() if left)
        raise RuntimeError(f"{tried} episodes were not enough for {per_task} of each task: {short}; ask for fewer")
    raise RuntimeError(f"only {len(kept)} of {tried} episodes ended in success, wanted {episodes}; ask for fewer")


def begin_work(work: Path, settings: Mapping[str, object]) -> dict[str, Any]:
    """The state of interrupted work beside its result, begun where there is none.

    Args:
        work: its folder.
        settings: plain values; those of another call do not go on here.

    Raises:
        ValueError: the folder holds the work of another call.
    """
    file = work / "state.json"
    if file.is_file():
        state = json.loads(file.read_text())
        if state["settings"] != settings:
            differing = [k for k in settings if state["settings"].get(k) != settings[k]]
            raise ValueError(
                f"{work} holds interrupted work with another {', '.join(differing) or 'set of facts'}; "
                "remove it, or repeat the call that began it"
            )
        return state
    work.mkdir(parents=True, exist_ok=True)
    write_json(file, {"settings": settings, "noise": None})
    return {"settings": settings, "noise": None}


def episodes_of(
    env: Any,
    policy: Policy,
    *,
    episodes: int,
    seed: int,
    deterministic: bool = False,
    on_episode: Callable[[Episode], object] = lambda _: None,
) -> list[Episode]:
    """Run a policy for a fixed number of episodes and return them with stamps in seconds.

    Every environment gives its share, whatever the length of its episodes: taking those that end first would prefer
    short ones.

    Args:
        env: vector environment; it is reset here.
        policy: what acts.
        episodes: how many.
        seed: of the reset.
        deterministic: the policy's mode instead of samples.
        on_episode: called with each when it has ended; its `meta["place"]` is (environment, how manieth of it).
    """
    count = env.num_envs
    quota = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    share = quota.copy()
    found: list[Episode] = []
    builders: list[EpisodeBuilder] = []
    sentences = env.parts.instructions
    asked: list[Any] = [None]
    if sentences is not None:
        env.reset(seed=seed)  # as `evaluate` does again: what the first episodes are asked
        asked[0] = sentences()

    def store(row: Step) -> None:
        if not builders:  # not every environment knows success, not every policy a density
            columns = tuple(name for name in ("success", LOGP) if name in row.info)
            builders.append(EpisodeBuilder(count, meta={"io": env.io.to_dict()}, columns=columns))
        ended = np.flatnonzero((_flags(row.terminated) | _flags(row.truncated)) & _flags(row.valid))
        whole = [e for e in builders[0].add(row) if e.terminated or e.truncated]
        task = row.info.get("task")
        success = row.info.get("success")  # some environments say it at the end of an episode only
        for i, episode in zip(ended.tolist(), whole):
            if quota[i] > 0:
                quota[i] -= 1
                said = None if asked[0] is None else asked[0][i]
                found.append(_finish(episode, env.io.control_hz, None if success is None else success[i], said))
                if task is not None:
                    found[-1].meta["task"] = int(task[i])
                found[-1].meta["place"] = [i, int(share[i] - quota[i]) - 1]
                on_episode(found[-1])
        if len(ended) and sentences is not None:
            asked[0] = sentences()

    evaluate(env, policy, episodes=episodes, seed=seed, deterministic=deterministic, on_step=store)
    return found


def _flags(value: object) -> np.ndarray:
    return np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value).astype(bool)


def _finish(episode: Episode, control_hz: float, success: object = None, instruction: str | None = None) -> Episode:
    """Stamps in seconds; success at the end of the episode and what was asked in `meta`."""
    meta = dict(episode.meta)
    if instruction is not None:
        meta["instruction"] = instruction
    column = meta.get("columns", {}).get("success")
    if column is not None:
        meta["success"] = bool(column[-1])
    elif success is not None:
        meta["success"] = bool(success)
    return replace(episode, stamp=episode.stamp / control_hz, meta=meta)
