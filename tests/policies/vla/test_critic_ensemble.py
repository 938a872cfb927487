"""Ensembles of critics: cautious where members disagree, one of them alone unchanged, and no gain around a loop."""
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.policies.nets.progress import add_up
from robot_rl.policies.reward.critic_reward import CriticReward, CriticRewardOptions
from robot_rl.policies.vla.critic_ensemble import CriticEnsemble
from robot_rl.policies.vla.interface import CriticMeta, CriticOutput, Trajectory

GOAL = "go on"


class Grey:
    """Reads remaining work off the grey level; `fooled_by` is a level that it takes for the goal."""

    def __init__(self, fooled_by: int | None = None, size: tuple[int, int] = (8, 8)) -> None:
        self.meta, self.fooled_by = CriticMeta("grey", "siamese", size), fooled_by

    def work(self, frames: Any) -> np.ndarray:
        grey = np.asarray(frames)[:, 0, 0, 0].astype(float)
        left = np.maximum(1.0 - grey / 200.0, 0.05)
        return left if self.fooled_by is None else np.where(grey == self.fooled_by, 0.05, left)

    def __call__(self, images_t0: Any, images_t1: Any, goal: Any) -> CriticOutput:
        before, after = self.work(images_t0), self.work(images_t1)
        return CriticOutput.of(
            torch.as_tensor(np.log(before / after), dtype=torch.float32),
            torch.as_tensor(after < 0.08, dtype=torch.float32),
            torch.ones(len(goal), dtype=torch.bool),
            value=torch.as_tensor(1 - after, dtype=torch.float32),
        )

    def trajectory(self, frames: Any, goal: str, *, stride: int = 1) -> Trajectory:
        work = self.work(frames)
        steps, since = np.log(work[:-1] / work[1:]), np.log(work[0] / work)
        u, values = add_up(steps, since, anchor=0.0)
        done = (work < 0.08).astype(float)
        index = np.arange(len(work))
        return Trajectory(-np.expm1(-steps), u, values, done, index, 1 - work, np.ones(len(steps), bool))


def pictures(*grey: int) -> np.ndarray:
    return np.stack([np.full((8, 8, 3), level, np.uint8) for level in grey])


CLIP = pictures(0, 100, 40, 180, 0)  # 40 is what one member takes for the goal


@pytest.mark.parametrize("how", ["wco", "uwo", "mean"])
def test_a_loop_gains_nothing_and_caution_lies_below_the_mean(how: str) -> None:
    fooled, honest = Grey(fooled_by=40), Grey()
    together = CriticEnsemble([fooled, honest, Grey()], how, caution=0.5)
    path = together.trajectory(CLIP, GOAL)
    assert path.u[0] == 0.0
    assert path.u[-1] == pytest.approx(0.0, abs=1e-9)
    members = np.stack([m.trajectory(CLIP, GOAL).u for m in together.members])
    wanted = {
        "mean": members.mean(0),
        "wco": members.min(0),
        "uwo": np.maximum(members.mean(0) - 0.5 * members.var(0), np.log(0.5)),
    }[how]
    np.testing.assert_allclose(path.u, wanted, atol=1e-9)
    np.testing.assert_allclose(np.cumsum(-np.sign(path.deltas) * np.log1p(-np.abs(path.deltas))), path.u[1:], atol=1e-9)
    believed = {"mean": 1 / 3, "wco": 0.0, "uwo": 1 / 3 - 0.5 * 2 / 9}[how]
    assert path.done[2] == pytest.approx(believed)
    assert path.done[3] == 0.0
    assert path.values[3] == pytest.approx(0.9)


def test_pairs_have_the_mean_step_and_say_how_much_members_disagree() -> None:
    out = CriticEnsemble([Grey(), Grey(fooled_by=40)], "wco")(CLIP[[0, 0]], CLIP[[1, 2]], [GOAL, GOAL])
    steps = np.array([np.log(1 / 0.8), np.log(1 / 0.05)])
    assert out.dlogw[0] == pytest.approx(np.log(2))
    assert out.dlogw[1] == pytest.approx(steps.mean(), rel=1e-5)
    assert out.sigma[0] == pytest.approx(0.0)
    assert out.sigma[1] == pytest.approx(steps.std(), rel=1e-5)
    assert out.done.tolist() == [0.0, 0.0]
    assert out.value[1] == pytest.approx(0.2, rel=1e-4)
    alone = CriticEnsemble([Grey()], "uwo")(CLIP[[0]], CLIP[[1]], [GOAL])
    assert torch.isnan(alone.sigma).all()
    assert alone.value[0] == pytest.approx(0.5, rel=1e-4)


def paid(judge: Any, greys: list[int], **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Reward and "met" of one episode through these grey levels."""
    how = CriticRewardOptions(**{"every": 1, "done_reward": 0.0, "on_done": "pay", **options})
    reward = CriticReward(how, judge, gamma=1.0)
    reward.start(np.ones(1, bool), pictures(0), [GOAL])
    no = np.zeros(1, bool)
    rows = [reward.step(pictures(grey), no, no) for grey in greys]
    return np.array([row[0][0] for row in rows]), np.array([row[1][0] for row in rows])


def test_a_reward_from_an_ensemble_pays_its_cautious_level_and_cannot_be_had_by_fooling_one() -> None:
    stay = [100, 40, 40, 40, 40]
    alone, met = paid(Grey(fooled_by=40), stay)
    assert alone.sum() > 0.8
    assert met[-1]
    together, met = paid(CriticEnsemble([Grey(fooled_by=40), Grey()], "wco"), stay)
    assert together.sum() == pytest.approx(0.2)
    assert not met.any()
    there, met = paid(CriticEnsemble([Grey(fooled_by=40), Grey()], "wco"), [100, 200, 200, 200])
    assert there.sum() == pytest.approx(0.95, abs=1e-6)
    assert met[-1]
    same, _ = paid(CriticEnsemble([Grey(fooled_by=40)], "wco"), stay)
    np.testing.assert_allclose(same, alone)


def test_the_reward_of_an_ensemble_continues_exactly_and_reads_older_states() -> None:
    judge = CriticEnsemble([Grey(), Grey(fooled_by=40)], "uwo")
    no, rewards = np.zeros(1, bool), [CriticReward(CriticRewardOptions(), judge) for _ in range(2)]
    for reward in rewards:
        reward.start(np.ones(1, bool), pictures(0), [GOAL])
    for grey in (100, 40, 40):
        rewards[0].step(pictures(grey), no, no)
    rewards[1].load_state_dict(rewards[0].state_dict())
    a, b = (reward.step(pictures(180), no, no)[0] for reward in rewards)
    np.testing.assert_array_equal(a, b)
    single, older = (CriticReward(CriticRewardOptions(), Grey()) for _ in range(2))
    single.start(np.ones(1, bool), pictures(0), [GOAL])
    state = single.state_dict()
    older.load_state_dict({**state, "u": state["u"][0], "from": state["from"][0]})  # as saved before ensembles
    np.testing.assert_array_equal(older.step(pictures(100), no, no)[0], single.step(pictures(100), no, no)[0])


def test_what_cannot_be_an_ensemble_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one critic"):
        CriticEnsemble([])
    with pytest.raises(ValueError, match="different sizes"):
        CriticEnsemble([Grey(), Grey(size=(4, 4))])
    with pytest.raises(ValueError, match="expected one of mean, wco, uwo"):
        CriticEnsemble([Grey()], "median")
