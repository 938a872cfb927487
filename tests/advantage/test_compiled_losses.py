"""`policy_loss` inside `torch.compile`, and in bfloat16: one graph, and the number and gradient of the plain call."""

from typing import Any

import pytest
import torch

from robot_rl.advantage import (
    ClipRange,
    RolloutRows,
    RowIds,
    gae,
    group_advantage,
    macro_reward,
    make_batch,
    policy_loss,
    rollout_gae,
    row_weight,
    trloo,
)
from tests.advantage.ragged import grad_of

B, T = 5, 8
TURN = torch.arange(B * T).view(B, T) // 3 % 4
TURN[1, 5:] = -1
EPISODE = torch.tensor([7, 7, 2, 9, 9])
GROUP = torch.tensor([0, 0, 1, 1, 0])
CONST = row_weight(torch.ones(B, T, dtype=torch.bool), "const", max_length=16)
CASES: list[dict[str, Any]] = [
    {},
    {"clip": ClipRange(dual=2.0)},
    {"clip": ClipRange(delta=1.5)},
    {"weight": torch.linspace(0.1, 1.0, B * T).reshape(B, T)},
    *({"kind": kind} for kind in ("gspo", "gmpo", "cispo", "sapo", "aepo", "reinforce")),
    *({"ratio_unit": unit, "ids": RowIds(TURN)} for unit in ("turn", "turn_geo", "sequence", "sequence_geo")),
    {"kind": "gspo", "ids": RowIds(episode=EPISODE)},
    *({"aggregation": name} for name in ("seq_mean_token_mean", "seq_mean_token_sum")),
    {"aggregation": CONST},
    *({"aggregation": name, "ids": RowIds(TURN, EPISODE)} for name in ("turn_mean", "traj_turn_token")),
    {"aggregation": "group_balanced", "ids": RowIds(group=GROUP)},
]


def rows(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    old, step, advantage = torch.randn(3, B, T, generator=generator)
    mask = torch.rand(B, T, generator=generator) < 0.8
    return (old + 0.2 * step).to(dtype), old.to(dtype), advantage.to(dtype), mask


@pytest.mark.parametrize(
    ("options", "masked"),
    [*((case, True) for case in CASES), *((case, False) for case in CASES[:6])],
    ids=lambda x: "-".join(map(str, x.items()))[:40] if isinstance(x, dict) else str(x),
)
def test_policy_loss_compiles_to_one_graph(options: dict[str, Any], masked: bool) -> None:
    """`fullgraph=True` refuses every break; the backend runs the traced graph as it is."""
    logp, old, advantage, mask = rows()
    mask = mask if masked else None

    def loss(x: torch.Tensor) -> torch.Tensor:
        return policy_loss(x, old, advantage, mask=mask, **options)

    torch._dynamo.reset()
    plain, traced = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    expected = loss(plain)
    found = torch.compile(loss, fullgraph=True, backend="eager")(traced)
    expected.backward()
    found.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(grad_of(traced), grad_of(plain))


@pytest.mark.parametrize("options", CASES[:10], ids=lambda options: "-".join(map(str, options.items()))[:40])
def test_policy_loss_takes_bfloat16(options: dict[str, Any]) -> None:
    """The loss is computed and returned in float32 from the rounded numbers; the gradient has the dtype of logp."""
    logp, old, advantage, mask = rows(torch.bfloat16)
    half, single = logp.clone().requires_grad_(), logp.float().requires_grad_()
    loss = policy_loss(half, old, advantage, mask=mask, **options)
    expected = policy_loss(single, old.float(), advantage.float(), mask=mask, **options)
    loss.backward()
    expected.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16
    assert single.grad is not None
    torch.testing.assert_close(half.grad, single.grad.bfloat16())


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "autograd"])
def test_estimators_and_batches_take_bfloat16_and_give_float32(recorded: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    half = torch.randn(3, 12, 4, generator=generator).bfloat16()
    terminated, boundary = torch.zeros(2, 12, 4, dtype=torch.bool)
    boundary[5] = True
    reward, value, following = (x.clone().requires_grad_(recorded) for x in half)
    results = rollout_gae(RolloutRows(reward, value, following, terminated, boundary))
    single = rollout_gae(RolloutRows(half[0].float(), half[1].float(), half[2].float(), terminated, boundary))
    for found, expected in zip(results, single):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected)
    episode, columns = torch.zeros(12, dtype=torch.int64), [x[:, 0] for x in half]
    score, group = columns[0], torch.arange(12) // 4
    torch.testing.assert_close(group_advantage(score, group), group_advantage(score.float(), group))
    turns = [trloo(x, group, torch.zeros(3, dtype=torch.int64), gamma=0.9) for x in (score, score.float())]
    torch.testing.assert_close(*turns)
    dense = torch.rand(5, 12, generator=generator).bfloat16()
    torch.testing.assert_close(gae(*dense), gae(*dense.float()))
    torch.testing.assert_close(macro_reward(dense, 0.9), macro_reward(dense.float(), 0.9))
    end = torch.arange(12) == 11
    batch = make_batch(columns[0], end, torch.zeros_like(end), episode, value=columns[1])
    assert batch.steps.reward.dtype == torch.float32
    torch.testing.assert_close(batch.steps.reward, columns[0].float())
    torch.testing.assert_close(batch.steps.value, columns[1].float())
