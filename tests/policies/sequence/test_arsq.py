"""ARSQ: the codes' golden numbers, exact soft values, the demonstration term, and two ways of acting kept apart."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.policies.nets.action_codes import ActionCodes
from robot_rl.policies.nets.imitation import demonstration_mask
from robot_rl.policies.sequence.arsq import Arsq, ArsqOptions, demo_term, normalise
from robot_rl.types import Episode, IOSpec, Transitions

IO = IOSpec({"state": ((2,), "float32")}, ("x", "y"), (-1.0,) * 2, (1.0,) * 2, ("1",) * 2, 10.0)
SMALL: dict[str, Any] = {"hidden": (32, 32), "batch_size": 32, "levels": 2, "bins": 3, "metrics_every": 1}


@pytest.mark.parametrize(
    ("levels", "bins", "action", "code", "back"),
    [
        (3, 5, -1.0, [0, 0, 0], -0.992),
        (3, 5, -0.37, [1, 2, 4], -0.368),
        (3, 5, 0.0, [2, 2, 2], 0.0),
        (3, 5, 0.37, [3, 2, 0], 0.368),
        (3, 5, 0.99999, [4, 4, 4], 0.992),
        (2, 7, -0.37, [2, 1], -0.367347),
        (2, 7, 0.37, [4, 5], 0.367347),
        (1, 41, 0.37, [28], 0.390244),
    ],
)
def test_codes_are_the_published_ones(levels: int, bins: int, action: float, code: list[int], back: float) -> None:
    codes = ActionCodes(levels, bins)
    found = codes.encode(torch.tensor([action]))
    assert found[:, 0].tolist() == code
    assert codes.decode(found).item() == pytest.approx(back, abs=1e-6)


@pytest.mark.parametrize(("levels", "bins"), [(3, 5), (2, 7), (1, 41), (4, 3)])
def test_encoding_what_was_decoded_gives_the_same_code_in_every_cell(levels: int, bins: int) -> None:
    codes = ActionCodes(levels, bins)
    every = torch.tensor(list(itertools.product(range(bins), repeat=levels)))[:, :, None]
    assert torch.equal(codes.encode(codes.decode(every)), every)
    gap = (torch.linspace(-1, 1, 999)[:, None] - codes.decode(codes.encode(torch.linspace(-1, 1, 999)[:, None]))).abs()
    assert gap.max() <= bins**-levels + 2e-5


def test_contexts_show_finer_midpoints_for_dimensions_chosen_already() -> None:
    """Two dimensions, two levels of 3 bins, codes (2, 0) then (1, 2)."""
    found = ActionCodes(2, 3).contexts(torch.tensor([[2, 0], [1, 2]]))
    third = 2.0 / 3.0
    expected = torch.tensor([[0.0, 0.0], [third, 0.0], [third, -third], [third, -third]])
    torch.testing.assert_close(found, expected)  # x of level 1 is the middle of its middle bin: again 2/3


def test_normalised_advantages_are_the_golden_numbers_and_a_policy() -> None:
    gain = normalise(torch.tensor([0.1, 0.2, -0.1], dtype=torch.float64), 0.1)
    np.testing.assert_allclose(gain, [-0.134901, -0.034901, -0.334901], atol=1e-6)
    np.testing.assert_allclose((gain / 0.1).exp(), [0.259496, 0.705385, 0.035119], atol=1e-6)
    large = normalise(torch.tensor([300.0, -500.0, 299.99]), 0.01)  # exp(30000) overflows
    assert torch.isfinite(large).all()
    assert (large / 0.01).exp().sum().item() == pytest.approx(1.0, abs=1e-4)


def test_value_is_the_soft_value_of_the_sum_over_all_actions() -> None:
    """V = alpha log sum_a exp(Q(s, a) / alpha) over the 81 actions of two dimensions: V needs no next action."""
    learner = Arsq(ArsqOptions(alpha=0.3, **SMALL), IO)
    flat = learner.advantage.params.flat
    flat.copy_(torch.randn(flat.shape, generator=torch.Generator().manual_seed(0)))
    every = torch.tensor(list(itertools.product(range(3), repeat=4))).view(-1, 2, 2)
    state = torch.tensor([[0.3, -0.2]]).expand(len(every), -1)
    gain = normalise(learner.raw(state, learner.codes.contexts(every)).detach(), 0.3)
    chosen = gain.gather(-1, every.flatten(1)[None, ..., None].expand(2, -1, -1, 1))[..., 0].sum(-1)
    soft = 0.3 * torch.logsumexp(chosen / 0.3, 1)  # Q - V of every action
    np.testing.assert_allclose(soft, [0.0, 0.0], atol=1e-5)


def test_demo_term_pushes_until_the_lead_that_was_asked_for() -> None:
    digit = torch.tensor([[0]])
    for low, moves in ((-1.0, True), (0.0, False), (-0.4, False)):  # the demonstrated bin leads by about 0.5
        gain = torch.tensor([[[[0.0, -0.5, -40.0]]]], requires_grad=True)
        demo_term(gain, digit, "cql", low, float("inf"), 1.0).sum().backward()
        assert bool(gain.grad.abs().sum() > 0) is moves  # type: ignore[union-attr]
    gain = torch.tensor([[[[0.0, -0.5, -2.0]]]], requires_grad=True)
    demo_term(gain, digit, "margin", -1.0, float("inf"), 1.0).sum().backward()
    assert gain.grad is not None
    assert gain.grad[0, 0, 0].tolist() == [-0.5, 0.5, 0.0]  # only the bin whose lead is not 1 yet; mean over two others


def rows(count: int, *, terminated: bool, source: list[int] | None = None, seed: int = 0) -> Transitions:
    draw = torch.Generator().manual_seed(seed)
    flags = torch.full((count,), terminated)
    return Transitions(
        {"state": torch.randn(count, 2, generator=draw)},
        torch.rand(count, 2, generator=draw) * 2 - 1,
        torch.ones(count),
        torch.full((count,), 0.0 if terminated else 0.5),
        {"state": torch.randn(count, 2, generator=draw)},
        flags,
        ~flags,
        torch.zeros(count, dtype=torch.bool),
        torch.ones(count, dtype=torch.bool),
        {} if source is None else {"source": torch.tensor(source)},
    )


def test_demonstrations_are_the_rows_of_a_log_or_the_second_part_of_a_mix() -> None:
    assert demonstration_mask(rows(3, terminated=True)).tolist() == [0.0, 0.0, 0.0]
    assert demonstration_mask(rows(3, terminated=True, source=[0, 1, 1])).tolist() == [0.0, 1.0, 1.0]
    log = rows(2, terminated=True)
    log.extras["step"] = torch.zeros(2, dtype=torch.int64)
    assert demonstration_mask(log).tolist() == [1.0, 1.0]


def test_windows_are_demonstrations_by_their_source_or_where_a_person_drove() -> None:
    one = rows(6, terminated=True, source=[0, 1, 0])
    flat = {"obs": one.obs, "next_obs": one.next_obs}
    windows = {
        name: getattr(one, name).view(3, 2, *getattr(one, name).shape[1:])
        for name in ("action", "reward", "discount", "terminated", "truncated", "intervened", "mask")
    }
    batch = replace(one, **{**flat, **windows})
    batch.intervened[2, 1] = True
    assert demonstration_mask(batch).tolist() == [0.0, 1.0, 1.0]
    batch.mask[2, 1] = False  # that step does not exist
    assert demonstration_mask(batch).tolist() == [0.0, 1.0, 0.0]


def test_batches_without_demonstrations_have_no_demo_loss_and_bins_of_demonstrations_rise() -> None:
    learner = Arsq(ArsqOptions(**SMALL), IO)
    assert learner.update(iter([rows(32, terminated=True)]))["train/demo_loss"] == 0.0
    batch = rows(32, terminated=True, source=[1] * 32)
    first = learner.update(iter([batch]))["train/demo_loss"]
    for _ in range(30):
        last = learner.update(iter([batch]))["train/demo_loss"]
    assert last < first  # pyright: ignore[reportPossiblyUnboundVariable]


@pytest.mark.parametrize(("terminated", "value"), [(True, 1.0), (False, 2.0)])
def test_time_limit_bootstraps_and_a_true_end_does_not(terminated: bool, value: float) -> None:
    """Reward 1 at every step, discount 0.5: 1 at a true end, 2 for ever."""
    learner = Arsq(ArsqOptions(**SMALL, lr=3e-3, tau=0.1, demo_low=-1.0), IO)
    batch = rows(16, terminated=terminated, source=[1] * 16)
    batch = replace(batch, next_obs=batch.obs)
    for _ in range(400):
        metrics = learner.update(iter([batch]))
    assert metrics["train/q"] == pytest.approx(value, abs=0.15)  # pyright: ignore[reportPossiblyUnboundVariable]


def test_demonstrations_that_are_masked_out_teach_nothing() -> None:
    """Other rows stand in for them, whose actions nobody showed."""
    batch = rows(8, terminated=True, source=[0] * 7 + [1])
    metrics = Arsq(ArsqOptions(**SMALL), IO).update(iter([replace(batch, mask=torch.arange(8) < 7)]))
    assert metrics["train/demo_rows"] == metrics["train/demo_loss"] == 0.0


def test_save_load_update_equals_update() -> None:
    one, other = Arsq(ArsqOptions(**SMALL), IO, seed=1), Arsq(ArsqOptions(**SMALL), IO, seed=2)
    data = [rows(32, terminated=bool(i % 2), source=[i % 2] * 32, seed=i) for i in range(5)]
    for batch in data[:3]:
        one.update(iter([batch]))
    other.load_state_dict(one.state_dict())
    for batch in data[3:]:
        assert one.update(iter([batch])) == other.update(iter([batch]))
    obs = {"state": np.ones((3, 2), np.float32)}
    np.testing.assert_array_equal(one.policy.act(obs).value, other.policy.act(obs).value)
    assert one.update(iter([rows(1, terminated=True)]))["train/q"] < 1e6  # a batch of one


def test_gradient_of_the_flat_networks_is_that_of_the_loss() -> None:
    """The diagonal that is read of the output layer, against autograd through the whole network."""
    learner = Arsq(ArsqOptions(**SMALL, alpha=0.5), IO)
    batch = rows(4, terminated=True, source=[1, 0, 1, 1])
    kept = learner.advantage.params.flat.clone()
    learner.advantage.lr = learner.value.lr = 0.0
    learner.update(iter([batch]))
    found = learner.advantage.params.grad.clone()
    from robot_rl.policies.nets.mlp import AutogradMlp

    assert torch.equal(kept, learner.advantage.params.flat)
    net = AutogradMlp(learner.advantage.shape, learner.advantage.params)
    state, code = learner.see(batch.obs["state"]), learner.codes.encode(batch.action)
    contexts = learner.codes.contexts(code)
    x = torch.cat([state[:, None].expand(-1, 4, -1), contexts], -1).flatten(0, 1)
    out = net.compute(x).view(2, 4, 4, 4, 3)
    gain = normalise(torch.stack([out[:, :, n, n] for n in range(4)], 2), 0.5)
    digit = code.flatten(1)
    chosen = gain.gather(-1, digit[None, ..., None].expand(2, -1, -1, 1))[..., 0].sum(-1)
    error = learner.value(state) + chosen - batch.reward
    demo = demo_term(gain, digit, "cql", -float("inf"), float("inf"), 1.0)[:, [0, 2, 3]].mean(1).sum()
    (error.square().mean(1).sum() + 2.0 * demo).backward()
    for name, view in learner.advantage.params.view.items():
        part = found[learner.advantage.params.slices[name]].view_as(view)
        torch.testing.assert_close(part, view.grad, atol=1e-5, rtol=1e-4)


def two_ways(count: int = 600) -> list[Episode]:
    """One step, from one state: x and y alike pay 1, x and y opposite pay 0, and both were shown equally often."""
    found = []
    rng = np.random.default_rng(0)
    for _ in range(count):
        x, y = rng.choice([-0.66, 0.66], 2)
        action = np.array([[x, y]], np.float32)
        reward = np.array([float(x == y)], np.float32)
        state = np.ones((2, 2), np.float32)
        found.append(
            Episode({"state": state}, action, action, reward, True, False, np.zeros(1, bool), np.arange(2.0), {})
        )
    return found


def test_two_ways_of_acting_are_kept_apart() -> None:
    """Values per dimension see a mean reward of 0.5 for every digit; digits that see those before them do not."""
    learner = Arsq(ArsqOptions(**SMALL, lr=3e-3, alpha=0.05, demo_weight=0.1, demo_low=0.0), IO)
    buffer = ReplayBuffer(IO, 1000, seed=0)
    for item in two_ways():
        buffer.add_episode(item)
    batches = buffer.batches(64)
    for _ in range(300):
        learner.update(batches)
    acted = learner.policy.act({"state": np.ones((200, 2), np.float32)}).value
    alike = np.sign(acted[:, 0]) == np.sign(acted[:, 1])
    large = (np.abs(acted) > 0.3).all(1)
    assert (alike & large).mean() > 0.9
    assert 0.2 < (acted[:, 0] > 0).mean() < 0.8 or alike.all()


def test_step_size_falls_as_a_cosine_and_ends_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, seen = Arsq(ArsqOptions(**SMALL, decay=4), IO), []
    monkeypatch.setattr(learner.advantage.params, "adam", lambda lr, **_: seen.append(lr))
    monkeypatch.setattr(learner.value.params, "adam", lambda lr, **_: seen.append(lr))
    for i in range(6):
        learner.update(iter([rows(8, terminated=True, source=[0] * 8, seed=i)]))
    cosine = [3e-4 * share for share in (1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0)]
    assert seen[::2] == pytest.approx(cosine, abs=1e-9)
    assert seen[1::2] == seen[::2]
    with pytest.raises(ValueError, match="decay"):
        Arsq(ArsqOptions(**SMALL, decay=-1), IO)
