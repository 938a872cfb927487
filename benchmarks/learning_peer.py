"""One stable-baselines3 run of the learning comparison, in its own process (started by `bench.learning`)."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.learning import PEER, write_peer
from robot_rl.stopwatch import Stopwatch


def evaluate(model: Any, env_id: str, episodes: int) -> list[float]:
    """Deterministic undiscounted returns on seeds 10_000, 10_001 ..."""
    env = gymnasium.make(env_id)
    returns = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        total, done = 0.0, False
        while not done:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    return returns


def main(job: dict[str, Any]) -> None:
    """Train with the peer's defaults and write the result."""
    torch.set_num_threads(job["threads"])
    sb3 = importlib.import_module("stable_baselines3")
    callbacks = importlib.import_module("stable_baselines3.common.callbacks")
    model = getattr(sb3, PEER[job["algorithm"]])("MlpPolicy", job["env_id"], seed=job["seed"], device="cpu")
    curve: list[dict[str, Any]] = []
    watch = Stopwatch()

    class Evaluate(callbacks.BaseCallback):  # type: ignore[misc]
        """Evaluate every n steps with the clock stopped."""

        def __init__(self) -> None:
            super().__init__()
            self.next = job["every"]

        def _on_step(self) -> bool:
            if self.num_timesteps >= self.next:
                self.next += job["every"]
                record(self.num_timesteps)
            return True

    def record(step: int) -> None:
        watch.pause()
        returns = evaluate(model, job["env_id"], job["episodes"])
        curve.append(
            {"step": step, "return_mean": float(np.mean(returns)), "returns": returns, "wall_s": watch.read()[0]}
        )
        sys.stderr.write(f"sb3 {job['algorithm']} seed {job['seed']}: step {step}, return {np.mean(returns):.0f}\n")
        watch.resume()

    watch.resume()
    model.learn(job["steps"], callback=Evaluate())
    # the last update of PPO comes after the last callback, and a round of evaluations need not end with the run
    if job["algorithm"] == "ppo" or not curve or curve[-1]["step"] < job["steps"]:
        record(job["steps"])
    watch.pause()
    write_peer(job, curve, watch, {"stable_baselines3": sb3.__version__, "torch": torch.__version__})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
