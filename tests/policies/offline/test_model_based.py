"""Dynamics, branches and the edge of reach."""

from typing import Any

import pytest
import torch

from benchmarks.edge import run
from robot_rl.policies.nets.branches import Branches, Doubt, terminated
from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.policies.nets.model_phase import _held_out
from robot_rl.policies.offline.mopo import Mopo, MopoOptions
from robot_rl.policies.offline.ravl import Ravl, RavlOptions

SMALL = {"hidden": (16, 16), "batch_size": 16, "rollout_batch": 32, "rollout_every": 4, "horizon": 2}
MODEL = {"model_members": 3, "model_elites": 2, "model_hidden": (16, 16), "model_updates": 6}


def point_model(state, action):
    """The true world of the `point` log."""
    after = (state + 0.3 * action).clamp(-2, 2)
    zero = torch.zeros(len(state))
    return after, -after.square().sum(1), zero, zero


def test_actions_at_their_bounds_are_held_out_no_more_than_others():
    """A bang-bang log: one row in twenty, as of any other."""
    g = torch.Generator().manual_seed(0)
    state, action = torch.randn(20_000, 3, generator=g), torch.randint(0, 2, (20_000, 1), generator=g) * 2.0 - 1.0
    assert _held_out(torch.cat([state, action], 1)).float().mean().item() == pytest.approx(0.05, abs=0.005)
    cells = torch.cartesian_prod(torch.arange(40.0), torch.arange(40.0), torch.tensor([-1.0, 1.0]))  # whole numbers
    assert _held_out(cells).float().mean().item() == pytest.approx(0.05, abs=0.02)


def test_dynamics_gradient_equals_autograd():
    g = torch.Generator().manual_seed(0)
    model = Dynamics(3, 2, generator=g, members=2, elites=1, hidden=(8, 8))
    rows = [torch.randn(2, 6, k, generator=g) for k in (3, 2, 3)] + [torch.randn(2, 6, generator=g)]
    model.observe(*(part.flatten(0, 1) for part in rows))
    before = {name: v.detach().clone().requires_grad_() for name, v in model.net.params.view.items()}
    x = model.input_norm(torch.cat(rows[:2], -1))
    y = model.target_norm(torch.cat([rows[2] - rows[0], rows[3][..., None]], -1))
    h = x
    for i in range(2):
        h = torch.relu(torch.bmm(h, before[f"weight{i}"]) + before[f"bias{i}"][:, None])
    out = torch.bmm(h, before["weight2"]) + before["bias2"][:, None]
    mu, raw = out[..., :4], out[..., 4:]
    upper, lower = before["upper"][:, None], before["lower"][:, None]
    logvar = upper - torch.nn.functional.softplus(upper - raw)
    logvar = lower + torch.nn.functional.softplus(logvar - lower)
    loss = (((mu - y).square() * (-logvar).exp()).mean((1, 2)) + logvar.mean((1, 2))).sum()
    loss = loss + 0.01 * (before["upper"].sum() - before["lower"].sum())
    for i, decay in enumerate((2.5e-5, 5e-5, 1e-4)):
        loss = loss + 0.5 * decay * before[f"weight{i}"].square().sum()
    loss.backward()
    model.fit(*rows)
    for name, leaf in before.items():
        torch.testing.assert_close(model.net.params.grad_view[name], leaf.grad, rtol=1e-3, atol=1e-6, msg=name)


def test_dynamics_learn_a_linear_world_and_rank_their_members():
    g = torch.Generator().manual_seed(0)
    model = Dynamics(2, 2, generator=g, members=3, elites=2, hidden=(32, 32), lr=3e-3)

    def rows(*shape):
        state = torch.rand(*shape, 2, generator=g) * 2 - 1
        action = torch.rand(*shape, 2, generator=g) * 2 - 1
        after = state + 0.3 * action
        return state, action, after, -after.square().sum(-1)

    for _ in range(20):
        model.observe(*rows(256))
    held = rows(256)
    for i in range(1000):
        model.fit(*rows(3, 128))
        if i % 100 == 99:
            model.validate(*held)
    model.settle()
    after, reward, aleatoric, disagreement = model.step(*held[:2])
    assert (after - held[2]).abs().mean() < 0.08
    assert (reward - held[3]).abs().mean() < 0.15
    assert float(aleatoric.mean()) > float(disagreement.mean()) >= 0
    assert model.best[model.order].diff().min() >= 0


def test_branches_end_at_terminations_and_mark_their_edges():
    """Hopper rule: z <= 0.7 is the end. Half of the rows fall at once; the others reach the second step."""
    g = torch.Generator().manual_seed(0)
    store = Branches(11, 3, 100, gamma=0.9, generator=g, termination="hopper")
    start = torch.zeros(10, 11)
    start[:, 0] = 1.2

    def model(state, action):
        after = state.clone()
        after[: len(after) // 2, 0] = 0.5
        zero = torch.zeros(len(state))
        return after, torch.ones(len(state)), zero + 2.0, zero

    about = store.roll(start, lambda s: torch.zeros(len(s), 3), model, horizon=2, doubt=Doubt(penalty=0.25))
    assert len(store) == 15
    rows = store.rows[:15]
    assert rows[:10, -2].tolist() == pytest.approx([0.0] * 5 + [0.9] * 5)
    assert rows[:, -1].tolist() == [0.0] * 10 + [1.0] * 5
    assert rows[:, -3].tolist() == pytest.approx([0.5] * 15)  # 1 - 0.25 * 2
    assert about["edge_share"].item() == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("kind", "state", "done"),
    [
        ("hopper", [0.69, 0.0], True),
        ("hopper", [0.71, 0.21], True),
        ("hopper", [0.71, 0.1], False),
        ("walker2d", [2.1, 0.0], True),
        ("walker2d", [1.0, -1.1], True),
        ("walker2d", [1.0, 0.9], False),
        ("ant", [0.1, 0.0], True),
        ("ant", [0.5, 0.0], False),
        ("halfcheetah", [0.0, 9.0], False),
    ],
)
def test_termination_rules(kind, state, done):
    assert bool(terminated(kind, torch.tensor([state]))[0]) == done


def test_sample_dropout_discards_the_highest_rewards():
    def filled(drop_top):
        g = torch.Generator().manual_seed(0)
        store = Branches(2, 2, 100, gamma=0.9, generator=g, termination="never")
        start = torch.linspace(-1, 1, 20)[:, None].expand(20, 2).contiguous()
        store.roll(start, lambda s: torch.zeros(len(s), 2), point_model, horizon=1, doubt=Doubt(drop_top=drop_top))
        return store.rows[: len(store)]

    everything, lower = filled(0.0), filled(0.2)
    assert (len(everything), len(lower)) == (20, 16)
    assert lower[:, -3].max() == everything[:, -3].sort().values[15]


def test_logged_rows_come_from_all_over_a_batch(batch):
    """With expert=<log> the first half of a batch is the expert's."""
    store = Branches(3, 2, 9, gamma=0.9, generator=torch.Generator().manual_seed(0), termination="never")
    model = lambda s, a: (s, torch.full((len(s),), 7.0), torch.zeros(len(s)), torch.zeros(len(s)))  # noqa: E731
    store.roll(torch.zeros(9, 3), lambda s: torch.zeros(len(s), 2), model, horizon=1, doubt=Doubt())
    drawn = next(store.mix(iter([batch(12, reward=torch.arange(12.0))]), 12, 0.34))
    assert drawn.reward.tolist() == [0.0, 3.0, 6.0, 9.0] + [7.0] * 8


def test_log_with_terminations_asks_for_the_rule(io, batch):
    learner = Mopo(MopoOptions(**SMALL, **MODEL), io)
    data = batch(16, terminated=torch.ones(16, dtype=torch.bool), discount=torch.zeros(16))
    for _ in range(6):
        learner.update(iter([data] * 99))  # the model is fitted all the same
    with pytest.raises(ValueError, match=r"policy\.termination=hopper"):
        learner.update(iter([data] * 99))


@pytest.mark.parametrize("kind", [Mopo, Ravl])
def test_model_based_resume_in_either_phase_is_exact(io, batch, kind):
    small = {**SMALL, **MODEL, "metrics_every": 1}
    options: Any = RavlOptions(**small, critics=3) if kind is Ravl else MopoOptions(**small)
    for cut in (3, 9):
        one, other = kind(options, io, seed=1), kind(options, io, seed=2)
        for i in range(12):
            if i == cut:
                other.load_state_dict(one.state_dict())
            expected = one.update(iter([batch(16, seed=i * 100 + j) for j in range(99)]))
            if i >= cut:
                assert other.update(iter([batch(16, seed=i * 100 + j) for j in range(99)])) == expected


def test_mopo_learns_to_walk_home_from_random_actions(point):
    options = MopoOptions(
        hidden=(32, 32),
        batch_size=128,
        lr=2e-3,
        tau=0.02,
        penalty=0.2,
        rollout_every=100,
        rollout_batch=500,
        horizon=3,
        model_hidden=(32, 32),
        model_members=3,
        model_elites=2,
        model_updates=300,
    )
    learner = Mopo(options, point.io, gamma=point.gamma)
    assert point.train(learner, 1000) > -3.5


@pytest.mark.slow
def test_ravl_with_true_dynamics_does_not_overestimate_and_one_critic_does():
    """Branches of one step from one corner: every successor is at the edge. Promised minus achieved value."""
    rows = run(updates=600, every=600)["rows"]
    gap = {row["case"]: row["gap"] for row in rows}
    assert gap["1 critic"] > 10.0
    assert gap["RAVL, 8 diverse critics"] < 0.5 * gap["1 critic"]


@pytest.mark.slow
def test_ravl_holds_a_point_in_the_true_world_where_two_critics_run_away():
    """Best reward per step 0.02, most that can be promised 2. Two critics find it, leave and diverge; RAVL stays."""
    rows = {row["case"].split()[0]: row for row in run(updates=2400, every=2400, task="hold")["rows"]}
    assert rows["2"]["reward_per_step"] < -1.0
    assert rows["2"]["promised"] > 2.0
    assert rows["RAVL,"]["reward_per_step"] > 0.015
    assert rows["RAVL,"]["promised"] < 1.0
