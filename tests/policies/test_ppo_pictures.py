"""PPO on pictures: the encoder learns, bytes stay bytes, actions hang on what is seen, a saved learner goes on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from robot_rl.loops.episodes import EpisodeStats
from robot_rl.loops.on_policy import RolloutStorage, collect, train_on_policy
from robot_rl.loops.stepping import Stepper
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.image import EncoderShape, ImageEncoder
from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.policies.online.ppo_async import PpoAsync, PpoAsyncOptions
from robot_rl.policies.online.ppo_chunk import PpoChunk, PpoChunkOptions
from robot_rl.policies.online.recurrent_ppo import RecurrentPpo, RecurrentPpoOptions
from robot_rl.types import EnvParts, IOSpec
from robot_rl.types.io import PRIVILEGED

KEY, SHAPE = "image.front", (12, 14, 3)
SMALL = {
    "encoder_channels": (4, 4), "encoder_strides": (2, 2), "latent": 6, "hidden": (16,), "rollout_steps": 16,
    "minibatch": 16, "epochs": 4,
}  # fmt: skip


def make_io(*, state=True, choices=0, privileged=False):
    obs = {KEY: (SHAPE, "uint8"), **({"state": ((2,), "float32")} if state else {})}
    obs |= {PRIVILEGED: ((3,), "float32")} if privileged else {}
    low, high = ((0.0,), (choices - 1.0,)) if choices else ((-1.0,), (1.0,))
    return IOSpec(
        obs=obs,
        action_names=("a",),
        action_low=low,
        action_high=high,
        action_units=("1",),
        control_hz=10.0,
        action_choices=(choices,) if choices else (),
    )


def make(io, **options):
    return Ppo(PpoOptions.model_validate({**SMALL, **options}), io)


class Lamp(VectorEnv):
    """Each episode is one step: the left or the right half of the picture is lit, +1 or -1 is worth 1, 0 nothing."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    parts = EnvParts()

    def __init__(self, io, num_envs=16):
        self.io, self.num_envs = io, num_envs
        self._rng = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        self._rng = np.random.default_rng(seed)
        return self._show(), {}

    def step(self, actions):
        reward = (actions[:, 0] * (1.0 - 2.0 * self._right)).astype(np.float32)
        final, over = self._seen, np.ones(self.num_envs, bool)
        return self._show(), reward, over, ~over, {"final_obs": final}

    def _show(self):
        self._right = self._rng.random(self.num_envs) < 0.5
        picture = np.zeros((self.num_envs, *SHAPE), np.uint8)
        half = SHAPE[1] // 2
        picture[~self._right, :, :half] = 200
        picture[self._right, :, half:] = 200
        made = {KEY: picture, "state": np.zeros((self.num_envs, 2), np.float32)}
        made[PRIVILEGED] = np.repeat(self._right[:, None], 3, 1).astype(np.float32)
        self._seen = {key: made[key] for key in self.io.obs}
        return self._seen


def lit(left=True, rows=1):
    picture = np.zeros((rows, *SHAPE), np.uint8)
    half = SHAPE[1] // 2
    picture[:, :, slice(0, half) if left else slice(half, None)] = 200
    return {KEY: picture, "state": np.zeros((rows, 2), np.float32)}


def filled(learner, io):
    """A rollout of the world."""
    stepper, storage = Stepper(Lamp(io)), RolloutStorage(learner.need.rollout_steps)
    stepper.reset(0)
    collect(stepper, learner.policy, storage, EpisodeStats(16, choices=bool(io.action_choices)))
    return storage.rollout(learner)


@pytest.mark.parametrize(
    "io", [make_io(state=False, choices=2), make_io(privileged=True)], ids=["choices", "numbers and privileged"]
)
def test_ppo_reads_a_picture_that_tells_the_action(io):
    learner = make(io, lr=1e-2)
    kernel = f"encoder.{KEY}.conv0"
    before = learner.policy.state_dict()[kernel]
    train_on_policy(Lamp(io), learner, total_steps=16 * 16 * 8)
    assert not torch.equal(before, learner.policy.state_dict()[kernel])
    left, right = (learner.policy.act(lit(side), deterministic=True).value[0, 0] for side in (True, False))
    assert left > 0.7
    assert right < -0.7


def test_ppo_pictures_of_a_rollout_stay_bytes_and_are_not_copied():
    io = make_io()
    learner = make(io)
    rollout = filled(learner, io)
    assert rollout.obs[KEY].dtype == torch.uint8
    assert "obs" in learner._rows(rollout)
    assert learner._shown[KEY].data_ptr() == rollout.obs[KEY].data_ptr()


def test_ppo_minibatches_read_their_own_pictures():
    io = make_io()
    learner = make(io, normalize_advantage=False)
    rollout = filled(learner, io)
    rows = learner._rows(rollout)
    part = torch.tensor([7, 3, 200])
    found = learner._outputs({name: x[part] for name, x in rows.items()})
    # the acting policy on the same rows, and the encoder of SAC on the same weights
    own = rows["row"][part]
    assert torch.equal(rollout.action.flatten(0, 1)[own], rows["action"][part])
    flat = {key: value.flatten(0, 1)[own] for key, value in rollout.obs.items()}
    seen = {key: x.numpy() for key, x in flat.items()}
    expected = learner.policy.act(seen, deterministic=True)
    assert found["mean"].detach().numpy() == pytest.approx(expected.extras["raw"], abs=1e-6)
    eye = EncoderShape({KEY: SHAPE}, (4, 4), (2, 2), 6)
    peer = ImageEncoder(eye, learner_params(eye, learner))
    assert learner.policy.read(seen)[:, :6] == pytest.approx(peer(flat).numpy(), abs=1e-6)


def learner_params(eye, learner):
    params = FlatParams(eye.shapes(), trainable=False)
    for name in eye.shapes():
        params.view[name].copy_(learner.policy.state_dict()[name])
    return params


@pytest.mark.parametrize("choices", [0, 3])
def test_ppo_sees_the_same_in_numpy_and_in_tensors_and_in_any_number_of_rows(choices):
    learner = make(make_io(choices=choices))
    rng = np.random.default_rng(0)
    obs = {KEY: rng.integers(0, 256, (600, *SHAPE), np.uint8), "state": rng.random((600, 2), np.float32)}
    whole = learner.policy.act(obs, deterministic=True).value
    tensors = learner.policy.act({key: torch.from_numpy(x) for key, x in obs.items()}, deterministic=True).value
    assert np.array_equal(whole, tensors.numpy())
    value = learner.value(obs).numpy()
    rows = [learner.value({key: x[i : i + 1] for key, x in obs.items()}).numpy()[0] for i in (0, 255, 256, 599)]
    assert value[[0, 255, 256, 599]] == pytest.approx(np.array(rows), abs=1e-5)


def test_ppo_with_pictures_saved_and_loaded_makes_the_same_next_update():
    io = make_io(privileged=True)
    first, second = make(io), make(io, lr=3e-4)
    rollout = filled(first, io)
    first.update(iter((rollout,)))
    state = first.state_dict()
    after = filled(first, io)
    second.load_state_dict(state)
    for learner in (first, second):
        learner.update(iter((after,)))
    assert all(torch.equal(x, second.policy.state_dict()[key]) for key, x in first.policy.state_dict().items())
    assert any(not torch.equal(x, state["policy"][key]) for key, x in first.policy.state_dict().items())


def test_ppo_policy_of_other_cameras_is_refused():
    with pytest.raises(ValueError, match="encoder"):
        make(make_io(), latent=7).policy.load_state_dict(make(make_io()).policy.state_dict())


def test_options_of_an_encoder_are_refused_where_nothing_is_shown():
    io = make_io()
    with pytest.raises(ValueError, match=r"latent: of the encoder of pictures, and here are none \(state\)"):
        Ppo(PpoOptions(latent=7), replace(io, obs={"state": io.obs["state"]}))
    Ppo(PpoOptions(), replace(io, obs={"state": io.obs["state"]}))


def test_ppo_gradients_of_pictures_are_not_written_out():
    with pytest.raises(ValueError, match="kernel=explicit"):
        make(make_io(), kernel="explicit")


@pytest.mark.parametrize(
    ("method", "options"),
    [(PpoChunk, PpoChunkOptions()), (PpoAsync, PpoAsyncOptions()), (RecurrentPpo, RecurrentPpoOptions())],
)
def test_methods_on_vectors_refuse_pictures_and_say_what_reads_them(method, options):
    with pytest.raises(ValueError, match=r"image\.front.*online/ppo"):
        method(options, make_io())
