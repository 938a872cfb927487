"""Heads: what was drawn scores the same again, the golden numbers of codec and stochastic flow, one-step learning."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from robot_rl.policies.nets.vla_heads import (
    FlowHead,
    cps_step,
    decode_class,
    encode_class,
    make_head,
    sde_step,
)

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("gaussian", {}),
    ("token", {"bins": 32}),
    ("token", {"bins": 256, "temperature": 1.6}),
    ("flow", {}),
    ("flow", {"stochastic": "all"}),
    ("flow", {"noise": "cps"}),
    ("flow", {"noise": "learned"}),
]


def head(kind: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return make_head(kind, 16, 4, 3, options)


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_evaluate_repeats_the_log_probabilities_of_what_was_drawn(kind: str, options: dict[str, Any]) -> None:
    made, reading = head(kind, options), torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        drawn = made.sample(reading, torch.Generator().manual_seed(2), deterministic=False)
        again = made.sample(reading, torch.Generator().manual_seed(2), deterministic=False)
        alone = made.sample(reading[:1], torch.Generator().manual_seed(2), deterministic=True)
    logp, entropy = made.evaluate(reading, drawn.trace)
    assert drawn.actions.shape == (5, 4, 3)
    assert logp.shape == entropy.shape == (5, 12 if kind == "token" else 4)
    assert torch.isfinite(logp).all()
    assert logp.requires_grad
    torch.testing.assert_close(logp, drawn.logp, atol=1e-5, rtol=0)
    assert torch.equal(drawn.actions, again.actions)
    # some rows of the trace, as minibatches take them
    part = made.evaluate(reading[1:3], {key: x[1:3] for key, x in drawn.trace.items()})[0]
    torch.testing.assert_close(part, drawn.logp[1:3], atol=1e-5, rtol=0)
    mode = made.sample(reading, None, deterministic=True).actions
    torch.testing.assert_close(mode[:1], alone.actions, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_gradient_of_the_log_probability_raises_it(kind: str, options: dict[str, Any]) -> None:
    made, reading = head(kind, options), torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    drawn = made.sample(reading, torch.Generator().manual_seed(2), deterministic=False)
    optimiser = torch.optim.SGD(made.parameters(), lr=1e-4)
    before = made.evaluate(reading, drawn.trace)[0].sum()
    (-before).backward()
    optimiser.step()
    assert float(made.evaluate(reading, drawn.trace)[0].sum().detach()) > float(before.detach())


@pytest.mark.parametrize(("kind", "options"), KINDS[:5], ids=str)
def test_imitation_finds_the_chunk_and_ignores_what_is_masked(kind: str, options: dict[str, Any]) -> None:
    made, reading = head(kind, options), torch.ones(8, 16)
    goal = torch.tensor([0.5, -0.5, 0.0]).expand(8, 4, 3).clone()
    mask = torch.ones(8, 4, dtype=torch.bool)
    mask[:, 2:] = False
    goal[:, 2:] = math.nan if kind != "token" else 0.0
    goal = torch.where(mask[..., None], goal, torch.zeros_like(goal))
    optimiser = torch.optim.Adam(made.parameters(), lr=1e-2)
    draws = torch.Generator().manual_seed(0)
    for _ in range(200):
        optimiser.zero_grad()
        made.loss(reading, goal, mask, draws).backward()
        optimiser.step()
    mode = made.sample(reading[:1], None, deterministic=True).actions[0]
    assert (mode[:2] - goal[0, :2]).abs().max() < (0.2 if kind == "flow" else 0.1)


def test_codec_golden_numbers() -> None:
    x = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0, 1.7])
    classes = encode_class(x)
    assert classes.tolist() == [0, 63, 127, 191, 255, 255]
    expected = torch.tensor([-0.99608, -0.50196, 0.0, 0.50196, 0.99608, 0.99608])
    torch.testing.assert_close(decode_class(classes), expected, atol=1e-5, rtol=0)


def test_stochastic_flow_golden_numbers() -> None:
    one, v = torch.tensor([1.0]), torch.tensor([0.3])
    mean, std = sde_step(one, v, 0.6, 0.1, 0.5)
    assert float(mean) == pytest.approx(0.935, abs=1e-6)
    assert float(std) == pytest.approx(0.193649, abs=1e-6)
    assert float(sde_step(one, v, 0.6, 0.1, 0.0)[0]) == pytest.approx(0.97, abs=1e-6)  # Euler
    mean, std = cps_step(one, v, 0.6, 0.1, 0.5)
    assert float(mean) == pytest.approx(0.805980, abs=1e-6)
    assert float(std) == pytest.approx(0.353553, abs=1e-6)
    assert all(bool(torch.isfinite(x).all()) for x in sde_step(one, v, 1.0, 0.1, 0.5))  # 1 - t is 0 there


def test_guided_flow_keeps_the_running_chunk_and_has_no_log_probability() -> None:
    made = head("flow", {"steps": 10})
    assert isinstance(made, FlowHead)
    reading = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    previous = torch.full((2, 4, 3), 0.7)
    weight = torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(2, 4)
    with torch.no_grad():
        free = made.sample(reading, torch.Generator().manual_seed(3), deterministic=False).actions
        held = made.sample(reading, torch.Generator().manual_seed(3), deterministic=False, guide=(previous, weight))
    assert (held.actions[:, :2] - 0.7).abs().max() < 0.1
    assert (free[:, :2] - 0.7).abs().max() > 0.3
    assert torch.isnan(held.logp).all()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("cats", {}, "expected one of gaussian, token, flow"),
        ("token", {"bins": 2}, "expected 3 or more"),
        ("flow", {"noise": "loud"}, "expected one of sde, cps, learned"),
        ("flow", {"steps": 1}, "expected 2 or more"),
        ("gaussian", {"bins": 3}, "options of the gaussian head"),
    ],
)
def test_bad_options_are_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_head(kind, 8, 2, 2, options)
