"""The acting half of SAC."""

import io as stdio
from dataclasses import replace

import numpy as np
import pytest
import torch

from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.types import IOSpec, Policy, Transitions


def sac(io, *, seed=0, **options):
    return Sac(SacOptions(**options), io, seed=seed)


def spec(image=None):
    obs = {"state": ((5,), "float32")}
    if image:
        obs["image.front"] = (image, "uint8")
    return IOSpec(obs, ("x", "y"), (-1.0, -1.0), (1.0, 1.0), ("m", "m"), 20.0)


def learn(learner, io, updates=3):
    off = torch.zeros(8, dtype=torch.bool)

    def obs():
        found = {"state": torch.randn(8, 5) * 3 + 2}
        if "image.front" in io.obs:
            found["image.front"] = torch.randint(0, 256, (8, 16, 16, 3), dtype=torch.uint8)
        return found

    for _ in range(updates):
        row = Transitions(obs(), torch.rand(8, 2), torch.randn(8), torch.full((8,), 0.9), obs(), off, off, off, ~off)
        learner.update(iter([row]))


@pytest.mark.parametrize("options", [{}, {"normalize_obs": True}, {"actor_layer_norm": True}, {"kernel": "autograd"}])
@pytest.mark.parametrize("rows", [1, 7])
def test_numpy_and_torch_answers_agree_after_learning(options, rows):
    io = spec()
    learner = sac(io, hidden=(32, 32), lr=1e-2, **options)
    learn(learner, io)
    state = np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)
    array = learner.policy.act({"state": state}, deterministic=True).value
    tensor = learner.policy.act({"state": torch.from_numpy(state)}, deterministic=True).value
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float32
    assert array.shape == (rows, 2)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_samples_spread_around_the_mean_and_stay_inside(kind):
    learner = sac(spec(), hidden=(16, 16))
    obs = {"state": kind(np.zeros((4000, 5), np.float32))}
    actions = np.asarray(learner.policy.act(obs).value)
    centre = np.asarray(learner.policy.act(obs, deterministic=True).value)[0]
    assert actions.std(0).min() > 0.3  # std is about e^0 before squashing
    assert np.abs(actions).max() <= 1.0
    assert np.abs(np.median(actions, 0) - centre).max() < 0.1  # tanh keeps medians


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("rows", [1, 7])
def test_doubles_are_answered_as_floats(normalize, rows):
    state = np.random.default_rng(0).standard_normal((rows, 5))
    policies = sac(spec(), normalize_obs=normalize).policy, Ppo(PpoOptions(normalize_obs=normalize), spec()).policy
    for policy in policies:
        value = policy.act({"state": state}, deterministic=True).value
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, policy.act({"state": state.astype(np.float32)}, deterministic=True).value)


def test_policy_state_is_tensors_alone_and_loads_into_another():
    io = spec()
    learner = sac(io, hidden=(16, 16), normalize_obs=True)
    learn(learner, io)
    file = stdio.BytesIO()
    torch.save(learner.policy.state_dict(), file)
    file.seek(0)
    other = sac(io, hidden=(16, 16), normalize_obs=True, seed=5)
    other.policy.load_state_dict(torch.load(file, weights_only=True))
    obs = {"state": np.ones((1, 5), np.float32)}
    for deterministic in (True, False):
        one = learner.policy.act(obs, deterministic=deterministic).value
        np.testing.assert_array_equal(one, other.policy.act(obs, deterministic=deterministic).value)
    with pytest.raises(ValueError, match="build it with the sizes"):
        sac(io, hidden=(8, 8), normalize_obs=True).policy.load_state_dict(other.policy.state_dict())
    with pytest.raises(ValueError, match="has normalizer besides"):
        sac(io, hidden=(16, 16)).policy.load_state_dict(other.policy.state_dict())


def test_image_policy_follows_the_encoder_of_the_learner():
    io = spec(image=(16, 16, 3))
    learner = sac(io, hidden=(16, 16), encoder_channels=(4, 4), encoder_strides=(2, 2), latent=6, lr=1e-2)
    obs = {
        "state": np.zeros((2, 5), np.float32),
        "image.front": np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8),
    }
    before = learner.policy.act(obs, deterministic=True).value
    learn(learner, io)
    after = learner.policy.act(obs, deterministic=True).value
    assert isinstance(after, np.ndarray)
    assert not np.array_equal(before, after)
    own = learner.policy.state_dict()["encoder"]
    assert torch.equal(own, learner.encoders[0].params.flat)


def test_policy_meets_the_contract():
    policy = sac(spec(), hidden=(8, 8)).policy
    assert isinstance(policy, Policy)
    policy.reset()
    policy.reset(np.array([True]))


@pytest.mark.parametrize(
    ("names", "standardised"),
    [(tuple(f"observation[{i}]" for i in range(5)), True), (tuple("vwxyz"), False), ((), True)],
)
def test_states_without_names_are_standardised_by_auto(names, standardised):
    io = replace(spec(), obs_names=names)
    learner = sac(io, hidden=(8, 8), normalize_obs="auto")
    assert ("normalizer" in learner.policy.state_dict()) == standardised
    assert ("standardised" in learner.notes[0]) == standardised
    with pytest.raises(ValueError, match="normalize_obs"):
        sac(io, normalize_obs="yes")
