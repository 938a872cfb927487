import numpy as np
import pytest

from robot_rl.sim.draw import Streams


def splitmix64(x: int) -> int:
    """The published finaliser on Python integers."""
    mask = 2**64 - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_bits_follow_splitmix64_of_key_and_position():
    streams = Streams(2, 3)
    key = int(streams.key[1])
    bits = streams.bits(np.array([1]), 3)
    expected = [splitmix64((key + k * 0x9E3779B97F4A7C15) % 2**64) for k in (1, 2, 3)]
    assert bits.tolist() == [expected]


def test_stream_of_an_environment_does_not_depend_on_how_many_there_are():
    few, many = Streams(2, 7), Streams(9, 7)
    assert np.array_equal(few.draw().uniform(4), many.draw(np.array([0, 1])).uniform(4))


def test_drawing_for_some_rows_leaves_the_others_alone():
    plain, disturbed = Streams(3, 0), Streams(3, 0)
    disturbed.draw(np.array([1])).normal(5)
    a, b = plain.draw().uniform(2), disturbed.draw().uniform(2)
    assert np.array_equal(a[[0, 2]], b[[0, 2]])
    assert not np.array_equal(a[1], b[1])


def test_seeds_and_purposes_and_environments_give_different_numbers():
    numbers = np.concatenate([Streams(4, seed, purpose).draw().uniform(8) for seed in range(3) for purpose in range(2)])
    assert len(np.unique(numbers)) > 0.99 * numbers.size


def test_seed_per_environment_decides_its_stream_alone():
    a, b = Streams(3, [5, 6, 7]), Streams(2, [6, 5])
    assert np.array_equal(a.draw().uniform(3)[[1, 0]], b.draw().uniform(3))
    with pytest.raises(ValueError, match="3 entries, expected 2"):
        Streams(2, [1, 2, 3])


def test_uniform_moments_and_half_open_interval():
    value = Streams(100, 1).draw().uniform(2000, low=-1.0, high=3.0)
    # mean 1, variance (3 + 1)^2 / 12 = 4/3; standard error of the mean of 200000 numbers is 0.0026
    assert value.dtype == np.float32
    assert abs(value.mean() - 1.0) < 0.012
    assert abs(value.var() - 4 / 3) < 0.02
    assert value.min() >= -1.0
    assert value.max() < 3.0


def test_uniform_limits_broadcast_and_a_point_interval_is_the_point():
    value = Streams(4, 1).draw().uniform(2, low=[0.0, 5.0], high=[1.0, 5.0])
    assert value.shape == (4, 2)
    assert (value[:, 1] == 5.0).all()


def test_normal_moments_and_shapes():
    draw = Streams(100, 2).draw()
    value = draw.normal(2000, std=2.0)
    assert abs(value.mean()) < 0.02
    assert abs(value.std() - 2.0) < 0.02
    # a normal variable exceeds two standard deviations in 4.55 % of the cases
    assert abs((np.abs(value) > 4.0).mean() - 0.0455) < 0.003
    assert draw.normal().shape == (100,)
    assert draw.normal(2, 3).shape == (100, 2, 3)


def test_state_dict_continues_the_stream():
    streams = Streams(3, 0)
    streams.draw().normal(4)
    saved = streams.state_dict()
    expected = streams.draw().uniform(5)
    other = Streams(3, 99)
    other.load_state_dict(saved)
    assert np.array_equal(other.draw().uniform(5), expected)
