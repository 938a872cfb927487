"""Vector rollouts, chunks, tokens and logs become one batch."""

import numpy as np
import pytest
import torch

from robot_rl.advantage.builders import from_chunks, from_log, from_tokens, from_vector_rollout, to_rollout
from robot_rl.advantage.gae import rollout_gae
from robot_rl.advantage.rows import RolloutRows
from robot_rl.advantage.turns import turn_gae


def gae_of(batch, **options):
    s = batch.steps
    columns = {name: options.pop(name) for name in ("duration", "discount") if name in options}
    return rollout_gae(RolloutRows(s.reward, s.value, s.next_value, s.terminated, s.boundary, **columns), **options)


def rollout(autoreset="same_step"):
    """Two environments, four steps. Environment 0 is truncated at step 1, environment 1 terminates at step 2."""
    reward = np.array([[1, 10], [2, 20], [3, 30], [4, 40.0]])
    value = np.array([[0.1, 0.5], [0.2, 0.6], [0.3, 0.7], [0.4, 0.8]])
    terminated, truncated = np.zeros((4, 2), bool), np.zeros((4, 2), bool)
    truncated[1, 0] = terminated[2, 1] = True
    final = np.full((4, 2), np.nan)
    final[1, 0] = 7.0
    return reward, value, terminated, truncated, final, np.array([5.0, 6.0])


def test_vector_rollout_same_step_splits_at_ends_and_keeps_the_final_observation():
    batch = from_vector_rollout(*rollout())
    np.testing.assert_array_equal(batch.steps.reward, [1, 2, 3, 4, 10, 20, 30, 40])
    np.testing.assert_array_equal(batch.steps.episode_id, [0, 0, 1, 1, 2, 2, 2, 3])
    np.testing.assert_array_equal(batch.steps.boundary, [0, 1, 0, 1, 0, 0, 1, 1])
    assert batch.steps.next_value is not None
    assert batch.steps.next_value[1] == 7.0  # V of the final observation, not 0.3 of the reset one
    assert batch.steps.next_value[3] == 5.0
    assert batch.steps.next_value[7] == 6.0
    back = to_rollout(batch.steps.reward, batch, (4, 2))
    np.testing.assert_array_equal(back, rollout()[0])


def test_vector_rollout_next_step_drops_the_row_after_each_end():
    batch = from_vector_rollout(*rollout(), autoreset="next_step")
    np.testing.assert_array_equal(batch.steps.reward, [1, 2, 4, 10, 20, 30])
    np.testing.assert_array_equal(to_rollout(batch.steps.reward, batch, (4, 2)), [[1, 10], [2, 20], [0, 30], [4, 0]])
    late = from_vector_rollout(*rollout(), autoreset="next_step", starts_with_reset=np.array([True, False]))
    np.testing.assert_array_equal(late.steps.reward, [2, 4, 10, 20, 30])


def test_vector_rollout_results_equal_the_time_major_kernel():
    reward, value, terminated, truncated, final, last = rollout()
    batch = from_vector_rollout(reward, value, terminated, truncated, final, last)
    advantage, _ = gae_of(batch)
    next_value = np.where(terminated | truncated, final, np.nan)
    next_value[-1] = last
    expected, _ = rollout_gae(RolloutRows(reward, value, next_value, terminated, terminated | truncated))
    np.testing.assert_allclose(to_rollout(advantage, batch, (4, 2)), expected, atol=1e-12)


def test_vector_rollout_takes_tensors_and_further_columns():
    given = [torch.from_numpy(x) for x in rollout()]
    logp, camera = torch.arange(8.0).reshape(4, 2), torch.arange(24.0).reshape(4, 2, 3)
    batch = from_vector_rollout(*given, columns={"logp_behaviour": logp, "camera": camera})
    np.testing.assert_array_equal(batch.steps.logp_behaviour, [0, 2, 4, 6, 1, 3, 5, 7])
    assert batch.steps.extras["camera"].shape == (8, 3)
    back = to_rollout(batch.steps.reward, batch, (4, 2))
    assert isinstance(back, torch.Tensor)
    np.testing.assert_array_equal(back, given[0])


def test_vector_rollout_ends_where_the_row_of_the_end_is_not_kept():
    reward, value, terminated, truncated, final, last = rollout()
    valid = np.ones((4, 2), bool)
    valid[1, 0] = valid[2, 0] = valid[2, 1] = False  # of environment 0 the end is left out, of 1 the end as well
    batch = from_vector_rollout(reward, value, terminated, truncated, final, last, valid=valid)
    np.testing.assert_array_equal(batch.steps.reward, [1, 4, 10, 20, 40])
    np.testing.assert_array_equal(batch.steps.episode_id, [0, 1, 2, 2, 3])
    assert batch.steps.next_value is not None
    np.testing.assert_array_equal(batch.steps.next_value[[0, 3]], [value[1, 0], value[2, 1]])


def test_vector_rollout_without_critic_or_final_values():
    reward, _, terminated, truncated, _, _ = rollout()
    batch = from_vector_rollout(reward, None, terminated, truncated, None, None)
    assert batch.steps.value is None
    with pytest.raises(ValueError, match="next_value is missing at row 1"):
        from_vector_rollout(reward, reward, terminated, truncated, None, np.zeros(2))


def test_vector_rollout_wrong_call_is_refused():
    with pytest.raises(ValueError, match="autoreset is 'later'"):
        from_vector_rollout(*rollout(), autoreset="later")
    with pytest.raises(ValueError, match=r"expected \(T, N\)"):
        from_vector_rollout(np.zeros(3), None, np.zeros(3), np.zeros(3), None, None)


def test_chunks_and_tokens_are_two_readings_of_one_record():
    # Three decisions of one episode. As chunks they last 1 tick each; as tokens each is an utterance of one token.
    reward, value = np.array([0, 0.5, 1.0]), np.array([0.2, 0.6, 0.3])
    end = np.array([False, False, True])
    chunks = from_chunks(reward, np.ones(3, int), end, np.zeros(3, bool), np.zeros(3), np.zeros(3), value=value)
    spans = np.array([[0, 0], [1, 1], [2, 2]])
    tokens = from_tokens(reward, np.ones(3, bool), spans, np.array([3]), value=value, tokens=np.array([4, 5, 6]))
    for a, b in zip(gae_of(chunks), gae_of(tokens)):
        np.testing.assert_array_equal(a, b)
    for one, other in ((chunks, tokens),):
        credit = [
            turn_gae(
                RolloutRows(x.steps.reward, x.steps.value, x.steps.next_value, x.steps.terminated, x.steps.boundary),
                x.steps.turn_id,
            )
            for x in (one, other)
        ]
        np.testing.assert_array_equal(credit[0].advantage, credit[1].advantage)
    np.testing.assert_array_equal(tokens.steps.extras["tokens"], [4, 5, 6])


def test_chunks_split_into_episodes_at_their_ends():
    end = np.array([False, True, False])
    batch = from_chunks(
        np.ones(3), np.array([2, 1, 4]), end, np.zeros(3, bool), np.array([0, 0, 0.5]), value=np.ones(3)
    )
    np.testing.assert_array_equal(batch.steps.episode_id, [0, 0, 1])
    assert batch.report.turns_given
    # delta of the last: 1 + 0.9^4 * 0.5 - 1
    assert gae_of(batch, gamma=0.9, duration=batch.steps.k)[0][2] == pytest.approx(0.9**4 * 0.5)


def test_tokens_observations_leave_the_clock_and_teachers_the_loss():
    role = np.array([1, 1, 0, 0, 1, 0], bool)  # words, tool output, words of a teacher, words
    foreign = np.array([0, 0, 0, 1, 0, 0], bool)
    spans = np.array([[0, 1], [3, 3], [4, 5]])
    batch = from_tokens(
        np.zeros(6),
        role,
        spans,
        np.array([4, 2]),
        foreign=foreign,
        truncated=np.array([False, True]),
        next_value=[0, 2.0],
        value=np.ones(6),
    )
    np.testing.assert_array_equal(batch.steps.clock, [1, 1, 0, 1, 1, 0])
    np.testing.assert_array_equal(batch.steps.loss_mask, [1, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(batch.steps.turn_id, [0, 0, -1, 1, 2, -1])
    np.testing.assert_array_equal(batch.steps.terminated, [0, 0, 0, 1, 0, 0])
    # The conversation was cut after a tool output: the value of its successor serves the last decision.
    np.testing.assert_array_equal(np.flatnonzero(batch.steps.boundary), [3, 4])
    assert batch.steps.next_value is not None
    assert batch.steps.next_value[4] == 2.0


@pytest.mark.parametrize(
    ("spans", "length", "words"),
    [
        ([[0, 2], [2, 3]], [4], "turn 1 spans tokens 2 to 3"),
        ([[0, 4]], [4], "turn 0 spans tokens 0 to 4"),
        ([[0, 1]], [4], "row 2 is a clock row outside any turn"),
        ([[0, 3]], [3], "length adds up to 3, expected 4 tokens"),
    ],
)
def test_tokens_bad_spans_are_refused(spans, length, words):
    with pytest.raises(ValueError, match=words):
        from_tokens(np.zeros(4), np.ones(4, bool), np.array(spans), np.array(length))


def test_log_with_d4rl_names(tmp_path):
    log = {
        "observations": np.zeros((5, 2)),
        "actions": np.zeros((5, 1)),
        "rewards": np.arange(5.0),
        "terminals": np.array([0, 1, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 1, 0]),
    }
    np.savez(tmp_path / "log.npz", **log)
    batch = from_log(np.load(tmp_path / "log.npz"))
    np.testing.assert_array_equal(batch.steps.episode_id, [0, 0, 1, 1, 2])
    np.testing.assert_array_equal(batch.steps.truncated, [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(batch.steps.boundary, [0, 1, 0, 1, 1])
    assert batch.steps.extras["observations"].shape == (5, 2)
    del log["timeouts"]
    assert from_log(log).episodes.n_turns.tolist() == [2, 3]
    del log["terminals"]
    with pytest.raises(ValueError, match="log lacks 'terminals'"):
        from_log(log)
