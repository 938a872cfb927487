"""The verb check: an environment against the contract."""

from __future__ import annotations

import numpy as np
from omegaconf import DictConfig

from robot_rl import build
from robot_rl.loops.evaluate import evaluate
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


def check(cfg: DictConfig) -> None:
    """Run an environment through the contract, and its expert through an episode of each copy."""

    if cfg.get("env") is None:
        raise Refused("say which environment: robot-rl check env=reach")
    env = env_factory(cfg)(cfg.num_envs, cfg.seed, False)
    findings = build.tool("check")(env, steps=cfg.steps, seed=cfg.seed)
    for number, finding in enumerate(findings, 1):
        print(f"{number}. {finding}")
    if not findings and env.parts.expert is not None:
        result = evaluate(env, ExpertPolicy(env), episodes=cfg.num_envs, seed=cfg.seed)
        success = result.metrics().get("eval/success", float("nan"))
        print(f"expert: return {np.mean(result.returns):.4g}, success {success:.2f}")
    env.close()
    answer.note(findings=list(findings))
    if findings:
        raise Refused(f"{env_name(cfg)} breaks the contract of environments in {len(findings)} places")
    print(f"{env_name(cfg)} keeps the contract of environments")
