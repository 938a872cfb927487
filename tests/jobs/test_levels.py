"""Graded data sets: ordered in return, said what they are, the same after an interruption."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from robot_rl.data import d4rl
from robot_rl.data.read_options import ReadOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.reach import Reach
from robot_rl.types import Action, PolicyParts
from robot_rl.verbs import collect_levels as levels
from robot_rl.verbs.collect_episodes import ExpertPolicy
from robot_rl.verbs.collect_levels import Behaviour, Spoiling, calibrate, collect_level


def expert() -> tuple[object, ExpertPolicy]:
    env = make(4, 0, world=Reach())
    return env, ExpertPolicy(env)


def test_behaviour_is_uniform_or_the_mode_with_noise() -> None:
    class Half:
        io = expert()[0].io  # pyright: ignore[reportAttributeAccessIssue]

        parts = PolicyParts()

        def reset(self, rows=None):
            pass

        def act(self, obs, *, deterministic=False):
            assert deterministic
            return Action(np.full((len(obs["state"]), self.io.action_dim), 0.5, np.float32))

    obs = {"state": np.zeros((4000, 3), np.float32)}
    noisy = np.asarray(Behaviour(Half(), Spoiling(noise=0.1)).act(obs).value)  # pyright: ignore[reportArgumentType]
    assert (noisy.mean(), noisy.std()) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.1, abs=0.01))
    mixed = np.asarray(Behaviour(Half(), Spoiling(random=0.3)).act(obs).value)  # pyright: ignore[reportArgumentType]
    assert (mixed != 0.5).any(1).mean() == pytest.approx(0.3, abs=0.03)
    free = np.asarray(Behaviour(Half(), Spoiling(random=1.0)).act(obs).value)  # pyright: ignore[reportArgumentType]
    assert (free.min(), free.max(), free.mean()) == (
        pytest.approx(-1, abs=0.01),
        pytest.approx(1, abs=0.01),
        pytest.approx(0, abs=0.02),
    )


def test_levels_are_ordered_and_say_what_they_are(tmp_path: Path) -> None:
    env, policy = expert()
    mean = {}
    for level in levels.LEVELS:
        path = tmp_path / f"{level}.hdf5"
        summary = collect_level(
            env, policy, path, levels.LevelOptions(level=level, steps=1000, seed=1, medium_noise=0.7)
        )
        logs = d4rl.read(path, ReadOptions(infos=True))
        mean[level] = np.mean([e.reward.sum() for e in logs.episodes])
        assert sum(len(e) for e in logs.episodes) >= 1000
        assert len(summary.parts) == {"medium-replay": 10, "medium-expert": 2}.get(level, 1)
        with h5py.File(path) as file:
            assert file["metadata/level"][()].decode() == level
            parts = json.loads(file["metadata/parts"][()])
        assert sum(p["steps"] for p in parts.values()) == sum(len(e) for e in logs.episodes)
        kinds = {int(e.meta["columns"]["infos/behaviour"][0]) for e in logs.episodes}
        assert kinds == set(range(len(summary.parts)))
    assert mean["random"] < mean["medium"] < mean["medium-expert"] < mean["expert"]
    assert mean["random"] < mean["medium-replay"] < mean["medium"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{level}.hdf5" for level in levels.LEVELS)


@pytest.mark.parametrize("agents", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_replay_of_agents_rises_evenly_and_continues_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agents: int
) -> None:
    monkeypatch.setattr(levels, "_RUNGS", agents + 2)
    options = levels.LevelOptions(level="medium-replay", steps=3000, seed=1, medium_noise=0.4, replay_by="agents")
    env, policy = expert()
    notes: list[str] = []
    made = collect_level(env, policy, tmp_path / "whole.hdf5", options, on_note=notes.append)
    assert len(notes) == agents * 9
    assert notes[0] == f"finding agent 1 of {agents}: 1 of 9"
    returns = np.array([mean for _, _, mean in made.parts.values()])
    assert len(returns) == agents + 2
    wanted = np.linspace(returns[0], returns[-1], agents + 2)
    assert np.abs(returns - wanted).max() < 0.25 * (returns[-1] - returns[0])
    assert np.corrcoef(returns, np.arange(agents + 2))[0, 1] > 0.95

    def stop(count: int) -> None:
        if count > 1500:
            raise KeyboardInterrupt

    env, policy = expert()
    with pytest.raises(KeyboardInterrupt):
        collect_level(env, policy, tmp_path / "again.hdf5", options, on_steps=stop)
    env, policy = expert()
    collect_level(env, policy, tmp_path / "again.hdf5", options)
    whole, again = (d4rl.read(tmp_path / f"{name}.hdf5") for name in ("whole", "again"))
    assert all(np.array_equal(a.action, b.action) for a, b in zip(whole.episodes, again.episodes, strict=True))
    with pytest.raises(ValueError, match="replay_by is 'agent', expected uniform or agents"):
        levels.LevelOptions(replay_by="agent")  # pyright: ignore[reportArgumentType]


def test_noise_is_found_for_the_wanted_return() -> None:
    env, policy = expert()
    noise = calibrate(env, policy, fraction=0.5, seed=3)

    def mean(behaviour: Behaviour) -> float:
        return float(np.mean(levels.evaluate(env, behaviour, episodes=40, seed=9, deterministic=False).returns))

    low, high = mean(Behaviour(policy, Spoiling(random=1.0))), mean(Behaviour(policy))
    assert 0.25 < (mean(Behaviour(policy, Spoiling(noise=noise))) - low) / (high - low) < 0.75


def test_interrupted_collection_continues_to_the_same_file(tmp_path: Path) -> None:
    options = levels.LevelOptions(level="medium-expert", steps=1500, seed=1, medium_noise=0.7)
    env, policy = expert()
    collect_level(env, policy, tmp_path / "whole.hdf5", options)

    def stop(count: int) -> None:
        if count > 1000:
            raise KeyboardInterrupt

    env, policy = expert()
    with pytest.raises(KeyboardInterrupt):
        collect_level(env, policy, tmp_path / "cut.hdf5", options, on_steps=stop)
    assert not (tmp_path / "cut.hdf5").exists()
    with pytest.raises(ValueError, match="interrupted work with another seed"):
        collect_level(env, policy, tmp_path / "cut.hdf5", options.model_copy(update={"seed": 2}))
    env, policy = expert()
    collect_level(env, policy, tmp_path / "cut.hdf5", options)
    a, b = (d4rl.read(tmp_path / f"{name}.hdf5").episodes for name in ("whole", "cut"))
    assert len(a) == len(b)
    for one, two in zip(a, b):
        np.testing.assert_array_equal(one.obs["state"], two.obs["state"])
        np.testing.assert_array_equal(one.action, two.action)


def test_unknown_level_is_refused(tmp_path: Path) -> None:
    env, policy = expert()
    with pytest.raises(ValueError, match="level is 'good', expected one of random, medium"):
        levels.LevelOptions(level="good")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="level is missing, expected one of random, medium"):
        collect_level(env, policy, tmp_path / "x.hdf5", levels.LevelOptions(steps=10))


class Fixed:
    """Always the same action."""

    parts = PolicyParts()

    def __init__(self, value: float) -> None:
        self.io, self._value = expert()[0].io, value

    def reset(self, rows=None):
        pass

    def act(self, obs, *, deterministic=False):
        return Action(np.full((len(obs["state"]), self.io.action_dim), self._value, np.float32))


def test_log_density_of_noise_at_a_bound_and_with_uniform_actions() -> None:
    policy = Fixed(1.0)
    size = policy.io.action_dim
    obs = {"state": np.zeros((2000, 3), np.float32)}
    action = Behaviour(policy, Spoiling(noise=0.5)).act(obs)
    # Half a normal distribution about the bound: twice its density; the mass below -1 is 3e-5.
    z = (np.asarray(action.value, np.float64) - 1.0) / 0.5
    by_hand = (-0.5 * z**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi) + np.log(2.0)).sum(-1)
    np.testing.assert_allclose(action.logp, by_hand, atol=2e-4)
    uniform = Behaviour(policy, Spoiling(random=1.0)).act(obs)
    np.testing.assert_allclose(uniform.logp, -size * np.log(2.0), rtol=1e-6)
    mixed = Behaviour(policy, Spoiling(noise=0.5, random=0.25)).act(obs)
    z = (np.asarray(mixed.value, np.float64) - 1.0) / 0.5
    density = np.exp(-0.5 * z**2) / (0.5 * np.sqrt(2 * np.pi)) * 2.0
    np.testing.assert_allclose(np.exp(mixed.logp), 0.75 * density.prod(-1) + 0.25 * 0.5**size, rtol=2e-3)
    # Importance sampling of a constant: E_b[uniform / b] = 1.
    assert np.exp(-size * np.log(2.0) - mixed.logp.astype(np.float64)).mean() == pytest.approx(1.0, abs=0.1)
    assert Behaviour(policy).act(obs).logp is None


def test_bias_is_a_function_of_the_state_that_noise_is_not() -> None:
    obs = {"state": np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)}
    one, two = (np.asarray(Behaviour(Fixed(0.0), Spoiling(bias=0.6), seed=s).act(obs).value) for s in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert 0.3 < one.std() < 0.6
    assert abs(one).max() <= 0.6 + 1e-6


def test_sets_hold_log_densities_where_every_part_has_them(tmp_path: Path) -> None:
    env, policy = expert()
    options: dict[str, Any] = {"steps": 300, "seed": 1, "medium_by": "bias", "medium_noise": 0.5}
    for level, noise, held in (("medium-expert", 0.1, True), ("medium-replay", 0.0, False), ("random", 0.0, True)):
        path = tmp_path / f"{level}.hdf5"
        collect_level(env, policy, path, levels.LevelOptions(level=level, noise=noise, **options))
        logs = d4rl.read(path, ReadOptions(infos=True))
        assert all(("infos/action_log_probs" in e.meta["columns"]) == held for e in logs.episodes), level


def test_a_medium_agent_that_is_too_good_is_spoilt_on_request(tmp_path: Path) -> None:
    env, policy = expert()
    returns = {}
    for bias in (None, 0.9):
        options = levels.LevelOptions(level="medium-expert", steps=300, seed=1, medium_by="bias", medium_noise=bias)
        made = collect_level(env, policy, tmp_path / f"{bias}.hdf5", options, medium=policy)
        returns[bias] = made.parts["medium"][2]
        assert made.noise == bias
    assert returns[0.9] < returns[None]


class Wide(Fixed):
    """Draws N(0.5, 0.1), and says so."""

    @property
    def parts(self):
        return PolicyParts(log_prob=self.log_prob, reseed=self.reseed)

    def reseed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def act(self, obs, *, deterministic=False):
        shape = (len(obs["state"]), self.io.action_dim)
        noise = np.zeros(shape) if deterministic else self.rng.normal(size=shape)
        logp = None if deterministic else (-0.5 * noise**2 - np.log(0.1) - 0.5 * np.log(2 * np.pi)).sum(-1)
        return Action((0.5 + 0.1 * noise).astype(np.float32), logp)

    def log_prob(self, obs, action):
        return torch.distributions.Normal(0.5, 0.1).log_prob(action).sum(-1)


def test_agents_sample_their_own_actions_repeatably_and_with_their_density() -> None:
    obs = {"state": np.zeros((500, 3), np.float32)}
    one, two = (Behaviour(Wide(0.5), Spoiling(sample=True), seed=4).act(obs) for _ in range(2))
    np.testing.assert_array_equal(one.value, two.value)
    expected = Wide(0.5).log_prob(obs, torch.from_numpy(one.value)).numpy()
    np.testing.assert_allclose(one.logp, expected, rtol=1e-3, atol=1e-3)
    mixed = Behaviour(Wide(0.5), Spoiling(sample=True, random=0.25), seed=4).act(obs)
    own = np.exp(Wide(0.5).log_prob(obs, torch.from_numpy(mixed.value)).numpy())
    np.testing.assert_allclose(np.exp(mixed.logp), 0.75 * own + 0.25 * 0.5 ** mixed.value.shape[1], rtol=1e-3)
    with pytest.raises(ValueError, match="sample takes the place of noise"):
        Behaviour(Wide(0.5), Spoiling(sample=True, noise=0.1))
    with pytest.raises(ValueError, match=r"Fixed has no reseed\(seed\)"):
        Behaviour(Fixed(0.5), Spoiling(sample=True))
