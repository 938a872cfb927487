"""MODT: regions of actions, targets that are known, weights of objectives, and learning by way of regions."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.policies.contrib.modt import Modt, ModtOptions, kmeans, min_norm

_spec = importlib.util.spec_from_file_location("dt_cases", Path(__file__).with_name("test_dt.py"))
assert _spec is not None
assert _spec.loader is not None
dt = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(dt)

SMALL: dict[str, Any] = {**dt.SMALL, "target_return": 2.0, "regions": 3, "region_batches": 1}


def build(seed: int = 0, **options: Any) -> Modt:
    return Modt(ModtOptions(**{**SMALL, **options}), dt.IO, seed=seed)


def batches(seed: int = 0, **fields: Any) -> Any:
    return iter([dt.batch(seed=seed, **fields)] * 9)


@pytest.mark.parametrize(
    "options",
    [{}, {"weighting": "uncertainty"}, {"weighting": "mgda"}, {"regions": 0}, {"region_kind": "code", "dropout": 0.3}],
)
def test_save_load_update_equals_update(options: dict[str, Any]) -> None:
    one, other = build(seed=1, **options), build(seed=2, **options)
    for i in range(2):
        one.update(batches(i))
    other.load_state_dict(one.state_dict())
    for i in range(2, 4):
        assert one.update(batches(i)) == other.update(batches(i))
    obs = {"state": np.ones((3, 2), np.float32)}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)


def test_regions_are_the_clusters_of_the_actions() -> None:
    g = torch.Generator().manual_seed(0)
    points = torch.cat([torch.randn(50, 2, generator=g) * 0.02 + torch.tensor(c) for c in ([0.5, 0.5], [-0.5, 0.0])])
    centres = kmeans(points, 2, g)
    assert sorted(centres[:, 0].tolist()) == pytest.approx([-0.5, 0.5], abs=0.02)
    many = kmeans(points, 8, g)
    assert len(torch.cdist(points, many).argmin(-1).unique()) == 8  # none is left empty


def test_code_regions_are_the_grid() -> None:
    learner = build(regions=4, region_kind="code")
    assert learner.net.centres.flatten().tolist() == pytest.approx([-0.75, -0.25, 0.25, 0.75])
    assert learner.net.region_of(torch.tensor([[-0.9], [0.3]])).tolist() == [0, 2]
    with pytest.raises(ValueError, match="100 regions"):
        build(regions=100, region_kind="code")


def test_smallest_norm_of_opposing_and_of_aligned_gradients() -> None:
    """(1, 0) and (0, 2): 4/5 and 1/5; (1, 0) and (3, 0): the shorter alone."""
    assert min_norm(torch.tensor([[1.0, 0.0], [0.0, 2.0]])).tolist() == pytest.approx([0.8, 0.2], abs=1e-3)
    assert min_norm(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).tolist() == pytest.approx([1.0, 0.0], abs=1e-3)


def test_return_behind_a_cut_is_no_target_and_behind_a_terminal_it_is() -> None:
    """The reward of the last step is moved: the loss of returns changes where the episode terminated only."""
    last = torch.zeros(8, 4, dtype=torch.bool)
    last[:, -1] = True
    found = {}
    for name in ("terminated", "truncated"):
        losses = []
        for extra in (0.0, 5.0):
            data = dt.batch(**{name: last})
            data = replace(data, reward=data.reward + extra * last)
            losses.append(build(dropout=0.0, seed=3).update(iter([data] * 9))["train/return_loss"])
        found[name] = losses[0] == losses[1]
    assert found == {"terminated": False, "truncated": True}


def test_masked_steps_are_not_learnt_from() -> None:
    mask = torch.ones(8, 4, dtype=torch.bool)
    mask[:, 2:] = False
    whole = dt.batch(mask=mask)
    poisoned = replace(
        whole,
        obs={"state": torch.where(mask[..., None], whole.obs["state"], torch.nan)},
        next_obs={"state": torch.where(mask[..., None], whole.next_obs["state"], torch.nan)},
        action=torch.where(mask[..., None], whole.action, torch.nan),
        reward=torch.where(mask, whole.reward, torch.nan),
        extras={**whole.extras, "return_to_go": torch.where(mask, whole.extras["return_to_go"], torch.nan)},
    )
    one, other = build(dropout=0.0), build(dropout=0.0)
    assert one.update(iter([whole] * 9)) == other.update(iter([poisoned] * 9))


def test_region_stands_between_state_and_action() -> None:
    """The action is read behind its region, the region is not; neither sees the action itself."""
    net = build(seed=4).net
    goal, state, action = torch.randn(1, 3), torch.randn(1, 3, 2), torch.randn(1, 3, 1)
    time, region = torch.arange(3)[None], torch.zeros(1, 3, dtype=torch.int64)
    one = net.read(net.trunk(goal, state, action, time, region), region)
    other_region = region.clone()
    other_region[:, -1] = 2
    two = net.read(net.trunk(goal, state, action + 1.0, time, other_region), other_region)
    three = net.read(net.trunk(goal, state, action, time, other_region), region)
    torch.testing.assert_close(one["logits"][:, 0], two["logits"][:, 0])
    torch.testing.assert_close(one["logits"][:, -1], three["logits"][:, -1])
    assert not torch.allclose(one["action"][:, -1], three["action"][:, -1])


def test_attention_entropy_is_reported_and_bounded() -> None:
    metrics = build().update(batches())
    values = [value for name, value in metrics.items() if "attention_entropy" in name]
    assert len(values) == 4  # two layers, two heads
    assert all(0.0 <= value <= np.log(16) for value in values)


def test_learns_both_ways_round_where_a_mean_would_stand_still(tmp_path: Path) -> None:
    """Half of the log jumps to +0.8 and half to -0.8, both earning 1: the mean action earns nothing."""
    from robot_rl.data.log_dataset import LogDataset, LogView
    from robot_rl.data.store import write_store
    from robot_rl.types import Episode

    rng = np.random.default_rng(0)
    episodes = []
    for i in range(40):
        action = np.full((1, 1), 0.8 if i % 2 else -0.8, np.float32) + rng.normal(size=(1, 1)).astype(np.float32) * 0.02
        zero = np.zeros((2, 2), np.float32)
        one, no = np.ones(1, np.float32), np.zeros(1, bool)
        episodes.append(Episode({"state": zero}, action, action, one, True, False, no, np.arange(2.0)))
    store = write_store(tmp_path / "two.store", episodes, io=dt.IO)
    data = LogDataset(store, LogView(window=2, return_to_go=True, return_gamma=1.0, extras=("step",)))
    learner = build(context=2, regions=2, dropout=0.0, lr=3e-3, batch_size=32)
    learner.prepare(dt.facts_of(data))
    stream = data.batches(32)
    for _ in range(150):
        metrics = learner.update(stream)
    learner.policy.reset()
    drawn = learner.policy.act({"state": np.zeros((200, 2), np.float32)}).value[:, 0]
    assert np.abs(np.abs(drawn) - 0.8).max() < 0.1
    assert 0.3 < (drawn > 0).mean() < 0.7
    assert metrics["train/region_loss"] == pytest.approx(np.log(2), abs=0.05)  # pyright: ignore[reportPossiblyUnboundVariable]


def test_more_is_earned_where_more_is_asked_for(tmp_path: Path) -> None:
    data = dt.mixed_log(tmp_path)
    facts = dt.facts_of(data)
    learner = build(context=6, width=32, batch_size=32, dropout=0.0, lr=3e-3, target_return="best", regions=8)
    learner.prepare(facts)
    batches = data.batches(32)
    for _ in range(200):
        learner.update(batches)
    assert dt.asked(learner, facts.return_high) > dt.asked(learner, facts.return_low) + 10.0


@pytest.mark.slow
def test_return_that_is_asked_for_is_what_is_earned(tmp_path: Path) -> None:
    data, earned = dt.mixed_log(tmp_path), []
    facts = dt.facts_of(data)
    for seed in range(3):  # the median: of one seed the last bits of a processor decide
        learner = build(
            context=6, width=32, batch_size=64, dropout=0.0, lr=3e-3, target_return="best", regions=8, seed=seed
        )  # fmt: skip
        learner.prepare(facts)
        stream = data.batches(64)
        for _ in range(500):
            learner.update(stream)
        earned.append([dt.asked(learner, target) for target in (facts.return_high, facts.return_low)])
    best, worst = np.median(earned, axis=0)
    assert best > -1.8, earned
    assert worst < -15.0, earned
