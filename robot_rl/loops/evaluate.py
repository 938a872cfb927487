"""Evaluation: a fixed number of episodes per environment, so that short episodes are not preferred."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from robot_rl.chunks import ChunkMeter
from robot_rl.loops.stepping import Stepper
from robot_rl.types import Array, Policy, Step, StepEnv, VecEnv

FILM_HZ = 25.0
"""Most pictures per second of a film: drawing one may take longer than a hundred steps."""
LONGEST = 20_000
"""Steps of an episode after which an evaluation waits no longer for its end: far beyond the limits of our worlds."""


@dataclass
class Evaluation:
    """What `evaluate` measured, one entry per episode.

    Attributes:
        returns: undiscounted returns.
        lengths: control steps.
        successes: success at the end of the episode (for worlds that say so), else empty.
        tasks: which of the environment's `task_names` each episode was about, for worlds that have several, else empty.
    """

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    cut: int = 0
    """Episodes that were cut because they did not end by themselves."""
    chunks: dict[str, float] = field(default_factory=dict)
    """Of a policy that acts in chunks: decisions per episode, border_jerk, latency_ms, latency_p95_ms."""

    def metrics(self) -> dict[str, float]:
        """Summary under the names eval/return, eval/return_std, eval/length, eval/success."""
        out = {
            "eval/return": float(np.mean(self.returns)),
            "eval/return_std": float(np.std(self.returns)),
            "eval/length": float(np.mean(self.lengths)),
            "eval/episodes": float(len(self.returns)),
        }
        if self.successes:
            out["eval/success"] = float(np.mean(self.successes))
        if self.cut:
            out["eval/cut"] = float(self.cut)
        return {**out, **{f"eval/{name}": value for name, value in self.chunks.items()}}

    def numbers(self) -> dict[str, object]:
        """Of every episode."""
        return {"returns": self.returns, "successes": self.successes}


def by_task(result: Evaluation, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Name of each task -> (successes, episodes); empty where the environment does not tell."""
    if len(result.tasks) != len(result.successes):
        return {}
    won, tasks = np.array(result.successes, bool), np.array(result.tasks, np.int64)
    return {name: (int(won[tasks == i].sum()), int((tasks == i).sum())) for i, name in enumerate(names)}


class FilmCamera:
    """Takes pictures of environment 0, at most `FILM_HZ` of each second, when it is called before every step.

    Args:
        env: made to be drawn.
        seconds: after which it takes no more.

    Attributes:
        frames: (H, W, 3) uint8 each.
        hz: pictures per second.
        most: how many there will be at most.
        tell: called with how many there are.
    """

    def __init__(self, env: VecEnv, seconds: float) -> None:
        self._every = math.ceil(env.io.control_hz / FILM_HZ)
        self._env, self._step = env, 0
        self.frames: list[np.ndarray] = []
        self.tell: Callable[[int], object] = int
        self.hz = env.io.control_hz / self._every
        self.most = int(seconds * self.hz)

    def __call__(self) -> None:
        """Take one, if it is due.

        Raises:
            ValueError: the environment draws nothing.
        """
        if self._step % self._every == 0 and len(self.frames) < self.most:
            shown = self._env.render()
            if shown is None:
                raise ValueError("the environment draws nothing, so there is no film; make it with render=True")
            self.frames.append(np.asarray(shown[0]))
            self.tell(len(self.frames))
        self._step += 1


def evaluate(
    env: StepEnv,
    policy: Policy,
    *,
    episodes: int,
    seed: int = 10_000,
    deterministic: bool = True,
    film: Callable[[], object] | None = None,
    on_step: Callable[[Step], None] | None = None,
    on_episode: Callable[[int], object] | None = None,
    longest: int = LONGEST,
    first_success: bool = False,
) -> Evaluation:
    """Run a policy for `episodes` episodes, and be done: where one does not end by itself it is cut.

    Args:
        env: vector environment of N copies with `.io`; it is reset here.
        policy: what acts; must fit the environment.
        episodes: in all; environment i runs the i-th share of them, whatever their length.
        seed: of the reset.
        deterministic: as the policy acts alone (`Policy.act`) instead of samples.
        film: called before every step, such as a `FilmCamera`.
        on_step: called with every `Step`, e.g. a recorder; `info["action_log_probs"]` (N,) where the policy says with
            what log-density it drew the action.
        on_episode: called with the number of finished episodes.
        longest: steps after which an episode is cut and counted as it is.
        first_success: an episode ends at its first success, as those of `robot-rl hil` do; else where the environment
            ends it, and is a success where its last step is one.

    Raises:
        ValueError: policy and environment do not fit, listing every difference; or episodes < 1.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}, expected 1 or more")
    policy.io.check(env.io)
    num_envs = env.num_envs
    quota = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
    stepper = Stepper(env)
    stepper.reset(seed=seed)
    policy.reset()
    earned, told = policy.parts.earned, policy.parts.executed
    meter: ChunkMeter | None = policy.parts.meter
    if meter is not None:
        meter.clear()
    result = Evaluation()
    returns, lengths, done_count = np.zeros(num_envs), np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
    waiting = np.zeros(num_envs, bool)  # cut, with episodes still to come: it takes a reset of all to begin them
    while (done_count < quota).any():
        if waiting.any() and not ((done_count < quota) & ~waiting).any():
            seed += 1
            stepper.reset(seed=seed)
            policy.reset()
            waiting[:], returns[:], lengths[:] = False, 0.0, 0
        if film is not None:
            film()
        action = policy.act(stepper.obs, deterministic=deterministic)
        row = stepper.step(action.value)
        if on_step is not None:
            density = action.logp is not None and "raw" not in action.extras  # none where samples were clipped
            on_step(replace(row, info={**row.info, "action_log_probs": action.logp}) if density else row)
        valid = _numpy(row.valid)
        returns += np.where(valid, _numpy(row.reward), 0.0)
        if earned is not None:
            earned(np.where(valid, _numpy(row.reward), 0.0))
        if told is not None:
            told(_numpy(row.action))
        lengths += valid
        over = (_numpy(row.terminated) | _numpy(row.truncated)) & valid
        won = _numpy(row.info["success"]).astype(bool) & valid if "success" in row.info else np.zeros(num_envs, bool)
        cut = (lengths >= longest) & ~over & ~waiting
        result.cut += int((cut & (done_count < quota)).sum())
        if first_success:
            cut |= won & ~over & ~waiting
        ended = (over | cut) & ~waiting
        waiting |= cut
        for i in np.flatnonzero(ended):
            if done_count[i] < quota[i]:
                result.returns.append(float(returns[i]))
                result.lengths.append(int(lengths[i]))
                if "success" in row.info:
                    result.successes.append(bool(won[i]))
                if "task" in row.info:
                    result.tasks.append(int(_numpy(row.info["task"])[i]))
            done_count[i] += 1
            returns[i], lengths[i] = 0.0, 0
        anew = over | ~valid  # a row that is no transition is the reset of a next-step autoreset
        if anew.any():
            policy.reset(anew)
        if ended.any() and on_episode is not None:
            on_episode(len(result.returns))
    if meter is not None:
        result.chunks = meter.metrics(int(done_count.sum()))
    return result


def evaluate_midway(env: StepEnv, policy: Policy, *, episodes: int, seed: int = 10_000) -> Evaluation:
    """`evaluate` a policy that is in the midst of something else, such as its training, and goes on with that.

    What acting depends on beside the weights (a memory of the episodes under way, a chunk, noise) is put back.
    """
    parts = policy.parts
    midst = None if parts.save is None else parts.save()
    found = evaluate(env, policy, episodes=episodes, seed=seed)
    if parts.restore is not None and midst is not None:
        parts.restore(midst)
    return found


def _numpy(x: Array) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()
