"""Autonomous trials of a policy through the safety layer, with nobody there."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from robot_rl.human.judge import Judge
from robot_rl.human.pilot import Pilot
from robot_rl.human.stats import Trials
from robot_rl.loops.evaluate import LONGEST
from robot_rl.loops.stepping import Stepper
from robot_rl.types import Policy, VecEnv


def tell(policy: Policy, executed: np.ndarray) -> None:
    """Policies that remember their last command hear what was really done."""
    call = policy.parts.executed
    if call is not None:
        call(executed[None])


def trials(
    env: VecEnv,
    policy: Policy,
    pilot: Pilot,
    *,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    stopped: Callable[[], bool] = lambda: False,
    on_episode: Callable[[int], object] | None = None,
    on_tick: Callable[[], object] = lambda: None,
    judge: Judge | None = None,
    overrules: bool = True,
) -> Trials:
    """Autonomous trials with frozen weights through the same safety layer; a trial ends at its first success.

    Nobody is there; where somebody is, see `attended`. A trial that does not end by itself is cut, as a failure.

    Args:
        env: of one copy, natural starts.
        policy: what acts.
        pilot: without a person.
        episodes: how many.
        seed: of the first reset.
        deterministic: as it acts alone (`Policy.act`).
        stopped: asked before every trial; True ends the block.
        on_episode: called with the number of finished trials.
        on_tick: called before every step, while the environment is as the policy sees it.
        judge: says what is a success, in place of the environment.
        overrules: also of an environment that knows; else it is asked where that says nothing.
    """
    out, stepper = Trials(deterministic=deterministic), Stepper(env)
    stepper.reset(seed=seed)
    for _ in range(episodes):
        if stopped():
            break
        pilot.restart()  # a stop cost its own trial and no other
        refused = pilot.begin()
        if refused:
            raise RuntimeError(f"the safety layer does not allow a trial: {', '.join(refused)}")
        policy.reset()
        if judge is not None:
            judge.begin()
        steps, success, ended, earned = 0, False, False, 0.0
        while not (ended or success):
            on_tick()
            proposal = np.asarray(policy.act(stepper.obs, deterministic=deterministic).value[0], np.float32)
            obs = {name: value[0] for name, value in stepper.obs.items()}
            driven = pilot.drive(obs, proposal)
            tell(policy, driven.executed)
            if driven.stopped:
                out.stops.append(driven.stopped_by)
                break
            row = stepper.step(driven.executed[None])
            pilot.wait()
            steps += 1
            earned += float(row.reward[0])
            if judge is not None and (overrules or "success" not in row.info):
                success = judge({name: value[0] for name, value in row.next_obs.items()}, math.inf).success
            else:
                success = bool(row.info["success"][0]) if "success" in row.info else False
            ended = bool(row.terminated[0] or row.truncated[0])
            if steps >= LONGEST and not (ended or success):
                out.cut += 1
                break
        pilot.end()
        if not ended:
            stepper.reset()
        out.successes.append(success)
        out.steps.append(steps)
        out.returns.append(earned)
        if on_episode is not None:
            on_episode(len(out.successes))
    return out
