"""Data sets of graded quality from one agent, in the manner of D4RL.

What the names mean here, which is not what they mean in D4RL (there: policies and the replay buffer of a SAC run):

- random: uniform actions.
- expert: the agent, its mode at every step.
- medium: an earlier checkpoint or a weaker agent where one is given (with `medium_noise` that one spoilt by so much);
  else the agent spoilt until the return lies `medium_fraction` of the way from random to expert (bisection): by
  truncated Gaussian noise on its actions, whose mean is the agent itself, or (`medium_by=bias`) by a fixed wrong
  function of the state, which cloning learns as well.
- medium-replay: ten equal shares of episodes from random to medium. With `replay_by=uniform` every action in share k
  is uniform with probability 1 - k / 9, else that of medium; with `replay_by=agents` share k is an agent of its own,
  medium spoilt further in the same manner (`medium_by`) until its return lies k / 9 of the way from random to medium,
  as the agents whose steps fill the replay buffer of a run get better.
- medium-expert: one half of the steps medium, the other expert.

With `agent_noise` the agents' own actions have noise too, with `agent_sample` they draw them from their own policies,
as D4RL's did: values learn nothing of actions that are never tried, and agents bear their own noise better than
another. The file says which it is (`metadata/*`), of every step by which behaviour it was made (`infos/behaviour`), and
where every part is random with what log-density (`infos/action_log_probs`).
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from robot_rl.checkpoint import write_json
from robot_rl.data import d4rl
from robot_rl.data.recorder import Recorder, Recording
from robot_rl.loops.evaluate import evaluate
from robot_rl.types import Action, Array, Episode, IOSpec, Obs, Options, Policy, PolicyParts, VecEnv
from robot_rl.types.options import Count, NotNegative, Part, Share, Whole
from robot_rl.verbs.collect_episodes import LOGP, WithDensity, begin_work, episodes_of

_LOG_SQRT_TAU = 0.5 * math.log(2.0 * math.pi)


class Spoiling(Options):
    """How a policy is made worse."""

    noise: NotNegative = 0.0
    """Standard deviation on actions in [-1, 1] before the truncation."""
    random: Share = 0.0
    """Probability of a uniform action, per step and environment."""
    bias: NotNegative = 0.0
    """Amplitude of the fixed function of the state."""
    sample: bool = False
    """The policy draws its actions itself, in place of noise; with a bias they have no density."""


AS_IT_IS = Spoiling()


class Behaviour:
    """A policy's mode or samples, pulled off by a fixed function of the state, with noise, at times uniform instead.

    The mode becomes m(s) = clip(mode(s) + bias sin(W s + b)) with W and b drawn once: a worse policy that cloning can
    learn, unlike noise, whose mean is the policy itself. Actions are drawn from a normal distribution about m(s) that
    is truncated to [-1, 1], so that they have a density at the bounds too: log((1 - random) prod N + random 2^-A).
    """

    def __init__(self, policy: Policy, how: Spoiling = AS_IT_IS, *, seed: int = 0) -> None:
        """Wrap `policy`.

        Args:
            policy: acts deterministically below, unless it is to sample.
            how: it is spoilt.
            seed: of noise and uniform actions; not of the fixed function, which is always the same one.

        Raises:
            ValueError: both kinds of noise, or a policy whose samples cannot be repeated.
        """
        if how.sample and how.noise:
            raise ValueError("sample takes the place of noise; give one of them")
        if how.sample and policy.parts.reseed is None:
            raise ValueError(
                f"{type(policy).__name__} has no reseed(seed), so that what it samples could not be repeated; use noise"
            )
        self.io, self._policy, self.how = policy.io, WithDensity(policy), how
        self._wave: tuple[np.ndarray, np.ndarray] | None = None
        self.reseed(seed)

    @property
    def parts(self) -> PolicyParts:
        """Noise that can be repeated."""
        return PolicyParts(reseed=self.reseed)

    def reseed(self, seed: int) -> None:
        """Begin the noise anew."""
        self._rng = np.random.default_rng(seed)
        again = self._policy.parts.reseed
        if self.how.sample and again is not None:
            again(seed)

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory of these rows."""
        self._policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The policy's mode, spoilt; `logp` (B,) unless the action is a function of the state.

        Args:
            obs: what the policy reads; `bias` needs the vector "state".
            deterministic: not used: the spoiling is the behaviour.
        """
        first = next(iter(obs.values()))
        shape = (len(first), self.io.action_dim)
        # The numbers are drawn whether they are used or not: the stream does not depend on the agent.
        uniform, quantile = self._rng.uniform(-1.0, 1.0, shape), self._rng.random(shape)
        chance = self._rng.random(shape[0]) < self.how.random
        flat = -shape[1] * math.log(2.0)
        if self.how.random >= 1.0:
            return Action(uniform.astype(np.float32), logp=np.full(shape[0], flat, np.float32))
        answer = self._policy.act(obs, deterministic=not self.how.sample)
        mode = np.asarray(answer.value, np.float64)
        if self.how.bias:
            mode = mode + self.how.bias * self._pull(np.asarray(obs["state"], np.float64))
        mode = mode.clip(-1.0, 1.0)
        drawn = _truncated_normal(mode, self.how.noise, quantile) if self.how.noise else mode
        action = np.where(chance[:, None], uniform, drawn).clip(-1.0, 1.0).astype(np.float32)
        if self.how.noise:
            logp = _truncated_logp(action.astype(np.float64), mode, self.how.noise).sum(-1)
        elif self.how.bias or not self.how.sample or answer.logp is None:
            return Action(action)
        elif not self.how.random:
            logp = np.asarray(answer.logp, np.float32)
        else:
            density = self._policy.parts.log_prob
            if density is None:  # of the uniform actions it is not known
                return Action(action)
            logp = density(obs, torch.from_numpy(action)).cpu().numpy()
        if self.how.random:
            logp = np.logaddexp(math.log1p(-self.how.random) + logp, math.log(self.how.random) + flat)
        return Action(action, logp=logp.astype(np.float32))

    def _pull(self, state: np.ndarray) -> np.ndarray:
        if self._wave is None:
            rng = np.random.default_rng(0)
            weight = rng.normal(size=(state.shape[1], self.io.action_dim)) / math.sqrt(state.shape[1])
            self._wave = (weight, rng.uniform(-math.pi, math.pi, self.io.action_dim))
        return np.sin(state @ self._wave[0] + self._wave[1])


class Nobody:
    """Stands where an agent would, in behaviours that never ask one (uniform actions)."""

    parts = PolicyParts()

    def __init__(self, io: IOSpec) -> None:
        self.io = io

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Refuse: nobody is there."""
        raise RuntimeError("there is no agent to ask")


def _limits(mode: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a normal distribution below -1 and below 1."""
    low, high = (torch.special.ndtr(torch.from_numpy((end - mode) / noise)).numpy() for end in (-1.0, 1.0))
    return low, high


def _truncated_normal(mode: np.ndarray, noise: float, quantile: np.ndarray) -> np.ndarray:
    low, high = _limits(mode, noise)
    return mode + noise * torch.special.ndtri(torch.from_numpy(low + quantile * (high - low))).numpy()


def _truncated_logp(action: np.ndarray, mode: np.ndarray, noise: float) -> np.ndarray:
    low, high = _limits(mode, noise)
    return -0.5 * np.square((action - mode) / noise) - math.log(noise) - _LOG_SQRT_TAU - np.log(high - low)


LEVELS = ("random", "medium", "medium-replay", "medium-expert", "expert")
_RUNGS = 10
_NOISE_RANGE = 2.0
_BISECTIONS = 7


@dataclass(frozen=True)
class LevelPart:
    """A share of the steps and who makes them."""

    name: str
    share: float
    behaviour: Behaviour


@dataclass(frozen=True)
class LevelSummary:
    """What was collected: name of the part -> (episodes, steps, mean return), and the noise of medium."""

    parts: dict[str, tuple[int, int, float]]
    noise: float | None


class LevelOptions(Options):
    """What a graded data set is made of."""

    level: Literal["random", "medium", "medium-replay", "medium-expert", "expert"] | None = None
    """A graded D4RL-like set."""
    steps: Count = 100_000
    """With level: at least this many in all; episodes are whole."""
    medium_fraction: Part = 0.4
    """With level: return of medium between random (0) and expert (1), where noise makes it."""
    medium_noise: NotNegative | None = None
    """With level: standard deviation of that noise, or amplitude of the bias; null = found by bisection, or none on the
    agent of medium_path."""
    medium_by: Literal["noise", "bias"] = "noise"
    """With level: what makes the agent medium; bias = a fixed wrong function of the state."""
    replay_by: Literal["uniform", "agents"] = "uniform"
    """With level=medium-replay: medium with ever fewer uniform actions, or ever less spoilt agents."""
    noise: NotNegative = 0.0
    """Standard deviation of Gaussian noise on the expert's actions; with level on all agents'."""
    sample: bool = False
    """With level: the agents draw their actions from their own policies, in place of noise."""
    seed: Whole = 0
    """Of resets and noise."""


def collect_level(
    env: VecEnv,
    expert: Policy,
    out: Path,
    options: LevelOptions,
    *,
    medium: Policy | None = None,
    facts: Mapping[str, object] | None = None,
    on_steps: Callable[[int], object] = lambda _: None,
    on_note: Callable[[str], object] = lambda _: None,
) -> LevelSummary:
    """Collect a data set and write it as a D4RL file.

    Interrupted work is kept in a folder beside `out` and continued by the same call; the result is then the same to the
    last bit, because every round of episodes has its own seeds.

    Args:
        env: vector environment; used alone here.
        expert: the agent.
        out: a new .hdf5 file.
        options: with a level.
        medium: a weaker agent for the medium parts.
        facts: plain values for the file's metadata and for telling whether interrupted work belongs to this call.
        on_steps: called with the number of steps collected so far.
        on_note: called with a line about what is done before the first step: agents are found by trial.

    Raises:
        ValueError: no level, or interrupted work beside `out` is of other settings.
    """
    o, level, seed, medium_by = options, options.level, options.seed, options.medium_by
    if level is None:
        raise ValueError(f"level is missing, expected one of {', '.join(LEVELS)}")
    work = out.with_name(f".{out.name}.work")
    settings = {"level": level, "seed": seed, "num_envs": env.num_envs, "medium_fraction": o.medium_fraction}
    settings |= {"medium_noise": o.medium_noise, "own_medium": medium is not None, **(facts or {})}
    settings |= {"medium_by": medium_by, "agent_noise": o.noise, "agent_sample": o.sample}
    if o.replay_by != "uniform":  # absent, so that work begun before there was a choice goes on
        settings["replay_by"] = o.replay_by
    settings = json.loads(json.dumps(settings))
    state = begin_work(work, settings)
    noise, best = o.medium_noise, Spoiling(noise=o.noise, sample=o.sample)

    def note(what: str, trial: str) -> None:
        on_note(f"{what}: {trial}")

    if medium is None and level.startswith("medium"):
        if noise is None:
            noise = state.get("noise")
        if noise is None:
            own = best if medium_by == "bias" else AS_IT_IS
            trial = partial(note, "finding medium")
            noise = calibrate(
                env, expert, fraction=o.medium_fraction, seed=seed + 7, by=medium_by, agent=own, on_trial=trial
            )
        state["noise"] = noise
        write_json(work / "state.json", state)
    if medium is not None and noise is None:
        middle = best
    elif medium_by == "noise":
        middle = Spoiling(noise=noise or 0.0)
    else:
        middle = best.model_copy(update={"bias": noise or 0.0})
    rungs: list[float] | None = None
    if level == "medium-replay" and o.replay_by == "agents":
        found: list[float] = state.setdefault("rungs", [])
        for k in range(1 + len(found), _RUNGS - 1):  # each is a while of work: kept as soon as it is found
            share, trial = k / (_RUNGS - 1), partial(note, f"finding agent {k} of {_RUNGS - 2}")
            amount = calibrate(
                env, medium or expert, fraction=share, seed=seed + 7, by=medium_by, agent=middle, on_trial=trial
            )
            found.append(amount)
            write_json(work / "state.json", state)
        rungs = found
    parts = _parts(level, expert, medium or expert, middle, best, medium_by, rungs)
    episodes: list[Episode] = []
    summary: dict[str, tuple[int, int, float]] = {}
    for number, part in enumerate(parts):
        before = sum(len(e) for e in episodes)
        # Every part gets a round at least, also where whole episodes of those before overshot their shares.
        wanted = max(1, round(o.steps * sum(p.share for p in parts[: number + 1])) - before)

        def count_steps(count: int, before: int = before) -> None:
            on_steps(before + count)

        made = _run(env, part.behaviour, work / f"part-{number}", wanted, seed + 1_000_003 * (number + 1), count_steps)
        episodes += [_mark(e, number) for e in made]
        mean = float(np.mean([e.reward.sum(dtype=np.float64) for e in made]))
        summary[part.name] = (len(made), sum(len(e) for e in made), mean)
    if not all(LOGP in e.meta.get("columns", {}) for e in episodes):  # a part without density: none has the column
        episodes = [_without(e, LOGP) for e in episodes]
    described = {name: {"episodes": n, "steps": t, "return": r} for name, (n, t, r) in summary.items()}
    metadata = {
        **settings,
        "noise": noise,
        "parts": described,
        "meaning": "\n".join((__doc__ or "").split("\n\n")[1:2]),
    }
    d4rl.write(out, episodes, metadata=metadata, io=env.io)
    shutil.rmtree(work)
    return LevelSummary(summary, noise)


def calibrate(
    env: VecEnv,
    policy: Policy,
    *,
    fraction: float,
    seed: int,
    episodes: int | None = None,
    by: str = "noise",
    agent: Spoiling = AS_IT_IS,
    on_trial: Callable[[str], object] = lambda _: None,
) -> float:
    """Noise or bias of the actions at which the return lies `fraction` of the way from random to the policy's.

    Bisection over [0, 2] with the same resets and noise at every trial; `on_trial` is told of each ("3 of 9").

    Raises:
        ValueError: the policy is no better than random actions.
    """
    count, trials = max(episodes or 8, env.num_envs), 0

    def measure(**spoilt: float) -> float:
        nonlocal trials
        trials += 1
        on_trial(f"{trials} of {_BISECTIONS + 2}")
        behaviour = Behaviour(policy, agent.model_copy(update=spoilt), seed=seed)
        return float(np.mean(evaluate(env, behaviour, episodes=count, seed=seed, deterministic=False).returns))

    best, worst = measure(), measure(random=1.0)
    if not best > worst:
        raise ValueError(f"the agent returns {best:.4g}, uniform actions {worst:.4g}: there is nothing in between")
    target = worst + fraction * (best - worst)
    low, high = 0.0, _NOISE_RANGE
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if measure(**{by: middle}) > target else (low, middle)
    return 0.5 * (low + high)


def _parts(
    level: str,
    expert: Policy,
    weaker: Policy,
    middle: Spoiling,
    agent: Spoiling,
    by: str,
    rungs: list[float] | None,
) -> list[LevelPart]:
    medium, best = Behaviour(weaker, middle), Behaviour(expert, agent)
    if level == "random":
        return [LevelPart("random", 1.0, Behaviour(expert, Spoiling(random=1.0)))]
    if level == "expert":
        return [LevelPart("expert", 1.0, best)]
    if level == "medium":
        return [LevelPart("medium", 1.0, medium)]
    if level == "medium-expert":
        return [LevelPart("medium", 0.5, medium), LevelPart("expert", 0.5, best)]
    if rungs is not None:
        between = [Behaviour(weaker, middle.model_copy(update={by: amount})) for amount in rungs]
        agents = [Behaviour(expert, Spoiling(random=1.0)), *between, medium]
        return [
            LevelPart(f"{k / (_RUNGS - 1):.0%} of medium's return", 1 / _RUNGS, one) for k, one in enumerate(agents)
        ]
    chances = [1.0 - k / (_RUNGS - 1) for k in range(_RUNGS)]
    mixed = [Behaviour(weaker, middle.model_copy(update={"random": p})) for p in chances]
    return [LevelPart(f"{1 - p:.0%} medium", 1 / _RUNGS, one) for p, one in zip(chances, mixed)]


def _run(
    env: VecEnv, behaviour: Behaviour, folder: Path, steps: int, seed: int, on_steps: Callable[[int], object]
) -> list[Episode]:
    """Rounds of one episode per environment until there are enough steps; finished rounds are read, not repeated."""
    kept: list[Episode] = []
    finished = 0
    if any(folder.glob("segment-*.episodes")):
        rounds: dict[int, list[Episode]] = {}
        for episode in Recording(folder):
            rounds.setdefault(int(episode.meta["round"]), []).append(episode)
        while len(rounds.get(finished, [])) >= env.num_envs:  # a round that was cut and repeated is there twice
            kept += rounds[finished][-env.num_envs :]
            finished += 1
    count = sum(len(e) for e in kept)
    on_steps(count)
    with Recorder(folder) as recorder:
        while count < steps:
            behaviour.reseed(seed + finished)
            for episode in episodes_of(env, behaviour, episodes=env.num_envs, seed=seed + finished):
                one = replace(episode, meta={**episode.meta, "round": finished})
                recorder.append(one)
                kept.append(one)
                count += len(one)
            finished += 1
            on_steps(count)
    return kept


def _mark(episode: Episode, number: int) -> Episode:
    columns = {**episode.meta.get("columns", {}), "behaviour": np.full(len(episode), number, np.int8)}
    return replace(episode, meta={**episode.meta, "columns": columns})


def _without(episode: Episode, name: str) -> Episode:
    columns = {key: value for key, value in episode.meta.get("columns", {}).items() if key != name}
    return replace(episode, meta={**episode.meta, "columns": columns})
