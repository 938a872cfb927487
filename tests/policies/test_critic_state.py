"""Critics that read more than the policy sees: what they learn from it, and that nothing that acts needs it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from robot_rl import api, build
from robot_rl.policies.contrib.dqn import Dqn, DqnOptions
from robot_rl.policies.human.hil_serl import HilSerl, HilSerlOptions
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.types import IOSpec, Transitions
from robot_rl.types.io import PRIVILEGED
from robot_rl.verbs.pictures import put_pictures
from robot_rl.words import Refused

BLIND = IOSpec(
    obs={"state": ((2,), "float32")},
    action_names=("push", "gripper"),
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    action_units=("m", "m"),
    control_hz=10.0,
)
KNOWING = replace(BLIND, obs={**BLIND.obs, PRIVILEGED: ((1,), "float32")})
SMALL = {"hidden": (32,), "batch_size": 64, "lr": 3e-3, "metrics_every": 1}


def batches(seed=0):
    """One step that pays what is hidden from the state: +1 or -1."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        state, hidden = torch.randn(64, 2, generator=draw), torch.randint(0, 2, (64, 1), generator=draw) * 2.0 - 1.0
        obs = {"state": state, PRIVILEGED: hidden}
        ends, never = torch.ones(64, dtype=torch.bool), torch.zeros(64, dtype=torch.bool)
        action = torch.rand(64, 2, generator=draw) * 2.0 - 1.0
        yield Transitions(obs, action, hidden[:, 0], torch.zeros(64), obs, ends, never, never, ends)


def imitating(io):
    return ImitationSac(ImitationSacOptions(**SMALL, bc_steps=2, q_filter=True), io, seed=3)


def test_critics_learn_what_only_they_see_and_the_same_critics_without_it_the_mean():
    found = {}
    for io in (KNOWING, BLIND):
        learner, stream = imitating(io), batches()
        for _ in range(500):
            learner.update(stream)
        rows = {"state": np.zeros((2, 2), np.float32), PRIVILEGED: np.array([[1.0], [-1.0]], np.float32)}
        found[len(io.obs)] = learner.values(rows, np.zeros((2, 2), np.float32)).mean(0)
    assert found[2] == pytest.approx([1.0, -1.0], abs=0.1)
    assert found[1] == pytest.approx([0.0, 0.0], abs=0.4)
    assert found[1][0] == found[1][1]


@pytest.mark.parametrize("make", [imitating, lambda io: Sac(SacOptions(**SMALL), io, seed=3)])
def test_what_acts_neither_sees_nor_needs_it_and_learning_goes_on_bit_for_bit(make):
    learner, stream = make(KNOWING), batches()
    learner.pretrain(stream)
    for _ in range(3):
        learner.update(stream)
    assert sorted(learner.policy.io.obs) == ["state"]
    state = np.ones((1, 2), np.float32)
    alone = learner.policy.act({"state": state}, deterministic=True).value
    beside = learner.policy.act({"state": state, PRIVILEGED: np.full((1, 1), 9.0, np.float32)}, deterministic=True)
    assert np.array_equal(alone, beside.value)
    deployed = make(BLIND).policy
    deployed.load_state_dict(learner.policy.state_dict())
    assert np.array_equal(deployed.act({"state": state}, deterministic=True).value, alone)
    again = make(KNOWING)
    again.load_state_dict(learner.state_dict())
    for one in (learner, again):
        one.update(batches(5))
    assert torch.equal(learner.critic.params.flat, again.critic.params.flat)
    assert torch.equal(learner.actor.params.flat, again.actor.params.flat)


def test_the_gripper_of_hil_serl_is_chosen_without_it():
    learner = HilSerl(HilSerlOptions(**SMALL), KNOWING, seed=3)
    learner.update(batches())
    assert learner.policy.act({"state": np.ones((1, 2), np.float32)}).value.shape == (1, 2)


def test_a_policy_fits_where_it_is_missing_and_methods_without_such_critics_refuse_it():
    KNOWING.check(BLIND)
    BLIND.check(KNOWING)
    choices = replace(KNOWING, action_choices=(2, 2))
    with pytest.raises(ValueError, match="no critics that read more than its policy sees"):
        Dqn(DqnOptions(), choices)


def test_it_is_the_whole_state_of_the_world():
    whole = api.make("reach", 2, seed=4)
    shown = api.make("reach", 2, seed=4, proprio="own", critic_state=True)
    try:
        state, _ = whole.reset(seed=4)
        obs, _ = shown.reset(seed=4)
        action = np.full((2, whole.io.action_dim), 0.3, np.float32)
        for _ in range(3):
            assert np.array_equal(obs[PRIVILEGED], state["state"])
            assert obs["state"].shape[1] < obs[PRIVILEGED].shape[1]
            state, obs = whole.step(action)[0], shown.step(action)[0]
    finally:
        whole.close()
        shown.close()


def test_without_pictures_it_is_refused():
    from omegaconf import OmegaConf

    cfg = OmegaConf.create({"cameras": None, "critic_state": True, "env": build.plain({"engine": "mujoco"})})
    with pytest.raises(Refused, match="add cameras=own"):
        put_pictures(cfg)
