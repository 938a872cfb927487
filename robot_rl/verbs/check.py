"""The verb check: an environment against the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
from omegaconf import DictConfig

from robot_rl import build
from robot_rl.loops.evaluate import evaluate
from robot_rl.types import Step
from robot_rl.types.options import Count, Device, Whole
from robot_rl.verbs import answer
from robot_rl.verbs.build import env_factory, env_name
from robot_rl.verbs.collect_episodes import ExpertPolicy
from robot_rl.verbs.options import Env, VerbOptions
from robot_rl.words import Refused


class CheckOptions(VerbOptions, Env):
    """robot-rl check."""

    num_envs: Count = 8
    """Copies of the environment."""
    steps: Count = 1200
    """An episode has to end within so many."""
    seed: Whole = 0
    """Of everything random."""
    device: Device = "cpu"
    """Where a GPU engine computes."""


_CAUSES = {
    "did not reach the object": "it lies at the edge of what the arm reaches: home and workspace of its card",
    "reached it and did not hold it": "the fingers: tool, and open and closed of the gripper in the card",
    "dropped it": "the grip: effort and kp of the gripper in the card",
    "held it to the end, short of the goal": "speed: velocity of the joints in the card, or seconds=",
}


class _Stages:
    """How far the episodes that failed have come; called with every step."""

    def __init__(self, env: Any, episodes: int) -> None:
        self._now, self._count = env.parts.stages, env.num_envs
        self._left = (episodes + np.arange(env.num_envs)[::-1]) // env.num_envs  # that count, as `evaluate` shares them
        self._seen: dict[str, np.ndarray] = {}
        self._last: dict[str, np.ndarray] = {}
        self._failed: list[str] = []

    def __call__(self, row: Step) -> None:
        over = np.asarray(row.terminated) | np.asarray(row.truncated)
        nothing = np.zeros(self._count, bool)
        self._left = self._left - over
        for i in np.flatnonzero(over & (self._left >= 0) & ~np.asarray(row.info["success"], bool)):
            reached, held = (self._seen.get(name, nothing)[i] for name in ("reached", "held"))
            at_end = self._last.get("held", nothing)[i]
            self._failed.append(list(_CAUSES)[0 if not reached else 1 if not held else 3 if at_end else 2])
        # Where an episode ended, the view is of the next one already.
        self._last = {name: value & ~over for name, value in self._now().items()}
        self._seen = {name: (self._seen.get(name, nothing) & ~over) | value for name, value in self._last.items()}

    def tell(self, won: int, episodes: int) -> str:
        """One paragraph."""
        text = f"the scripted person (human=scripted, collect) succeeds in {won} of {episodes} episodes"
        counts = {what: self._failed.count(what) for what in _CAUSES if what in self._failed}
        if not counts:
            return text
        text += "; of the others it " + ", ".join(f"{what} in {count}" for what, count in counts.items())
        if won >= 0.8 * episodes:
            return text
        return f"{text}. Where to look: {'; '.join(_CAUSES[what] for what in counts)}"


def check(cfg: DictConfig) -> None:
    """Run an environment through the contract, and its expert through an episode of each copy."""

    if cfg.get("env") is None:
        raise Refused("say which environment: robot-rl check env=reach")
    env = env_factory(cfg)(cfg.num_envs, cfg.seed, False)
    findings = build.tool("sim.check:check")(env, steps=cfg.steps, seed=cfg.seed)
    for number, finding in enumerate(findings, 1):
        print(f"{number}. {finding}")
    if not findings and env.parts.expert is not None:
        episodes = cfg.num_envs if env.parts.stages is None else max(cfg.num_envs, 20)
        stages = None if env.parts.stages is None else _Stages(env, episodes)
        result = evaluate(env, ExpertPolicy(env), episodes=episodes, seed=cfg.seed, on_step=stages)
        success = result.metrics().get("eval/success", float("nan"))
        print(f"expert: return {np.mean(result.returns):.4g}, success {success:.2f}")
        if stages is not None:
            print(stages.tell(int(np.sum(result.successes)), episodes))
    env.close()
    answer.note(findings=list(findings))
    name = str(cfg.id or "").rpartition(":")[2] or env_name(cfg)
    if findings:
        places = "one place" if len(findings) == 1 else f"{len(findings)} places"
        raise Refused(f"{name} breaks the contract of environments in {places}")
    print(f"{name} keeps the contract of environments")
