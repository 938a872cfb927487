"""The adapter of padded trainer batches: tables by hand, round trip, refusals, and the example of the docs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.advantage import Pipeline, Stage, presets
from robot_rl.policies.language.adapter import add_advantages, to_padded, to_tables

ROOT = Path(__file__).resolve().parents[2]


def padded():
    """Two rollouts of one prompt. Tokens: w written, o tool output, - padding.

    dialogue 0: w w o w -    rewards 0 .2 0 1
    dialogue 1: w o w w w    rewards 0 0 0 0 .4
    """
    return {
        "prompts": np.array([[0, 7, 8], [6, 7, 8]]),
        "responses": np.array([[1, 2, 3, 4, 0], [1, 2, 3, 4, 5]]),
        "response_mask": np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]]),
        "attention_mask": np.array([[0, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1]]),
        "token_level_rewards": np.array([[0, 0.2, 0, 1, 0], [0, 0, 0, 0, 0.4]], np.float32),
        "old_log_probs": -np.arange(10, dtype=np.float32).reshape(2, 5),
        "uid": np.array(["task-a", "task-a"], object),
    }


def test_tables_by_hand():
    tables = to_tables(padded())
    batch = tables.batch
    assert tables.index.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert batch.steps.extras["tokens"].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 5]
    assert batch.steps.clock.tolist() == [True, True, False, True, True, False, True, True, True]
    assert batch.steps.episode_id.tolist() == [0] * 4 + [1] * 5
    assert batch.turns.start.tolist() == [0, 3, 4, 6]
    assert batch.turns.end.tolist() == [1, 3, 4, 8]
    assert batch.episodes.group_id.tolist() == [0, 0]
    assert batch.episodes.outcome == pytest.approx([1.2, 0.4])
    assert batch.steps.logp_behaviour is not None
    assert batch.steps.logp_behaviour.tolist() == [0, -1, -2, -3, -5, -6, -7, -8, -9]


def test_without_attention_mask_a_response_ends_at_its_last_written_token():
    data = padded()
    del data["attention_mask"], data["prompts"]
    assert to_tables(data).index.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_round_trip_keeps_every_real_token_and_the_kind(kind):
    data = {name: x if name == "uid" else kind(x) for name, x in padded().items()}
    tables = to_tables(data)
    back = to_padded(tables.batch.steps.logp_behaviour, tables)
    assert isinstance(back, torch.Tensor) == (kind is torch.as_tensor)
    expected = padded()["old_log_probs"]
    expected[0, 4] = 0  # padding
    np.testing.assert_array_equal(np.asarray(back), expected)


def test_halves_are_read():
    data = {name: x if name == "uid" else torch.as_tensor(x) for name, x in padded().items()}
    data |= {name: data["old_log_probs"].bfloat16() for name in ("old_log_probs", "values")}
    out = add_advantages(data, Pipeline([Stage("gae")]))
    assert out["advantages"].dtype == torch.float32
    assert bool(torch.isfinite(out["advantages"]).all())


def test_trloo_by_hand_lands_on_the_tokens_of_its_turn():
    # Turn rewards [.2, 1] and [0, .4], gamma 1: returns [1.2, 1], [.4, .4]; against the other: .8, .6 and the negative.
    out = add_advantages(padded(), presets.trloo(gamma=1.0))
    expected = [[0.8, 0.8, 0, 0.6, 0], [-0.8, 0, -0.6, -0.6, -0.6]]
    np.testing.assert_allclose(out["advantages"], expected, atol=1e-6)
    np.testing.assert_array_equal(out["returns"], out["advantages"])
    np.testing.assert_array_equal(out["response_mask"], padded()["response_mask"])


def test_turn_ids_decide_over_runs_of_written_tokens():
    data = padded()
    # Dialogue 1 is one turn with tool output inside; without ids it would be two.
    data["turn_ids"] = np.array([[0, 0, 0, 1, 0], [4, 4, 4, 4, 4]])
    batch = to_tables(data).batch
    assert batch.turns.start.tolist() == [0, 3, 4]
    assert batch.turns.end.tolist() == [1, 3, 8]
    data["turn_ids"] = np.array([[0, 1, 0, 2, 0], [0, 9, 0, 0, 1]])  # ids on tool output do not count
    assert to_tables(data).batch.turns.end.tolist() == [0, 1, 3, 7, 8]
    data["turn_ids"] = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    with pytest.raises(ValueError, match="dialogue 0 fall at token 3"):
        to_tables(data)


def test_values_give_returns_and_a_cut_dialogue_bootstraps():
    # Monte Carlo of one written token, cut, gamma 0.5, V' = 2: target 1 + 0.5 * 2 = 2; advantage 2 - 0.5.
    data = {
        "responses": np.array([[3, 0]]),
        "response_mask": np.array([[1, 0]]),
        "token_level_rewards": np.array([[1.0, 0.0]]),
        "values": np.array([[0.5, 9.0]]),
        "uid": ["x"],
        "truncated": np.array([True]),
        "next_values": np.array([2.0]),
    }
    out = add_advantages(data, Pipeline([Stage("gae", options={"gamma": 0.5, "gae_lambda": 1.0})]))
    np.testing.assert_allclose(out["returns"], [[2.0, 0.0]])
    np.testing.assert_allclose(out["advantages"], [[1.5, 0.0]])


def test_anchors_reach_gigpo():
    # Same state at both starts: outcomes 1.2 and .4 (mean .8) and returns with gamma 1 of 1.2 and .4 (mean .8) there.
    out = add_advantages(padded(), presets.gigpo(gamma=1.0), anchors=[["start", "a"], ["start", "b"]])
    np.testing.assert_allclose(out["advantages"][0], [0.8, 0.8, 0, 0.4, 0], atol=1e-6)
    with pytest.raises(ValueError, match="one text per turn"):
        to_tables(padded(), anchors=[["start"], ["start", "b"]])
    with pytest.raises(ValueError, match="anchor"):
        add_advantages(padded(), presets.gigpo())


def test_bad_batches_are_refused():
    data = padded()
    for change, message in (
        ({"uid": None}, "lacks 'uid'"),
        ({"response_mask": np.zeros((2, 5))}, "dialogue 0 has no written token"),
        ({"token_level_rewards": np.ones((2, 5))}, "padding of dialogue 0 holds"),
        ({"values": np.ones((2, 4))}, "values has shape"),
        ({"attention_mask": np.ones((2, 6))}, "covers 6 tokens"),
    ):
        bad = {name: x for name, x in {**data, **change}.items() if x is not None}
        with pytest.raises(ValueError, match=message):
            to_tables(bad)


def test_example_of_the_docs_runs():
    text = (ROOT / "docs/language_agent.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.S)
    assert example is not None
    space: dict = {}
    exec(example.group(1), space)  # it asserts its own result
    assert space["out"]["advantages"].shape == (4, 7)
