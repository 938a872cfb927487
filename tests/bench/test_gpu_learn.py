"""The bench of device learners runs on the CPU with small numbers, and its contestants do the same work."""

import math

import torch

from benchmarks import gpu_learn
from benchmarks.point_world import PointWorld


def test_rows_of_one_size_hold_figures_and_ratios_for_every_contestant():
    rows = gpu_learn.sac_rows("cpu", "tiny", quick=True)
    assert {row["contestant"] for row in rows} == {"plain_eager", "ours_eager"}
    assert all(row["figure"] > 0 and row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows)
    assert next(row for row in rows if row["contestant"] == "plain_eager")["ratio"] == 1.0


def test_plain_critic_learns_what_ours_learns():
    # one bin per unit: constant reward 1 without bootstrap has value 1 for both
    made = gpu_learn._Plain(2, 1, (16,), (16,), "cpu", amp=False)
    memory = gpu_learn._memory("cpu", "tiny").sample(32)
    small = {"state": memory.obs["state"][:, :2]}
    batch = gpu_learn.Transitions(
        small,
        memory.action[:, :1],
        torch.ones(32),
        torch.zeros(32),
        small,
        memory.terminated,
        memory.terminated,
        memory.terminated,
        memory.mask,
    )
    for group in made.critic_adam.param_groups:
        group["lr"] = 1e-2
    for _ in range(150):
        made.critic_step(batch)
    x = torch.cat([small["state"], batch.action], -1)
    value = (made.critics[0](x).softmax(-1) * made.atoms).sum(-1).mean().detach()
    assert math.isclose(float(value), 1.0, abs_tol=0.1)


def test_time_to_a_return_that_is_reached_at_once_and_one_that_is_not():
    soon = gpu_learn.train_until("fast_ppo", "cpu", factor=1.0, limit=2000, num_envs=8, target=-100.0,
                             make_env=lambda n, seed: PointWorld(n, seed), rollout_steps=16, hidden=(8,))  # fmt: skip
    assert soon["figure"] > 0
    late = gpu_learn.train_until("fast_ppo", "cpu", factor=1.0, limit=300, num_envs=8, target=0.0,
                             make_env=lambda n, seed: PointWorld(n, seed), rollout_steps=16, hidden=(8,))  # fmt: skip
    assert math.isnan(late["figure"])
    assert "not within" in late["unit"]
