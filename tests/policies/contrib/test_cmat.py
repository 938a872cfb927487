"""CMAT: agents in any order, teams of any size, ratios per agent, saving, and spreading over landmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.policies.contrib.cmat import Cmat, CmatNet, CmatOptions, _draw
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.check import check
from robot_rl.sim.worlds.spread import Spread
from robot_rl.types import IOSpec, Rollout

SMALL: dict[str, Any] = {"width": 16, "heads": 2, "consensus": 2, "rollout_steps": 4, "minibatch": 6, "epochs": 2}


def net(seed: int = 0) -> CmatNet:
    found = CmatNet(5, 2, width=16, blocks=2, heads=2, consensus=3)
    _draw(found, torch.Generator().manual_seed(seed))
    last = found.actor[3]
    assert isinstance(last, torch.nn.Linear)
    with torch.no_grad():
        last.weight.mul_(100.0)
    return found.double()


def test_world_keeps_the_contract_and_its_expert_covers_the_landmarks() -> None:
    assert check(ArrayVectorEnv(Spread(), 3, 0), steps=100) == []
    env = ArrayVectorEnv(Spread(), 30, 1)
    obs, _ = env.reset(seed=2)
    for _ in range(25):
        obs, _, _, _, info = env.step(env.expert(obs))
    assert info["success"].mean() > 0.8  # pyright: ignore[reportPossiblyUnboundVariable]


def test_exchanging_agents_exchanges_their_actions_and_leaves_the_value() -> None:
    model, seen = net(), torch.randn(4, 6, 5, dtype=torch.float64)
    order = torch.randperm(6)
    mean, _, value = model(seen)
    other, _, same = model(seen[:, order])
    torch.testing.assert_close(other, mean[:, order], rtol=0, atol=1e-12)
    torch.testing.assert_close(same, value, rtol=0, atol=1e-12)
    assert (mean[:, 0] - mean[:, 1]).abs().max() > 1e-3  # not because all do the same


def test_every_agent_hears_of_every_other() -> None:
    model, seen = net(), torch.randn(1, 3, 5, dtype=torch.float64, requires_grad=True)
    mean, _, _ = model(seen)
    for n in range(3):
        (slope,) = torch.autograd.grad(mean[0, n].sum(), seen, retain_graph=True)
        assert (slope.abs().amax(-1) > 1e-9).all()


def test_missing_agents_are_seen_by_nobody() -> None:
    """A team of two in a table of four is the team of two, whatever stands in the empty places."""
    model, seen = net(), torch.randn(2, 4, 5, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, False]] * 2)
    mean, _, value = model(seen, mask)
    small, _, same = model(seen[:, :2])
    torch.testing.assert_close(mean[:, :2], small, rtol=0, atol=1e-12)
    torch.testing.assert_close(value, same, rtol=0, atol=1e-12)
    seen[:, 2:] = 1e3
    torch.testing.assert_close(model(seen, mask)[2], value, rtol=0, atol=1e-12)


def test_kept_keys_are_those_of_a_whole_causal_pass() -> None:
    """A slow reference: every token recomputed over the whole prefix, as the source does."""
    model, seen = net(), torch.randn(2, 3, 5, dtype=torch.float64)
    rep = model.encoder(model.inputs(seen))
    prefix = model.pooled(torch.einsum("bnh,bne->bhe", model.pool(rep).softmax(1), rep).flatten(1))
    tokens = [prefix]
    keys, values = model.tell(rep).chunk(2, -1)
    for _ in range(model.consensus):
        x = torch.stack([token + model.place[i] for i, token in enumerate(tokens)], 1)
        q, k, v = model.own(model.before(x)).chunk(3, -1)
        last = x[:, -1] + model.own_out(model._attend(q[:, -1], k, v, None))
        last = last + model.cross_out(model._attend(model.ask(model.between(last)), keys, values, None))
        tokens.append(last + model.down(torch.nn.functional.gelu(model.up(model.after(last)))))
    found = torch.stack(tokens, 1)
    expected = (model.gate(found).softmax(1) * found).sum(1)
    torch.testing.assert_close(model._agree(prefix, rep, None), expected)


def rollout(learner: Cmat, steps: int = 4, rows: int = 3, seed: int = 0) -> Rollout:
    g = torch.Generator().manual_seed(seed)
    states = torch.randn(steps, rows, learner.io.obs["state"][0][0], generator=g)
    answers = [learner.policy.act({"state": state}) for state in states]
    values = torch.stack([learner.value({"state": state}) for state in states])
    end = torch.zeros(steps, rows, dtype=torch.bool)
    last = end.clone()
    last[-1] = True
    raw, agent = (torch.stack([torch.as_tensor(a.extras[name]) for a in answers]) for name in ("raw", "agent_logp"))
    logp = torch.stack([torch.as_tensor(a.logp) for a in answers])
    return Rollout(
        {"state": states}, raw, logp, values, torch.randn(steps, rows, generator=g), values, end, last, last,
        ~end, {"agent_logp": agent},
    )  # fmt: skip


def test_without_a_bound_the_gradient_is_left_as_it_is() -> None:
    """A bound of 0 made every gradient 0: nothing was learned."""
    found = []
    for bound in (0.0, 1e9):
        learner = Cmat(CmatOptions(**SMALL, grad_clip=bound), Spread().io)
        learner.update(iter([rollout(learner)]))
        found.append([x.detach() for x in learner.net.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found))


def test_density_per_agent_is_that_of_a_normal_and_sums_to_the_joint() -> None:
    learner = Cmat(CmatOptions(**SMALL), Spread().io)
    state = torch.randn(5, 24)
    answer = learner.policy.act({"state": state})
    mean, std, _ = learner.net(state.view(5, 3, -1))
    raw = torch.as_tensor(answer.extras["raw"]).view(5, 3, 2)
    expected = torch.distributions.Normal(mean, std).log_prob(raw).sum(-1)
    torch.testing.assert_close(torch.as_tensor(answer.extras["agent_logp"]), expected)
    torch.testing.assert_close(torch.as_tensor(answer.logp), expected.sum(1))


def test_first_step_has_ratios_of_one_and_an_agents_own_ratio_is_clipped() -> None:
    learner = Cmat(CmatOptions(**{**SMALL, "epochs": 1, "minibatch": 100}), Spread().io)
    assert learner.update(iter([rollout(learner)]))["train/ratio_off"] == 0.0


@pytest.mark.parametrize("ratio", ["agent", "joint"])
def test_save_load_update_equals_update(ratio: Any) -> None:
    one, other = (Cmat(CmatOptions(ratio=ratio, **SMALL), Spread().io, seed=i) for i in (1, 2))
    for i in range(2):
        one.update(iter([rollout(one, seed=i)]))
    other.load_state_dict(one.state_dict())
    for i in range(2, 4):
        data = rollout(one, seed=i)
        assert one.update(iter([data])) == other.update(iter([data]))


def test_worlds_that_agents_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="equal blocks"):
        Cmat(CmatOptions(agents=3), IOSpec({"state": ((7,), "float32")}, ("x",), (-1.0,), (1.0,), ("1",), 10.0))


@pytest.mark.slow
def test_agents_spread_over_the_landmarks() -> None:
    env = ArrayVectorEnv(Spread(agents=2), 64, 0)
    options = CmatOptions(agents=2, width=32, heads=2, consensus=2, rollout_steps=25)
    learner = Cmat(options, env.io, gamma=0.95)
    start = evaluate(ArrayVectorEnv(Spread(agents=2), 50, 5), learner.policy, episodes=50).returns
    OnPolicy(env, learner, seed=0).run(64 * 25 * 24)
    after = evaluate(ArrayVectorEnv(Spread(agents=2), 50, 5), learner.policy, episodes=50).returns
    assert np.mean(after) > np.mean(start) + 3.0, (np.mean(start), np.mean(after))
