"""Actions that are choices: the interface, PPO's softmax, double DQN."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.advantage import FusedOptions
from robot_rl.policies.contrib.dqn import Dqn, DqnOptions
from robot_rl.policies.nets.actor_critic import ActorCriticLayout
from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.policies.online.ppo_choices import ChoicePolicy, choice_loss
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.sim import gym_env
from robot_rl.types import IOSpec, Transitions, action_of, choice_of

IO = IOSpec(
    obs={"state": ((3,), "float32")},
    action_names=("gear",),
    action_low=(0.0,),
    action_high=(3.0,),
    action_units=("1",),
    control_hz=10.0,
    action_choices=(4,),
)


def test_choices_lie_evenly():
    np.testing.assert_allclose(action_of(np.arange(4.0), 4), [-1, -1 / 3, 1 / 3, 1])
    np.testing.assert_array_equal(choice_of(np.array([-1.0, -0.7, -0.2, 0.9]), 4), [0, 0, 1, 3])
    for count in (2, 3, 18):
        index = torch.arange(count).float()
        assert torch.equal(choice_of(action_of(index, count), count), index)


def test_the_passport_keeps_and_compares_them():
    assert IOSpec.from_dict(IO.to_dict()) == IO
    assert IO.differences(replace(IO, action_choices=())) == [
        "choices of the actions are [4] here and any number there"
    ]
    with pytest.raises(ValueError, match="action_choices"):
        replace(IO, action_choices=(4, 4))


def test_a_method_for_numbers_is_refused():
    with pytest.raises(ValueError, match=r"one of 4 choices; use policy=online/ppo or policy=contrib/dqn"):
        Sac(SacOptions(), IO)
    with pytest.raises(ValueError, match="here it is a number"):
        Dqn(DqnOptions(), replace(IO, action_choices=()))
    with pytest.raises(ValueError, match="log_std"):
        Ppo(PpoOptions(log_std="state"), IO)


# --- PPO


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize(("entropy", "dual", "value_clip"), [(0.0, None, None), (0.02, 3.0, 0.1), (0.5, None, 0.0)])
@pytest.mark.parametrize("counts", [(4,), (2, 3)])
def test_loss_and_gradients_are_those_of_plain_torch(
    written_out: bool, entropy: float, dual: Any, value_clip: Any, counts: tuple[int, ...]
):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(64, sum(counts), generator=g, dtype=torch.float64, requires_grad=True)
    value = torch.randn(64, generator=g, dtype=torch.float64, requires_grad=True)
    index = torch.stack([torch.randint(count, (64,), generator=g) for count in counts], -1)
    chosen = [torch.distributions.Categorical(logits=part) for part in logits.split(list(counts), -1)]
    new = torch.stack([one.log_prob(index[:, i]) for i, one in enumerate(chosen)]).sum(0)
    old = new.detach() + 0.5 * torch.randn(64, generator=g, dtype=torch.float64)
    batch = {
        "action": torch.stack([action_of(index[:, i].double(), count) for i, count in enumerate(counts)], -1),
        "logp": old,
        "advantage": torch.randn(64, generator=g, dtype=torch.float64),
        "target": torch.randn(64, generator=g, dtype=torch.float64),
        "value": torch.randn(64, generator=g, dtype=torch.float64),
    }
    ratio = (new - old).exp()
    gain = torch.minimum(ratio * batch["advantage"], ratio.clamp(0.8, 1.2) * batch["advantage"])
    if dual is not None:
        gain = torch.where(batch["advantage"] < 0, torch.maximum(gain, dual * batch["advantage"]), gain)
    error = (value - batch["target"]).square()
    if value_clip is not None:
        near = batch["value"] + (value - batch["value"]).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (near - batch["target"]).square())
    loss = -gain.mean() + 0.5 * error.mean() - entropy * torch.stack([one.entropy() for one in chosen]).sum(0).mean()
    wanted = torch.autograd.grad(loss, [logits, value])
    outputs = {
        "mean": logits.detach(),
        "log_std": torch.zeros(sum(counts), dtype=torch.float64),
        "value": value.detach(),
    }
    columns: Any = batch
    if written_out:
        outputs, columns = ({k: x.numpy() for k, x in table.items()} for table in (outputs, batch))
    options = FusedOptions(clip=0.2, dual_clip=dual, value_clip=value_clip, entropy_coef=entropy)
    found = choice_loss(outputs, columns, options, counts)
    assert float(found.loss) == pytest.approx(float(loss.detach()), abs=1e-9)
    np.testing.assert_allclose(found.gradients["mean"], wanted[0], atol=1e-9)
    np.testing.assert_allclose(found.gradients["value"], wanted[1], atol=1e-9)
    assert isinstance(found.gradients["mean"], np.ndarray) == written_out


def softmax_policy(logits: list[float]) -> ChoicePolicy:
    layout = ActorCriticLayout(3, 4, (8,), False)
    params = torch.zeros(layout.size)
    layout.views(params)["actor_bias"][:] = torch.tensor(logits)
    return ChoicePolicy(IO, layout, params, activation="tanh", seed=0, normalize_obs=False, fast=False)


def test_samples_follow_the_softmax_and_tell_their_probability():
    logits = [0.0, 1.0, -1.0, 0.5]
    policy, share = softmax_policy(logits), torch.tensor(logits).softmax(0).numpy()
    obs = {"state": np.zeros((20_000, 3), np.float32)}
    found: Any = policy.act(obs)
    index = choice_of(found.value[:, 0], 4).astype(int)
    np.testing.assert_allclose(np.bincount(index, minlength=4) / len(index), share, atol=0.015)
    np.testing.assert_allclose(found.logp, np.log(share)[index], atol=1e-5)
    assert found.extras["raw"] is found.value
    best = policy.act({"state": torch.zeros(2, 3)}, deterministic=True)
    np.testing.assert_allclose(best.value, [[-1 / 3]] * 2, atol=1e-6)
    device: Any = policy._act_on_device({"state": torch.zeros(20_000, 3)}, False)  # what a GPU would do
    chosen = choice_of(device.value[:, 0], 4).long()
    np.testing.assert_allclose(torch.bincount(chosen, minlength=4) / len(chosen), share, atol=0.015)
    np.testing.assert_allclose(device.logp, np.log(share)[chosen.numpy()], atol=1e-5)


def test_several_choices_are_drawn_independently():
    bounds = {"action_low": (0.0, 0.0), "action_high": (1.0, 2.0), "action_units": ("1", "1")}
    io = replace(IO, action_names=("gear", "lamp"), action_choices=(2, 3), **bounds)
    layout = ActorCriticLayout(3, 5, (8,), False)
    params = torch.zeros(layout.size)
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5, 0.0])
    layout.views(params)["actor_bias"][:] = logits
    policy = ChoicePolicy(io, layout, params, activation="tanh", seed=0, normalize_obs=False, fast=False)
    shares = torch.outer(logits[:2].softmax(0), logits[2:].softmax(0))
    obs = torch.zeros(20_000, 3)
    drawn: Any = policy.act({"state": obs.numpy()}), policy._act_on_device({"state": obs}, False)
    for found in drawn:
        value: Any = torch.as_tensor(found.value)
        index = choice_of(value[:, 0], 2).long() * 3 + choice_of(value[:, 1], 3).long()
        share = torch.bincount(index, minlength=6).reshape(2, 3) / len(obs)
        np.testing.assert_allclose(share, shares, atol=0.015)
        np.testing.assert_allclose(found.logp, shares.log().reshape(-1)[index], atol=1e-5)
    np.testing.assert_allclose(policy.act({"state": obs[:1]}, deterministic=True).value, [[1.0, 0.0]])
    with pytest.raises(ValueError, match=r"one of 2, 3 choices; use policy=online/ppo$"):
        Sac(SacOptions(), io)
    with pytest.raises(ValueError, match="one choice at a time"):
        Dqn(DqnOptions(), io)


# --- DQN


def rows(learner: Dqn, count: int = 6) -> Transitions:
    g = torch.Generator().manual_seed(1)
    no = torch.zeros(count, dtype=torch.bool)
    return Transitions(
        obs={"state": torch.randn(count, 3, generator=g)},
        action=action_of(torch.arange(count).float() % 4, 4)[:, None],
        reward=torch.randn(count, generator=g),
        discount=torch.tensor([0.9] * (count - 1) + [0.0]),
        next_obs={"state": torch.randn(count, 3, generator=g)},
        terminated=no,
        truncated=no,
        intervened=no,
        mask=~no,
    )


def test_double_dqn_is_its_equation():
    learner = Dqn(DqnOptions(hidden=(16,), metrics_every=1, normalize_obs=False), IO, seed=3)
    with torch.no_grad():
        learner.critic_target.params.flat += 0.3 * torch.randn(learner.critic_target.params.flat.shape)
    batch = rows(learner)
    with torch.no_grad():
        own, judged = learner.critic(batch.next_obs["state"]), learner.critic_target(batch.next_obs["state"])
        values = learner.critic(batch.obs["state"])
    best = [int((own[0, i] + own[1, i]).argmax()) for i in range(6)]
    assert best != judged.amin(0).argmax(-1).tolist()  # else a plain DQN would pass
    target = [
        float(r + d * min(judged[0, i, best[i]], judged[1, i, best[i]]))
        for i, (r, d) in enumerate(zip(batch.reward, batch.discount))
    ]
    error = [abs(float(q[i, i % 4]) - y) for q in values for i, y in enumerate(target)]
    metrics = learner.update(iter([batch]))
    assert metrics["train/target"] == pytest.approx(np.mean(target), abs=1e-5)
    huber = [0.5 * e * e if e < 1 else e - 0.5 for e in error]
    assert metrics["train/critic_loss"] == pytest.approx(np.mean(huber), abs=1e-5)


def test_the_step_size_of_dqn_falls_to_nothing_at_the_end():
    moved = []
    for share in (0.0, 0.5, 1.0):
        learner = Dqn(DqnOptions(hidden=(16,), normalize_obs=False), IO, seed=3)
        before = learner.critic.params.flat.detach().clone()
        learner.set_progress(share)
        learner.update(iter([rows(learner)]))
        moved.append(float((learner.critic.params.flat.detach() - before).abs().max()))
    assert moved == pytest.approx([1e-3, 5e-4, 0.0], rel=1e-2)  # the first step of Adam is the step size


def test_random_choices_fade_and_the_rest_are_the_best():
    options = DqnOptions(explore_start=0.8, explore_end=0.1, explore_steps=2000, hidden=(16,))
    policy = Dqn(options, IO, seed=3).policy
    obs = {"state": np.ones((1000, 3), np.float32)}
    best = policy.act(obs, deterministic=True).value[0, 0]
    shares = [float((policy.act(obs).value == best).mean()) for _ in range(3)]
    np.testing.assert_allclose(shares, [1 - 0.75 * e for e in (0.8, 0.45, 0.1)], atol=0.05)


def test_dqn_resumes_exactly():
    first, second = (Dqn(DqnOptions(hidden=(16,), utd=2), IO, seed=seed) for seed in (0, 9))
    batch = rows(first)
    first.update(itertools.repeat(batch))
    first.policy.act({"state": np.ones((5, 3), np.float32)})
    second.load_state_dict(first.state_dict())
    for learner in (first, second):
        learner.update(itertools.repeat(batch))
    assert torch.equal(first.critic.params.flat, second.critic.params.flat)
    obs = {"state": np.ones((50, 3), np.float32)}
    np.testing.assert_array_equal(first.policy.act(obs).value, second.policy.act(obs).value)


# --- a task of Gymnasium's


@pytest.mark.parametrize("workers", [0, 1])
def test_a_discrete_task_does_what_was_chosen(workers: int):
    env = gym_env.make(2, 0, id="CartPole-v1", workers=workers)
    assert env.io.action_choices == (2,)
    env.reset(seed=0)
    info = env.step(np.array([[-0.2], [0.6]], np.float32))[4]
    np.testing.assert_array_equal(info["executed"], [[-1], [1]])
    obs = env.observe()["state"]
    assert obs[0, 1] < 0 < obs[1, 1]  # pushed to the left, to the right
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cart_pole_is_balanced(seed: int, tmp_path: Any):
    import robot_rl as rr

    settings: dict[str, Any] = {"video_episodes": 0, "eval_every": 5000, "stop_success": None, "seed": seed}
    run = rr.train("online/ppo", "CartPole-v1", steps=40_000, folder=tmp_path / "run", **settings)
    assert run.summary["return"] >= 475
