"""Weighted imitation: published numbers of the weights, and each form copies the good half of a mixed log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.store import write_store
from robot_rl.policies.vla.imitation import MARKS, VlaImitation, VlaImitationOptions
from robot_rl.policies.vla.imitation_weights import mean_one, progress_weights, top_share
from robot_rl.types import Episode, IOSpec, LogFacts, Needs, Transitions
from robot_rl.verbs import logs

IO = IOSpec(
    {"state": ((3,), "float32"), "instruction": ((12,), "uint8")},
    ("tip_dx", "tip_dy"), (-0.03, -0.03), (0.03, 0.03), ("m", "m"), 10.0, ("tip_x", "tip_y", "goal"),
)  # fmt: skip
SMALL: dict[str, Any] = {
    "horizon_pred": 2, "horizon_exec": 2, "proprio": ["tip_*"], "batch_size": 64, "trunk": [32], "cameras": [],
    "backbone": {"kind": "tiny", "width": 16}, "average": 0.9, "lr": 3e-3,
}  # fmt: skip


def batches(seed: int = 0, size: int = 64) -> Iterator[Transitions]:
    """Chunks to the right return 1 and make progress .3; as many to the left return 0 and lose .1."""
    draw = torch.Generator().manual_seed(seed)
    text = torch.zeros(size, 2, 12, dtype=torch.uint8) + torch.tensor(list(b"go right now"), dtype=torch.uint8)
    while True:
        right = torch.rand(size, generator=draw) < 0.5
        action = torch.randn(size, 2, 2, generator=draw) * 0.05
        action[..., 0] += torch.where(right, 0.6, -0.6)[:, None]
        before = torch.rand(size, 1, 1, generator=draw).expand(-1, 2, -1)
        obs = {"state": torch.randn(size, 2, 3, generator=draw), "instruction": text, "progress": before}
        after = {**obs, "progress": before + torch.where(right, 0.3, -0.1)[:, None, None]}
        no, gain = torch.zeros(size, 2, dtype=torch.bool), right.float()[:, None].expand(-1, 2)
        yield Transitions(obs, action, gain, gain, after, no, no, no, ~no, {"return_to_go": gain})


def test_numbers_of_the_source() -> None:
    gained = torch.tensor([0.05, 0.005, -0.02, float("nan")])
    weight = progress_weights(gained, kappa=0.01, moments=(0.02, 0.01))
    torch.testing.assert_close(weight, torch.tensor([1.0, 0.125, 0.0, 1.0]), atol=1e-5, rtol=0)
    # moments of the batch itself, without the unknown: mean .02, deviation .02 -> (.005 + .02) / .08
    weight = progress_weights(
        torch.tensor([0.04, 0.04, 0.0, 0.0, 0.005]), torch.tensor([True] * 4 + [False]), kappa=0.1
    )
    torch.testing.assert_close(weight, torch.tensor([0.75, 0.75, 0.25, 0.25, 0.3125]), atol=1e-5, rtol=0)
    # all went back: the mean counts as 0 at least, and nothing is copied
    assert not progress_weights(torch.tensor([-0.1, -0.2])).any()


def test_weights_have_mean_one_over_the_rows_that_count() -> None:
    got = mean_one(torch.tensor([2.0, 1.0, 0.0, 9.0]), torch.tensor([True, True, True, False]))
    torch.testing.assert_close(got, torch.tensor([2.0, 1.0, 0.0, 0.0]))
    assert not mean_one(torch.zeros(3), torch.ones(3, dtype=torch.bool)).any()


@pytest.mark.parametrize("kind", ["awr", "ra_bc", "recap"])
def test_each_form_copies_the_good_half(kind: Any) -> None:
    plain = VlaImitation(VlaImitationOptions(**SMALL), IO)
    made = VlaImitation(VlaImitationOptions(weights=kind, beta=0.3, **SMALL), IO)
    facts = LogFacts(np.zeros(3), np.ones(3), 0.0, 1.0, 0.9, 10, 0.0, 1.0)
    metrics = {}
    for learner in (plain, made):
        learner.prepare(facts)
        data = batches()
        for _ in range(250):
            metrics = learner.update(data)
    obs = {
        "state": np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32),
        "instruction": np.zeros((20, 12), np.uint8) + np.frombuffer(b"go right now", np.uint8),
    }
    mean = [float(x.policy.act(obs, deterministic=True).value[:, 0].mean()) for x in (plain, made)]
    assert abs(mean[0]) < 0.25  # the average of right and left
    assert mean[1] > 0.4
    assert 0.0 < metrics["train/weight_zero"] < 1.0 or kind == "awr"


def test_best_share_is_marked_by_rank() -> None:
    advantage = torch.tensor([0.1, 0.5, 0.5, -1.0, 0.5, 0.2, 9.0])
    mask = torch.tensor([True] * 6 + [False])
    assert top_share(advantage, mask, 0.3).tolist() == [False, True, True, False, False, False, False]  # ceil(1.8)
    assert top_share(advantage[:1], mask[:1]).tolist() == [True]


def test_marks_are_heard_and_the_policy_acts_on_the_good_one(tmp_path: Path) -> None:
    made = VlaImitation(VlaImitationOptions(weights="recap", **SMALL), IO)
    assert made.policy.planner.recipe.suffix == MARKS[1]
    data = batches()
    for _ in range(250):
        made.update(data)
    model, seen = made.policy.planner.model, next(data)
    obs, goal = made.policy.planner.sight({k: v[:, 0] for k, v in seen.obs.items()})
    means = [
        float(model.act(obs, [g + mark for g in goal], generator=None, deterministic=True).actions[..., 0].mean())
        for mark in MARKS
    ]
    assert means[0] < -0.1
    assert means[1] > 0.3
    other = VlaImitation(VlaImitationOptions(**SMALL), IO)
    other.policy.load_state_dict(made.policy.state_dict())  # the mark travels with the weights
    assert other.policy.planner.recipe.suffix == MARKS[1]


def test_batch_without_progress_moves_nothing_and_is_counted() -> None:
    made = VlaImitation(VlaImitationOptions(weights="ra_bc", metrics_every=1, **SMALL), IO)
    batch = next(batches())
    lost = replace(batch, next_obs={**batch.next_obs, "progress": batch.obs["progress"] - 0.1})
    before = [p.clone() for p in made.model.parameters()]
    made.update(iter([lost]))
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters()))
    assert made.update(iter([batch]))["train/skipped"] == 1.0


@pytest.mark.parametrize("kind", ["awr", "ra_bc", "recap"])
def test_continued_learner_is_the_learner_bit_for_bit(kind: Any) -> None:
    one, data = VlaImitation(VlaImitationOptions(weights=kind, **SMALL), IO), batches()
    one.prepare(LogFacts(np.zeros(3), np.ones(3), 0.0, 1.0, 0.9, 10, 0.0, 3.0))
    for _ in range(3):
        one.update(data)
    other = VlaImitation(VlaImitationOptions(weights=kind, **SMALL), IO, seed=5)
    other.load_state_dict(one.state_dict())
    for learner in (one, other):
        learner.update(batches(7))
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters()))


def test_progress_of_a_log_stands_at_its_observations(tmp_path: Path) -> None:
    made = []
    for number, steps in enumerate((3, 2)):
        progress = (np.arange(steps) + 1) / 10 + number
        made.append(
            Episode(
                obs={"state": np.zeros((steps + 1, 3), np.float32), "instruction": np.zeros((steps + 1, 12), np.uint8)},
                action=np.zeros((steps, 2), np.float32), proposed=np.zeros((steps, 2), np.float32),
                reward=np.zeros(steps, np.float32), terminated=False, truncated=True,
                intervened=np.zeros(steps, bool), stamp=np.arange(steps + 1) * 0.1,
                meta={"columns": {"critic_progress": progress.astype(np.float32)}},
            )
        )  # fmt: skip
    store = write_store(tmp_path / "log.store", made, io=IO)
    data, _ = logs.sampler(store, logs.LogSettings(data=str(tmp_path)), seed=0, need=Needs(progress="critic_progress"))
    np.testing.assert_allclose(data.derived["progress"][:, 0], [0, 0.1, 0.2, 0.3, 0, 1.1, 1.2], atol=1e-6)
    batch = next(data.in_order(5))
    gained = (batch.next_obs["progress"] - batch.obs["progress"])[:, 0]
    np.testing.assert_allclose(gained, [0.1, 0.1, 0.1, 1.1, 0.1], atol=1e-6)
    with pytest.raises(ValueError, match="robot-rl critic label"):
        logs.sampler(store, logs.LogSettings(data=str(tmp_path)), seed=0, need=Needs(progress="none_such"))


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of none, awr"):
        VlaImitation(VlaImitationOptions(**{**SMALL, "weights": "best"}), IO)
    with pytest.raises(ValueError, match="above 0"):
        VlaImitation(VlaImitationOptions(weights="awr", beta=0.0, **SMALL), IO)
