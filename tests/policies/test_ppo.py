"""PPO as a whole: bootstrap, ratio, KL stop, normalisation, saving, tasks with known answers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from robot_rl.advantage import use_backend
from robot_rl.loops.on_policy import train_on_policy
from robot_rl.policies.online.ppo import Ppo, PpoOptions, ReturnScale, standardize
from robot_rl.policies.online.ppo_policy import Moments
from robot_rl.types import EnvParts, IOSpec, Rollout

KERNELS = [
    "numpy",
    pytest.param("numba", marks=pytest.mark.skipif(not find_spec("numba"), reason="needs numba (extra `fast`)")),
    "autograd",
]


def make_io(obs=1, act=1):
    return IOSpec(
        obs={"state": ((obs,), "float32")},
        action_names=tuple(f"a{i}" for i in range(act)),
        action_low=(-1.0,) * act,
        action_high=(1.0,) * act,
        action_units=("1",) * act,
        control_hz=10.0,
    )


class World(VectorEnv):
    """N copies of x' = drift x + push a + noise with reward -(x^2 + cost a^2) + bonus, cut after `limit` steps."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    io, parts = make_io(), EnvParts()

    def __init__(self, num_envs=4, limit=20, drift=0.0, push=0.0, cost=0.0, bonus=0.0, noise=0.0, terminal=False):
        self.num_envs, self.limit, self.terminal = num_envs, limit, terminal
        self.drift, self.push, self.cost, self.bonus, self.noise = drift, push, cost, bonus, noise

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.x, self.t = self._start(), np.arange(self.num_envs) % self.limit  # episodes end at different times
        return {"state": self.x.copy()}, {}

    def step(self, actions):
        reward = self.bonus - (self.x[:, 0] ** 2 + self.cost * actions[:, 0] ** 2)
        self.x = self.drift * self.x + self.push * actions + self.noise * self.rng.standard_normal(self.x.shape)
        self.x = self.x.astype(np.float32)
        self.t = self.t + 1
        over, info = self.t >= self.limit, {}
        if over.any():
            info["final_obs"] = {"state": self.x.copy()}
            self.x = np.where(over[:, None], self._start(), self.x)
            self.t = np.where(over, 0, self.t)
        none = np.zeros(self.num_envs, bool)
        terminated, truncated = (over, none) if self.terminal else (none, over)
        return {"state": self.x.copy()}, reward.astype(np.float32), terminated, truncated, info

    def _start(self):
        return (self.rng.uniform(-1, 1, (self.num_envs, 1)) * (self.drift != 0)).astype(np.float32)


def make(io=None, *, kernel="numba", gamma=0.99, seed=0, **options) -> Any:
    """`kernel`: "numpy" and "numba" are the core's backends of the gradients that are written out."""
    backend = kernel if kernel in ("numpy", "numba") and find_spec("numba") else "auto"
    given = {"normalize_reward": False, "kernel": "autograd" if kernel == "autograd" else "auto", **options}
    with use_backend(backend):
        return Ppo(PpoOptions.model_validate(given), make_io() if io is None else io, gamma=gamma, seed=seed)


def rollout(learner, steps=32, envs=2, seed=0, **changes):
    """Random transitions whose actions and log-probabilities really come from the learner's policy."""
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal((steps, envs, 1)).astype(np.float32)
    action = learner.policy.act({"state": obs.reshape(-1, 1)})
    none = torch.zeros(steps, envs, dtype=torch.bool)
    boundary = none.clone()
    boundary[-1] = True
    fields = {
        "obs": {"state": torch.from_numpy(obs)},
        "action": torch.from_numpy(action.extras["raw"]).reshape(steps, envs, -1),
        "logp": torch.from_numpy(action.logp).reshape(steps, envs),
        "value": learner.value({"state": obs.reshape(-1, 1)}).reshape(steps, envs),
        "reward": torch.from_numpy(rng.standard_normal((steps, envs)).astype(np.float32)),
        "next_value": torch.zeros(steps, envs),
        "terminated": none,
        "truncated": none,
        "boundary": boundary,
        "valid": ~none,
        **changes,
    }
    return Rollout(**fields)


def same(a, b):
    """Bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_ppo_constant_reward_truncation_bootstraps_and_termination_does_not():
    def value(terminal):
        world = World(bonus=1.0, limit=20, terminal=terminal)
        learner = make(gamma=0.9, gae_lambda=0.9, rollout_steps=64, minibatch=32, lr=1e-2, hidden=(8,), clip=0.1)
        train_on_policy(world, learner, total_steps=64 * 4 * 25)
        return float(learner.value({"state": np.zeros((1, 1), np.float32)})[0])

    # V = 1 / (1 - 0.9) = 10 under a time limit; if the limit were an end, V averages (1 - 0.9^k) / 0.1 over the
    # k = 1..20 steps that are left: 10 (1 - 0.395) = 6.05.
    assert value(terminal=False) == pytest.approx(10.0, abs=0.4)
    assert value(terminal=True) == pytest.approx(6.05, abs=0.8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("log_std", ["free", "state"])
def test_ppo_first_minibatch_has_ratio_one(kernel, log_std):
    learner = make(epochs=1, minibatch=1000, kernel=kernel, log_std=log_std)
    metrics = learner.update(iter([rollout(learner)]))
    assert metrics["train/gradient_steps"] == 1
    assert metrics["train/kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["train/clip_fraction"] == 0.0
    # Normalised advantages have mean 0, so at ratio 1 the policy loss is 0.
    assert metrics["train/policy_loss"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_ppo_kl_stop_ends_the_update_early(kernel):
    free = make(lr=3e-2, minibatch=16, kernel=kernel)
    bound = make(lr=3e-2, minibatch=16, kernel=kernel, target_kl=0.01)
    assert free.update(iter([rollout(free)]))["train/gradient_steps"] == 40  # 10 epochs of 64 / 16
    metrics = bound.update(iter([rollout(bound)]))
    assert 1 <= metrics["train/gradient_steps"] < 40


@pytest.mark.parametrize("kernel", KERNELS[:2])
def test_ppo_kernels_agree_after_an_update(kernel):
    options = {"value_clip": 0.2, "entropy_coef": 0.01, "minibatch": 24, "epochs": 2, "normalize_reward": True}
    first, second = make(kernel=kernel, **options), make(kernel="autograd", **options)
    one, two = first.update(iter([rollout(first)])), second.update(iter([rollout(second)]))
    torch.testing.assert_close(first.policy.state_dict(), second.policy.state_dict(), atol=1e-5, rtol=1e-4)
    assert one == pytest.approx(two, rel=1e-3, abs=1e-5)


def test_ppo_invalid_rows_change_nothing():
    def updated(garbage):
        learner = make(epochs=2)
        data = rollout(learner)
        data.valid[5, 0] = False
        data.truncated[4, 0] = data.boundary[4, 0] = True  # the row before a reset row has ended
        for column in (data.reward, data.logp, data.value, data.obs["state"], data.action):
            column[5, 0] = garbage
        learner.update(iter([data]))
        return learner.policy.state_dict()

    torch.testing.assert_close(updated(0.0), updated(1e3), atol=0, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_ppo_saved_and_loaded_learner_makes_the_same_next_update(tmp_path, kernel):
    options = {"normalize_reward": True, "minibatch": 16, "kernel": kernel}
    first = make(seed=1, **options)
    first.update(iter([rollout(first)]))
    torch.save(first.state_dict(), tmp_path / "learner.pt")
    second = make(seed=2, **options)
    second.load_state_dict(torch.load(tmp_path / "learner.pt", weights_only=True))
    for learner in (first, second):
        learner.update(iter([rollout(learner, seed=3)]))
    assert same(first.state_dict(), second.state_dict())


def test_ppo_policy_numpy_and_torch_observations_give_the_same_actions():
    one, two = make(make_io(3, 2)).policy, make(make_io(3, 2)).policy
    obs = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    a, b = one.act({"state": obs}), two.act({"state": torch.from_numpy(obs)})
    assert isinstance(a.value, np.ndarray)
    assert isinstance(b.value, torch.Tensor)
    np.testing.assert_array_equal(a.value, b.value.numpy())
    np.testing.assert_array_equal(a.logp, b.logp.numpy())
    assert np.abs(a.value).max() <= 1.0
    still = one.act({"state": obs}, deterministic=True)
    np.testing.assert_array_equal(still.value, one.act({"state": obs}, deterministic=True).value)


@pytest.mark.parametrize("log_std", ["free", "state"])
def test_ppo_policy_logp_is_that_of_the_sample(log_std):
    learner = make(make_io(3, 2), log_std=log_std, log_std_init=-0.5)
    obs = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    mean = learner.policy.act({"state": obs}, deterministic=True).extras["raw"]
    action = learner.policy.act({"state": obs})
    normal = torch.distributions.Normal(torch.from_numpy(mean), np.exp(-0.5))
    expected = normal.log_prob(torch.from_numpy(action.extras["raw"])).sum(-1)
    if log_std == "free":
        np.testing.assert_allclose(action.logp, expected.numpy(), atol=1e-5)
    else:  # the small head moves the deviation of each state a little
        np.testing.assert_allclose(action.logp, expected.numpy(), atol=0.2)


def test_ppo_policy_of_another_shape_is_refused():
    state = make(make_io(3, 2)).policy.state_dict()
    with pytest.raises(ValueError, match="expected"):
        make(make_io(4, 2)).policy.load_state_dict(state)


def test_ppo_several_vector_observations_are_joined():
    io = make_io()
    io = IOSpec(**{**vars(io), "obs": {"state": ((2,), "float32"), "goal": ((3,), "float32")}})
    policy = make(io).policy
    obs = {"state": np.ones((2, 2), np.float32), "goal": np.zeros((2, 3), np.float32)}
    assert policy.act(obs).value.shape == (2, 1)


def test_ppo_observation_of_two_axes_is_refused():
    io = IOSpec(**{**vars(make_io()), "obs": {"map": ((8, 8), "float32")}})
    with pytest.raises(ValueError, match=r"'map' of shape \(8, 8\)"):
        make(io)


@pytest.mark.parametrize("options", [{"log_std": "none"}, {"activation": "gelu"}, {"epochs": 0}, {"clip": 0.0}])
def test_ppo_unknown_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make(**options)


def test_reward_scale_counts_discounted_returns_across_rollouts():
    none = torch.zeros(3, 1, dtype=torch.bool)
    end = torch.tensor([[False], [True], [False]])

    def data(reward, terminated):
        zero = torch.zeros(3, 1)
        return Rollout({}, zero, zero, zero, reward, zero, terminated, none, terminated, ~none)

    scale = ReturnScale(0.5)
    # Discounted returns so far: 1, 1 + 0.5 = 1.5, (end) 1; then 1 + 0.5, 1 + 0.75, 1 + 0.875.
    scale(data(torch.ones(3, 1), end))
    scaled = scale(data(torch.ones(3, 1), none))
    spread = np.std([1, 1.5, 1, 1.5, 1.75, 1.875])
    np.testing.assert_allclose(scaled.numpy(), 1.0 / spread, rtol=1e-5)


def test_moments_equal_those_of_all_rows():
    rows = np.random.default_rng(0).standard_normal((50, 3)) * 4 + 2
    moments = Moments(3)
    for part in (rows[:1], rows[1:20], rows[20:20], rows[20:]):
        moments.add(torch.from_numpy(part))
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    np.testing.assert_allclose(moments.var, rows.var(0))


@pytest.mark.parametrize("kernel", ["numpy", "autograd"])
def test_ppo_shrinks_what_is_large_and_leaves_what_is_small_as_it_is(kernel):
    """Components 9 and 11 (deviation 1), 0.9 and 1.1 (deviation 0.1), -4 and 4 (deviation 4), of 14, 1.3, 8.

    With a spread of 1 the first is moved from mean 10 to mean 1 and so 14 to 5; with 2, to mean 2 and so 14 to 6.
    """
    seen = torch.tensor([[9.0, 0.9, -4.0], [11.0, 1.1, 4.0]])
    obs = {"state": torch.tensor([[14.0, 1.3, 8.0]])}
    for spread, expected in ((1.0, [5.0, 1.3, 2.0]), (2.0, [6.0, 1.3, 4.0]), (None, [4.0, 3.0, 2.0])):
        policy = make(make_io(obs=3), kernel=kernel, obs_spread=spread).policy
        policy.observe({"state": seen})
        numpy = policy.normalize({"state": obs["state"].numpy()})
        np.testing.assert_allclose(numpy, [expected], rtol=1e-5)
        np.testing.assert_allclose(policy.normalized_on_device(obs), [expected], rtol=1e-5)


def test_an_automatic_kernel_says_what_it_chose():
    assert make().notes == ("kernel=auto: gradients are written out",)
    assert make(kernel="autograd").notes == ()  # that was asked for


def test_standardize_constant_and_single_entries_become_zero():
    advantage = np.array([1.0, 3.0, 5.0, 5.0, 7.0], np.float32)
    standardize(advantage, 2)
    # (1, 3): mean 2, sample deviation sqrt(2); (5, 5): no spread; 7 alone.
    np.testing.assert_allclose(advantage, [-0.70710678, 0.70710678, 0.0, 0.0, 0.0], atol=1e-6)


def test_ppo_two_armed_bandit_is_solved():
    class Bandit(World):
        def step(self, actions):
            obs, _, terminated, truncated, info = super().step(actions)
            return obs, (actions[:, 0] > 0).astype(np.float32), terminated, truncated, info

    learner = make(rollout_steps=32, minibatch=32, lr=3e-3, hidden=(8,))
    train_on_policy(Bandit(limit=1, terminal=True), learner, total_steps=32 * 4 * 30)
    chosen = learner.policy.act({"state": np.zeros((1000, 1), np.float32)}).value
    assert (chosen > 0).mean() > 0.95


@pytest.mark.parametrize("kernel", KERNELS)
def test_ppo_linear_quadratic_task_costs_what_the_riccati_gain_costs(kernel):
    drift, push, cost, gamma = 0.9, 0.5, 0.1, 0.9
    value = best = 0.0
    for _ in range(1000):  # scalar discounted Riccati recursion
        best = gamma * drift * push * value / (cost + gamma * push**2 * value)
        value = 1.0 + gamma * drift**2 * value - best * gamma * drift * push * value
    learner = make(gamma=gamma, rollout_steps=64, minibatch=64, lr=1e-2, hidden=(16,), log_std_init=-1.5, kernel=kernel)
    train_on_policy(World(8, 30, drift, push, cost, noise=0.1), learner, total_steps=64 * 8 * 60)
    x = np.array([[-0.4], [0.4]], np.float32)
    low, high = learner.policy.act({"state": x}, deterministic=True).extras["raw"][:, 0]
    gain = (low - high) / 0.8

    def rate(k):
        """Stationary cost per step of a = -k x, in units of the noise variance."""
        return (1.0 + cost * k**2) / (1.0 - (drift - push * k) ** 2)

    # The best gain is 1.32 with rate 1.25; doing nothing costs 5.3.
    assert rate(gain) < 1.08 * rate(best)


PLACES = ("reward", "value", "logp", "next_value", "action", "obs")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_ppo_one_number_that_is_not_finite_costs_its_episode_and_nothing_else(kernel, place, number):
    learner = make(epochs=2, minibatch=16, kernel=kernel, normalize_reward=True)
    data = rollout(learner)
    column = data.obs["state"][..., 0] if place == "obs" else getattr(data, place)
    row = 31 if place == "next_value" else 5  # the successor's value is read at the end alone
    column[row, 0] = number
    metrics = learner.update(iter([data]))
    assert metrics["train/rows_used"] == 0.5  # of two environments, each one fragment
    assert all(np.isfinite(x) for x in metrics.values())
    for name, x in learner.policy.state_dict().items():
        assert torch.isfinite(torch.as_tensor(x)).all(), name
    assert np.isfinite(learner.update(iter([rollout(learner)]))["train/policy_loss"])
    assert np.isfinite(learner.policy.act({"state": np.ones((2, 1), np.float32)}).logp).all()


def test_ppo_a_rollout_without_a_finite_row_is_refused_and_changes_nothing():
    learner = make()
    data = rollout(learner)
    data.reward[7] = np.nan
    before = learner.policy.state_dict()
    with pytest.raises(FloatingPointError, match="none of the 64 rows"):
        learner.update(iter([data]))
    assert same(before, learner.policy.state_dict())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("log_std", ["free", "state"])
@pytest.mark.parametrize("extreme", [-1e30, 1e30])
def test_ppo_a_deviation_of_nothing_or_without_end_is_bounded(kernel, log_std, extreme):
    learner = make(kernel=kernel, log_std=log_std, log_std_init=extreme, epochs=2)
    for _ in range(2):
        action = learner.policy.act({"state": np.ones((3, 1), np.float32)})
        assert np.isfinite(action.logp).all()
        spread = np.abs(action.extras["raw"] - learner.policy.act({"state": np.ones((3, 1))}, deterministic=True).value)
        assert (spread > 0).all()  # a deviation of exp(-5) at least
        metrics = learner.update(iter([rollout(learner)]))
        assert all(np.isfinite(x) for x in metrics.values())


@pytest.mark.parametrize("kernel", KERNELS)
def test_ppo_a_gradient_beyond_all_numbers_is_no_step(kernel):
    learner = make(
        kernel=kernel, epochs=1, minibatch=64, activation="relu", normalize_obs=False, normalize_advantage=False
    )
    data = rollout(learner)
    data.reward[3] = 1e38  # finite; its squared error is not
    before = learner.policy.state_dict()
    metrics = learner.update(iter([data]))
    assert not np.isfinite(metrics["train/gradient_norm"])
    after = learner.policy.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if not name.startswith("obs_"))
