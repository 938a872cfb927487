import numpy as np
import pytest

from robot_rl.real.core.chunk_player import ChunkPlayer, knot_velocities, play_velocity

DT = 0.01


def player(q=0.0, v=None, joints=1):
    play = ChunkPlayer(joints, period=DT)
    play.reseed(0.0, np.full(joints, q), None if v is None else np.full(joints, v))
    return play


def test_single_knot_is_the_hand_worked_quintic():
    # rest at 0, splice at 0.01, knot 1 at 1.01: h = 1, end velocity 1, end acceleration 0.
    # gap = 1, speed = 1: c3 = 10 - 4 = 6, c4 = -15 + 7 = -8, c5 = 6 - 3 = 3
    play = player()
    assert play.offer(0.0, np.array([1.01]), np.array([[1.0]])) == ""
    middle = play.at(0.51)  # s = 0.5: 6/8 - 8/16 + 3/32 = 0.34375; 18/4 - 32/8 + 15/16 = 1.4375
    assert middle.position[0] == pytest.approx(0.34375)
    assert middle.velocity[0] == pytest.approx(1.4375)
    end = play.at(1.01)
    assert (end.position[0], end.velocity[0]) == pytest.approx((1.0, 1.0))
    assert end.acceleration[0] == pytest.approx(0.0, abs=1e-9)


def test_knot_velocities_hand_worked():
    # knots 0, 1, 0 one second apart, first slope 0: v1 + 2 v2... rows: v0 = 0; v0 + 4 v1 + v2 = 3 (1 - 1) = 0;
    # v1 + 2 v2 = -3. So v2 = -4 v1 and v1 - 8 v1 = -3: v1 = 3/7, v2 = -12/7
    slopes = knot_velocities(np.arange(3.0), np.array([[0.0], [1.0], [0.0]]), np.zeros(1))
    assert slopes[:, 0] == pytest.approx([0.0, 3 / 7, -12 / 7])


def test_positions_pass_through_the_knots():
    play, times = player(), np.array([0.1, 0.2, 0.35, 0.5])
    knots = np.array([[0.1], [0.3], [0.2], [0.0]])
    assert play.offer(0.0, times, knots) == ""
    assert [play.at(t).position[0] for t in times] == pytest.approx(knots[:, 0])


@pytest.mark.parametrize("seed", range(12))
def test_random_chunks_and_delays_are_continuous_at_every_border(seed):
    rng = np.random.default_rng(seed)
    play, now, offers = player(joints=3), 0.0, 0
    worst = np.zeros(3)
    for _ in range(60):
        now += DT * rng.integers(1, 6)
        before_knots = [piece.end for piece in play._pieces]
        n = rng.integers(1, 9)
        times = now - rng.uniform(0, 0.1) + 0.05 * np.arange(1, n + 1) + 0.05
        old = play.at(now + DT) if before_knots and before_knots[-1] > now + DT else None
        if play.offer(now, times, rng.normal(size=(n, 3))) == "":
            offers += 1
            new = play.at(now + DT)
            if old is not None:  # the splice: old and new motion agree in all three
                gap = [np.abs(getattr(old, key) - getattr(new, key)).max() for key in ("position", "velocity")]
                gap.append(np.abs(old.acceleration - new.acceleration).max())
                worst = np.maximum(worst, gap)
        for left, right in zip(play._pieces[:-1], play._pieces[1:]):  # and every border inside
            gap = [np.abs(a - b).max() for a, b in zip(left.at(right.start), right.at(right.start))]
            worst = np.maximum(worst, gap)
    assert offers > 20
    assert worst[0] <= 1e-9
    assert worst[1] <= 1e-9
    assert worst[2] <= 1e-6


def test_late_knots_are_dropped_and_a_late_chunk_is_rejected():
    play = player()
    assert play.offer(0.5, np.array([0.1, 0.5]), np.array([[1.0], [2.0]])) == "chunk too late"
    assert play.at(0.6).underrun
    assert play.offer(0.5, np.array([0.4, 0.7]), np.array([[9.0], [0.2]])) == ""
    assert play.at(0.7).position[0] == pytest.approx(0.2)
    assert max(play.at(t).position[0] for t in (0.7,)) < 1.0


def test_rejected_chunk_leaves_the_running_one():
    play = player()
    play.offer(0.0, np.array([0.5, 1.0]), np.array([[0.5], [1.0]]))
    good = play.at(0.3)
    for times, knots in (
        ([0.4, 0.4], [[1.0], [1.0]]),
        ([0.5, 0.4], [[1.0], [1.0]]),
        ([0.5, 0.6], [[np.nan], [1.0]]),
        ([0.5, 6.0], [[1.0], [1.0]]),
        ([0.5], [[1.0, 2.0]]),
        ([], np.zeros((0, 1))),
        ([0.1, 0.2], [[5.0], [5.0]]),
    ):
        assert play.offer(0.29, np.array(times), np.array(knots)) != ""
    assert play.at(0.3).position == pytest.approx(good.position)


def test_underrun_is_told_and_reseed_continues_from_the_executed_command():
    play = player()
    play.offer(0.0, np.array([0.2]), np.array([[0.1]]))
    assert not play.at(0.2).underrun
    assert play.at(0.21).underrun
    play.reseed(0.21, np.array([0.105]), np.array([0.4]))
    assert play.offer(0.21, np.array([0.5]), np.array([[0.2]])) == ""
    start = play.at(0.21)
    assert (start.position[0], start.velocity[0]) == pytest.approx((0.105, 0.4))


def test_without_seed_nothing_plays():
    play = ChunkPlayer(1, period=DT)
    assert play.offer(0.0, np.array([0.5]), np.array([[1.0]])) == "no seed"
    with pytest.raises(RuntimeError, match="reseed"):
        play.at(0.0)


def test_velocity_chunk_is_linear_and_zero_after_the_end():
    times, knots = np.array([1.0, 2.0]), np.array([[0.0], [4.0]])
    assert [play_velocity(t, times, knots)[0] for t in (0.5, 1.25, 2.0, 2.01)] == [0.0, 1.0, 4.0, 0.0]


def test_37_border_jerk_of_smooth_chunks_is_that_of_their_inside():
    # chunks of a smooth path, each computed 0.1 s ago, replace one another every 0.25 s: the border may not kick
    player = ChunkPlayer(1, period=0.01, horizon=5.0)
    player.reseed(0.0, np.zeros(1))
    acceleration = []
    for k in range(1500):
        t = 0.01 * k
        if k % 25 == 0:
            times = t - 0.1 + 0.05 * np.arange(1, 11)
            assert player.offer(t, times, 0.3 * (1.0 - np.cos(1.5 * times))[:, None]) == ""
        acceleration.append(player.at(t).acceleration[0])
    jerk = np.abs(np.diff(acceleration)) / 0.01
    near = np.zeros(len(jerk), bool)
    for border in range(100, len(jerk), 25):
        near[border : border + 3] = True
    inside = ~near
    inside[:100] = False
    assert np.percentile(jerk[near], 99) < np.percentile(jerk[inside], 99) < 100.0
