"""Decision transformer: what a token sees, what is learnt and what is not, returns that are asked for and paid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import write_store
from robot_rl.loops.evaluate import evaluate
from robot_rl.policies.contrib.dt import DecisionTransformer, ReturnOptions, masked_error
from robot_rl.types import EnvParts, Episode, IOSpec, LogFacts, Transitions

IO = IOSpec({"state": ((2,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)
SMALL: dict[str, Any] = {
    "context": 4, "width": 16, "layers": 2, "heads": 2, "max_steps": 12, "batch_size": 8, "lr": 1e-3, "warm_up": 0,
    "metrics_every": 1,
}  # fmt: skip


def build(seed: int = 0, **options: Any) -> DecisionTransformer:
    return DecisionTransformer(ReturnOptions(**{**SMALL, "target_return": 2.0, **options}), IO, seed=seed)


def batch(size: int = 8, length: int = 4, seed: int = 0, **fields: Any) -> Transitions:
    g = torch.Generator().manual_seed(seed)
    shape = (size, length)
    no = torch.zeros(shape, dtype=torch.bool)
    values: dict[str, Any] = {
        "obs": {"state": torch.randn(*shape, 2, generator=g)},
        "action": torch.rand(*shape, 1, generator=g) * 2 - 1,
        "reward": torch.randn(shape, generator=g),
        "discount": torch.full(shape, 0.9),
        "next_obs": {"state": torch.randn(*shape, 2, generator=g)},
        "terminated": no, "truncated": no, "intervened": no, "mask": ~no,
        "extras": {"return_to_go": torch.randn(shape, generator=g), "step": torch.arange(length).expand(shape)},
    }  # fmt: skip
    return Transitions(**{**values, **fields})


def test_save_load_update_equals_update() -> None:
    """With dropout and warm-up; both go on learning, which shows moments that they would share."""
    options = {"dropout": 0.2, "warm_up": 10}
    one, other = build(seed=1, **options), build(seed=2, **options)
    for i in range(3):
        one.update(iter([batch(seed=i)]))
    other.load_state_dict(one.state_dict())
    for i in range(3, 6):
        assert one.update(iter([batch(seed=i)])) == other.update(iter([batch(seed=i)]))
    obs = {"state": np.ones((3, 2), np.float32)}
    for learner in (one, other):
        learner.policy.reset()
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)


def test_action_is_read_off_the_past_alone() -> None:
    """Whatever comes behind the state's token - its own action, later steps - changes nothing; the return does."""
    net = build(seed=3).net.eval()
    goal, state, action = torch.randn(1, 4), torch.randn(1, 4, 2), torch.randn(1, 4, 1)
    time = torch.arange(4)[None]
    found = net(goal, state, action, time)[:, :2]
    later = [x.clone() for x in (goal, state, action)]
    later[0][:, 2:], later[1][:, 2:], later[2][:, 1:] = 9.0, 9.0, 9.0
    torch.testing.assert_close(net(*later, time)[:, :2], found)
    earlier = action.clone()
    earlier[:, 0] = 9.0
    assert not torch.allclose(net(goal, state, earlier, time)[:, 1], found[:, 1])
    assert not torch.allclose(net(goal + 1.0, state, action, time)[:, 1], found[:, 1])


def test_masked_steps_are_not_learnt_from() -> None:
    mask = torch.ones(8, 4, dtype=torch.bool)
    mask[:, 2:] = False
    whole = batch(mask=mask)
    poisoned = replace(
        whole,
        obs={"state": torch.where(mask[..., None], whole.obs["state"], torch.nan)},
        action=torch.where(mask[..., None], whole.action, torch.nan),
        extras={**whole.extras, "return_to_go": torch.where(mask, whole.extras["return_to_go"], torch.nan)},
    )
    one, other = build(dropout=0.0), build(dropout=0.0)
    assert one.update(iter([whole])) == other.update(iter([poisoned]))


def test_loss_counts_existing_steps_only() -> None:
    """Errors 1 and 3 on the two steps that exist, 100 on one that does not: (1 + 9) / 2."""
    wanted = torch.zeros(1, 3, 1)
    found = masked_error(torch.tensor([[[1.0], [3.0], [100.0]]]), wanted, torch.tensor([[True, True, False]]))
    assert found.item() == pytest.approx(5.0)


def test_acting_sees_what_training_saw() -> None:
    """Step by step through an episode longer than the context: the same as one pass over the last K steps."""
    learner = build(seed=4, clip_return=False, return_scale=10.0)
    policy, rng = learner.policy, np.random.default_rng(0)
    state = rng.normal(size=(6, 2, 2)).astype(np.float32)
    reward = rng.normal(size=(6, 2)).astype(np.float32)
    policy.reset()
    actions = []
    for t in range(6):
        actions.append(policy.act({"state": state[t]}, deterministic=True).value)
        policy.earned(reward[t])
    owed = 2.0 - np.concatenate([np.zeros((1, 2)), reward[:5].cumsum(0)])
    part = slice(2, 6)
    columns = (owed[part] / 10.0, state[part], np.stack(actions)[part])
    goal, seen, done = (torch.as_tensor(x, dtype=torch.float32).transpose(0, 1) for x in columns)
    time = torch.arange(2, 6).expand(2, 4)
    expected = learner.net(goal, seen, done, time)[:, -1].detach()
    np.testing.assert_allclose(actions[-1], expected.numpy(), atol=1e-5)


def test_reset_rows_begin_anew_and_others_go_on() -> None:
    policy = build(seed=5, clip_return=False).policy
    state = np.random.default_rng(1).normal(size=(3, 2, 2)).astype(np.float32)
    policy.reset()
    for t in range(2):
        policy.act({"state": state[t]})
        policy.earned(np.ones(2, np.float32))
    policy.reset(np.array([True, False]))
    mixed = policy.act({"state": state[2]}).value
    policy.reset()
    fresh = policy.act({"state": state[2]}).value
    np.testing.assert_allclose(mixed[0], fresh[0], atol=1e-6)
    assert abs(mixed[1] - fresh[1]).max() > 1e-6


class OnDevice(torch.Tensor):
    """A tensor that NumPy cannot read, as those of a GPU."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def test_rows_are_forgotten_by_masks_of_any_kind_and_of_rows_that_are_not_there() -> None:
    policy, state = build(seed=5, clip_return=False).policy, np.ones((2, 2), np.float32)
    policy.reset(np.array([True, False]))  # before anything was seen
    for _ in range(2):
        policy.act({"state": state})
    policy.reset(np.array([True, False, True]))  # of other environments
    assert policy.memory.count.tolist() == [2, 2]
    policy.reset(torch.tensor([True, False]).as_subclass(OnDevice))
    assert policy.memory.count.tolist() == [0, 2]


def test_returns_are_kept_inside_the_log_and_in_its_units() -> None:
    """Rewards of the log are 2 r + 1: an environment's reward of 3 pays 7. The clip is where training was."""
    learner = build(target_return=50.0)
    learner.prepare(LogFacts(np.zeros(2), np.ones(2), -1.0, 1.0, 0.99, 12, -4.0, 8.0, 2.0, 1.0))
    learner.update(iter([batch()]))
    policy = learner.policy
    policy.reset()
    policy.act({"state": np.zeros((1, 2), np.float32)})
    high = float(batch().extras["return_to_go"].max())
    assert float(policy.memory.goal[0, 0]) == pytest.approx(high / 8.0)
    policy.earned(np.array([3.0], np.float32))
    assert float(policy._owed[0]) == pytest.approx(43.0)


def test_episodes_longer_than_the_embeddings_are_refused() -> None:
    with pytest.raises(ValueError, match="max_steps=40"):
        build().prepare(LogFacts(np.zeros(2), np.ones(2), 0.0, 1.0, 0.99, 40, 0.0, 1.0))


def test_batch_without_returns_is_refused() -> None:
    with pytest.raises(ValueError, match="return_to_go"):
        build().update(iter([batch(extras={})]))


def test_policy_without_a_return_to_ask_for_says_so() -> None:
    with pytest.raises(ValueError, match="no return to ask for"):
        build(target_return="best").policy.act({"state": np.zeros((1, 2), np.float32)})


def line(gain: float, start: float, rng: Any, steps: int = 12) -> Episode:
    """x' = x + 0.3 a, reward -x^2, a = -gain x: the return says which gain drove."""
    x, states, actions, rewards = start, [[start, 1.0]], [], []
    for _ in range(steps):
        a = float(np.clip(-gain * x + rng.normal() * 0.05, -1, 1))
        x = x + 0.3 * a
        states.append([x, 1.0])
        actions.append([a])
        rewards.append(-x * x)
    return Episode(
        obs={"state": np.asarray(states, np.float32)}, action=np.asarray(actions, np.float32),
        proposed=np.asarray(actions, np.float32), reward=np.asarray(rewards, np.float32), terminated=False,
        truncated=True, intervened=np.zeros(steps, bool), stamp=np.arange(steps + 1.0),
    )  # fmt: skip


class Line:
    """The same as an environment of N copies that start at 1 or -1."""

    metadata = {"autoreset_mode": "SameStep"}  # noqa: RUF012

    parts = EnvParts()

    def __init__(self, copies: int, steps: int = 12) -> None:
        self.num_envs, self.io, self._steps = copies, IO, steps

    def _obs(self) -> dict[str, Any]:
        return {"state": np.stack([self.x, np.ones_like(self.x)], 1).astype(np.float32)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.x, self.t = np.where(np.arange(self.num_envs) % 2, -1.0, 1.0), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.x = self.x + 0.3 * action[:, 0]
        reward, self.t = -(self.x**2), self.t + 1
        over, final = self.t == self._steps, self._obs()
        obs = self.reset()[0] if over else final
        flags = np.full(self.num_envs, over)
        return obs, reward, np.zeros(self.num_envs, bool), flags, {"final_obs": final}


def mixed_log(folder: Path) -> LogDataset:
    rng = np.random.default_rng(0)
    episodes = [line(gain, sign, rng) for gain in (-0.5, 0.0, 0.5, 1.0, 3.0) for sign in (-1.0, 1.0) for _ in range(6)]
    store = write_store(folder / "line.store", episodes, io=IO)
    return LogDataset(store, LogView(window=6, return_to_go=True, return_gamma=1.0, extras=("step",)), seed=3)


def facts_of(data: LogDataset) -> LogFacts:
    returns = data.store.returns()
    return LogFacts(*data.store.moments(), -9.0, 0.0, 0.99, 12, float(returns.min()), float(returns.max()))


def asked(learner: Any, target: float) -> float:
    learner.policy.aim(target)
    return float(np.mean(evaluate(Line(8), learner.policy, episodes=8).returns))


def test_more_is_earned_where_more_is_asked_for(tmp_path: Path) -> None:
    data = mixed_log(tmp_path)
    facts = facts_of(data)
    learner = build(context=6, width=32, batch_size=32, dropout=0.0, lr=3e-3, target_return="best")
    learner.prepare(facts)
    assert learner.returns.target == pytest.approx(facts.return_high)
    batches = data.batches(32)
    for _ in range(200):
        learner.update(batches)
    assert asked(learner, facts.return_high) > asked(learner, facts.return_low) + 10.0


@pytest.mark.slow
def test_return_that_is_asked_for_is_what_is_earned(tmp_path: Path) -> None:
    """Five controllers of known returns (about -53, -12, -4.6, -2.6, -0.9) from the same starts: cloning could only
    earn one of them; here the target chooses."""
    data, earned = mixed_log(tmp_path), []
    facts = facts_of(data)
    for seed in range(3):  # the median: of one seed the last bits of a processor decide
        learner = build(
            context=6, width=32, batch_size=64, dropout=0.0, lr=3e-3, target_return="best", seed=seed
        )  # fmt: skip
        learner.prepare(facts)
        batches = data.batches(64)
        for _ in range(600):
            learner.update(batches)
        earned.append([asked(learner, target) for target in (facts.return_high, -4.6, facts.return_low)])
    best, middle, worst = np.median(earned, axis=0)
    assert best > -1.6
    assert -8.0 < middle < -2.8
    assert worst < -20.0


def test_returns_to_go_behind_a_cut(tmp_path: Path) -> None:
    """Rewards of 2: an episode cut after 3 of 12 steps earned 6 to be seen, 24 at its rate; one that terminated, 6."""
    rng, episodes = np.random.default_rng(0), []
    for steps, terminated in ((3, False), (3, True), (12, False)):
        one = line(1.0, 1.0, rng, steps)
        episodes.append(
            replace(one, reward=np.full(steps, 2.0, np.float32), terminated=terminated, truncated=not terminated)
        )
    store = write_store(tmp_path / "cut.store", episodes, io=IO)
    for bootstrap, first in ((False, [6.0, 6.0, 24.0]), (True, [24.0, 6.0, 24.0])):
        data = LogDataset(store, LogView(return_to_go=True, return_gamma=1.0, return_bootstrap=bootstrap))
        found = data.returns_to_go(1.0, bootstrap)
        assert found[store.start_step].tolist() == first
    # discounted by 0.5: 2 + 1 + 0.5, and 2 (0.5^3 + ... + 0.5^11)
    assert data.returns_to_go(0.5, True)[0] == pytest.approx(2.0 * (1 - 0.5**12) / 0.5)  # pyright: ignore[reportPossiblyUnboundVariable]


def test_job_reads_undiscounted_returns_whatever_the_run_discounts(tmp_path: Path) -> None:
    from robot_rl.verbs import logs
    from robot_rl.verbs.logs import LogSettings

    data = mixed_log(tmp_path)
    settings = LogSettings(data=str(data.store.path), gamma=0.5, reward="scale_bias", reward_scale=2.0, reward_bias=1.0)
    found, _ = logs.sampler(data.store, settings, seed=0, need=build().need)
    facts = logs.facts(found)
    returns = data.store.returns() * 2.0 + 12.0
    assert (facts.return_low, facts.return_high) == pytest.approx((returns.min(), returns.max()))
    assert (facts.reward_scale, facts.reward_bias) == (2.0, 1.0)
    np.testing.assert_allclose(found.returns_to_go(1.0)[data.store.start_step], returns, rtol=1e-5)
    assert sorted(found.sample(4).extras) == ["return_to_go", "step"]
