"""Worlds with known answers: constant reward, bandit, linear-quadratic task, a picture that tells the action."""

import numpy as np
import pytest
import torch

from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.types import IOSpec, Transitions


def sac(io, *, seed=0, **options):
    return Sac(SacOptions(**options), io, seed=seed)


def spec(obs=None):
    return IOSpec(obs or {"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 20.0)


def rows(state, action, reward, discount, next_state, *, terminated=None, truncated=None):
    off = torch.zeros(len(reward), dtype=torch.bool)
    ended = off if terminated is None else terminated
    cut = off if truncated is None else truncated
    return Transitions({"state": state}, action, reward, discount, {"state": next_state}, ended, cut, off, ~off)


HLGAUSS = {"value_head": "hlgauss", "value_range": (-2.0, 14.0)}


@pytest.mark.parametrize(
    ("cut", "options"),
    [("truncated", {}), ("terminated", {}), ("truncated", HLGAUSS), ("terminated", {"layer_norm": True})],
)
def test_constant_reward_value_depends_on_how_episodes_end(cut, options):
    # reward 1 at every step of four-step episodes, gamma .8. A limit that truncates: V = 1 / (1 - .8) = 5 everywhere.
    # A true end: V = 1, 1.8, 2.44, 2.952 with 1, 2, 3, 4 steps to go.
    learner = sac(
        spec(), batch_size=64, hidden=(32, 32), lr=2e-3, tau=0.05, backup_entropy=False, metrics_every=1, **options
    )
    step = torch.arange(4).repeat(16)
    state = step[:, None] / 3.0
    last = step == 3
    discount = torch.where(last & torch.tensor(cut == "terminated"), 0.0, 0.8)

    generator = torch.Generator().manual_seed(0)

    def stream():
        while True:
            ends = {cut: last}
            action = torch.rand(64, 1, generator=generator) * 2 - 1
            yield rows(state, action, torch.ones(64), discount, ((step + 1) % 4)[:, None] / 3.0, **ends)

    data = stream()
    for _ in range(899):
        learner.update(data)
    metrics = learner.update(data)
    expected = 5.0 if cut == "truncated" else (1 + 1.8 + 2.44 + 2.952) / 4
    assert metrics["train/q"] == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("matmul", ["float32", "bf16"])
def test_bandit_with_two_arms_is_solved(matmul):
    # action > 0 pays 1, else 0; one step
    learner = sac(spec(), hidden=(64, 64), lr=3e-3, init_alpha=0.02, alpha_lr=0.0, matmul=matmul)
    generator = torch.Generator().manual_seed(0)

    def stream():
        while True:
            action = torch.rand(64, 1, generator=generator) * 2 - 1
            state = torch.zeros(64, 1)
            yield rows(state, action, (action[:, 0] > 0).float(), torch.zeros(64), state)

    data = stream()
    for _ in range(200):
        learner.update(data)
    taken = learner.policy.act({"state": np.zeros((500, 1), np.float32)}).value
    assert (taken > 0).mean() > 0.97


@pytest.mark.slow
def test_linear_quadratic_task_has_the_riccati_gain():
    # s' = .9 s + .5 a, reward -(s^2 + .2 a^2), gamma .9. Scalar Riccati: P = 1 + .9 * .81 P - (.9 * .45 P)^2 /
    # (.2 + .9 * .25 P), gain K = .9 * .45 P / (.2 + .9 * .25 P), iterated to its fixed point below.
    p = 1.0
    for _ in range(200):
        p = 1 + 0.9 * 0.81 * p - (0.405 * p) ** 2 / (0.2 + 0.225 * p)
    gain = 0.405 * p / (0.2 + 0.225 * p)
    learner = sac(spec(), hidden=(64, 64), lr=2e-3, tau=0.02, init_alpha=1e-3, alpha_lr=0.0)
    generator = torch.Generator().manual_seed(0)

    def stream():
        while True:
            state = torch.rand(128, 1, generator=generator) * 1.6 - 0.8
            action = torch.rand(128, 1, generator=generator) * 2 - 1
            reward = -(state[:, 0] ** 2 + 0.2 * action[:, 0] ** 2)
            yield rows(state, action, reward, torch.full((128,), 0.9), 0.9 * state + 0.5 * action)

    data = stream()
    for _ in range(2500):
        learner.update(data)
    state = np.linspace(-0.7, 0.7, 15, dtype=np.float32)[:, None]
    got = learner.policy.act({"state": state}, deterministic=True).value
    assert np.abs(got + gain * state).max() < 0.12
    slope = float((got * state).sum() / (state * state).sum())
    assert slope == pytest.approx(-gain, rel=0.08)


def test_picture_that_tells_the_action_is_read():
    # left half lit: +1 pays; right half lit: -1 pays
    learner = sac(
        spec({"image.front": ((20, 20, 3), "uint8")}),
        hidden=(64, 64),
        lr=2e-3,
        init_alpha=0.02,
        alpha_lr=0.0,
        encoder_channels=(8, 8),
        encoder_strides=(2, 2),
        latent=16,
        shift_pad=2,
    )
    generator = torch.Generator().manual_seed(0)

    def pictures(count):
        side = torch.randint(0, 2, (count,), generator=generator)
        image = torch.zeros(count, 20, 20, 3, dtype=torch.uint8)
        image[side == 0, :, :10] = 200
        image[side == 1, :, 10:] = 200
        return {"image.front": image}, 1.0 - 2.0 * side

    def stream():
        off = torch.zeros(64, dtype=torch.bool)
        while True:
            obs, wanted = pictures(64)
            action = torch.rand(64, 1, generator=generator) * 2 - 1
            yield Transitions(obs, action, action[:, 0] * wanted, torch.zeros(64), obs, off, off, off, ~off)

    data = stream()
    for _ in range(150):
        learner.update(data)
    obs, wanted = pictures(200)
    action = torch.as_tensor(learner.policy.act(obs, deterministic=True).value)[:, 0]
    assert float((action * wanted > 0.5).float().mean()) > 0.95
