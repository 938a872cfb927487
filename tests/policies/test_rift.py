"""RIFT: candidates on straights and in bends, the dual clip, groups without a spread, and lapping the race track."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage import ClipRange, RowIds
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.policies.online.rift import Candidates, Rift, RiftOptions
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.race import Race
from robot_rl.types import IOSpec, Rollout

ONE_THREAD = EngineOptions(num_threads=1)


@pytest.fixture(scope="module")
def io() -> IOSpec:
    return make(1, 0, world=Race(), options=ONE_THREAD).io


def state(io: IOSpec, **values: float) -> torch.Tensor:
    """(1, 24) on a straight in the middle at 2 m/s, but for what is named."""
    row = torch.zeros(1, len(io.obs_names))
    row[0, io.obs_names.index("cos_heading_error")] = 1.0
    row[0, io.obs_names.index("forward_speed/4")] = 0.5
    for name, value in values.items():
        places = [i for i, known in enumerate(io.obs_names) if known.startswith(name)]
        row[0, places] = value
    return row


def rollout(learner: Rift, states: torch.Tensor) -> Rollout:
    logits = learner.net(states).detach()[None]
    zero, no = torch.zeros(1, len(states)), torch.zeros(1, len(states), dtype=torch.bool)
    return Rollout(
        {"state": states[None]}, torch.zeros(1, len(states), 2), zero, zero, zero, zero, no, no, ~no, ~no,
        {"logits": logits},
    )  # fmt: skip


def test_straight_ahead_a_candidate_earns_its_speed(io: IOSpec) -> None:
    """One second at 2 m/s from 2 m/s is 2 m; the faster one gains 4 m/s^2 until 4 m/s: 3 m after half a second more."""
    learner = Rift(RiftOptions(offsets=(0.0,), speeds=(2.0, 4.0), horizon=20), io)
    returns, left = learner.model.simulate(state(io))
    assert not left.any()
    assert returns[0, 0].item() == pytest.approx(2.0, abs=1e-4)
    # speeds 2.2, 2.4 ... 4.0 for ten steps, then 4.0: 0.05 (31 + 40)
    assert returns[0, 1].item() == pytest.approx(3.55, abs=1e-4)


def test_too_fast_for_the_bend_leaves_the_track(io: IOSpec) -> None:
    """Radius 1 m and 4.9 m/s^2 allow 2.2 m/s."""
    learner = Rift(RiftOptions(offsets=(0.0,), speeds=(1.5, 4.0), horizon=20, off_track=5.0), io)
    bend = state(io, curvature_=1.0, **{"forward_speed/4": 0.4})
    returns, left = learner.model.simulate(bend)
    assert left.tolist() == [[False, True]]
    assert returns[0, 0] > returns[0, 1]
    mirrored = state(io, curvature_=-1.0, **{"forward_speed/4": 0.4})
    torch.testing.assert_close(learner.model.simulate(mirrored)[0], returns, atol=1e-4, rtol=0)


def test_what_is_simulated_lies_where_the_states_do(io: IOSpec) -> None:
    """A device without data refuses what is mixed with tensors of the host."""
    model = Candidates(RiftOptions(), io, "meta")
    there = state(io).to("meta")
    assert [x.device.type for x in model.simulate(there)] == ["meta", "meta"]
    assert model.drive(there, torch.zeros(1, dtype=torch.int64, device="meta")).device.type == "meta"


def test_lines_are_held(io: IOSpec) -> None:
    """After two seconds each candidate is near its own line, from the middle and from one side, in a gentle bend."""
    learner = Rift(RiftOptions(offsets=(-0.5, 0.0, 0.5), speeds=(2.0,), horizon=40), io)
    model, found = learner.model, []
    kept = model._steering
    model._steering = lambda curve, offset, error, speed: (found.append(offset), kept(curve, offset, error, speed))[1]  # type: ignore[method-assign]
    model.simulate(state(io, curvature_=0.2, offset=0.3))
    assert found[-1][0].tolist() == pytest.approx([-0.3, 0.0, 0.3], abs=0.06)


def test_dual_clip_bounds_what_a_bad_candidate_may_cost(io: IOSpec) -> None:
    """A candidate with A < 0 whose probability has grown tenfold: its loss is 3 |A|, and no gradient is left."""
    learner = Rift(RiftOptions(offsets=(0.0,), speeds=(1.5, 4.0)), io)
    from robot_rl.advantage import policy_loss

    logp = torch.tensor([0.0, 0.0], requires_grad=True)
    old = torch.tensor([0.0, -np.log(10.0)])
    loss = policy_loss(
        logp,
        old,
        torch.tensor([0.0, -1.0]),
        clip=ClipRange(0.2, dual=learner.o.dual_clip),
        ids=RowIds(episode=torch.zeros(2).long()),
    )
    loss.backward()
    assert loss.item() == pytest.approx(3.0 / 2)
    assert logp.grad is not None
    assert logp.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "options", [{"offsets": (0.0,), "speeds": (2.0,)}, {"off_track": 0.0, "horizon": 1, "speeds": (2.0,)}]
)
def test_single_candidates_and_equal_returns_learn_nothing(io: IOSpec, options: dict[str, Any]) -> None:
    """One step with the same speed is the same progress whatever line is held."""
    learner = Rift(RiftOptions(**options), io)
    before = [p.clone() for p in learner.net.parameters()]
    learner.update(iter([rollout(learner, state(io).repeat(4, 1))]))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(before, learner.net.parameters()))


def test_probability_moves_to_the_best_candidate_of_the_state(io: IOSpec) -> None:
    learner = Rift(RiftOptions(offsets=(0.0,), speeds=(1.5, 4.0), lr=1e-2), io)
    states = torch.cat([state(io), state(io, curvature_=1.0, **{"forward_speed/4": 0.4})])
    for _ in range(60):
        learner.update(iter([rollout(learner, states)]))
    assert learner.net(states).argmax(-1).tolist() == [1, 0]


def test_save_load_update_equals_update(io: IOSpec) -> None:
    one, other = Rift(RiftOptions(), io, seed=1), Rift(RiftOptions(), io, seed=2)
    states = torch.cat([state(io, offset=x) for x in (-0.5, 0.0, 0.5)])
    for _ in range(2):
        one.update(iter([rollout(one, states)]))
    other.load_state_dict(one.state_dict())
    for _ in range(2):
        assert one.update(iter([rollout(one, states)])) == other.update(iter([rollout(other, states)]))
    obs = {"state": states.numpy()}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)


def test_world_without_a_track_is_refused() -> None:
    with pytest.raises(ValueError, match="env=race"):
        Rift(RiftOptions(), IOSpec({"state": ((2,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0))


@pytest.mark.slow
def test_race_is_lapped_after_training() -> None:
    env = make(8, 0, world=Race(), options=ONE_THREAD)
    learner = Rift(RiftOptions(), env.io)
    before = evaluate(make(8, 5, world=Race(), options=ONE_THREAD), learner.policy, episodes=8).returns
    OnPolicy(env, learner, seed=0).run(8 * 20 * 50)
    after = evaluate(make(8, 5, world=Race(), options=ONE_THREAD), learner.policy, episodes=8)
    assert np.mean(after.returns) > np.mean(before) + 10.0
    assert np.mean(after.successes) >= 0.75
