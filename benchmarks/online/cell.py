"""One cell of the matrix: a task, an algorithm, a method and a seed, trained and evaluated in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import yaml
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.online.tasks import EPISODES, GLANCE_EPISODES, GLANCES, OWN, make_env
from robot_rl import build
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.policies.online.sb3 import VectorEnvForSb3
from robot_rl.stopwatch import Stopwatch
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts
from robot_rl.verbs.train_job import TrainSettings

PEERS = {"sb3": "stable_baselines3", "sbx": "sbx"}
"""Side -> module with SB3's interface. SBX needs an environment of its own, whose Python then runs the matrix."""
VERSIONS = {
    "ours": ("robot_rl", "torch", "gymnasium", "mujoco", "numpy"),
    "sb3": ("stable_baselines3", "torch", "gymnasium", "mujoco", "numpy"),
    "sbx": ("sbx-rl", "jax", "gymnasium", "mujoco", "numpy"),
}


def options_of(method: str) -> tuple[str, dict[str, Any]]:
    """The side and the options that a method's name says: "ours", "ours normalize_obs=false lr=0.001", "sb3", "sbx".

    Raises:
        ValueError: another side.
    """
    side, *words = method.split()
    if side not in VERSIONS:
        raise ValueError(f"the method is {method!r}, expected {' or '.join(VERSIONS)}, and options such as lr=0.001")
    return side, {key: yaml.safe_load(value) for key, value in (word.split("=", 1) for word in words)}


def resolve(algorithm: str, method: str) -> dict[str, Any]:
    """Every option of ours under a method, defaults included; of the peer those that were set."""
    side, options = options_of(method)
    if side != "ours":
        return options
    name = f"online/{algorithm}"
    return build.read("policy", build.find("policy", name), options, "policy", name).model_dump(mode="json")


def run_cell(algorithm: str, task: str, method: str, steps: int, seed: int) -> dict[str, Any]:
    """Train and evaluate.

    Returns:
        What was run; `curve`: [step, mean return, and for SAC mean Q of replayed actions] at each evaluation on the
        way; `returns` of the deterministic episodes at the end, their `return`; seconds of training; `versions`.
    """
    side, options = options_of(method)
    env, judge, watch = make_env(task, seed), make_env(task, 10_000), Stopwatch()
    curve: list[list[float]] = []

    def glance(step: int, policy: Any, q: float | None) -> None:
        watch.pause()
        value = float(np.mean(evaluate(judge, policy, episodes=GLANCE_EPISODES).returns))
        curve.append([step, round(value, 2), *([] if q is None else [round(q, 2)])])
        watch.resume()

    train = _train_ours if side == "ours" else partial(_train_peer, PEERS[side])
    watch.resume()
    policy = train(algorithm, env, task, options, steps, seed, glance)
    watch.pause()
    returns = evaluate(judge, policy, episodes=EPISODES).returns
    env.close()
    judge.close()
    wall, cpu = watch.read()
    return {
        **{"algorithm": algorithm, "task": task, "method": method, "steps": steps, "seed": seed},
        **{"return": round(float(np.mean(returns)), 2), "returns": [round(x, 2) for x in returns], "curve": curve},
        **{"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "options": resolve(algorithm, method)},
        "versions": {name: version(name) for name in VERSIONS[side]},
    }


Glance = Callable[[int, Any, float | None], None]


def _glances(steps: int) -> Callable[[int, int], bool]:
    every = max(steps // (GLANCES + 1), 1)
    return lambda before, after: after // every > before // every and after < steps


def _train_ours(
    algorithm: str, env: Any, task: str, options: dict[str, Any], steps: int, seed: int, glance: Glance
) -> Any:
    """As `robot-rl train` does, with its defaults."""
    learner = build.make("policy", {"name": f"online/{algorithm}", **options}, env.io, seed=seed, device="cpu")

    def tick(step: int, metrics: dict[str, float]) -> bool:
        if step < steps:
            glance(step, learner.policy, metrics.get("train/q"))
        return False

    if algorithm == "ppo":
        OnPolicy(env, learner, seed=seed).run(steps, tick, due=_glances(steps))
        return learner.policy
    s = TrainSettings(total_steps=steps)
    buffer = ReplayBuffer(env.io, min(s.buffer_size, steps + 1), gamma=s.gamma, seed=seed)
    loop = OffPolicy(
        env, learner, buffer, batch_size=learner.need.rows, learning_starts=s.learning_starts,
        updates_per_step=s.updates_per_step, seed=seed,
    )  # fmt: skip
    loop.run(steps, tick, due=_glances(steps))
    return learner.policy


def _train_peer(
    name: str, algorithm: str, env: Any, task: str, options: dict[str, Any], steps: int, seed: int, glance: Glance
) -> Any:
    """As its user does: on Gymnasium's own environment where the task is one, in that environment's action units."""
    place: Any = VectorEnvForSb3(env, env.io) if task in OWN else gymnasium.make(task)
    peer: Any = import_module(name)
    kind = {"ppo": peer.PPO, "sac": peer.SAC}[algorithm]
    model = kind("MlpPolicy", place, seed=seed, device="cpu", **options)
    policy, due = PeerPolicy(env.io, model, ours=task in OWN), _glances(steps)
    q_is_known = algorithm == "sac" and name == "stable_baselines3"

    class Look(BaseCallback):
        """Evaluates on the way."""

        def _on_step(self) -> bool:
            if due(self.num_timesteps - 1, self.num_timesteps):
                glance(self.num_timesteps, policy, _peer_q(model) if q_is_known else None)
            return True

    model.learn(steps, callback=Look())
    return policy


def _peer_q(model: Any) -> float:
    """Mean Q of 256 replayed actions, over both critics."""
    rows = model.replay_buffer.sample(256)
    return float(np.mean([q.detach().numpy().mean() for q in model.critic(rows.observations, rows.actions)]))


class PeerPolicy:
    """A model of stable-baselines3 as a policy of ours, so that one judge sees both.

    Args:
        io: interface of the task.
        model: acts in the environment's own units.
        ours: the model was trained on actions in [-1, 1].
    """

    parts = PolicyParts()

    def __init__(self, io: IOSpec, model: Any, *, ours: bool) -> None:
        self.io, self._model = io, model
        low, high = (np.array(bound, np.float32) for bound in (io.action_low, io.action_high))
        self._low, self._half = (-np.ones_like(low), np.ones_like(low)) if ours else (low, (high - low) / 2)

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, A) actions in [-1, 1]."""
        action, _ = self._model.predict(np.asarray(obs["state"]), deterministic=deterministic)
        return Action((action - self._low) / self._half - 1.0)
