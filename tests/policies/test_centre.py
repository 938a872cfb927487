"""What stays far from 0 in a raw state is moved for SAC, once; where nothing is, no bit changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robot_rl.policies.nets.normalizer import Centre
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.types import IOSpec, Transitions

FAR = torch.tensor([0.0, -300.0, 0.0])


def make_io():
    return IOSpec({"state": ((3,), "float32")}, ("x",), (-1.0,), (1.0,), ("m",), 20.0)


class Plain(Sac):
    """Without what is tested."""

    _centres = False


def learn(kind, shift, updates=3, **options):
    """A learner after some updates on the same rows, all states moved by `shift`."""
    learner = kind(SacOptions(hidden=(16, 16), metrics_every=1, **options), make_io())
    go_on(learner, shift, updates)
    return learner


def go_on(learner, shift, updates=3):
    """What the last update told."""
    found = {}
    off, draw = torch.zeros(8, dtype=torch.bool), torch.Generator().manual_seed(0)

    def states():
        return {"state": (torch.randn(8, 3, generator=draw).mul(8).round().div(8)) + shift}  # exact in float32

    for _ in range(updates):
        obs, after, action = states(), states(), torch.rand(8, 1, generator=draw)
        row = Transitions(obs, action, action[:, 0], torch.full((8,), 0.9), after, off, off, off, ~off)
        found = learner.update(iter([row]))
    return found


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_where_nothing_is_far_no_bit_changes_and_no_state_is_added():
    ours, plain = learn(Sac, 5.0 * torch.ones(3)), learn(Plain, 5.0 * torch.ones(3))
    assert same(ours.state_dict(), plain.state_dict())
    obs = {"state": np.random.default_rng(0).normal(size=(7, 3))}
    for given in (obs, {"state": torch.from_numpy(obs["state"])}):
        one, other = (x.policy.act(given, deterministic=True).value for x in (ours, plain))
        assert one.dtype == other.dtype
        assert (one == other).all()
    old = Sac(SacOptions(hidden=(16, 16), metrics_every=1), make_io(), seed=4)
    old.load_state_dict(plain.state_dict())  # of a checkpoint from before
    assert same(old.state_dict(), ours.state_dict())


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_a_far_component_is_moved_by_its_mean_saved_and_kept(kind):
    learner = learn(Sac, FAR)
    shift = learner.policy.state_dict()["centre"]["shift"]
    assert shift[1] == pytest.approx(-300.0, abs=1.0)
    assert shift[[0, 2]].tolist() == [0.0, 0.0]
    other = Sac(SacOptions(hidden=(16, 16)), make_io(), seed=4)
    other.policy.load_state_dict(learner.policy.state_dict())
    obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32) + FAR.numpy()
    answers = [x.policy.act({"state": kind(obs)}, deterministic=True).value for x in (learner, other)]
    assert np.array_equal(np.asarray(answers[0]), np.asarray(answers[1]))
    plain = learn(Plain, torch.zeros(3), updates=0)
    weights = {key: value for key, value in learner.policy.state_dict().items() if key != "centre"}
    plain.policy.load_state_dict(weights)
    by_hand = plain.policy.act({"state": kind(obs - shift.numpy())}, deterministic=True).value
    assert np.asarray(answers[0]) == pytest.approx(np.asarray(by_hand), abs=1e-6)


def test_a_learner_that_goes_on_decides_nothing_anew():
    learner = learn(Plain, FAR)  # of a run from before, on raw states
    later = Sac(SacOptions(hidden=(16, 16), metrics_every=1), make_io(), seed=4)
    later.load_state_dict(learner.state_dict())
    assert isinstance(later.norm, Centre)
    later.norm.observe(torch.zeros(8, 3) + FAR)
    assert not later.norm.active


def test_a_learner_that_was_saved_goes_on_bit_for_bit():
    learner = learn(Sac, FAR)
    later = Sac(SacOptions(hidden=(16, 16), metrics_every=1), make_io(), seed=4)
    later.load_state_dict(learner.state_dict())
    assert go_on(learner, FAR)["train/centred"] == 1.0
    go_on(later, FAR)
    assert same(later.state_dict(), learner.state_dict())


def test_what_varies_as_much_as_it_is_far_stays_and_so_do_named_moments():
    norm = Centre(2)
    norm.observe(torch.tensor([[0.0, 11.0], [400.0, 11.5]]))
    assert norm.shift.tolist() == [0.0, 11.25]
    assert not isinstance(learn(Sac, FAR, normalize_obs=True).norm, Centre)
