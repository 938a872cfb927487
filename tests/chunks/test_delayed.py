"""Late chunks: queue by control step, measured delays, injected latency, real-time chunking."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.chunks import (
    DelayedPolicy,
    DelayEstimate,
    DelayOptions,
    Execution,
    Horizons,
    LatencyModel,
    Plan,
    guidance_factor,
    guidance_weights,
    guided_flow,
    ticks_of,
)
from robot_rl.types import IOSpec

IO = IOSpec({"state": ((1,), "float32")}, ("dx", "gripper"), (-1.0, 0.0), (1.0, 1.0), ("m", "m"), 10.0)


class Clock:
    """A planner that names the control step that each action is meant for: (step + 1) / 100; idle is 0."""

    def __init__(self, horizon: int) -> None:
        self.horizon, self.asked_at, self.contexts = horizon, [], []

    def plan(self, obs: Any, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        now = np.asarray(obs["state"])[:, :1]
        self.asked_at.append(float(now[0, 0]))
        self.contexts.append(context)
        step = (now + np.arange(self.horizon) + 1.0) / 100.0
        return Plan(np.stack([step, np.full_like(step, 0.5)], -1).astype(np.float32))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Nothing."""


def player(way: str, latency: LatencyModel, h: int = 8, k: int = 4, **options: Any) -> tuple[DelayedPolicy, Clock]:
    clock = Clock(h)
    idle = np.array([0.0, np.nan], np.float32)
    how = DelayOptions(compensation=way, **options)  # pyright: ignore[reportArgumentType]
    return DelayedPolicy(IO, clock, Horizons(h, k, k), latency, how, idle=idle), clock


def test_moves_lead_back_to_the_path_that_was_planned() -> None:
    class Homing:
        """Plans equal moves to the place 1.2 from wherever it is."""

        def plan(self, obs: Any, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
            left = 1.2 - np.asarray(obs["state"])[:, :1]
            move = np.clip(left - 0.2 * np.arange(8)[None], 0.0, 0.2)
            return Plan(np.stack([move, np.zeros_like(move)], -1).astype(np.float32))

        state_dict = Clock.state_dict
        load_state_dict = Clock.load_state_dict

    ends = {}
    for reanchor in (True, False):
        place, made = 0.0, Horizons(8, 4, 4)
        idle = np.array([0.0, np.nan], np.float32)
        slow = LatencyModel("trace", trace_ms=[300, 100, 200])
        acting = DelayedPolicy(IO, Homing(), made, slow, DelayOptions(reanchor=reanchor), idle=idle)
        for _ in range(30):
            place += float(acting.act({"state": np.full((1, 1), place, np.float32)}).value[0, 0])
        ends[reanchor] = place
    assert ends[True] == pytest.approx(1.2, abs=1e-5)


def run(policy: DelayedPolicy, steps: int) -> np.ndarray:
    return np.stack([policy.act({"state": np.full((1, 1), float(n), np.float32)}).value[0] for n in range(steps)])


def meant(found: np.ndarray) -> list[int]:
    """The step that each action was meant for, -1 where it idled."""
    return np.round(found[:, 0] * 100.0 - 1.0).astype(int).tolist()


@pytest.mark.parametrize(("ms", "ticks"), [(0, 0), (1, 1), (100, 1), (100.0001, 2), (300, 3), (math.inf, -1)])
def test_ticks_are_rounded_up(ms: float, ticks: int) -> None:
    assert ticks_of(np.array([ms]), 10.0).tolist() == [ticks]


@pytest.mark.parametrize("late", [0, 3])
def test_queue_plays_every_action_at_the_step_that_it_was_meant_for(late: int) -> None:
    policy, clock = player("queue", LatencyModel("trace", trace_ms=[0.0, *[100.0 * late] * 99]), reanchor=False)
    assert meant(run(policy, 60)) == list(range(60))  # asked for early enough, it never runs dry
    assert policy.facts()["dry_share"] == 0.0
    assert clock.asked_at[1] == 4.0


@pytest.mark.parametrize(("late", "stale"), [(7, 0), (8, 1), (16, 1)])  # H - 1, H, 2 H steps
def test_queue_drops_what_is_over(late: int, stale: int) -> None:
    policy, _ = player("queue", LatencyModel("trace", trace_ms=[0.0, 100.0 * late, 0.0]), reanchor=False)
    found = meant(run(policy, 5 + late))
    assert found[:8] == list(range(8))
    assert found[8 : 4 + late] == [-1] * (late - 4)  # asked for at step 4, dry from step 8 on
    # one action is left of the chunk of step 4; or none, and a new one is asked for and there at once
    assert found[4 + late] == 4 + late
    assert policy.stale == stale


def test_first_chunk_is_played_from_its_first_entry_since_the_robot_stood_still() -> None:
    policy, _ = player("queue", LatencyModel(base_ms=300.0), reanchor=False)
    # k = 4 steps later, at step 7, the next one is asked for; it is there at step 10
    assert meant(run(policy, 12)) == [-1, -1, -1, 0, 1, 2, 3, 4, 5, 6, 10, 11]


def test_naive_play_is_late_by_the_latency() -> None:
    policy, _ = player("naive", LatencyModel(base_ms=300.0))
    found = np.array(meant(run(policy, 40)))
    assert (np.arange(40) - found)[3:7].tolist() == [3, 3, 3, 3]
    assert (np.arange(40) - found)[3:].min() >= 3


def test_waiting_idles_while_the_policy_thinks() -> None:
    policy, clock = player("wait", LatencyModel(base_ms=300.0))
    found = meant(run(policy, 14))
    assert found == [-1, -1, -1, 0, 1, 2, 3, -1, -1, -1, 7, 8, 9, 10]
    assert clock.asked_at[:2] == [0.0, 7.0]


def test_starvation_stops_moves_and_holds_positions() -> None:
    latency = LatencyModel("trace", trace_ms=[0.0, 5000.0])
    policy, _ = player("queue", latency)
    found = run(policy, 14)
    np.testing.assert_allclose(found[8:, 0], 0.0)  # a move that is repeated would go on blindly
    np.testing.assert_allclose(found[8:, 1], 0.5)
    assert policy.facts()["dry_share"] == pytest.approx(6 / 14)
    plain = Execution(Horizons(2, 2, 2), 1)
    plain.reset_all(1)
    plain.offer(np.ones(1, bool), np.full((1, 2, 1), 0.3, np.float32))
    assert [float(plain.take()[0][0, 0]) for _ in range(4)] == pytest.approx([0.3] * 4)


def test_chunk_of_an_episode_that_ended_is_dropped() -> None:
    policy, _ = player("queue", LatencyModel(base_ms=300.0))
    run(policy, 2)
    policy.reset(np.ones(1, bool))
    assert policy.dropped == 1
    assert meant(run(policy, 4)) == [-1, -1, -1, 0]  # nothing arrives from before the reset


def test_lost_answers_are_asked_for_again() -> None:
    policy, clock = player("queue", LatencyModel(base_ms=100.0, drop_p=0.5, seed=3))
    run(policy, 80)
    assert policy.lost > 0
    assert len(clock.asked_at) > policy.lost + 2


def test_latency_is_bit_identical_twice() -> None:
    both: list[np.ndarray] = []
    for _ in range(2):
        policy, _ = player("queue", LatencyModel("lognormal", base_ms=150.0, jitter_ms=80.0, drop_p=0.1, seed=7))
        both.append(run(policy, 100))
    assert np.array_equal(both[0], both[1])


def test_estimate_forgets_the_warm_up_and_old_spikes() -> None:
    estimate = DelayEstimate()
    for delay in [90.0, 80.0, 70.0, *[2.0] * 30, 40.0, *[3.0] * 50]:
        estimate.add(delay)
    assert estimate.value == 3.0
    assert DelayEstimate().value == 0.0
    one = DelayEstimate(warm_up=0)
    for delay in range(1, 101):
        one.add(float(delay))
    assert one.value == pytest.approx(np.percentile(np.arange(51, 101), 95))


def test_rtc_tells_the_planner_the_delay_and_what_runs() -> None:
    policy, clock = player("rtc", LatencyModel(base_ms=200.0), h=10, k=4, reanchor=False)
    run(policy, 40)
    last = clock.contexts[-1]
    assert last["delay"].tolist() == [2]
    step = clock.asked_at[-1]
    np.testing.assert_allclose(last["previous"][0, 0, 0] * 100.0 - 1.0, step, atol=1e-3)
    assert not clock.contexts[0]["running"].any()  # a first chunk has nothing to go on from


def test_guidance_golden_numbers() -> None:
    linear = guidance_weights(2, 6, 8, "linear")
    np.testing.assert_allclose(linear, [1, 1, 0.8, 0.6, 0.4, 0.2, 0, 0], atol=1e-9)
    exp = guidance_weights(2, 6, 8, "exp")
    np.testing.assert_allclose(exp, [1, 1, 0.5706, 0.2871, 0.1145, 0.0258, 0, 0], atol=1e-4)
    np.testing.assert_allclose(guidance_weights(9, 6, 8, "zeros"), [1] * 6 + [0] * 2)  # d is cut at s
    # t here runs from noise (0) to action (1)
    found = [guidance_factor(t, 10.0) for t in (0.0, 0.1, 0.5, 0.9)]
    np.testing.assert_allclose(found, [10.0, 9.1111, 2.0, 9.1111], atol=1e-4)


@pytest.mark.parametrize("jacobian", ["full", "identity"])
def test_both_jacobians_pull_the_chunk_and_a_zero_weight_does_not(jacobian: str) -> None:
    noise = torch.randn(2, 4, 1, generator=torch.Generator().manual_seed(0))
    previous = torch.full((2, 4, 1), 0.9)

    def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:  # straight to 0 from wherever it is
        return -x / (1.0 - t).clamp_min(0.1)[:, None, None]

    weight = torch.tensor([1.0, 1.0, 0.0, 0.0])
    free = guided_flow(velocity, noise, previous, 0.0 * weight, jacobian=jacobian)
    held = guided_flow(velocity, noise, previous, weight, jacobian=jacobian)
    torch.testing.assert_close(held[:, 2:], free[:, 2:])
    moved = float((held - free)[:, :2].abs().max())
    # with J = 0 (a network that always ends in 0) the full form sees that nothing helps; the identity pulls anyway
    assert moved > 0.3 if jacobian == "identity" else moved < 0.3
    with pytest.raises(ValueError, match="expected 'full' or 'identity'"):
        guided_flow(velocity, noise, previous, weight, jacobian="half")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("fast", {}, "expected one of const"),
        ("const", {"base_ms": -1.0}, "expected 0 or more"),
        ("trace", {}, "needs trace_ms"),
        ("lognormal", {}, "expected above 0"),
        ("const", {"drop_p": 1.0}, "probability below 1"),
    ],
)
def test_bad_latency_is_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LatencyModel(kind, **options)


def test_bad_options_of_the_player_are_refused() -> None:
    with pytest.raises(ValueError, match=r"compensation is .hope., expected one of queue, naive, wait or rtc"):
        player("hope", LatencyModel())
    with pytest.raises(ValueError, match="one number for each action"):
        Execution(Horizons(2, 2, 2), 3, idle=np.zeros(2))
