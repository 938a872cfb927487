"""FastSAC, FastTD3, FastPPO: values with known answers, gradients, exact saving, precision, refusals."""

import numpy as np
import pytest
import torch

from benchmarks.point_world import PointWorld
from robot_rl import parallel
from robot_rl.loops.device import DeviceOffPolicy
from robot_rl.loops.device_on_policy import DeviceOnPolicy
from robot_rl.policies.online.fast_ppo import FastPpo, FastPpoOptions
from robot_rl.policies.online.fast_sac import FastSac, FastSacOptions
from robot_rl.policies.online.fast_td3 import FastTd3, FastTd3Options
from robot_rl.types import IOSpec, Transitions

IO = IOSpec({"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 20.0)
SMALL = {"batch_size": 32, "updates": 1, "actor_delay": 1, "actor_hidden": (16,), "critic_hidden": (16,)}


def sac(io=IO, *, seed=0, **options):
    return FastSac(FastSacOptions(**options), io, seed=seed)


def td3(io=IO, *, seed=0, **options):
    return FastTd3(FastTd3Options(**options), io, seed=seed)


KINDS = {"sac": sac, "td3": td3}


def rows(size=32, *, mask=None, seed=0, reward=None, discount=0.9):
    draw = torch.Generator().manual_seed(seed)
    off = torch.zeros(size, dtype=torch.bool)
    return Transitions(
        {"state": torch.randn(size, 1, generator=draw)},
        torch.rand(size, 1, generator=draw) * 2 - 1,
        torch.randn(size, generator=draw) if reward is None else reward,
        torch.full((size,), discount),
        {"state": torch.randn(size, 1, generator=draw)},
        off,
        off,
        off,
        ~off if mask is None else mask,
    )


def endless(**options):
    seed = 0
    while True:
        yield rows(seed=seed, **options)
        seed += 1


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("discount", "expected"), [(0.8, 5.0), (0.0, 1.0)])
def test_constant_reward_has_the_value_of_its_discount(name, discount, expected):
    # reward 1 for ever at gamma .8: 1 / (1 - .8) = 5; with a true end after every step: 1
    no_entropy = {"init_alpha": 1e-6, "alpha_lr": 0.0} if name == "sac" else {}
    plain = {"lr": 1e-2, "tau": 0.2, "weight_decay": 0.0, "value_range": (-2.0, 8.0)}
    learner = KINDS[name](**SMALL, **plain, **no_entropy)
    data = endless(reward=torch.ones(32), discount=discount)
    for _ in range(150):
        learner.update(data)
    learner.read_metrics()
    for _ in range(10):
        learner.update(data)
    assert learner.read_metrics()["train/q"] == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("name", KINDS)
def test_gradients_reach_exactly_what_they_should(name):
    learner = KINDS[name](**SMALL, lr=0.0, actor_lr=0.0, weight_decay=0.0)
    learner.critic.params.adam = lambda *a, **k: None  # keep the gradients' readers away
    batch, noise = rows(), torch.zeros(2, 32, 1)
    feature = learner.policy.feature(batch.obs)
    given = (feature, batch.action, feature, batch.reward, batch.discount, torch.ones(32), noise[0])
    loss, *_ = learner._critic_loss(*given)
    loss.backward()
    assert learner.critic.params.grad.any()
    assert not learner._actor.grad.any()
    learner.critic.params.grad.zero_()
    loss, _ = learner._actor_loss(feature, noise[1])
    loss.backward()
    assert learner._actor.grad.any()
    assert not learner.critic.params.grad.any()
    assert not learner.critic.target.flat.requires_grad


@pytest.mark.parametrize("name", KINDS)
def test_rows_that_are_masked_out_change_nothing(name):
    mask = torch.arange(32) < 20
    learners = [KINDS[name](**SMALL) for _ in range(2)]
    junk = torch.where(mask, rows().reward, 1e4)
    for learner, reward in zip(learners, (rows().reward, junk)):
        learner.learn(rows(mask=mask, reward=reward), torch.zeros(2, 32, 1), False)
    assert torch.equal(learners[0].critic.params.flat, learners[1].critic.params.flat)


@pytest.mark.parametrize("name", KINDS)
def test_saved_learner_makes_the_same_next_update(name):
    first, second = KINDS[name](**SMALL), KINDS[name](**SMALL, seed=4)
    data = endless()
    for _ in range(3):
        first.explore(rows().obs, torch.ones(32, dtype=torch.bool))
        first.update(data)
    second.load_state_dict(first.state_dict())
    for learner in (first, second):
        learner.explore(rows(seed=77).obs, torch.zeros(32, dtype=torch.bool))
        learner.update(iter([rows(seed=99)]))
    for name in ("actor", "critic"):
        ours, theirs = first.state_dict()[name], second.state_dict()[name]
        flat = [(x["params"]["flat"] if "params" in x else x["flat"]) for x in (ours, theirs)]
        assert torch.equal(*flat)
    with pytest.raises(ValueError, match=r"lacks actor, (alpha, )?critic"):
        first.load_state_dict({"noise": torch.zeros(1), "updates": 0})


@pytest.mark.parametrize("name", KINDS)
def test_bf16_products_stay_near_float32_and_masters_stay_float32(name):
    learners = [KINDS[name](**SMALL, amp=amp) for amp in ("float32", "bf16")]
    losses = []
    for learner in learners:
        batch = rows()
        feature = learner.policy.feature(batch.obs)
        args = (feature, batch.action, feature, batch.reward, batch.discount, torch.ones(32), torch.zeros(32, 1))
        losses.append(float(learner._critic_loss(*args)[0].detach()))
        learner.learn(batch, torch.zeros(2, 32, 1), True)
        assert learner.critic.params.flat.dtype == torch.float32
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert losses[1] != losses[0]


def test_fast_sac_density_is_that_of_the_squashed_gaussian():
    learner = sac(**SMALL)
    raw = torch.tensor([[0.3, 0.2], [-1.0, -0.5]], dtype=torch.float64)
    noise = torch.tensor([[0.7], [-0.2]], dtype=torch.float64)
    action, logp = learner._sample(raw, noise)
    log_std = -5 + 2.5 * (raw[:, 1:].tanh() + 1)
    base = torch.distributions.Normal(raw[:, :1], log_std.exp())
    made = torch.distributions.TransformedDistribution(base, torch.distributions.TanhTransform(cache_size=1))
    torch.testing.assert_close(logp, made.log_prob(action).sum(-1))
    torch.testing.assert_close(action, learner.rule(raw, noise))


def test_fast_sac_temperature_falls_while_entropy_is_above_its_target():
    learner = sac(**SMALL, target_entropy=-50.0, init_alpha=0.1, alpha_lr=0.01)
    learner.update(endless())
    assert float(learner.alpha) == pytest.approx(0.1 * np.exp(-0.01), rel=1e-3)


def test_fast_td3_noise_scales_are_drawn_anew_only_where_an_episode_begins():
    learner = td3(**SMALL, std_min=0.1, std_max=0.3)
    obs = {"state": torch.zeros(1000, 1)}
    learner.explore(obs, torch.ones(1000, dtype=torch.bool))
    before = learner._scales.clone()  # pyright: ignore[reportOptionalMemberAccess]
    assert 0.1 <= before.min() < 0.11
    assert 0.29 < before.max() <= 0.3
    begun = torch.arange(1000) % 2 == 0
    learner.explore(obs, begun)
    same = (learner._scales == before)[:, 0]
    assert same[~begun].all()
    assert not same[begun].any()


@pytest.mark.parametrize("kind", [sac, td3, lambda: FastPpo(FastPpoOptions(), IO)])
def test_every_process_explores_by_noise_of_its_own_and_begins_with_the_same_weights(kind, monkeypatch):
    one = kind().policy
    monkeypatch.setattr(parallel, "rank", lambda: 1)
    other = kind().policy
    assert torch.equal(one._params.flat, other._params.flat)
    assert not torch.equal(one.noise(8), other.noise(8))


@pytest.mark.parametrize("kind", [sac, td3, lambda: FastPpo(FastPpoOptions(), IO)])
def test_policy_answers_in_the_kind_of_its_observation(kind):
    policy = kind().policy
    one = policy.act({"state": np.zeros((1, 1), np.float32)}, deterministic=True).value
    assert isinstance(one, np.ndarray)
    assert one.dtype == np.float32
    many = policy.act({"state": torch.zeros(3, 1)}).value
    assert many.shape == (3, 1)
    assert many.abs().max() <= 1
    assert one[0] == pytest.approx(policy.act({"state": torch.zeros(1, 1)}, deterministic=True).value.numpy()[0])


def test_fast_ppo_step_size_follows_the_divergence():
    options = FastPpoOptions(rollout_steps=4, hidden=(8,), minibatches=1, epochs=1, lr=1e-3)
    learner = FastPpo(options, PointWorld(8, 0).io)
    loop = DeviceOnPolicy(PointWorld(8, 0), learner)
    loop.run(32)
    assert float(learner.lr) == pytest.approx(1e-3)  # the first gradient is taken at the acting policy: KL is 0
    learner._columns["logp"] += 1.0  # far away
    learner._minibatch()
    assert float(learner.lr) == pytest.approx(1e-3 / 1.5)


def test_fast_ppo_value_of_constant_reward_depends_on_truncation():
    # reward 1, gamma .8, four-step episodes that are cut: V = 5
    env = PointWorld(16, 0, length=4, constant=True)
    plain = {"value_clip": None, "desired_kl": None, "lr": 1e-2, "minibatches": 1, "epochs": 4}
    options = FastPpoOptions.model_validate({"rollout_steps": 8, "hidden": (16,), **plain})
    learner = FastPpo(options, env.io, gamma=0.8)
    loop = DeviceOnPolicy(env, learner)
    loop.run(128 * 40)
    assert float(learner.value({"state": torch.zeros(1, 2)})) == pytest.approx(5.0, rel=0.05)


def test_bad_options_say_what_is_expected():
    camera = IOSpec({"image.front": ((8, 8, 3), "uint8")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
    for make in (sac, td3, lambda io: FastPpo(FastPpoOptions(), io)):
        with pytest.raises(ValueError, match="policy=online/sac"):
            make(camera)
    for bad, told in (
        ({"value_range": (1.0, 1.0)}, "the first is not below the second"),
        ({"reduce": "max"}, "reduce"),
        ({"log_std_min": 1.0}, "log_std_max"),
    ):
        with pytest.raises(ValueError, match=told):
            FastSacOptions.model_validate(bad)
    with pytest.raises(ValueError, match="at least std_min"):
        FastTd3Options(std_min=1.0)
    with pytest.raises(ValueError, match="activation"):
        FastPpoOptions.model_validate({"activation": "gelu"})


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_compiled_learner_makes_the_same_updates_as_the_plain_one(name):
    learners = [KINDS[name](**SMALL, accelerate=mode) for mode in ("eager", "compile")]
    for learner in learners:
        data = endless()
        for _ in range(20):
            learner.update(data)
    flat = [learner.critic.params.flat for learner in learners]
    torch.testing.assert_close(*flat, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(*[learner._actor.flat for learner in learners], atol=2e-4, rtol=1e-3)


LEARN = {
    "sac": (sac, {"lr": 1e-3, "actor_delay": 2, "updates": 2, "layer_norm": False}),
    "td3": (td3, {"lr": 1e-3, "actor_delay": 2, "updates": 2, "weight_decay": 0.0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LEARN, "ppo"])
def test_learner_flies_the_points_to_their_goals(name):
    env = PointWorld(64, 0)
    if name == "ppo":
        learner = FastPpo(FastPpoOptions(rollout_steps=16, hidden=(32, 32), entropy_coef=0.0), env.io, gamma=0.9)
        DeviceOnPolicy(env, learner).run(64 * 16 * 60)
    else:
        kind, options = LEARN[name]
        learner = kind(env.io, batch_size=256, actor_hidden=(64, 64), critic_hidden=(64, 64), **options)
        DeviceOffPolicy(env, learner, gamma=0.9).run(64 * (1000 if name == "sac" else 500))
    world, total = PointWorld(512, 99), 0.0
    obs, _ = world.reset(seed=99)
    for _ in range(16):
        obs, reward, *_ = world.step(torch.as_tensor(learner.policy.act(obs, deterministic=True).value))
        total += float(reward.mean())
    # the best policy reaches -2.36; standing still about -12.2
    assert total > 1.15 * world.best_return()
