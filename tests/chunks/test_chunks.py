"""Chunks: lengths, rows, values that are known exactly, and how each execution mode plays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage import rollout_gae
from robot_rl.advantage.rows import RolloutRows
from robot_rl.chunks import (
    ChunkedPolicy,
    ChunkMeter,
    Execution,
    Held,
    Horizons,
    Plan,
    chunk_rows,
    critic_action,
    critic_width,
    ensemble_weights,
    guidance_weights,
    guided_flow,
)
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.types import Action, Episode, IOSpec, PolicyParts, Step, Transitions

IO = IOSpec({"state": ((1,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)


def chain(length: int, *, terminated: bool = True) -> Episode:
    """States 0 ... length, reward 1 on the last step."""
    reward = np.zeros(length, np.float32)
    reward[-1] = 1.0
    action = np.arange(1, length + 1, dtype=np.float32)[:, None] / 10
    return Episode(
        obs={"state": np.arange(length + 1, dtype=np.float32)[:, None]},
        action=action,
        proposed=action,
        reward=reward,
        terminated=terminated,
        truncated=not terminated,
        intervened=np.zeros(length, bool),
        stamp=np.arange(length + 1.0),
    )


def windows(episode: Episode, horizon: int, *, gamma: float = 1.0, size: int = 200) -> Transitions:
    buffer = ReplayBuffer(IO, 64, gamma=gamma, window=horizon, seed=0)
    buffer.add_episode(episode)
    return buffer.sample(size)


def values_of(rows: Transitions, states: int, sweeps: int = 30) -> np.ndarray:
    """V(s) by iterating y = R + d V(s') over the sampled rows, from zero; nan where no row starts."""
    value = torch.full((states,), float("nan"))
    start, after = rows.obs["state"][:, 0].long(), rows.next_obs["state"][:, 0].long()
    for _ in range(sweeps):
        target = rows.reward + torch.where(rows.discount > 0, rows.discount * value.nan_to_num()[after], 0.0)
        value[start] = target
    return value.numpy()


@pytest.mark.parametrize(("pred", "exec_", "value"), [(0, 1, 1), (4, 5, 4), (4, 0, 4), (4, 4, 5)])
def test_horizons_out_of_order_are_refused(pred: int, exec_: int, value: int) -> None:
    with pytest.raises(ValueError, match="horizon_"):
        Horizons(pred, exec_, value)


def test_chunk_of_three_by_hand() -> None:
    rows = chunk_rows(windows(chain(7), 3, gamma=0.5))
    at = {int(s): i for i, s in enumerate(rows.obs["state"][:, 0])}
    assert sorted(at) == list(range(7))  # every start is drawn, those near the end too
    whole, two, one = at[4], at[5], at[6]
    assert rows.reward[[at[0], whole, two, one]].tolist() == [0.0, 0.25, 0.5, 1.0]
    assert rows.discount[[at[3], whole, two, one]].tolist() == [0.125, 0.0, 0.0, 0.0]
    assert rows.next_obs["state"][[at[0], at[3], two], 0].tolist() == [3.0, 6.0, 7.0]
    assert rows.mask[two].tolist() == [True, True, False]
    assert rows.action[two, :, 0].tolist() == pytest.approx([0.6, 0.7, 0.0])
    assert rows.terminated[two]
    assert not rows.terminated[at[0]]


def test_chunk_cut_by_a_time_limit_bootstraps_from_the_final_observation() -> None:
    rows = chunk_rows(windows(chain(7, terminated=False), 3, gamma=0.5))
    at = {int(s): i for i, s in enumerate(rows.obs["state"][:, 0])}
    assert rows.discount[[at[4], at[5], at[6]]].tolist() == [0.125, 0.25, 0.5]
    assert rows.truncated[at[5]]
    assert not rows.terminated[at[5]]
    assert rows.next_obs["state"][at[5], 0] == 7.0


def test_all_starts_of_a_chain_reach_their_value() -> None:
    """Chain of 7 steps, gamma 1, reward 1 at the end, chunks of 3: all seven starts are worth 1."""
    rows = chunk_rows(windows(chain(7), 3))
    assert values_of(rows, 8)[:7].tolist() == [1.0] * 7


def test_the_rule_that_drops_chunks_with_an_end_inside_leaves_starts_untrained() -> None:
    """Q-chunking's `valid` of the last inner step: only t <= N - h is trained; t = 3 bootstraps an untrained s_6."""
    rows = chunk_rows(windows(chain(7), 3))
    whole = rows.mask[:, -1]
    naive = Transitions(
        obs={"state": rows.obs["state"][whole]},
        next_obs={"state": rows.next_obs["state"][whole]},
        **{
            name: getattr(rows, name)[whole]
            for name in ("action", "reward", "discount", "terminated", "truncated", "intervened", "mask")
        },
    )
    value = values_of(naive, 8)
    assert np.isnan(value[[5, 6]]).all()  # never trained
    assert value[4] == 1.0
    assert value[3] == 0.0  # bootstraps from s_6
    assert value[[0, 1, 2]].tolist() == [0.0, 1.0, 0.0]  # only starts congruent to 7 modulo 3 hear of the reward


def test_windows_never_straddle_the_seam_of_the_ring() -> None:
    buffer = ReplayBuffer(IO, 10, gamma=1.0, window=4, seed=0)
    for _ in range(3):
        buffer.add_episode(chain(7))  # 21 rows into 10
    rows = chunk_rows(buffer.sample(300))
    first, after, k = rows.obs["state"][:, 0], rows.next_obs["state"][:, 0], rows.mask.sum(1)
    assert torch.equal(after - first, k.float())


def test_partial_chunk_at_the_newest_row_bootstraps_there() -> None:
    buffer = ReplayBuffer(IO, 32, gamma=0.5, window=3, seed=0)
    state = [{"state": np.array([[float(i)]], np.float32)} for i in range(4)]
    no, yes, action = np.zeros(1, bool), np.ones(1, bool), np.zeros((1, 1), np.float32)
    for i in range(3):
        reward = np.ones(1, np.float32)
        buffer.add(Step(state[i], action, reward, state[i + 1], no, no, state[i + 1], yes, no, action))
    rows = chunk_rows(buffer.sample(50))
    at = {int(s): i for i, s in enumerate(rows.obs["state"][:, 0])}
    assert rows.reward[[at[0], at[1], at[2]]].tolist() == [1.75, 1.5, 1.0]
    assert rows.discount[[at[0], at[1], at[2]]].tolist() == [0.125, 0.25, 0.5]


def test_single_steps_are_refused() -> None:
    buffer = ReplayBuffer(IO, 16)
    buffer.add_episode(chain(4))
    with pytest.raises(ValueError, match=r"expected \(B, H\)"):
        chunk_rows(buffer.sample(2))


def test_critic_input_tells_holding_zero_from_ending() -> None:
    action = torch.zeros(2, 3, 2)
    code = critic_action(action, torch.tensor([[True, True, True], [True, False, False]]))
    assert code.shape == (2, critic_width(3, 2))
    assert not torch.equal(code[0], code[1])
    torch.testing.assert_close(critic_action(action)[0], code[0])


@pytest.mark.parametrize(
    ("terminated", "unit", "expected"),
    [
        (True, "tick", [2.931953, 2.5384, 1.0]),
        (True, "decision", [3.540478, 2.668, 1.0]),
        (False, "tick", [3.628523, 4.40464, 4.6]),
        (False, "decision", [4.900967, 5.0008, 4.6]),
    ],
)
def test_turn_gae_golden(terminated: bool, unit: str, expected: list[float]) -> None:
    """gamma .9, lambda .8, chunks [1, 0, 2], [0, 1], [3], V = 1, .5, 2; cut: V(final) = 4."""
    step = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0], [3.0, 0.0, 0.0]], dtype=torch.float64)
    reward = (step * 0.9 ** torch.arange(3)).sum(1)
    assert reward.tolist() == pytest.approx([2.62, 0.9, 3.0])
    end = torch.tensor([False, False, True])
    advantage, _ = rollout_gae(
        RolloutRows(
            reward,
            torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64),
            torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64),
            end & terminated,
            end,
            duration=torch.tensor([3, 2, 1], dtype=torch.int32),
        ),
        gamma=0.9,
        gae_lambda=0.8,
        lambda_unit=unit,
    )
    assert advantage.tolist() == pytest.approx(expected, abs=1e-5)


def test_ensemble_weights_golden() -> None:
    assert ensemble_weights(2) == pytest.approx([0.5025, 0.4975], abs=1e-4)
    assert ensemble_weights(4) == pytest.approx([0.253762, 0.251237, 0.248738, 0.246263], abs=1e-6)
    assert ensemble_weights(2, oldest_first=False) == pytest.approx([0.4975, 0.5025], abs=1e-4)


def test_guidance_weights_golden() -> None:
    linear = [1, 1, 0.8, 0.6, 0.4, 0.2, 0, 0, 0, 0]
    assert guidance_weights(2, 6, 10, "linear").tolist() == pytest.approx(linear)
    exp = [1, 1, 0.570589, 0.287072, 0.114492, 0.025770, 0, 0, 0, 0]
    assert guidance_weights(2, 6, 10, "exp").tolist() == pytest.approx(exp, abs=1e-6)
    assert guidance_weights(2, 6, 10, "zeros").tolist() == [1, 1, *[0] * 8]
    assert guidance_weights(2, 6, 10, "ones").tolist() == [*[1] * 6, *[0] * 4]
    assert guidance_weights(8, 6, 10, "linear").tolist() == [1] * 6 + [0] * 4  # start is capped at the end


def test_guided_flow_follows_the_running_chunk_where_it_is_held() -> None:
    """v = a - x with x1 = x + (1 - t)(a - x): a flow to the point a; the held entries go to the running chunk."""
    free = torch.full((1, 4, 1), 0.5)
    previous = torch.full((1, 4, 1), -0.5)
    noise = torch.randn(1, 4, 1, generator=torch.Generator().manual_seed(0))

    def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (free - x) / (1.0 - t.view(-1, 1, 1)).clamp_min(0.1) + 0.0 * x

    plain = guided_flow(velocity, noise, previous, torch.zeros(4))
    torch.testing.assert_close(plain, free, atol=1e-4, rtol=0)
    soft = guided_flow(lambda x, t: free - noise, noise, previous, torch.tensor([1.0, 1.0, 0.0, 0.0]), steps=20)
    assert (soft[0, :2] - previous[0, :2]).abs().max() < 0.05
    torch.testing.assert_close(soft[0, 2:], free[0, 2:], atol=1e-4, rtol=0)


def play(
    execution: Execution, chunks: list[list[float]], ticks: int, ages: dict[int, int] | None = None
) -> tuple[list[float], list[int]]:
    """Actions of one row, and at which ticks a chunk was asked for; `ages`: ask number -> ticks that it comes late."""
    execution.reset_all(1)
    rows, asked, waiting, out = np.ones(1, bool), [], [], []
    for tick in range(ticks):
        for entry in [w for w in waiting if w[0] == tick]:
            execution.offer(rows, np.array(entry[1], np.float32)[None, :, None], age=tick - entry[2])
            waiting.remove(entry)
        if execution.due().any():
            chunk, late = chunks[len(asked)], (ages or {}).get(len(asked), 0)
            asked.append(tick)
            if late:
                execution.mark_pending(rows)
                waiting.append((tick + late, chunk, tick))
            else:
                execution.offer(rows, np.array(chunk, np.float32)[None, :, None])
        out.append(float(execution.take()[0][0, 0]))
    return out, asked


A, B, C = [0.0, 0.1, 0.2, 0.3], [1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3]


def test_open_loop_plays_whole_chunks() -> None:
    out, asked = play(Execution(Horizons(4, 4, 4), 1), [A, B], 8)
    assert out == pytest.approx(A + B)
    assert asked == [0, 4]


def test_receding_horizon_asks_every_k() -> None:
    out, asked = play(Execution(Horizons(4, 2, 2), 1, mode="receding"), [A, B, C], 6)
    assert out == pytest.approx(A[:2] + B[:2] + C[:2])
    assert asked == [0, 2, 4]


def test_hold_repeats_the_first_action() -> None:
    out, _ = play(Execution(Horizons(4, 3, 3), 1, mode="hold"), [A, B], 6)
    assert out == pytest.approx([0.0] * 3 + [1.0] * 3)


def test_ensemble_counts_a_prediction_of_exactly_zero() -> None:
    """The reference code takes all-nonzero for valid and so drops predictions with an exact zero."""
    zero = [0.5, 0.0, 0.0, 0.0]
    out, asked = play(Execution(Horizons(4, 1, 1), 1, mode="ensemble", decay=0.0), [zero, B], 2)
    assert asked == [0, 1]
    assert out[1] == pytest.approx((0.0 + 1.0) / 2)  # the naive form answers 1.0


@pytest.mark.parametrize("oldest", [True, False])
def test_ensemble_order(oldest: bool) -> None:
    out, _ = play(Execution(Horizons(4, 1, 1), 1, mode="ensemble", decay=0.5, oldest_first=oldest), [A, B, C], 3)
    weight = np.exp(-0.5 * np.arange(3))[:: 1 if oldest else -1]
    assert out[2] == pytest.approx(float((weight * [A[2], B[1], C[0]]).sum() / weight.sum()))


def test_realtime_takes_over_after_the_delay() -> None:
    six = [[100.0 * j + i for i in range(6)] for j in range(3)]
    out, asked = play(Execution(Horizons(6, 3, 3), 1, mode="realtime", delay=2), six, 8)
    assert asked == [0, 3, 6]
    # the old chunk's entries 3 and 4 run while the second is computed; then its entries from index 2 on
    assert out == pytest.approx([0, 1, 2, 3, 4, 102, 103, 104])


def test_realtime_refuses_a_delay_that_the_chunk_cannot_cover() -> None:
    with pytest.raises(ValueError, match="would end before"):
        Execution(Horizons(4, 3, 3), 1, mode="realtime", delay=2)


def test_late_chunk_is_joined_where_time_has_got_to() -> None:
    out, asked = play(Execution(Horizons(4, 2, 2), 1, mode="receding"), [A, B, C], 6, {1: 1})
    assert asked == [0, 2, 4]
    assert out == pytest.approx([0.0, 0.1, 0.2, 1.1, 2.0, 2.1])  # A goes on for a tick, then B's second entry


def test_missing_chunk_repeats_the_last_action_and_says_so() -> None:
    execution = Execution(Horizons(2, 2, 2), 1)
    out, _ = play(execution, [A[:2], B[:2], C[:2]], 5, {1: 9, 2: 9})
    assert out == pytest.approx([0.0, 0.1, 0.1, 0.1, 0.1])
    assert execution.underruns == 3


def test_blend_joins_chunks_without_a_jump() -> None:
    """Late and missing decisions on a ramp whose chunks disagree by 0.5: the border's jerk falls by the fade."""
    chunks = [[0.01 * (4 * j + i) + 0.5 * (j % 2) for i in range(8)] for j in range(8)]
    jerk = {}
    for blend in (0, 3):
        execution = Execution(Horizons(8, 4, 4), 1, mode="receding", blend=blend)
        out, _ = play(execution, chunks, 28, {1: 1, 3: 2, 4: 1})
        jerk[blend] = float(np.abs(np.diff(out)).max())
    assert jerk[0] > 0.49
    assert jerk[3] < 0.2


def test_reset_forgets_one_row_only() -> None:
    execution = Execution(Horizons(4, 4, 4), 1)
    execution.reset_all(2)
    execution.offer(np.ones(2, bool), np.array([A, B], np.float32)[..., None])
    execution.take()
    execution.reset(np.array([True, False]))
    assert execution.due().tolist() == [True, False]
    assert execution.last[:, 0].tolist() == [0.0, 1.0]
    execution.offer(np.array([True, False]), np.array([C], np.float32)[..., None])
    assert execution.take()[0][:, 0].tolist() == pytest.approx([2.0, 1.1])


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"mode": "best"},
        {"mode": "receding", "delay": 1},
        {"blend": -1},
        {"mode": "realtime", "delay": 9},
    ]
    for options in wrong:
        with pytest.raises(ValueError, match=r"mode|delay|blend"):
            Execution(Horizons(8, 4, 4) if options.get("mode") else Horizons(8, 8, 8), 1, **options)
    with pytest.raises(ValueError, match="use mode 'receding'"):
        Execution(Horizons(4, 2, 2), 1)
    with pytest.raises(ValueError, match=r"expected \(1, 4, 1\)"):
        play(Execution(Horizons(4, 4, 4), 1), [[0.0] * 3], 1)


class Count:
    """Chunks 0.1 n, 0.1 n + 0.01, ... with n the number of the call; stops after `stop` steps where given."""

    def __init__(self, horizon: int, stop: int | None = None) -> None:
        self.horizon, self.stop, self.calls, self.seen = horizon, stop, 0, []

    def plan(self, obs: Any, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        n = len(obs["state"])
        self.seen.append((obs["state"][:, 0].tolist(), context["last"][:, 0].tolist()))
        chunk = np.tile(0.1 * self.calls + 0.01 * np.arange(self.horizon), (n, 1))[..., None]
        self.calls += 1
        stop = None if self.stop is None else np.tile(np.arange(self.horizon) == self.stop - 1, (n, 1)).astype(float)
        return Plan(chunk, np.full(n, float(self.calls)), stop)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        pass


def run(policy: ChunkedPolicy, ticks: int) -> tuple[list[float], list[bool]]:
    out = [policy.act({"state": np.full((1, 1), float(t), np.float32)}, deterministic=True) for t in range(ticks)]
    return [float(a.value[0, 0]) for a in out], [bool(a.extras["chunk_start"][0]) for a in out]


def test_chunked_policy_hands_over_the_last_executed_action() -> None:
    planner = Count(3)
    values, starts = run(ChunkedPolicy(IO, planner, Execution(Horizons(3, 3, 3), 1)), 4)
    assert values == pytest.approx([0.0, 0.01, 0.02, 0.1])
    assert starts == [True, False, False, True]
    assert planner.seen[1] == ([3.0], [pytest.approx(0.02)])  # zeros after a reset, the executed action later


def test_learned_stop_shortens_the_chunk() -> None:
    planner = Count(4, stop=2)
    values, starts = run(ChunkedPolicy(IO, planner, Execution(Horizons(4, 4, 4), 1, mode="stop")), 4)
    assert starts == [True, False, True, False]
    assert values == pytest.approx([0.0, 0.01, 0.1, 0.11])


def test_draws_of_a_learned_stop_go_on_where_they_were_saved() -> None:
    class Even(Count):
        """Asks to stop with probability a half after each step."""

        def plan(self, obs: Any, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
            plan = super().plan(obs, deterministic=deterministic, context=context)
            return Plan(plan.chunk, stop=np.full((len(obs["state"]), self.horizon), 0.5))

    one, other = (ChunkedPolicy(IO, Even(8), Execution(Horizons(8, 8, 8), 1, mode="stop")) for _ in range(2))

    def starts(policy: ChunkedPolicy) -> list[bool]:
        state = {"state": np.zeros((1, 1), np.float32)}
        return [bool(policy.act(state).extras["chunk_start"][0]) for _ in range(40)]

    starts(one)
    other.recall(one.memory())
    assert starts(one) == starts(other)


def test_tensors_are_answered_with_tensors_and_logp() -> None:
    policy = ChunkedPolicy(IO, Count(2), Execution(Horizons(2, 2, 2), 1))
    action = policy.act({"state": torch.zeros(3, 1)})
    assert isinstance(action.value, torch.Tensor)
    assert action.logp is not None
    assert action.logp.tolist() == [1.0] * 3


def test_held_policy_is_the_hold_baseline() -> None:
    class Echo:
        io = IO

        parts = PolicyParts()

        def reset(self, rows: Any = None) -> None: ...

        def act(self, obs: Any, *, deterministic: bool = False) -> Action:
            return Action(obs["state"] * 0.1)

    policy = ChunkedPolicy(IO, Held(Echo(), 2), Execution(Horizons(2, 2, 2), 1, mode="hold"))
    assert run(policy, 4)[0] == pytest.approx([0.0, 0.0, 0.2, 0.2])


def test_slow_planner_delays_no_tick() -> None:
    import threading

    gate = threading.Event()
    gate.set()

    class Slow(Count):
        def plan(self, obs: Any, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
            gate.wait(5.0)
            return super().plan(obs, deterministic=deterministic, context=context)

    policy = ChunkedPolicy(IO, Slow(4), Execution(Horizons(4, 2, 2), 1, mode="receding"), patience=0.01)
    first, _ = run(policy, 2)
    gate.clear()
    during, _ = run(policy, 1)  # asks in vain; the first chunk goes on
    pending = policy._pending
    assert pending is not None
    gate.set()
    pending[0].result(5.0)
    after, starts = run(policy, 1)
    assert first + during == pytest.approx([0.0, 0.01, 0.02])
    assert after == pytest.approx([0.11])  # the second chunk's second entry: it was made one tick ago
    assert starts == [True]


def test_quick_planner_is_played_as_without_a_thread() -> None:
    found = []
    for patience in (None, 5.0):
        policy = ChunkedPolicy(IO, Count(4), Execution(Horizons(4, 2, 2), 1, mode="receding"), patience=patience)
        found.append(run(policy, 7))
    assert found[0] == found[1]


def test_chunks_under_way_continue_exactly_after_a_resume() -> None:
    policy = ChunkedPolicy(IO, Count(4), Execution(Horizons(4, 4, 4), 1))
    run(policy, 2)
    other = ChunkedPolicy(IO, Count(4), Execution(Horizons(4, 4, 4), 1))
    other.recall(policy.memory())
    assert run(other, 2)[0] == run(policy, 2)[0] == pytest.approx([0.02, 0.03])


def test_meter_tells_borders_from_insides() -> None:
    meter = ChunkMeter()
    track = [0.0, 0.1, 0.25, 0.4, 1.0, 1.1, 1.25, 1.4]
    for i, a in enumerate(track):
        meter.tick(np.array([[a]]), np.array([i % 4 == 0]))
    bend = np.abs(np.diff(track, 2))  # entry i belongs to tick i + 2
    inside, border = bend[[0, 1, 4, 5]].mean(), bend[[2, 3]].mean()
    meter.count_decision(1, 0.002)
    meter.count_decision(1, 0.004)
    found = meter.metrics(episodes=1)
    assert found["border_jerk"] == pytest.approx(border / inside)
    assert found["decisions"] == 2.0
    assert found["latency_ms"] == pytest.approx(3.0)
