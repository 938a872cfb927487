"""Our PPO without normalisation against stable-baselines3's: same weights, rollouts and order, equal networks after."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

sb3 = pytest.importorskip("stable_baselines3")

from robot_rl.policies.online.ppo import Ppo, PpoOptions  # noqa: E402
from robot_rl.types import IOSpec, Rollout  # noqa: E402

STATE, ACTIONS, STEPS = 5, 2, 256


class Walk(gymnasium.Env):
    """A noisy walk that ends where it leaves, or by time."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (STATE,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=STATE).astype(np.float32)
        return self.x.copy(), {}

    def step(self, action):
        self.x += 0.3 * self.np_random.normal(size=STATE).astype(np.float32)
        self.x[:ACTIONS] -= 0.2 * action
        return self.x.copy(), float(3.0 - np.square(self.x[:ACTIONS]).sum()), bool(abs(self.x).max() > 3.0), False, {}


class Recorder(sb3.common.callbacks.BaseCallback):
    """What the peer's buffer does not keep: raw rewards, ends by kind, true successors."""

    def _on_training_start(self):
        self.rows = []

    def _on_step(self):
        info, done = self.locals["infos"][0], bool(self.locals["dones"][0])
        by_time = bool(info.get("TimeLimit.truncated", False))
        after = info["terminal_observation"] if done else self.locals["new_obs"][0]
        self.rows.append((info["raw_reward"], done and not by_time, by_time, after))
        return True


class KeepReward(gymnasium.Wrapper):
    """The peer adds the value behind a time limit to the reward in place."""

    def step(self, action):
        obs, reward, ended, cut, info = self.env.step(action)
        return obs, reward, ended, cut, {**info, "raw_reward": reward}


class Orders:
    """The peer's permutations, handed to ours."""

    def __init__(self):
        self.kept = []

    def permutation(self, count):
        return self.kept.pop(0)


def networks(model, views):
    """Pairs (ours, theirs) of tensors in our layout."""
    state = model.policy.state_dict()
    for k, net in enumerate(("policy_net", "value_net")):
        for i in range(2):
            yield views[f"weight{i}"][k], state[f"mlp_extractor.{net}.{2 * i}.weight"].T
            yield views[f"bias{i}"][k, 0], state[f"mlp_extractor.{net}.{2 * i}.bias"]
    yield views["actor_weight"], state["action_net.weight"].T
    yield views["actor_bias"], state["action_net.bias"]
    yield views["critic_weight"], state["value_net.weight"][0]
    yield views["critic_bias"].reshape(1), state["value_net.bias"]
    yield views["log_std"], state["log_std"]


def rollout_of(model, rows, ours: Ppo) -> Rollout:
    """The peer's buffer as ours, before the peer's own treatment of time limits."""
    column = {key: torch.as_tensor(np.array(x)).reshape(STEPS, 1) for key, x in zip("ret", list(zip(*rows))[:3])}
    after = np.array([row[3] for row in rows], np.float32)
    buffer, last = model.rollout_buffer, torch.arange(STEPS)[:, None] == STEPS - 1
    one = [torch.as_tensor(x.copy()).reshape(STEPS, 1) for x in (buffer.log_probs, buffer.values)]
    return Rollout(
        obs={"state": torch.as_tensor(buffer.observations.copy())},
        action=torch.as_tensor(buffer.actions.copy()),
        logp=one[0],
        value=one[1],
        reward=column["r"].float(),
        next_value=torch.as_tensor(ours._actor.value({"state": after}))[:, None],
        terminated=column["e"],
        truncated=column["t"],
        boundary=column["e"] | column["t"] | last,
        valid=torch.ones(STEPS, 1, dtype=torch.bool),
    )


@pytest.mark.parametrize("kernel", ["explicit", "autograd"])
def test_three_rollouts_give_the_networks_of_stable_baselines3(kernel, monkeypatch):
    place = KeepReward(gymnasium.wrappers.TimeLimit(Walk(), 20))
    model = sb3.PPO("MlpPolicy", place, n_steps=STEPS, n_epochs=4, seed=0, device="cpu")
    io = IOSpec(
        obs={"state": ((STATE,), "float32")},
        action_names=("a", "b"),
        action_low=(-1.0,) * ACTIONS,
        action_high=(1.0,) * ACTIONS,
        action_units=("1",) * ACTIONS,
        control_hz=20.0,
    )
    options = PpoOptions(
        normalize_obs=False, normalize_reward=False, kernel=kernel, rollout_steps=STEPS, epochs=4, minibatch=64
    )
    ours, orders = Ppo(options, io), Orders()
    monkeypatch.setattr(ours, "_shuffle", orders)
    views = ours._layout.views(ours._params)
    with torch.no_grad():
        for mine, theirs in networks(model, views):
            mine.copy_(theirs)
    ours.policy.refresh()
    _, callback = model._setup_learn(10**6, callback=(recorder := Recorder()))
    callback.on_training_start({}, {})
    draw = np.random.permutation
    monkeypatch.setattr(np.random, "permutation", lambda n: orders.kept.append(draw(n)) or orders.kept[-1])
    for _ in range(3):
        recorder.rows.clear()
        model.collect_rollouts(model.env, callback, model.rollout_buffer, STEPS)
        rollout = rollout_of(model, recorder.rows, ours)
        assert rollout.terminated.any()
        assert rollout.truncated.any()
        model.train()
        ours.update(iter([rollout]))
        assert not orders.kept
        for mine, theirs in networks(model, views):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)
