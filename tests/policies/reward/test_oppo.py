"""OPPO: the triplet by hand, the liked style is found where cloning finds none, ties, memory, resume."""
# pyright: reportCallIssue=false, reportPossiblyUnboundVariable=false

import copy

import numpy as np
import pytest
import torch

from robot_rl.policies.nets.preferences import Pairs
from robot_rl.policies.reward.oppo import Oppo, OppoOptions, triplet_loss
from robot_rl.types import IOSpec

IO = IOSpec({"state": ((2,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
LENGTH = 4
SMALL = {"length": LENGTH, "width": 32, "layers": 1, "batch_size": 32, "lr": 3e-3, "normalize": False}


def styles(count: int, ties: float = 0.0) -> Pairs:
    """Every segment has a style m in [-0.8, 0.8] and acts m; the teacher likes the larger one."""
    g = torch.Generator().manual_seed(0)
    style = torch.rand(count, 2, generator=g) * 1.6 - 0.8
    action = style[..., None, None].expand(-1, -1, LENGTH, 1) + 0.05 * torch.randn(count, 2, LENGTH, 1, generator=g)
    preferred = (style[:, 1] > style[:, 0]).float()
    preferred[torch.rand(count, generator=g) < ties] = 0.5
    return Pairs(torch.randn(count, 2, LENGTH, 2, generator=g), action.clamp(-1, 1), preferred)


def test_triplet_by_hand():
    # distances 5 and 1, margin 1: 5; distances 1 and 5: 1 - 5 + 1 < 0
    w, far, near = torch.zeros(2), torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]])
    assert triplet_loss(w, far, near, 1.0).item() == pytest.approx(5.0)
    assert triplet_loss(w, near, far, 1.0).item() == 0.0


def mean_action(policy) -> float:
    rng, total = np.random.default_rng(0), []
    policy.reset()
    for _ in range(2 * LENGTH):  # longer than the memory
        total.append(
            policy.act({"state": rng.normal(size=(16, 2)).astype(np.float32)}, deterministic=True).value.mean()
        )
    return float(np.mean(total))


def test_policy_has_the_style_that_the_teacher_likes():
    learner, pairs = Oppo(OppoOptions(wanted_lr=2e-2, **SMALL), IO), styles(500, ties=0.2)
    for _ in range(250):
        metrics = learner.update(pairs)
    assert metrics["accuracy"] > 0.85
    assert metrics["loss"] < 0.05
    assert mean_action(learner.policy) > 0.35  # cloning answers 0


def test_ties_are_reconstructed_and_not_compared():
    pairs = styles(64)
    tied = Pairs(pairs.state, pairs.action, torch.full((64,), 0.5))
    learner = Oppo(OppoOptions(**SMALL), IO)
    before = learner.policy.state_dict()["wanted"]
    weights = copy.deepcopy(learner.policy.state_dict()["decoder"])
    metrics = learner.update(tied)
    assert metrics["triplet"] == 0.0
    after = learner.policy.state_dict()
    assert (after["wanted"] - before).abs().max() < 1e-3  # weight decay alone
    assert any(not torch.equal(weights[name], after["decoder"][name]) for name in weights)


def test_acting_equals_decoding_the_whole_segment():
    learner = Oppo(OppoOptions(**SMALL), IO)
    states = torch.randn(3, LENGTH, 2)
    taken = torch.zeros(3, LENGTH, 1)
    for t in range(LENGTH):
        taken[:, t] = torch.as_tensor(learner.policy.act({"state": states[:, t]}).value)
    code = learner.policy.state_dict()["wanted"].expand(3, -1)
    torch.testing.assert_close(learner._decoder(code, states, taken), taken, atol=1e-5, rtol=1e-4)


def test_resume_is_exact():
    pairs = styles(64)
    one, other = (Oppo(OppoOptions(**SMALL), IO, seed=s) for s in (0, 1))
    for _ in range(3):
        one.update(pairs)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for _ in range(2):
        assert one.update(pairs) == other.update(pairs)
