"""From a batch to a loss: every registered stage, mixes, states, metrics, presets and their configurations."""

import inspect

import numpy as np
import pytest
import torch

from robot_rl.advantage import entries, make_batch, presets
from robot_rl.advantage.aggregate import row_weight
from robot_rl.advantage.gae import rollout_gae
from robot_rl.advantage.groups import grpo
from robot_rl.advantage.layout import RowIds
from robot_rl.advantage.normalise import whiten
from robot_rl.advantage.pipeline import Pipeline, Stage, loss_arguments
from robot_rl.advantage.registry import Entry, check_needs, entry, register
from robot_rl.advantage.rows import RolloutRows
from robot_rl.advantage.turn_groups import trloo

PRESETS = list(presets.PRESETS.values())


def full_batch(seed=0, **changes):
    """Six episodes in two groups with everything that any stage reads; observation rows between the turns."""
    rng = np.random.default_rng(seed)
    length = np.array([9, 6, 9, 12, 6, 9])
    count, episodes = int(length.sum()), 6
    episode = np.repeat(np.arange(episodes), length)
    within = np.arange(count) - np.repeat(np.cumsum(length) - length, length)
    clock = within % 3 != 2  # two clock rows, one observation row
    turn = np.where(clock, np.cumsum(within % 3 == 0) - 1, -1)
    turns = int(turn.max()) + 1
    last = np.cumsum(length) - 1
    terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
    terminated[last[:4]], truncated[last[4:]] = True, True
    number = lambda *shape: rng.standard_normal(shape)  # noqa: E731
    extras = {
        "q": number(count),
        "next_expected_q": number(count),
        "expected_q": number(count),
        "probability": rng.random(count),
        "value_high": number(count),
        "value_switch": number(count),
        "next_value_high": number(count),
        "greedy": (episode % 3 == 0),
        "prob": rng.random(count),
        "prob_square_sum": rng.random(count),
        "match": rng.random(count) < 0.8,
        "gain": number(count),
        "potential": number(count),
        "next_potential": number(count),
        "progress": rng.random(count),
        "next_progress": rng.random(count),
        "level_reward": number(count, 2),
        "contribution": number(count),
        "grounding": (rng.random(count) < 0.5).astype(float),
        "answer_probability": rng.random(count),
    }
    base = {
        "reward": number(count),
        "terminated": terminated,
        "truncated": truncated,
        "episode_id": episode,
        "turn_id": turn,
        "segment_id": np.cumsum(within % 6 == 0) - 1,
        "clock": clock,
        "own": rng.random(count) < 0.8,
        "value": number(count),
        "next_value": number(count),
        "logp_behaviour": -rng.random(count),
        "logp_prox": -rng.random(count),
        "logp_ref": -rng.random(count),
        "turn": {
            "anchor_key": rng.integers(1, 4, turns),
            "actor_id": np.arange(turns) % 2,
            "role_id": np.arange(turns) % 2,
            "turn_reward": number(turns),
        },
        "episode": {"group_id": np.array([0, 0, 0, 1, 1, 1]), "task_id": np.array([0, 0, 0, 1, 1, 1])},
        "extras": extras,
    }
    return make_batch(**(base | changes))


ESTIMATORS = [item for item in entries() if item.kind != "redistribute"]
OPTIONS = {"n_step": {"n": 3}, "cm2_turn": {"min_members": 2}, "ui_s1": {"keep_std": 0.0}}


def twin_heads(rows):
    q, v = np.random.default_rng(1).standard_normal((2, rows, 2))
    return {"q": q, "v": v}


def stage(name, **options):
    return Stage(name, options={**OPTIONS.get(name, {}), **options})


@pytest.mark.parametrize("item", ESTIMATORS, ids=lambda item: item.name)
def test_every_estimator_runs_in_a_pipeline_and_torch_gives_the_same(item):
    batch = full_batch()
    if item.name == "archer":
        batch = full_batch(extras=twin_heads(len(batch)))
    before = batch.steps.reward.copy()
    credit = Pipeline([stage(item.name)])(batch)
    np.testing.assert_array_equal(batch.steps.reward, before)
    assert credit.advantage.shape == (len(batch),)
    assert np.isfinite(credit.advantage).all()
    assert (credit.advantage != 0).any()
    assert (credit.advantage[~batch.steps.clock] == 0).all()
    assert not credit.mask[~(batch.steps.clock & batch.steps.own)].any()
    tensors = Pipeline([stage(item.name)])(batch.to("cpu"))
    assert isinstance(tensors.advantage, torch.Tensor)
    np.testing.assert_allclose(tensors.advantage.numpy(), credit.advantage, atol=1e-9)
    if credit.returns is not None:
        np.testing.assert_allclose(tensors.returns.numpy(), credit.returns, atol=1e-9)
        assert np.isfinite(credit.returns).all()
    for name, number in credit.metrics.items():
        np.testing.assert_allclose(np.asarray(tensors.metrics[name]), np.asarray(number), atol=1e-9, err_msg=name)
    narrow = Pipeline([stage(item.name)])(full_batch_float32(batch))
    np.testing.assert_allclose(narrow.advantage, credit.advantage, atol=2e-4)


def full_batch_float32(batch):
    from robot_rl.advantage.batch import TurnBatch
    from robot_rl.advantage.tables import map_table

    def change(x):
        return x.astype(np.float32) if x.dtype == np.float64 else x

    tables = [map_table(table, change) for table in (batch.steps, batch.turns, batch.episodes, batch.segments)]
    return TurnBatch(tables[0], tables[1], tables[2], tables[3], batch.report)


@pytest.mark.parametrize("item", entries("redistribute"), ids=lambda item: item.name)
def test_every_reward_stage_keeps_the_reward_of_the_environment(item):
    batch = full_batch()
    small = Pipeline([Stage("monte_carlo")])
    given = batch.to("cpu")
    result = item.function(given, **({"gamma": 0.9} if item.name == "potential" else {}))
    np.testing.assert_array_equal(result.steps.extras["reward_env"], batch.steps.reward)
    changed = (
        result.steps.reward != given.steps.reward
    ).any() or result.turns.turn_reward is not given.turns.turn_reward
    assert changed
    credit = Pipeline([Stage("gae")], redistribute=[Stage(item.name)])(batch)
    assert np.isfinite(credit.advantage).all()
    assert np.isfinite(small(batch).advantage).all()
    tensors = Pipeline([Stage("gae")], redistribute=[Stage(item.name)])(batch.to("cpu"))
    np.testing.assert_allclose(tensors.advantage.numpy(), credit.advantage, atol=1e-9)


def test_pipeline_gae_is_gae_on_the_compacted_rows():
    batch = full_batch(own=None)
    credit = Pipeline([Stage("gae", options={"gamma": 0.9, "gae_lambda": 0.8})])(batch)
    s = batch.steps
    rows = np.flatnonzero(s.clock)
    reward = s.reward[rows].copy()
    for t in np.flatnonzero(~s.clock):
        reward[np.searchsorted(rows, t) - 1] += s.reward[t]
    reward[np.searchsorted(rows, batch.turns.end)] += batch.turns.turn_reward
    ends = np.append(np.diff(s.episode_id[rows]) > 0, True)
    done = ends & (s.episode_id[rows] < 4)
    assert s.next_value is not None
    assert s.value is not None
    final = np.where(ends, s.next_value[np.minimum(rows + 1, len(s.clock) - 1)], np.nan)
    advantage, target = rollout_gae(RolloutRows(reward, s.value[rows], final, done, ends), gamma=0.9, gae_lambda=0.8)
    np.testing.assert_allclose(credit.advantage[rows], advantage, atol=1e-12)
    np.testing.assert_allclose(credit.returns[rows], target, atol=1e-12)
    np.testing.assert_array_equal(credit.returns[~s.clock], s.value[~s.clock])


def test_pipeline_turn_estimators_use_the_turn_table():
    batch = full_batch(own=None)
    s, turns = batch.steps, batch.turns
    reward = np.zeros(len(turns.start))
    np.add.at(reward, s.turn_id[s.clock], s.reward[s.clock])
    for t in np.flatnonzero(~s.clock):
        reward[s.turn_id[t - 1]] += s.reward[t]
    assert turns.turn_reward is not None
    reward += turns.turn_reward
    expected = trloo(reward, turns.episode_id.astype(np.int64), batch.episodes.group_id.astype(np.int64), gamma=0.9)
    credit = Pipeline([Stage("trloo", options={"gamma": 0.9})])(batch)
    np.testing.assert_allclose(credit.advantage[s.clock], expected[s.turn_id[s.clock]], atol=1e-12)
    single = Pipeline([Stage("turn_gae")])(batch)
    assert set(np.unique(single.value_weight)) == {0.0, 1.0}
    assert single.value_weight.sum() == len(turns.start)


def test_pipeline_mix_is_the_weighted_sum():
    batch = full_batch()
    one, two = (Pipeline([Stage(name)])(batch) for name in ("gae", "grpo"))
    mix = Pipeline([Stage("gae", 0.25), Stage("grpo", 2.0)])(batch)
    np.testing.assert_allclose(mix.advantage, 0.25 * one.advantage + 2 * two.advantage, atol=1e-12)
    np.testing.assert_array_equal(mix.returns, one.returns)


def test_pipeline_whitens_over_loss_rows_only():
    batch = full_batch()
    raw, white = Pipeline([Stage("gae")])(batch), Pipeline([Stage("gae")], whiten=True)(batch)
    np.testing.assert_allclose(white.advantage, whiten(raw.advantage, raw.mask), atol=1e-9)
    assert abs(float(white.metrics["advantage_mean"])) < 1e-9
    assert white.metrics["raw_advantage_std"] == raw.metrics["advantage_std"]


def test_pipeline_unscorable_episode_leaves_statistics_and_loss():
    reward = full_batch().steps.reward.copy()
    reward[3] = np.nan
    batch = full_batch(reward=reward)
    credit = Pipeline([Stage("grpo")])(batch)
    first = batch.steps.episode_id == 0
    assert (credit.advantage[first] == 0).all()
    assert not credit.mask[first].any()
    outcome = batch.episodes.outcome
    assert np.isnan(outcome[0])
    expected = grpo(outcome[1:3], np.zeros(2, int))
    np.testing.assert_allclose(credit.advantage[(batch.steps.episode_id == 1) & batch.steps.clock], expected[0])
    for item in ESTIMATORS:
        if item.name not in ("archer",):
            assert np.isfinite(Pipeline([stage(item.name)])(batch).advantage).all(), item.name


def test_no_critic_learns_from_an_unscorable_episode():
    reward = np.array([1, np.nan, 0, 1])
    ends, episode = np.array([0, 1, 0, 1], bool), np.repeat([0, 1], 2)
    batch = make_batch(reward, ends, np.zeros(4, bool), episode, np.arange(4), value=np.zeros(4))
    for name in ("gae", "turn_gae", "monte_carlo"):
        np.testing.assert_array_equal(Pipeline([Stage(name)])(batch).value_weight, [0, 0, 1, 1])


def test_explained_variance_is_of_the_values_that_are_trained():
    # Values of turns lie on their first rows; what the critic says on the others does not matter.
    turn = np.repeat(np.arange(4), 2)
    reward, value = np.array([0.0, 1, 0, 2, 0, 3, 0, 4]), np.array([1.0, 100, 2, -50, 3, 70, 4, 0])
    batch = make_batch(reward, np.array([0, 1] * 4, bool), np.zeros(8, bool), turn, turn, value=value)
    assert Pipeline([Stage("turn_gae")])(batch).metrics["explained_variance"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["gae", "monte_carlo", "n_step", "reinforce_pp", "hae"])
def test_rewards_of_turns_reach_estimators_over_rows(name):
    given = full_batch(own=None)
    reward = given.steps.reward.copy()
    reward[given.turns.end] += given.turns.turn_reward
    turn = {"actor_id": given.turns.actor_id, "anchor_key": given.turns.anchor_key}
    moved = full_batch(own=None, reward=reward, turn=turn)
    found, expected = (Pipeline([stage(name)])(batch).advantage for batch in (given, moved))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_contributions_of_turns_reach_gae():
    options = {"gamma": 1.0, "gae_lambda": 1.0}
    batch = make_batch(
        np.array([0.0, 0, 0, 1]), np.array([0, 0, 0, 1], bool), np.zeros(4, bool), np.zeros(4, int),
        np.array([0, 0, 1, 1]), value=np.zeros(4), extras={"contribution": np.array([0.3, 0.3, 0.7, 0.7])},
    )  # fmt: skip
    credit = Pipeline([Stage("gae", options=options)], redistribute=[Stage("spa")])(batch)
    np.testing.assert_allclose(credit.advantage, [1, 1, 0.7, 0.7])


def test_pipeline_single_member_groups_and_equal_scores_give_zero_not_nan():
    batch = full_batch(episode={"group_id": np.arange(6)})
    assert (Pipeline([Stage("grpo")])(batch).advantage == 0).all()
    same = full_batch(episode={"group_id": np.zeros(6, int), "outcome": np.full(6, 0.3)})
    credit = Pipeline([Stage("grpo")])(same)
    assert (credit.advantage == 0).all()
    assert credit.metrics["zero_variance_fraction"] == 1.0


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gae", {"value": None}, "temporal stage 'gae' needs value"),
        ("grpo", {"episode": None}, "group stage 'grpo' needs group"),
        ("turn_gae", {"turn_id": None, "turn": None}, "'turn_gae' needs turns.*never inferred"),
        ("gigpo", {"turn": None}, "'gigpo' needs anchor"),
        ("hae", {"segment_id": None}, "'hae' needs segments"),
        ("retrace", {"extras": {}}, "'retrace' needs extras.q"),
        ("vtrace", {"logp_prox": None}, "'vtrace' needs logp_prox"),
    ],
)
def test_pipeline_names_what_the_batch_lacks(name, changes, words):
    with pytest.raises(ValueError, match=words):
        Pipeline([stage(name)])(full_batch(**changes))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Pipeline([]), "estimators is empty"),
        (lambda: Pipeline([Stage("gea")]), "unknown temporal or group stage 'gea'; expected one of .*gae"),
        (lambda: Pipeline([Stage("gae")], redistribute=[Stage("gae")]), "unknown redistribute stage 'gae'"),
        (lambda: Pipeline([Stage("grpo")], whiten=True), "divides by a deviation"),
        (lambda: Pipeline([Stage("rae")], whiten=True), "whiten"),
        (lambda: register("temporal", "gae", paper="")(print), "registered already"),
        (lambda: register("magic", "x", paper=""), "kind 'magic'"),
        (
            lambda: Pipeline([Stage("gae", options={"foreign_trace": "maybe"})])(full_batch()),
            "foreign_trace is 'maybe'",
        ),
        (lambda: Pipeline([Stage("hae", options={"use": "all"})])(full_batch()), "use is 'all'"),
        (lambda: Pipeline([Stage("retrace", options={"trace": "x"})])(full_batch()), "trace is 'x'"),
    ],
)
def test_pipeline_wrong_configuration_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_pipeline_whiten_after_rae_and_std_can_be_asked_for():
    assert Pipeline([Stage("rae")], whiten=True, allow=["whiten_rae"])
    assert Pipeline([Stage("grpo", options={"scale": "none"})], whiten=True)
    with pytest.raises(ValueError, match="gigpo_std"):
        Pipeline([Stage("gigpo", options={"mode": "mean_std_norm"})], whiten=True)


def test_retrace_traces_differ():
    batch = full_batch()
    got = [
        Pipeline([Stage("retrace", options={"trace": t})])(batch).advantage for t in ("retrace", "tree_backup", "peng")
    ]
    assert np.abs(got[0] - got[1]).max() > 1e-3
    assert np.abs(got[1] - got[2]).max() > 1e-3


def test_longest_length_without_a_named_aggregation_is_of_the_losss_own():
    mask, ids = torch.ones(4, dtype=torch.bool), RowIds(episode=torch.tensor([0, 0, 0, 1]))
    for kind, mode in (("ppo", "token_mean"), ("gspo", "seq_mean_token_mean")):
        weights = loss_arguments({"kind": kind, "max_length": 8}, mask, ids)["aggregation"]
        assert torch.equal(weights, row_weight(mask, mode, ids, max_length=8))


def test_hae_heads_of_the_pipeline():
    batch = full_batch()
    low, high, switch = (Pipeline([Stage("hae", options={"use": use})])(batch) for use in ("low", "high", "switch"))
    starts = np.zeros(len(batch), bool)
    assert batch.segments is not None
    starts[batch.segments.start] = True
    np.testing.assert_array_equal(high.value_weight, starts.astype(float))
    assert (high.advantage[~starts] == 0).all()
    assert np.abs(low.advantage - switch.advantage).max() > 1e-3
    for credit, name, rows in ((high, "value_high", starts), (switch, "value_switch", batch.steps.clock)):
        rows = rows & np.isfinite(batch.episodes.outcome)[batch.steps.episode_id]
        target, value = credit.returns[rows], batch.steps.extras[name][rows]
        explained = 1.0 - np.var(target - value) / np.var(target)
        assert credit.metrics["explained_variance"] == pytest.approx(explained), name


@pytest.mark.parametrize("name", ["rae", "ema_grpo", "experimental_dgrpo"])
def test_pipeline_state_restarts_in_the_middle_of_a_stream(name):
    stream = [full_batch(seed) for seed in range(4)]
    whole = Pipeline([Stage(name)])
    expected = [whole(batch).advantage for batch in stream]
    first = Pipeline([Stage(name)])
    for batch in stream[:2]:
        first(batch)
    second = Pipeline([Stage(name)])
    second.load_state_dict(first.state_dict())
    for batch, wanted in zip(stream[2:], expected[2:]):
        np.testing.assert_array_equal(second(batch).advantage, wanted)
    assert np.abs(Pipeline([Stage(name)])(stream[3]).advantage - expected[3]).max() > 0


def test_rae_options_name_the_process_and_the_player():
    batch = full_batch()
    per_process = Pipeline([Stage("rae", options={"key": "player_process"})])(batch)
    np.testing.assert_allclose(per_process.advantage, Pipeline([Stage("rae")])(batch).advantage)
    one = Pipeline([Stage("rae", options={"player": 0, "gamma": 0.9})])(batch)
    assert np.isfinite(one.advantage).all()


def test_pipeline_metrics_are_all_there():
    batch = full_batch()
    metrics = Pipeline([Stage("gae")])(batch).metrics
    for name in (
        *("groups", "singleton_fraction", "zero_variance_fraction", "mask_share", "mean_k", "truncated_share"),
        *("missing_bootstrap", "advantage_mean", "advantage_std", "advantage_max", "raw_advantage_std"),
        *("advantage_actor_0", "advantage_actor_1", "explained_variance"),
    ):
        assert np.isfinite(float(metrics[name])), name
    assert float(metrics["truncated_share"]) == pytest.approx(2 / 6)
    assert float(metrics["groups"]) == 2


@pytest.mark.parametrize("preset", PRESETS, ids=lambda f: f.__name__)
def test_preset_gives_credit_and_a_loss_with_gradient_on_loss_rows_only(preset):
    pipeline = preset()
    extras = full_batch().steps.extras
    if preset.__name__ == "archer":
        extras = {**twin_heads(len(full_batch())), "token_baseline": np.full(len(full_batch()), 0.1)}
    batch = full_batch(extras=extras).to("cpu")
    credit = pipeline(batch)
    assert batch.steps.logp_behaviour is not None
    logp = (batch.steps.logp_behaviour + 0.05).requires_grad_()
    pipeline.loss(logp, batch, credit).backward()
    assert torch.isfinite(logp.grad).all()
    assert (logp.grad[~credit.mask] == 0).all()
    assert (logp.grad[credit.mask] != 0).any()
    log = pipeline.update_metrics(logp, batch, credit)
    for name in ("ratio_max", "clip_low_fraction", "is_weight_max", "effective_sample_size"):
        assert torch.isfinite(log[name]).all()


def test_pipeline_loss_without_log_probabilities_is_refused():
    batch = full_batch(logp_behaviour=None, logp_prox=None)
    pipeline = presets.ppo_robot()
    with pytest.raises(ValueError, match="logp_behaviour is None"):
        pipeline.loss(np.zeros(len(batch)), batch, pipeline(batch))


def test_registry_entries_are_documented():
    for item in entries():
        assert isinstance(item, Entry)
        assert item.paper
        assert "default" in item.modes
    assert entry("igpo", "redistribute").kind == "redistribute"
    check_needs(entry("monte_carlo"), full_batch(value=None))


def test_table_of_presets_names_every_function() -> None:
    made = {name: f for name, f in vars(presets).items() if inspect.isfunction(f) and f.__module__ == presets.__name__}
    assert made == presets.PRESETS


def test_a_reward_stage_reaches_estimators_of_outcomes():
    logp, ref = np.zeros(4), -np.array([0.0, 0.0, 5.0, 5.0])
    ends, group = np.tile([False, True], 2), {"group_id": np.zeros(2, int)}
    batch = make_batch(
        np.array([0.0, 1.0, 0.0, 1.0]), ends, np.zeros(4, bool), np.repeat([0, 1], 2),
        logp_behaviour=logp, logp_ref=ref, episode=group,
    )  # fmt: skip
    got = Pipeline([Stage("rloo")], redistribute=[Stage("kl", options={"beta": 0.1})])(batch).advantage
    np.testing.assert_allclose(got, [1.0, 1.0, -1.0, -1.0])  # outcomes 1 and 1 - 0.1 * 10


@pytest.mark.parametrize("name", ["igpo", "spa"])
def test_a_reward_stage_that_tells_nan_makes_its_episode_unscorable_and_no_target_nan(name):
    """The second of two episodes of two turns: by its outcome, or by the contribution of its first turn."""
    ends, outcome = np.tile([False, True], 2), np.array([1.0, np.nan if name == "igpo" else 1.0])
    columns = {"answer_probability": np.full(4, 0.25), "contribution": np.array([0.5, 0.5, np.nan, 0.5])}
    batch = make_batch(
        np.zeros(4), ends, np.zeros(4, bool), np.repeat([0, 1], 2), np.arange(4),
        value=np.zeros(4), episode={"outcome": outcome}, extras=columns,
    )  # fmt: skip
    estimator = Stage("turn_gae", options={"gamma": 1.0, "gae_lambda": 1.0})
    credit = Pipeline([estimator], redistribute=[Stage(name)])(batch)
    assert np.isfinite(credit.returns).all()
    np.testing.assert_allclose(credit.returns[:2], [1.0, 1.0 if name == "igpo" else 0.5])
    assert credit.mask.tolist() == [True, True, False, False]
    assert not credit.advantage[2:].any()


def test_edge_rules_of_a_configuration_keep_those_of_the_estimator():
    """m_grpo adds 1e-4 to the deviation, whatever else is asked for."""
    batch = make_batch(
        np.array([1.0, 0.0]), np.ones(2, bool), np.zeros(2, bool), np.arange(2), episode={"group_id": np.zeros(2, int)}
    )
    for options in ({}, {"ddof": 1}):
        got = Pipeline([Stage("m_grpo", options=options)])(batch).advantage
        np.testing.assert_allclose(got, 0.5 / (0.5**0.5 + 1e-4) * np.array([1.0, -1.0]), rtol=1e-9)
    given = Pipeline([Stage("m_grpo", options={"eps": 1e-2})])(batch).advantage
    np.testing.assert_allclose(given, 0.5 / (0.5**0.5 + 1e-2) * np.array([1.0, -1.0]), rtol=1e-9)


def test_bounds_of_the_difficulty_are_an_option():
    """Failure rates 0 and 1, mean 0.5: weights 0 and 2, within the bounds."""
    batch = make_batch(
        np.array([1.0, 1.0, 0.0, 0.0]), np.ones(4, bool), np.zeros(4, bool), np.arange(4),
        episode={"group_id": np.array([0, 1, 0, 1]), "task_id": np.array([0, 0, 1, 1])},
    )  # fmt: skip
    plain = Pipeline([Stage("grpo")])(batch).advantage
    got = Pipeline([Stage("experimental_dgrpo", options={"bounds": (0.25, 1.5)})])(batch).advantage
    np.testing.assert_allclose(got, plain * np.array([0.25, 0.25, 1.5, 1.5]))


@pytest.mark.parametrize(
    "stage",
    [
        Stage("gae", options={"gamma": 0.9, "lambda_unit": "tick"}),
        Stage("n_step", options={"gamma": 0.9, "n_ticks": 6}),
    ],
)
def test_discounts_of_their_own_do_not_change_the_ticks(stage):
    k, end = np.full(4, 3), np.array([False, False, False, True])
    columns = {"value": np.arange(4.0), "k": k}
    plain = make_batch(np.ones(4), end, np.zeros(4, bool), np.zeros(4, int), **columns)
    given = make_batch(np.ones(4), end, np.zeros(4, bool), np.zeros(4, int), discount=0.9**k, **columns)
    np.testing.assert_allclose(Pipeline([stage])(given).advantage, Pipeline([stage])(plain).advantage, rtol=1e-9)
