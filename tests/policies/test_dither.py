"""What a policy keeps of its noise where it acts alone."""

import numpy as np

from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.types import IOSpec

IO = IOSpec({"state": ((3,), "float32")}, ("a", "b"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0)
OBS = {"state": np.zeros((20_000, 3), np.float32)}


def policy(share):
    return ImitationSac(ImitationSacOptions(hidden=(16, 16), bc_steps=0, dither=share), IO, seed=0).policy


def width(values):
    return np.arctanh(np.clip(values, -0.999999, 0.999999)).std(0)


def test_alone_it_acts_with_its_share_of_the_noise():
    own = policy(0.5)
    free, alone = (width(own.act(OBS, deterministic=alone).value) for alone in (False, True))
    np.testing.assert_allclose(alone, 0.5 * free, rtol=0.03)
    still = policy(0.0)
    assert np.ptp(still.act(OBS, deterministic=True).value, axis=0).max() == 0.0
    own.parts.set_dither(0.0)  # as export does: a graph acts by the mean
    assert np.array_equal(own.act(OBS, deterministic=True).value, still.act(OBS, deterministic=True).value)


def test_trials_leave_the_noise_of_training_as_it_is():
    tried, untried = policy(0.5), policy(0.5)
    tried.act(OBS, deterministic=True)
    assert np.array_equal(tried.act(OBS).value, untried.act(OBS).value)


def test_trials_go_on_from_what_was_saved():
    own, other = policy(0.5), policy(0.5)
    own.act(OBS, deterministic=True)
    other.load_state_dict(own.state_dict())
    assert np.array_equal(own.act(OBS, deterministic=True).value, other.act(OBS, deterministic=True).value)
