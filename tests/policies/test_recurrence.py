"""Policies that remember as functions of what they see and remember: the same actions as when they are asked."""

import numpy as np
import pytest
import torch

from robot_rl import build
from robot_rl.types import IOSpec

A, S = 2, 5
IO = IOSpec(
    obs={"state": ((S,), "float32")},
    action_names=("a", "b"),
    action_low=(-1.0,) * A,
    action_high=(1.0,) * A,
    action_units=("1",) * A,
    control_hz=20.0,
)
CASES = {
    "online/recurrent_ppo": {"memory": 6, "hidden": (8,), "normalize_obs": True},
    "online/recurrent_sac": {"width": 6, "hidden": (8,), "history": 3},
    "offline/history_iql": {"width": 6, "hidden": (8,), "history": 3},
    "online/ppo_chunk": {"chunk": 3, "hidden": (8,)},
    "sequence/srl": {"sequence": 3, "hidden": 8},
    "sequence/sac_j": {"interval": 3, "hidden": (8,)},
}


@pytest.mark.parametrize("name", CASES)
def test_step_with_the_memory_in_the_open_gives_the_actions_of_the_policy(name):
    """Ten steps of two rows, longer than every history and chunk; one row forgets in the middle."""
    policy = build.make("policy", {"name": name, **CASES[name]}, IO, seed=0, device="cpu", gamma=0.99).policy
    policy.load_state_dict(shaken(policy.state_dict(), torch.Generator().manual_seed(1)))
    recurrence = policy.parts.recurrence
    assert recurrence is not None
    memory = {key: value.expand(2, *value.shape[1:]) for key, value in recurrence.start.items()}
    seen = np.random.default_rng(0).standard_normal((10, 2, S)).astype(np.float32)
    policy.reset()
    answers = []
    for i, state in enumerate(seen):
        if i == 5:
            policy.reset(np.array([True, False]))
            memory = {k: torch.cat([recurrence.start[k], value[1:]]) for k, value in memory.items()}
        with torch.no_grad():
            action, memory = recurrence.step({"state": torch.as_tensor(state)}, memory)
        answers.append(action.numpy())
        assert action.numpy() == pytest.approx(policy.act({"state": state}, deterministic=True).value, abs=1e-5)
    assert np.std(answers) > 0.01


def shaken(value, generator):
    """Weights that see more than those of a fresh policy; everything else as it was."""
    if isinstance(value, dict):
        return {key: shaken(item, generator) for key, item in value.items()}
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return value + 0.3 * torch.randn(value.shape, generator=generator).abs()
    return value


@pytest.mark.parametrize("name", ["sequence/qc", "contrib/dt"])
def test_policies_that_draw_noise_or_know_more_have_none(name):
    options = {"sequence/qc": {"hidden": (8,)}, "contrib/dt": {}}[name]
    policy = build.make("policy", {"name": name, **options}, IO, seed=0, device="cpu", gamma=0.99).policy
    assert policy.parts.recurrence is None
