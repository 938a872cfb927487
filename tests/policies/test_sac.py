"""SAC: one update against a plain torch reference, targets, gradients, temperature, continuation, policy."""

import copy
import io as stdio

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.types import IOSpec, Transitions


def sac(io, *, seed=0, **options):
    return Sac(SacOptions(**options), io, seed=seed)


def spec(state=4, actions=2, image=None):
    obs = {}
    if state:
        obs["state"] = ((state,), "float32")
    if image:
        obs["image.front"] = (image, "uint8")
    names = tuple(f"a{i}" for i in range(actions))
    return IOSpec(obs, names, (-1.0,) * actions, (1.0,) * actions, ("1",) * actions, 20.0)


def batch(io, size=16, seed=0, reward=None, discount=0.99):
    generator = torch.Generator().manual_seed(seed)

    def obs():
        return {
            key: torch.randn(size, *shape, generator=generator)
            if dtype == "float32"
            else torch.randint(0, 256, (size, *shape), generator=generator, dtype=torch.uint8)
            for key, (shape, dtype) in io.obs.items()
        }

    off = torch.zeros(size, dtype=torch.bool)
    return Transitions(
        obs(),
        torch.randn(size, io.action_dim, generator=generator).tanh(),
        torch.randn(size, generator=generator) if reward is None else torch.full((size,), reward),
        torch.full((size,), discount),
        obs(),
        off,
        off,
        off,
        ~off,
    )


def stream(io, **options):
    seed = 0
    while True:
        yield batch(io, seed=seed, **options)
        seed += 1


def plain_net(params, member):
    """A float32 torch network with the learner's weights."""
    layers = []
    for i in range(3):
        weight = params.view[f"weight{i}"].detach()[member]
        layer = torch.nn.Linear(weight.shape[0], weight.shape[1])
        layer.weight.data.copy_(weight.T)
        layer.bias.data.copy_(params.view[f"bias{i}"].detach()[member])
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("kernel", ["explicit", "autograd"])
def test_update_equals_a_straightforward_implementation(kernel):
    io = spec()
    learner = sac(io, hidden=(32, 32), matmul="float32", kernel=kernel, init_alpha=0.3, lr=1e-3, tau=0.1)
    data = batch(io)
    actor = plain_net(learner.actor.params, 0)
    critics = [plain_net(learner.critic.params, e) for e in range(2)]
    targets = copy.deepcopy(critics)
    log_alpha = torch.nn.Parameter(torch.tensor([0.3]).log())
    optimisers = [
        torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=1e-3),
        torch.optim.Adam(actor.parameters(), lr=1e-3),
        torch.optim.Adam([log_alpha], lr=1e-3),
    ]
    generator = torch.Generator()
    generator.set_state(learner.generator.get_state())
    noise = torch.cat([torch.randn(16, 2, generator=generator) for _ in range(2)])

    def act(state, eps):
        mean, log_std = actor(state).chunk(2, -1)
        std = log_std.clamp(-20, 2).exp()
        u = mean + std * eps
        a = u.tanh()
        return a, (Normal(mean, std).log_prob(u) - torch.log(1 - a**2 + 1e-12)).sum(-1)

    def q(nets, state, action):
        return torch.stack([net(torch.cat([state, action], -1))[:, 0] for net in nets])

    with torch.no_grad():
        a, logp = act(data.next_obs["state"], noise[:16])
        y = data.reward + data.discount * (q(targets, data.next_obs["state"], a).amin(0) - 0.3 * logp)
    loss = 0.5 * (q(critics, data.obs["state"], data.action) - y).square().mean(1).sum()
    loss.backward()
    optimisers[0].step()
    a, logp = act(data.obs["state"], noise[16:])
    (0.3 * logp - q(critics, data.obs["state"], a).amin(0)).mean().backward()
    optimisers[1].step()
    (-log_alpha * (logp.detach() - 2.0)).mean().backward()  # target entropy -A = -2
    optimisers[2].step()

    learner.update(iter([data]))
    for e in range(2):
        expected = plain_net(learner.critic.params, e)
        for got, want in zip(critics[e].parameters(), expected.parameters()):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
    for got, want in zip(actor.parameters(), plain_net(learner.actor.params, 0).parameters()):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
    assert float(learner.alpha) == pytest.approx(log_alpha.exp().item(), rel=1e-5)


def test_target_is_the_polyak_average_and_nothing_else():
    io = spec()
    learner = sac(io, hidden=(16, 16), tau=0.25)
    before = learner.target.params.flat.clone()
    learner.update(stream(io))
    expected = 0.75 * before + 0.25 * learner.critic.params.flat
    torch.testing.assert_close(learner.target.params.flat, expected)


@pytest.mark.parametrize(("subset", "possible"), [(None, {1.0}), (2, {1.0, 2.0}), (1, {1.0, 2.0, 3.0})])
def test_target_is_the_minimum_over_a_random_subset(subset, possible):
    io = spec()
    learner = sac(io, hidden=(8,), critics=3, subset=subset, lr=1e-30, backup_entropy=False, metrics_every=1)
    for params in (learner.critic.params, learner.target.params):  # member e says e + 1 everywhere
        params.flat.zero_()
        params.view["bias1"].copy_(torch.tensor([[1.0], [2.0], [3.0]]))
    data = stream(io, reward=0.0, discount=1.0)
    seen = {round(learner.update(data)["train/target"], 4) for _ in range(60)}
    assert seen == possible


def test_discount_of_the_data_is_the_only_bootstrap_multiplier():
    io = spec()
    learner = sac(io, hidden=(8,), lr=1e-30, backup_entropy=False, metrics_every=1)
    for params in (learner.critic.params, learner.target.params):
        params.flat.zero_()
        params.view["bias1"].fill_(10.0)
    # 1 + .9 * 10, and without bootstrap 1
    assert learner.update(stream(io, reward=1.0, discount=0.9))["train/target"] == pytest.approx(10.0)
    assert learner.update(stream(io, reward=1.0, discount=0.0))["train/target"] == pytest.approx(1.0)


def test_masked_rows_do_not_count():
    io = spec()
    data = batch(io, size=8)
    mask = torch.tensor([True] * 4 + [False] * 4)
    data.reward[4:] = float("nan")
    masked = Transitions(**{**vars(data), "mask": mask})
    first = {key: value[:4] for key, value in data.obs.items()}
    second = {key: value[:4] for key, value in data.next_obs.items()}
    cut = {name: getattr(data, name)[:4] for name in ("action", "reward", "discount", "terminated", "truncated")}
    short = Transitions(obs=first, next_obs=second, intervened=data.intervened[:4], mask=mask[:4], **cut)
    one, two = sac(io, hidden=(8, 8)), sac(io, hidden=(8, 8))
    one.update(iter([masked]))
    two.update(iter([short]))
    assert torch.equal(one.critic.params.flat, two.critic.params.flat)
    with pytest.raises(ValueError, match="masked out"):
        one.update(iter([Transitions(**{**vars(data), "mask": ~data.mask})]))


@pytest.mark.parametrize(("target", "rises"), [(50.0, True), (-50.0, False)])
def test_temperature_moves_towards_the_target_entropy(target, rises):
    io = spec()
    learner = sac(io, hidden=(8, 8), target_entropy=target)
    for _ in range(5):
        learner.update(stream(io))
    assert (learner.alpha > 1.0) == rises


def test_zero_alpha_lr_keeps_the_temperature():
    io = spec()
    learner = sac(io, hidden=(8, 8), init_alpha=0.2, alpha_lr=1e-30)
    learner.update(stream(io))
    assert float(learner.alpha) == pytest.approx(0.2)


def test_actor_learns_only_in_every_nth_update():
    io = spec()
    learner = sac(io, hidden=(8, 8), actor_delay=3)
    start = learner.actor.params.flat.clone()
    data = stream(io)
    learner.update(data)
    learner.update(data)
    assert torch.equal(start, learner.actor.params.flat)
    learner.update(data)
    assert not torch.equal(start, learner.actor.params.flat)


def test_utd_draws_that_many_batches_and_steps_the_actor_once():
    io = spec()
    learner = sac(io, hidden=(8, 8), utd=5)
    drawn = iter([batch(io, seed=i) for i in range(6)])
    learner.update(drawn)
    assert len(list(drawn)) == 1
    assert float(learner.critic.params.step) == 5
    assert float(learner.actor.params.step) == 1


def test_encoder_learns_from_the_critic_alone():
    io = spec(state=3, image=(16, 16, 3))
    options = {"hidden": (8, 8), "encoder_channels": (4, 4), "encoder_strides": (2, 2), "latent": 6}
    learner = sac(io, lr=1e-30, actor_lr=1e-2, **options)
    before, actor = learner.critic.params.flat.clone(), learner.actor.params.flat.clone()
    learner.update(stream(io))
    assert torch.equal(before, learner.critic.params.flat)
    assert not torch.equal(actor, learner.actor.params.flat)
    learner = sac(io, lr=1e-2, actor_lr=0.0, **options)
    kernel = learner.encoders[0].params.view["encoder.image.front.conv0"].detach().clone()
    learner.update(stream(io))
    assert not torch.equal(kernel, learner.encoders[0].params.view["encoder.image.front.conv0"])


VARIANTS = {
    "float32": {"matmul": "float32"},
    "bf16": {"matmul": "bf16"},
    "autograd": {"kernel": "autograd"},
    "rlpd": {"critics": 4, "subset": 2, "layer_norm": True, "utd": 3, "actor_reduce": "mean", "target_entropy": "half"},
    "hlgauss": {"value_head": "hlgauss", "init_alpha": 0.01},
    "twohot": {"value_head": "twohot", "value_range": (-20.0, 20.0), "actor_layer_norm": True},
    "normalised": {"normalize_obs": True, "actor_delay": 2},
    "image": {"encoder_channels": (4, 4), "encoder_strides": (2, 2), "latent": 6},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_saved_and_loaded_learner_continues_bit_for_bit(name):
    io = spec(image=(16, 16, 3)) if name == "image" else spec()
    options = {"hidden": (64, 64), "metrics_every": 2, **VARIANTS[name]}
    learner = sac(io, seed=3, **options)
    data = stream(io)
    for _ in range(3):
        learner.update(data)
    learner.policy.act({key: value[:1] for key, value in batch(io).obs.items()})
    file = stdio.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    other = sac(io, seed=99, **options)
    other.load_state_dict(torch.load(file, weights_only=True))
    rest = [batch(io, seed=100 + i) for i in range(9)]
    one, two = iter(rest), iter(rest)
    for _ in range(3):
        assert learner.update(one) == other.update(two)
    assert same(learner.state_dict(), other.state_dict())
    obs = {key: value[:1] for key, value in batch(io).obs.items()}
    np.testing.assert_array_equal(learner.policy.act(obs).value, other.policy.act(obs).value)


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_batch_of_one_row_learns():
    io = spec()
    learner = sac(io, batch_size=1, metrics_every=1)
    assert np.isfinite(learner.update(stream(io, size=1))["train/critic_loss"])


def test_not_a_number_is_reported():
    io = spec()
    learner = sac(io, hidden=(8, 8), metrics_every=1)
    with pytest.raises(FloatingPointError, match="not finite"):
        learner.update(stream(io, reward=float("nan")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subset": 3}, "subset"),
        ({"utd": 0}, "utd"),
        ({"actor_reduce": "max"}, "expected min or mean"),
        ({"target_entropy": "low"}, "expected a number or auto or half"),
        ({"value_range": "wide"}, "value_range"),
        ({"tau": 0.0}, "tau"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sac(spec(), **options)
    with pytest.raises(ValueError, match="reads 'state'"):
        sac(IOSpec({"touch": ((3,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 20.0))


@pytest.mark.parametrize(
    ("kind", "share", "factor"), [("linear", 0.25, 0.75), ("cosine", 1 / 3, 0.75), ("linear", 1, 0)]
)
def test_all_step_sizes_fall_by_the_schedule(kind, share, factor):
    io = spec()
    kept, falling = (sac(io, lr_schedule=k, alpha_lr=0.01, metrics_every=1) for k in ("constant", kind))
    falling.set_progress(share)
    parts = [(learner.critic.params, learner.temperature.params) for learner in (kept, falling)]
    first = [part.flat.clone() for part in parts[0]]
    found = [learner.update(stream(io)) for learner in (kept, falling)]
    for start, *ends in zip(first, *parts):  # the first step of Adam is as long as the step size
        moved = [end.flat - start for end in ends]
        assert torch.allclose(moved[1], factor * moved[0], atol=1e-7)
        assert moved[0].abs().max() > 0
    assert "train/lr" not in found[0]
    assert found[1]["train/lr"] == pytest.approx(3e-4 * factor)


def test_a_temperature_that_is_kept_stays_kept_under_a_schedule():
    learner = sac(spec(), lr_schedule="linear", alpha_lr=0)
    learner.update(stream(spec()))
    assert learner.alpha.item() == 1.0
