"""Chain search: constants of a pendulum recovered from its log, lags and delays found, swing-up learnt."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import write_store
from robot_rl.policies.offline.chain_search import ChainSearch, ChainSearchOptions
from robot_rl.policies.offline.chain_search_parts.log import StateLayout
from robot_rl.policies.offline.chain_search_parts.mechanics import HingeChain, linearise, regulator
from robot_rl.sim.worlds.double_pendulum import DoublePendulum
from robot_rl.types import Episode, IOSpec, Transitions

# A pendulum of inertia 0.05 kg m^2 and weight 0.5 N*m with a motor of 0.2 N*m: too weak to lift it at once.
INERTIA, WEIGHT, MOTOR, DAMPING, DRY, HZ = 0.05, 0.5, 0.2, 0.002, 0.01, 50.0
IO = IOSpec({"state": ((3,), "float32")}, ("torque",), (-MOTOR,), (MOTOR,), ("N*m",), HZ)


def advance(q: np.ndarray, v: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One control period by 200 semi-implicit Euler steps: slow, plain, and not the product's integrator."""
    h = 1.0 / HZ / 200
    for _ in range(200):
        free = v + h * (MOTOR * np.clip(action, -1, 1) - WEIGHT * np.sin(q) - DAMPING * v) / INERTIA
        v = np.sign(free) * np.maximum(np.abs(free) - h * DRY / INERTIA, 0.0)
        q = q + h * v
    return q, v


def observe(q: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(q), np.cos(q), v / 8.0], -1).astype(np.float32)


def log(episodes: int = 12, steps: int = 250, lag: float = 0.0, delay: int = 0, seed: int = 0) -> list[Episode]:
    """Random pushes that last 0.1 to 1 s; speeds shown `lag` periods late, commands obeyed `delay` periods late."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(episodes):
        action = np.concatenate([np.full(rng.integers(5, 50), rng.uniform(-1, 1)) for _ in range(steps)])[:steps]
        acted = np.concatenate([np.zeros(delay), action])[:steps]
        q, v = [rng.uniform(-0.3, 0.3)], [0.0]
        for t in range(steps):
            a, b = advance(np.array(q[-1]), np.array(v[-1]), acted[t])
            q.append(float(a))
            v.append(float(b))
        shown = np.interp(np.arange(steps + 1) - lag, np.arange(steps + 1), v)
        made.append(
            Episode(
                obs={"state": observe(np.array(q), shown)},
                action=action[:, None].astype(np.float32),
                proposed=action[:, None].astype(np.float32),
                reward=(-np.cos(q[:-1]) - 0.01 * action**2).astype(np.float32),
                terminated=False,
                truncated=True,
                intervened=np.zeros(steps, bool),
                stamp=np.arange(steps + 1) / HZ,
            )
        )
    return made


def batches(folder: Path, episodes: list[Episode], learner: ChainSearch, io: IOSpec = IO) -> Iterator[Transitions]:
    store = write_store(folder / "log.store", episodes, io=io)
    return LogDataset(store, LogView(window=learner.need.window, extras=learner.need.extras), seed=3).batches(
        learner.need.rows
    )


def small(seed: int = 0, **options: Any) -> ChainSearch:
    settings: dict[str, Any] = {"windows": 128, "window": 70, "fit_steps": 9, "members": 1, "member_steps": 2}
    settings |= {"population": 32, "variants": 4, "trial_s": 5.0}
    return ChainSearch(ChainSearchOptions(**{**settings, **options}), IO, seed=seed)


def fitted(learner: ChainSearch, data: Iterator[Transitions]) -> dict[str, float]:
    """Update until the first generation of the search."""
    for _ in range(60):
        metrics = learner.update(data)
        if "train/trial_return" in metrics:
            return metrics
    raise AssertionError("the search never began")


def test_constants_of_a_simulated_pendulum_are_recovered(tmp_path):
    learner = small(members=0, fit_steps=12)
    metrics = fitted(learner, batches(tmp_path, log(), learner))
    chain = learner._fits[0].chain()
    assert float(chain.inertia[0][0]) == pytest.approx(INERTIA / MOTOR, rel=0.03)
    assert float(chain.gravity[0]) == pytest.approx(WEIGHT / MOTOR, rel=0.03)
    assert float(chain.friction[0]) == pytest.approx(DRY / MOTOR, abs=0.02)
    assert learner.policy.constants["scale"].item() == pytest.approx(8.0, rel=0.01)
    assert metrics["train/error_1.0s"] < 0.05  # rad, with nothing corrected for a second
    assert metrics["train/still_1.0s"] > 0.5
    assert metrics["train/reward_explained"] > 0.999


def test_lag_of_speeds_and_delay_of_commands_are_found(tmp_path):
    learner = small(members=0, fit_steps=12)
    fitted(learner, batches(tmp_path, log(lag=1.5, delay=2), learner))
    assert learner._signals.lag.numpy() == pytest.approx(np.full((12, 1), 1.5), abs=0.15)
    # to the half step in which they are searched; recordings that are not fitted have a friction that is not theirs
    assert learner._fits[0].delay.numpy() == pytest.approx(np.full(12, 2.0), abs=0.5)
    assert float(learner._fits[0].delay.median()) == 2.0


@pytest.mark.slow
def test_swing_up_is_learnt_from_random_pushes(tmp_path):
    episodes = log()
    assert max(-math.cos(math.atan2(*s[:2])) for e in episodes for s in e.obs["state"][-25:]) < 0.9  # none ends upright
    learner = small(variants=6, population=64)
    data = batches(tmp_path, episodes, learner)
    metrics = fitted(learner, data)
    for _ in range(20):
        metrics = learner.update(data)
    assert metrics["train/trial_held"] > 0.8
    rng = np.random.default_rng(5)
    q, v = rng.uniform(-0.05, 0.05, (2, 30))
    lowest = np.ones(30)
    for t in range(400):
        action = learner.policy.act({"state": observe(q, v)}, deterministic=True).value
        q, v = advance(q, v, np.asarray(action)[:, 0])
        lowest = np.minimum(lowest, -np.cos(q)) if t >= 350 else lowest
    assert (lowest > 0.95).mean() >= 0.9


def test_save_load_update_equals_update_in_every_phase(tmp_path):
    one = small(population=8, variants=2, trial_s=0.4, fit_steps=3)
    data = batches(tmp_path, log(4), one)
    drawn = [next(data) for _ in range(4)]
    for i in range(12):
        other = small(population=8, variants=2, trial_s=0.4, fit_steps=3, seed=7)
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        batch = drawn[i % 4]
        assert one.update(iter([batch])) == other.update(iter([batch]))
        mine, theirs = one.state_dict()["policy"], other.state_dict()["policy"]
        assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []
    assert one._search is not None  # all phases were met


def test_chain_moves_as_mujoco_says():
    """The twin's constants in the chain's equations against MuJoCo, without dry friction, over 0.2 s."""
    model: Any = mujoco.MjModel.from_xml_string(DoublePendulum().mjcf())  # type: ignore[attr-defined]
    model.dof_frictionloss[:] = 0
    data: Any = mujoco.MjData(model)  # type: ignore[attr-defined]
    data.qpos[:], data.qvel[:], data.ctrl[:] = (2.0, -1.0), (3.0, -5.0), (0.7, -0.3)
    # a11 = I1 + m2 l1^2 + rotor, a21 = m2 l1 r2, a22 = I2 (about the joints); g1 = g (m1 r1 + m2 l1), g2 = g m2 r2
    m2, r2 = 0.6255677234174437, 0.25569305436052964
    rotor = 0.002263392
    a11, a21, a22 = 0.031887199591513114 + m2 * 0.04 + rotor, m2 * 0.2 * r2, 0.05086984812807257
    column = [torch.tensor(x, dtype=torch.float64) for x in (0.0, rotor)]
    inertia = [[torch.tensor(x, dtype=torch.float64) for x in row] for row in ((a11, a21), (a21, a22))]
    gravity = [torch.tensor(x, dtype=torch.float64) for x in (9.81 * (0.5234602302310271 + m2) * 0.2, 9.81 * m2 * r2)]
    zero = torch.zeros((), dtype=torch.float64)
    chain = HingeChain(inertia, column, gravity, [zero + 0.001] * 2, [zero, zero])
    q, v = [zero + 2.0, zero - 1.0], [zero + 3.0, zero - 5.0]
    for _ in range(20):
        mujoco.mj_step(model, data, 5)  # type: ignore[attr-defined]
        q, v = chain.step(q, v, [zero + 0.7, zero - 0.3], 0.01, parts=20)
    np.testing.assert_allclose([float(x) for x in q], data.qpos, atol=2e-4)
    np.testing.assert_allclose([float(x) for x in v], data.qvel, atol=5e-3)


def test_dry_friction_stops_a_chain_and_holds_it():
    numbers = torch.tensor([math.log(0.33), 0.1, math.log(0.25), -6.0, 0.45, 0.3, -9.0, -9.0], dtype=torch.float64)
    chain = HingeChain.unpack(numbers, [torch.tensor(0.05, dtype=torch.float64)] * 2)
    q = [torch.tensor([0.03], dtype=torch.float64)] * 2  # where gravity pulls with 0.75 * 0.03 and less: it can hold
    v = [torch.tensor([0.05], dtype=torch.float64), torch.tensor([-0.05], dtype=torch.float64)]
    for _ in range(50):
        q, v = chain.step(q, v, [torch.zeros(1, dtype=torch.float64)] * 2, 0.01)
    assert max(float(x.abs()) for x in v) < 0.1  # creeps below the speed at which friction is half of its value
    assert all(abs(float(x) - 0.03) < 0.02 for x in q)


def test_regulator_balances_the_linear_pendulum():
    numbers = torch.tensor([0.5 * math.log(0.25), 2.5, -9.0], dtype=torch.float64)
    chain = HingeChain.unpack(numbers, [torch.zeros((), dtype=torch.float64)])
    a, b = linearise(chain, (math.pi,), (0,), 0.02)
    # upright: q'' = 10 q + 4 u, so that the unstable pole is exp(sqrt(10) 0.02) = 1.0653
    assert torch.linalg.eigvals(a).abs().max().item() == pytest.approx(1.0653, abs=1e-3)
    gain, _ = regulator(a, b, torch.eye(2, dtype=torch.float64), torch.eye(1, dtype=torch.float64))
    assert torch.linalg.eigvals(a - b @ gain).abs().max().item() < 1.0
    with pytest.raises(ValueError, match="cannot be balanced"):
        regulator(a, 0.0 * b, torch.eye(2, dtype=torch.float64), torch.eye(1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sine": (0,), "cosine": (0,), "speed": (2,)}, "sine, cosine and speed"),
        ({"sine": (0,), "cosine": (1,), "speed": (7,)}, "sine, cosine and speed"),
        ({"driven": (1,)}, "driven is"),
        ({"assist": ("tau",)}, "assist names 1"),
        ({"hold_out": 1}, "hold_out is 1: expected 0, or at least 2: by 1 every recording would judge"),
        ({"window": 30}, r"policy\.window is 30, expected at least policy\.reach"),
        ({"population": 1}, "population is 1, expected a whole number of at least 2"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_state_of_another_size_is_refused():
    with pytest.raises(ValueError, match="sine, cosine and speed"):
        StateLayout.of(4)


def test_speeds_that_are_none_and_rewards_of_something_else_are_refused(tmp_path):
    noise = log(4)
    for i, episode in enumerate(noise):
        episode.obs["state"][:, 2] = np.random.default_rng(i).normal(size=len(episode.obs["state"]))
    learner = small()
    with pytest.raises(ValueError, match="does not integrate"):
        fitted(learner, batches(tmp_path / "a", noise, learner))
    dice = log(4)
    for i, episode in enumerate(dice):
        episode.reward[:] = np.random.default_rng(i).normal(size=len(episode.reward))
    learner = small(fit_steps=3)
    with pytest.raises(ValueError, match="of the logged rewards"):
        fitted(learner, batches(tmp_path / "b", dice, learner))


def test_batches_without_windows_or_recordings_are_refused(batch):
    with pytest.raises(ValueError, match="draw windows"):
        small().update(iter([batch(8)]))
    learner = small()
    wide = batch(8)
    long = {"state": torch.zeros(8, learner.need.window, 3)}
    mask = torch.ones(8, learner.need.window, dtype=torch.bool)
    bad = Transitions(**{**wide.__dict__, "obs": long, "mask": mask})
    with pytest.raises(ValueError, match="extras episode"):
        learner.update(iter([bad]))


def test_policy_answers_arrays_and_tensors_alike_and_rests_before_it_is_ready(tmp_path):
    learner = small(population=8, variants=2, trial_s=0.4, fit_steps=3)
    state = observe(np.linspace(-3, 3, 5), np.linspace(4, -4, 5))
    assert (learner.policy.act({"state": state}).value == 0.0).all()
    fitted(learner, batches(tmp_path, log(4), learner))
    array = learner.policy.act({"state": state}).value
    tensor = learner.policy.act({"state": torch.from_numpy(state)}).value
    assert isinstance(array, np.ndarray)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(array, tensor.numpy())
    assert array.shape == (5, 1)
    assert np.abs(array).max() <= 1.0
    other = small()
    other.policy.load_state_dict(learner.policy.state_dict())
    np.testing.assert_array_equal(other.policy.act({"state": state}).value, array)
