"""Rewards and policies from preferences: numbers by hand, cautious combinations, a scripted teacher."""
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false

import math

import numpy as np
import pytest
import torch

from robot_rl.policies.nets.cautious import combine
from robot_rl.policies.nets.preferences import (
    TIE,
    Careful,
    Pairs,
    Scripted,
    make_pairs,
    parse_answer,
    query,
)
from robot_rl.policies.reward.cpl import Cpl, CplOptions, contrastive_loss
from robot_rl.policies.reward.preference import RewardEnsemble, RewardOptions
from robot_rl.types import IOSpec

IO = IOSpec({"state": ((2,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)


def test_cpl_equal_segments_cost_log_two_without_bias_and_alpha_zero():
    zero = torch.zeros(3)
    loss = contrastive_loss(zero, zero, torch.tensor([0.0, 0.5, 1.0]), 1.0)
    torch.testing.assert_close(loss, torch.full((3,), math.log(2.0)))


def test_cpl_ties_are_symmetric():
    a, b = torch.tensor([0.3]), torch.tensor([-1.2])
    half = torch.tensor([0.5])
    torch.testing.assert_close(contrastive_loss(a, b, half, 0.5), contrastive_loss(b, a, half, 0.5))


def test_wco_and_uwo_never_exceed_the_mean():
    reward = torch.randn(4, 50)
    mean = combine(reward, "mean")
    assert bool((combine(reward, "wco") <= mean).all())
    for caution in (0.0, 0.1, 1.0):
        assert bool((combine(reward, "uwo", caution=caution) <= mean + 1e-6).all())
    # members 1 and 3: mean 2, population variance 1
    assert combine(torch.tensor([[1.0], [3.0]]), "uwo", caution=0.1).item() == pytest.approx(1.9)


def test_constant_member_leaves_wco_finite_after_calibration():
    model = RewardEnsemble(RewardOptions(members=2, hidden=(8,), combination="wco"), 2, 1)
    for view in model.net.params.view.values():
        view[0].zero_()
    state, action = torch.randn(100, 2), torch.randn(100, 1)
    model.calibrate(state, action)
    assert bool(torch.isfinite(model.reward(state, action)).all())


def segments(count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(4, 2)).astype(np.float32), rng.uniform(-0.9, 0.9, (4, 1)).astype(np.float32))
        for _ in range(count)
    ]


def taste(segment) -> float:
    """Likes actions near half of the first state component."""
    return -float(np.square(segment[1][:, 0] - 0.5 * np.tanh(segment[0][:, 0])).sum())


def pairs(count: int = 400, **options) -> Pairs:
    index = np.random.default_rng(1).integers(0, 200, (count, 2))
    return make_pairs(segments(200), index[index[:, 0] != index[:, 1]], Scripted(taste, **options))


def test_ensemble_learns_the_teachers_taste():
    model = RewardEnsemble(RewardOptions(members=2, hidden=(32, 32), batch_size=64, lr=3e-3), 2, 1)
    metrics = model.fit(pairs(), updates=300)
    assert metrics["accuracy"] > 0.85
    state = torch.zeros(2, 2)
    model.calibrate(torch.randn(200, 2), torch.rand(200, 1) * 2 - 1)
    reward = model.reward(state, torch.tensor([[0.0], [0.9]]))
    assert reward[0] > reward[1]  # near the taught action


def test_ensemble_of_ties_learns_indifference():
    data = pairs(tie=1e9)
    assert bool((data.preferred == 0.5).all())
    model = RewardEnsemble(RewardOptions(members=2, hidden=(16,), batch_size=64, lr=3e-3), 2, 1)
    for _ in range(100):
        metrics = model.update(data)
    assert metrics["loss"] == pytest.approx(math.log(2.0), abs=0.05)


def test_ensemble_saves_and_continues_exactly():
    data = pairs(50)
    a, b = (RewardEnsemble(RewardOptions(hidden=(8,), batch_size=8), 2, 1, seed=s) for s in (1, 2))
    a.update(data)
    b.load_state_dict(a.state_dict())
    assert a.update(data) == b.update(data)


def test_cpl_prefers_what_the_teacher_prefers_and_cloning_does_not():
    """Actions are uniform: cloning answers 0; the contrast has to find half of the state."""
    data = pairs(600)
    learner = Cpl(CplOptions(hidden=(32, 32), batch_size=96, lr=3e-3, alpha=1.0, bc_updates=100, normalize=False), IO)
    for _ in range(100):
        learner.update(data)
    x = torch.tensor([[-1.5, 0.0], [1.5, 0.0]])
    cloned = learner.policy.act({"state": x}, deterministic=True).value
    for _ in range(500):
        metrics = learner.update(data)
    action = learner.policy.act({"state": x}, deterministic=True).value
    assert float(cloned.abs().max()) < 0.35
    assert action[1, 0] > 0.2
    assert action[0, 0] < -0.2
    assert metrics["accuracy"] > 0.75


def test_cpl_accuracy_is_that_of_decided_pairs():
    learner = Cpl(CplOptions(hidden=(8,), batch_size=32, bc_updates=0, normalize=False), IO)
    ties = Pairs(torch.randn(16, 2, 3, 2), torch.rand(16, 2, 3, 1), torch.full((16,), 0.5))
    assert learner.update(ties)["accuracy"] == 0.0  # half of them counted as right


def test_cpl_optimiser_starts_anew_after_cloning():
    learner = Cpl(CplOptions(hidden=(8,), batch_size=8, bc_updates=3, normalize=False), IO)
    for _ in range(4):
        learner.update(pairs(20))
    assert learner.actor.params.step.item() == 1


class Biased:
    """Always says that the first is better, whatever it sees."""

    def __init__(self):
        self.asked = 0

    def label(self, first, second, goal):
        self.asked += 1
        return 0


def test_labels_asked_in_both_orders_drop_a_position_bias():
    biased = Biased()
    careful = Careful(biased)
    assert careful.label(np.zeros(3), np.ones(3), "fold the cloth") == TIE
    careful.label(np.zeros(3), np.ones(3), "fold the cloth")
    assert biased.asked == 2  # both orders once, then remembered
    assert careful.label(np.zeros(3), np.full(3, 1e-5), "fold the cloth") == TIE
    assert biased.asked == 2  # pictures that hardly differ are not sent
    fair = Careful(Scripted(lambda x: float(x.sum())))
    assert fair.label(np.zeros(3), np.ones(3), "") == 1
    assert fair.label(np.ones(3), np.zeros(3), "") == 0


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Image 2 is tidier.\n1", 1),
        ("both alike\n-1", TIE),
        ("0", 0),
        ("I cannot tell", TIE),
        ("", TIE),
        ("1 or 0", TIE),
    ],
)
def test_model_answers_are_parsed_from_the_last_line(text, label):
    assert parse_answer(text) == label


def test_scripted_teacher_errs_as_often_as_told():
    teacher = Scripted(float, error=0.2)
    wrong = sum(teacher.label(0.0, 1.0, "") == 0 for _ in range(2000))
    assert wrong / 2000 == pytest.approx(0.2, abs=0.03)


def test_queries_choose_what_members_disagree_on():
    p = torch.tensor([[0.5, 0.9, 0.5], [0.5, 0.1, 0.6]])
    assert query(p, 3, 1, rule="disagreement").tolist() == [1]
    assert query(p, 3, 3, rule="entropy").tolist()[0] in (0, 1)
    assert sorted(query(None, 5, 5).tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="expected uniform"):
        query(None, 3, 1, rule="entropy")
