"""Sequence RL: the recurrence, what the actor's loss is, where gradients go, saving, and any number of steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.contract import every
from robot_rl.policies.nets.rows import map_columns
from robot_rl.policies.sequence.srl import Srl, SrlOptions
from robot_rl.types import EnvParts, IOSpec, Transitions

IO = IOSpec({"state": ((2,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0)


ALONG: dict[str, Any] = {"sequence": 1, "normalize": True, "model_normalize": True, "model_smooth": True}
ALONG |= {"model_loss": "l1", "decay": 11_000}


def build(seed: int = 0, **options: Any) -> Srl:
    small = {"hidden": 16, "model_hidden": (16, 16), "batch_size": 8, "metrics_every": 1}
    return Srl(SrlOptions.model_validate({**small, **options}), IO, seed=seed)


def batch(size: int = 8, seed: int = 0, **fields: Any) -> Transitions:
    g = torch.Generator().manual_seed(seed)
    no = torch.zeros(size, dtype=torch.bool)
    values: dict[str, Any] = {
        "obs": {"state": torch.randn(size, 2, generator=g)},
        "action": torch.rand(size, 1, generator=g) * 2 - 1,
        "reward": torch.randn(size, generator=g),
        "discount": torch.full((size,), 0.9),
        "next_obs": {"state": torch.randn(size, 2, generator=g)},
        "terminated": no, "truncated": no, "intervened": no, "mask": ~no,
        "extras": {"previous_action": torch.rand(size, 1, generator=g) * 2 - 1},
    }  # fmt: skip
    return Transitions(**{**values, **fields})


def test_save_load_update_equals_update() -> None:
    options = {"random_sequence": True, "drop_previous": 0.3, "clamp_states": True, "model_delta": True}
    options |= {
        "normalize": True,
        "recall": "mean",
        "model_normalize": True,
        "members": 3,
        "disagreement": 0.5,
        "end_head": True,
        "average": True,
        "model_smooth": True,
        "model_loss": "l1",
        "plan": "model",
        "collect_steps": 3,
    }
    one, other = build(seed=1, **options), build(seed=2, **options)
    for i in range(3):
        one.update(iter([batch(seed=i)]))
    other.load_state_dict(one.state_dict())
    for i in range(3, 5):
        assert one.update(iter([batch(seed=i)])) == other.update(iter([batch(seed=i)]))
    obs = {"state": np.ones((3, 2), np.float32)}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)


@pytest.mark.parametrize("recall", ["sample", "mean"])
def test_actor_loss_is_the_sum_over_the_sequence_along_the_target_model(recall: str) -> None:
    """A slow reference: one step after the other, as the source writes it; along mean actions as we may."""
    learner = build(seed=3, sequence=4, recall=recall)
    data, noise = batch(), torch.randn(8, 4, 1)
    loss, _, _ = learner.actor_loss(data.obs["state"], data.extras["previous_action"], noise)
    p, total = learner.actor.params.view, torch.zeros(())
    h = torch.relu(data.obs["state"] @ p["first"].t() + p["first_bias"]) @ p["second"].t() + p["second_bias"]
    seen, action = data.obs["state"], data.extras["previous_action"]
    for i in range(4):
        h = torch.gru_cell(action, h, p["gate_in"], p["gate_hidden"], p["gate_in_bias"], p["gate_hidden_bias"])
        mean, log_std = h @ p["mean"].t() + p["mean_bias"], (h @ p["log_std"].t() + p["log_std_bias"]).clamp(-20, 2)
        u = mean + log_std.exp() * noise[:, i]
        action = u.tanh()
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(u) - (1 - action**2 + 1e-6).log()
        q = learner._critic.compute(torch.cat([seen, action], 1))[..., 0].amin(0)
        total = total + (learner.alpha * density.sum(1) - q).mean()
        if recall == "mean":
            action = mean.tanh()
        seen = learner.model.next(learner.model.outputs(learner.model.net_old, seen, action)[0], seen)[0].detach()
    torch.testing.assert_close(loss, total)
    if recall == "mean":  # states of the plan that is played without noise
        plan = learner.actor.unroll(data.obs["state"], data.extras["previous_action"], None, 4)[0]
        along = learner.actor.unroll(data.obs["state"], data.extras["previous_action"], noise, 4, along="mean")[2]
        torch.testing.assert_close(along, plan)


def test_gradient_reaches_an_action_through_the_recurrence_and_not_through_the_model() -> None:
    """With values that only read the last state, nothing is left: predicted states carry no gradient."""
    learner = build(sequence=3)
    with torch.no_grad():
        learner._critic_params.view["critic.weight0"][:, 2:] = 0.0  # blind for actions
        learner._alpha_params.flat[0] = -60.0  # no entropy term
    data = batch()
    loss, _, _ = learner.actor_loss(data.obs["state"], data.extras["previous_action"], torch.randn(8, 3, 1))
    grads = torch.autograd.grad(loss, list(learner.actor.params.view.values()), allow_unused=True)
    assert all(g is None or g.abs().max() < 1e-12 for g in grads)


def test_steps_behind_a_predicted_end_weigh_nothing() -> None:
    """The head says that every action ends the episode: what is left is the loss of the first step."""
    learner, data, noise = build(end_head=True, sequence=4), batch(), torch.randn(8, 4, 1)
    sure = learner.model.target.view["model.bias2"]
    with torch.no_grad():
        sure[..., -1] = 60.0
    arguments = data.obs["state"], data.extras["previous_action"]
    loss, _, weight = learner.actor_loss(*arguments, noise)
    first, _, _ = learner.actor_loss(*arguments, noise[:, :1])
    torch.testing.assert_close(weight, torch.tensor([[1.0, 0.0, 0.0, 0.0]]).expand(8, 4))
    torch.testing.assert_close(loss, first)
    with torch.no_grad():
        sure[..., -1] = -60.0
    _, _, weight = learner.actor_loss(*arguments, noise)
    torch.testing.assert_close(weight, torch.ones(8, 4))


def test_steps_weigh_less_where_models_disagree() -> None:
    """Of two members one says +1 and one -1 in units of a step: u = 1, each step weighs exp(-1 / 0.5) of the last."""
    learner = build(members=2, disagreement=0.5, model_normalize=True, sequence=3)
    with torch.no_grad():
        learner.model.target.flat.zero_()
        learner.model.target.view["model.bias2"][0] = 1.0
        learner.model.target.view["model.bias2"][1] = -1.0
    data = batch()
    _, _, weight = learner.actor_loss(data.obs["state"], data.extras["previous_action"], torch.randn(8, 3, 1))
    torch.testing.assert_close(weight, torch.tensor([[1.0, math.exp(-2.0), math.exp(-4.0)]]).expand(8, 3))


def test_model_in_units_of_its_data_learns_components_of_any_size_and_where_episodes_end() -> None:
    """s' = s + (a, a / 1000), ended where a > 0.5: errors stay a tenth of each component's own size."""
    learner = build(model_normalize=True, end_head=True, members=2, model_hidden=(32,), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    unit = torch.tensor([1.0, 1e-3])

    def draw() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state = torch.randn(128, 2, generator=generator) * unit
        action = torch.rand(128, 1, generator=generator) * 2 - 1
        return state, action, state + action * unit

    for _ in range(400):
        state, action, after = draw()
        learner._model_step(state, after, action, action[:, 0] > 0.5)
    learner.model.target.blend(learner.model.params, 1.0)
    state, action, after = draw()
    found, weight = learner.model.ahead(state, action, 0.0)
    assert ((found - after).abs().mean(0) / unit).max() < 0.1
    assert weight is not None
    clear = (action[:, 0] - 0.5).abs() > 0.15
    assert torch.equal((weight < 0.5)[clear], (action[:, 0] > 0.5)[clear])


def test_normalised_states_have_no_units() -> None:
    """Angles in degrees are learnt like angles in radians, and a policy saved with moments needs them."""
    unit, policies = torch.tensor([1.0, 57.3]), []
    for factor in (torch.ones(2), unit):
        learner = build(seed=4, normalize=True, model_normalize=True, lr=1e-2)
        for i in range(20):
            data = batch(32, seed=i)
            scaled = {
                "obs": {"state": data.obs["state"] * factor},
                "next_obs": {"state": data.next_obs["state"] * factor},
            }
            learner.update(iter([batch(32, seed=i, **scaled)]))
        policies.append(learner.policy)
    state = torch.randn(9, 2, generator=torch.Generator().manual_seed(5))
    answers = [
        policy.act({"state": (state * factor).numpy()}, deterministic=True).value
        for policy, factor in zip(policies, (torch.ones(2), unit))
    ]
    assert np.ptp(answers[0]) > 0.01
    np.testing.assert_allclose(answers[1], answers[0], atol=2e-3)
    with pytest.raises(ValueError, match="the saved SrlPlanner has norm besides"):
        build().policy.load_state_dict(policies[0].state_dict())


def test_plan_along_the_model_is_the_policy_asked_at_every_state_that_the_model_predicts() -> None:
    """A slow reference, and noise that is drawn once per step."""
    learner = build(seed=6, plan="model", normalize=True, model_normalize=True, model_smooth=True, members=2)
    for i in range(3):
        learner.update(iter([batch(seed=i)]))
    obs = {"state": np.array([[0.3, -0.2], [1.0, 0.5]], np.float32)}
    policy = learner.policy.at_interval(4)
    played = np.stack([policy.act(obs, deterministic=True).value for _ in range(4)], 1)
    state, last = torch.tensor(obs["state"]), torch.zeros(2, 1)
    for i in range(4):
        last = learner.actor.unroll(state, last, None, 1)[0][:, 0].detach()
        np.testing.assert_allclose(played[:, i], last, rtol=1e-5, atol=1e-6)
        raw = learner.model.outputs(learner.model.net_old, state, last)[0]
        state = learner.model.next(raw, state).mean(0).detach()
    recurrent = build(seed=6, normalize=True, model_normalize=True, model_smooth=True, members=2)
    recurrent.actor.params.flat.data.copy_(learner.actor.params.flat.detach())
    recurrent.actor.norm = learner.actor.norm
    other = recurrent.policy.at_interval(4)
    along = np.stack([other.act(obs, deterministic=True).value for _ in range(4)], 1)
    np.testing.assert_allclose(along[:, 0], played[:, 0], rtol=1e-6)
    assert np.abs(along[:, 1:] - played[:, 1:]).max() > 1e-4
    noisy = np.stack([policy.act(obs).value for _ in range(4)], 1)
    assert np.isfinite(noisy).all()
    assert len(np.unique(noisy[0])) == 4


def test_policy_that_plans_along_the_model_carries_it() -> None:
    options: dict[str, Any] = {"plan": "model", "model_normalize": True}
    learner, other = build(seed=1, **options), build(seed=2, **options)
    for i in range(2):
        learner.update(iter([batch(seed=i)]))
    other.policy.load_state_dict(learner.policy.state_dict())
    obs = {"state": np.ones((2, 2), np.float32)}
    mine, theirs = learner.policy.at_interval(5), other.policy.at_interval(5)
    for _ in range(5):
        np.testing.assert_array_equal(
            mine.act(obs, deterministic=True).value, theirs.act(obs, deterministic=True).value
        )
    with pytest.raises(ValueError, match="has model, model_in, model_out besides"):
        build().policy.load_state_dict(learner.policy.state_dict())
    with pytest.raises(ValueError, match="lacks model_in, model_out"):
        other.policy.load_state_dict(build(plan="model").policy.state_dict())
    with pytest.raises(ValueError, match="model was saved with shape"):
        build(members=2, **options).policy.load_state_dict(learner.policy.state_dict())


def test_smooth_model_is_a_linear_map_beside_a_net_of_silu() -> None:
    """Against torch's own modules with the same weights, for each of two members."""
    from robot_rl.policies.sequence.srl_model import RecallModel, RecallModelOptions

    model = RecallModel(
        RecallModelOptions(model_hidden=(16, 16), model_delta=True, model_smooth=True, members=2), 2, 1, "cpu"
    )
    with torch.no_grad():
        model.params.flat.normal_(generator=torch.Generator().manual_seed(0))
    x, a = torch.randn(5, 2), torch.randn(5, 1)
    found, view = model.outputs(model.net, x, a)[0], model.params.view
    for e in range(2):
        layers = [torch.nn.Linear(3, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 2)]
        straight = torch.nn.Linear(3, 2, bias=False)
        for k, layer in enumerate(layers):
            layer.weight.data, layer.bias.data = view[f"model.weight{k}"][e].t(), view[f"model.bias{k}"][e]
        straight.weight.data = view["model.linear_weight"][e].t()
        net = torch.nn.Sequential(layers[0], torch.nn.SiLU(), layers[1], torch.nn.SiLU(), layers[2])
        z = torch.cat([x, a], 1)
        torch.testing.assert_close(found[e], net(z) + straight(z))


def test_absolute_errors_fit_plain_steps_where_squares_follow_the_rough_ones() -> None:
    """A tenth of the steps is thrown by 3 out of nowhere: the median is the plain step, the mean is 0.3 off."""
    found = {}
    for loss in ("mse", "l1"):
        learner = build(model_loss=loss, model_delta=True, lr=3e-3)
        generator = torch.Generator().manual_seed(0)
        for i in range(600):
            learner._lr = 3e-3 * (1 - i / 600)
            state = torch.randn(256, 2, generator=generator)
            action = torch.rand(256, 1, generator=generator) * 2 - 1
            thrown = (torch.rand(256, 1, generator=generator) < 0.1).float()
            none = torch.zeros(256, dtype=torch.bool)
            learner._model_step(state, state + 0.5 * action + 3.0 * thrown, action, none)
        state, action = torch.randn(256, 2, generator=generator), torch.zeros(256, 1)
        raw = learner.model.outputs(learner.model.net, state, action)[0]
        found[loss] = float((learner.model.next(raw, state)[0] - state).detach().mean())
    assert found["mse"] == pytest.approx(0.3, abs=0.08)
    assert found["l1"] == pytest.approx(0.0, abs=0.03)


def test_options_of_the_model_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="members of at least 2"):
        build(disagreement=0.5, model_normalize=True)
    with pytest.raises(ValueError, match="model_normalize=true, which gives the unit"):
        build(disagreement=0.5, members=2)
    with pytest.raises(ValueError, match="members"):
        build(members=0)
    with pytest.raises(ValueError, match="'sample' or 'mean'"):
        build(recall="mode")
    with pytest.raises(ValueError, match="plan"):
        build(plan="mppi")
    with pytest.raises(ValueError, match="model_loss"):
        build(model_loss="huber")


def test_actor_step_moves_neither_critic_nor_model_and_critic_step_no_actor() -> None:
    learner, data = build(), batch()
    critic, model = learner._critic_params.flat.clone(), learner.model.params.flat.clone()
    learner._actor_step(data.obs["state"], data.extras["previous_action"])
    assert torch.equal(learner._critic_params.flat, critic)
    assert torch.equal(learner.model.params.flat, model)
    actor = learner.actor.params.flat.clone()
    learner._critic_step(data, data.obs["state"], data.next_obs["state"], data.action)
    learner._model_step(data.obs["state"], data.next_obs["state"], data.action, data.terminated)
    assert torch.equal(learner.actor.params.flat, actor)


def test_critic_target_is_one_step_and_honours_the_discount() -> None:
    """Chunk length plays no part in the critic; a terminated row (discount 0) is its reward alone."""
    learner = build(sequence=8)
    data = batch(discount=torch.zeros(8))
    found = learner._critic_step(data, data.obs["state"], data.next_obs["state"], data.action)
    assert found["target"].mean().item() == pytest.approx(data.reward.mean().item(), abs=1e-6)


def test_time_limit_bootstraps() -> None:
    """Reward 1 everywhere, state never changes: V = 1 / (1 - gamma) = 5 where only a limit ends the episode."""
    found = {}
    for ended in (False, True):
        learner = build(hidden=32, lr=3e-3, tau=0.1, init_alpha=1e-6, sequence=1)
        data = batch(64, reward=torch.ones(64), discount=torch.full((64,), 0.0 if ended else 0.8))
        for _ in range(150):
            metrics = learner.update(iter([data]))
        found[ended] = metrics["train/q"]  # pyright: ignore[reportPossiblyUnboundVariable]
    assert found[True] == pytest.approx(1.0, abs=0.1)
    assert found[False] > 3.5


def test_rows_that_are_masked_out_are_not_learnt_from() -> None:
    whole, mask = batch(8), torch.arange(8) < 6
    absurd = replace(whole, reward=torch.where(mask, whole.reward, torch.nan), mask=mask)
    assert build().update(iter([absurd])) == build().update(iter([map_columns(whole, lambda x: x[:6])]))


def test_batch_without_previous_action_is_refused() -> None:
    with pytest.raises(ValueError, match="previous_action"):
        build().update(iter([batch(extras={})]))


def test_loss_is_averaged_on_request() -> None:
    one, other = build(seed=5, sequence=4), build(seed=5, sequence=4, average=True)
    data = batch()
    for learner in (one, other):
        learner._actor_step(data.obs["state"], data.extras["previous_action"])
    torch.testing.assert_close(one.actor.params.grad, other.actor.params.grad * 4.0)


def test_step_sizes_fall_as_a_cosine_and_end_at_zero() -> None:
    """Adam's first step has the length of its step size: 1e-2 at once, half of it half way, nothing behind the end."""
    learner = build(lr=1e-2, decay=4)
    learner.update(iter([batch()]))
    assert learner._lr == pytest.approx(1e-2)
    for i in range(2):
        learner.update(iter([batch(seed=i)]))
    assert learner._lr == pytest.approx(5e-3)
    for i in range(2):
        learner.update(iter([batch(seed=i)]))
    weights = [part.flat.clone() for part in (learner.actor.params, learner._critic_params, learner.model.params)]
    learner.update(iter([batch(seed=9)]))
    for before, part in zip(weights, (learner.actor.params, learner._critic_params, learner.model.params)):
        torch.testing.assert_close(part.flat, before, rtol=0, atol=0)
    with pytest.raises(ValueError, match="decay"):
        build(decay=-1)


def test_any_interval_continues_the_same_sequence() -> None:
    """Mean actions: a decision of 5 steps begins with those of a decision of 2, and J is no limit."""
    learner = build(sequence=2)
    obs = {"state": np.ones((1, 2), np.float32)}
    rows = {}
    for k in (2, 5):
        policy = learner.policy.at_interval(k)
        rows[k] = [float(policy.act(obs, deterministic=True).value[0, 0]) for _ in range(k)]
    assert rows[5][:2] == pytest.approx(rows[2])


def test_density_of_the_first_action_integrates_to_one() -> None:
    learner = build(seed=2)
    state, previous = torch.zeros(4001, 2), torch.zeros(4001, 1)
    noise = torch.linspace(-8, 8, 4001)[:, None, None]
    action, density, _ = learner.actor.unroll(state, previous, noise, 1)
    width = action[1:, 0, 0] - action[:-1, 0, 0]
    mass = float((density[1:, 0].exp() * width).sum().detach())
    assert mass == pytest.approx(1.0, abs=0.01)
    assert math.isfinite(float(density.detach().min()))


def test_loop_keeps_the_previously_executed_action() -> None:
    from gymnasium.vector import AutoresetMode

    from robot_rl.loops.off_policy import OffPolicy

    class Three:
        """Episodes of three steps."""

        num_envs, io = 1, IO
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

        parts = EnvParts()

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.t = 0
            return {"state": np.zeros((1, 2), np.float32)}, {}

        def step(self, action: Any) -> Any:
            self.t += 1
            over, final = self.t % 3 == 0, {"state": np.full((1, 2), self.t % 3 or 3, np.float32)}
            obs = {"state": np.zeros((1, 2), np.float32)} if over else final
            flags = np.array([over])
            return obs, np.ones(1, np.float32), np.zeros(1, bool), flags, {"final_obs": final}

    learner = build()
    buffer = ReplayBuffer(IO, 100, extras=dict(learner.need.columns))
    loop = OffPolicy(Three(), learner, buffer, batch_size=8, learning_starts=20, random_steps=7)
    loop.run(12, lambda step, metrics: False)
    rows = buffer._ring.record[:12]
    action = rows[:, buffer._layout.action][:, 0]
    previous = rows[:, buffer._layout.extras["previous_action"][1]][:, 0]
    expected = [0.0 if i % 3 == 0 else action[i - 1] for i in range(12)]
    assert previous.tolist() == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "interval"), [({"sequence": 8}, 8), ({"plan": "model", **ALONG}, 16)])
def test_srl_keeps_a_pendulum_up_when_it_decides_rarely(options: dict[str, Any], interval: int) -> None:
    from robot_rl.loops.evaluate import evaluate
    from robot_rl.loops.off_policy import OffPolicy
    from robot_rl.sim import gym_env

    env = gym_env.make(1, 0, id="Pendulum-v1")
    learner = Srl(SrlOptions(hidden=64, model_hidden=(64, 64), batch_size=64, lr=1e-3, **options), env.io)
    buffer = ReplayBuffer(env.io, 20_000, extras=dict(learner.need.columns))
    OffPolicy(env, learner, buffer, batch_size=64, learning_starts=1000).run(12_000, lambda *_: False, due=every(4000))
    result = evaluate(gym_env.make(10, 1, id="Pendulum-v1"), learner.policy.at_interval(interval), episodes=10)
    # Holding the first action of a one-step policy: about -1200; the recurrence at 16 steps: about -600.
    assert np.mean(result.returns) > (-600.0 if interval == 8 else -400.0)
