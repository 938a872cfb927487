"""Our SAC update against stable-baselines3's: same weights, same batches, same noise, many updates, equal networks."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

sb3 = pytest.importorskip("stable_baselines3")

from robot_rl.data.buffer import ReplayBuffer  # noqa: E402
from robot_rl.loops.off_policy import OffPolicy  # noqa: E402
from robot_rl.policies.online.sac import Sac, SacOptions  # noqa: E402
from robot_rl.sim import gym_env  # noqa: E402
from robot_rl.types import IOSpec, Step, Transitions  # noqa: E402

STATE, ACTIONS, BATCH = 17, 6, 64


def sac(io, *, seed=0, **options):
    return Sac(SacOptions(**options), io, seed=seed)


def learner(**options) -> Sac:
    io = IOSpec(
        obs={"state": ((STATE,), "float32")},
        action_names=tuple(f"a{i}" for i in range(ACTIONS)),
        action_low=(-1.0,) * ACTIONS,
        action_high=(1.0,) * ACTIONS,
        action_units=("1",) * ACTIONS,
        control_hz=20.0,
    )
    return sac(io, batch_size=BATCH, hidden=(64, 64), **options)


class Spaces(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (STATE,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)


def peer():
    model = sb3.SAC("MlpPolicy", Spaces(), batch_size=BATCH, policy_kwargs={"net_arch": [64, 64]}, device="cpu", seed=3)
    model.set_logger(sb3.common.logger.configure(None, []))
    return model


def samples(obs, action, next_obs, ended, reward):
    """The peer's batch, whose fields differ between its releases."""
    fields = sb3.common.type_aliases.ReplayBufferSamples
    more = (None,) * (len(fields._fields) - 5 - len(fields._field_defaults))
    return fields(obs, action, next_obs, ended, reward, *more)


def copy_weights(model, ours: Sac) -> None:
    """Their initial weights into our layout: members first, (in, out)."""
    with torch.no_grad():
        for params, networks in (
            (ours.critic.params, model.critic.q_networks),
            (ours.target.params, model.critic_target.q_networks),
        ):
            for member, network in enumerate(networks):
                linear = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
                for i, layer in enumerate(linear):
                    params.view[f"weight{i}"][member].copy_(layer.weight.T)
                    params.view[f"bias{i}"][member].copy_(layer.bias)
        actor = [layer for layer in model.actor.latent_pi if isinstance(layer, torch.nn.Linear)]
        for i, layer in enumerate(actor):
            ours.actor.params.view[f"weight{i}"][0].copy_(layer.weight.T)
            ours.actor.params.view[f"bias{i}"][0].copy_(layer.bias)
        last = ours.actor.params.view["weight2"][0], ours.actor.params.view["bias2"][0]
        for half, layer in enumerate((model.actor.mu, model.actor.log_std)):
            part = slice(half * ACTIONS, (half + 1) * ACTIONS)
            last[0][:, part].copy_(layer.weight.T)
            last[1][part].copy_(layer.bias)
        for network in (ours.actor, ours.critic, ours.target):
            network.kernel.refresh()


def networks(ours: Sac):
    """Weights that an update moves."""
    return ours.actor.params, ours.critic.params, ours.target.params


def batches(count: int) -> list[Transitions]:
    """Random rows with ends of both kinds; `discount` as our buffer gives it."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(count):
        draw = {key: torch.from_numpy(rng.normal(size=(BATCH, STATE)).astype(np.float32)) for key in ("obs", "next")}
        action = torch.from_numpy(rng.uniform(-1, 1, (BATCH, ACTIONS)).astype(np.float32))
        terminated = torch.from_numpy(rng.random(BATCH) < 0.1)
        out.append(
            Transitions(
                obs={"state": draw["obs"]},
                action=action,
                reward=draw["obs"][:, 0] - action.square().sum(1),
                discount=0.99 * (~terminated).float(),
                next_obs={"state": draw["next"]},
                terminated=terminated,
                truncated=torch.zeros(BATCH, dtype=torch.bool),
                intervened=torch.zeros(BATCH, dtype=torch.bool),
                mask=torch.ones(BATCH, dtype=torch.bool),
                extras={},
            )
        )
    return out


@pytest.mark.parametrize("kernel", ["explicit", "autograd"])
def test_many_updates_give_the_networks_of_stable_baselines3(kernel, monkeypatch):
    model, ours = peer(), learner(kernel=kernel)
    copy_weights(model, ours)
    data = batches(40)
    noise = np.random.default_rng(1).normal(size=(len(data), 2, BATCH, ACTIONS)).astype(np.float32)
    noise = torch.from_numpy(noise)  # [:, 0] for a ~ pi(s), [:, 1] for a' ~ pi(s')

    drawn = iter(noise.flatten(0, 1))
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda shape, dtype, device: next(drawn))
    rows = iter(data)

    def sample(size, env=None):
        row = next(rows)
        ended = row.terminated.float()[:, None]
        return samples(row.obs["state"], row.action, row.next_obs["state"], ended, row.reward[:, None])

    monkeypatch.setattr(model.replay_buffer, "sample", sample)
    model.train(gradient_steps=len(data), batch_size=BATCH)

    mine = iter([part for pair in noise for part in (pair[1], pair[0])])  # we draw at s' before s
    monkeypatch.setattr("torch.randn", lambda *shape, **kwargs: next(mine))
    feed = iter(data)
    for _ in data:
        ours.update(feed)

    theirs, start = learner(), learner()
    copy_weights(model, theirs)
    copy_weights(peer(), start)
    for ours_of, theirs_of, start_of in zip(networks(ours), networks(theirs), networks(start)):
        end, way = theirs_of.flat, theirs_of.flat - start_of.flat
        # Adam turns rounding of gradients near zero into whole steps, so compare with how far the weights went
        assert (ours_of.flat - end).norm() < 1e-3 * way.norm()
    assert ours.temperature.params.flat[0].item() == pytest.approx(model.log_ent_coef.item(), abs=1e-6)


def test_the_whole_loop_runs_as_stable_baselines3_does(monkeypatch):
    """Same first weights, exploration noise, random actions and batches: the same steps, rows and networks."""
    steps, starts = 76, 60  # the short time limit truncates three times
    env = gym_env.make(1, 0, id="HalfCheetah-v5", episode_steps=20)
    ours = sac(env.io, batch_size=BATCH, hidden=(64, 64))
    model = sb3.SAC(
        "MlpPolicy",
        gymnasium.make("HalfCheetah-v5", max_episode_steps=20),
        batch_size=BATCH,
        learning_starts=starts,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
        seed=gym_env.seeds(0, 1)[0],
    )
    copy_weights(model, ours)

    noises: list[torch.Tensor] = []
    rows: list[Step] = []
    seen: list[Transitions] = []
    real = torch.randn

    def randn(*shape, **kwargs):
        noises.append(real(*shape, **kwargs))
        return noises[-1]

    buffer = ReplayBuffer(env.io, 1000, seed=0)
    # stable-baselines3 asks num_timesteps > learning_starts before an update
    loop = OffPolicy(env, ours, buffer, batch_size=BATCH, learning_starts=starts + 1, random_steps=starts, seed=0)
    update, add = ours.update, buffer.add

    def keep_batch(batches, /):
        seen.append(next(batches))
        return update(iter(seen[-1:]))

    def keep_row(row):
        rows.append(row)
        add(row)

    with monkeypatch.context() as patch:
        patch.setattr("torch.randn", randn)
        patch.setattr(ours, "update", keep_batch)
        patch.setattr(buffer, "add", keep_row)
        loop.run(steps, lambda *_: False)

    acting = iter([noise for noise in noises if noise.numel() == ACTIONS])
    drawn = [noise for noise in noises if len(noise) == BATCH]  # at s', then at s; the peer begins with s
    training = iter([part for i in range(0, len(drawn), 2) for part in (drawn[i + 1], drawn[i])])
    uniform = iter([np.array(row.action[0]) for row in rows])
    batch = iter(seen)

    def normal(shape, dtype, device):
        return next(acting).reshape(shape) if shape[0] == 1 else next(training)

    def sample(size, env=None):
        row = next(batch)
        ended = 1.0 - row.discount[:, None] / 0.99
        return samples(row.obs["state"], row.action, row.next_obs["state"], ended, row.reward[:, None])

    monkeypatch.setattr("torch.distributions.normal._standard_normal", normal)
    monkeypatch.setattr(model.action_space, "sample", lambda: next(uniform))
    monkeypatch.setattr(model.replay_buffer, "sample", sample)
    model.learn(steps)

    theirs = model.replay_buffer
    assert theirs.pos == len(rows) == steps
    for name, mine in (
        ("observations", [row.obs["state"][0] for row in rows]),
        ("next_observations", [row.next_obs["state"][0] for row in rows]),
        ("actions", [row.action[0] for row in rows]),
        ("rewards", [row.reward[0] for row in rows]),
        ("timeouts", [row.truncated[0] for row in rows]),
    ):
        # legs on the ground amplify rounding, hence 5e-2 on velocities of 10
        np.testing.assert_allclose(np.array(mine), getattr(theirs, name)[:steps, 0], atol=5e-2, err_msg=name)
    assert sum(bool(row.truncated[0]) for row in rows) == 3
    ends = sac(env.io, batch_size=BATCH, hidden=(64, 64))
    copy_weights(model, ends)
    for ours_of, ends_of in zip(networks(ours), networks(ends)):
        assert (ours_of.flat - ends_of.flat).norm() < 1e-3 * ends_of.flat.norm()
    assert all((row.discount == 0.99).all() for row in seen)  # a time limit is no end
    keys = {row.obs["state"].tobytes(): row for row in rows}
    for row in seen[::10]:  # every sampled row is one that was stored
        for i in range(BATCH):
            source = keys[row.obs["state"][i : i + 1].numpy().tobytes()]
            np.testing.assert_array_equal(row.next_obs["state"][i], source.next_obs["state"][0])
            assert row.reward[i] == source.reward[0]
