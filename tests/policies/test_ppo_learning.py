"""PPO learns to balance an inverted pendulum, not slower per step than stable-baselines3's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.on_policy import train_on_policy
from robot_rl.policies.online.ppo import Ppo, PpoOptions

TASK, STEPS = "InvertedPendulum-v5", 40_000  # the longest episode has return 1000


@pytest.mark.slow
def test_ppo_inverted_pendulum_reaches_what_sb3_reaches():
    pytest.importorskip("mujoco", reason="needs mujoco (extra `sim`)")
    sb3 = pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 (extra `baselines`)")
    from robot_rl.sim import gym_env

    torch.set_num_threads(1)
    returns = []
    for seed in range(3):
        env = gym_env.make(1, seed, "cpu", id=TASK)
        learner = Ppo(PpoOptions(), env.io, seed=seed)
        train_on_policy(env, learner, total_steps=STEPS, seed=seed)
        returns.append(np.mean(evaluate(env, learner.policy, episodes=10).returns))
    peer = sb3.PPO("MlpPolicy", TASK, seed=0, device="cpu").learn(STEPS)
    theirs = sb3.common.evaluation.evaluate_policy(peer, peer.get_env(), n_eval_episodes=10, warn=False)[0]
    assert min(returns) > 900
    assert np.mean(returns) > 0.95 * theirs
