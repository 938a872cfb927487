"""Golden numbers of reward redistribution (specification items E16 to E22)."""

import numpy as np

from robot_rl.advantage.zoo import redistribute, shaping
from tests.advantage.kind_cases import each_kind


@each_kind
def test_gate_closes_shaping_when_the_outcome_fails(kind):
    # E16
    episode, shaping_reward = kind.i([0, 0, 0, 0]), [0.1, 0.1, 0, 0.1]
    won = kind.x([shaping_reward, [0, 0, 0, 1]])
    lost = kind.x([shaping_reward, [0, 0, 0, -1]])
    kind.same(shaping.gated_reward(won, episode, 1), [0.1, 0.1, 0, 1.1])
    kind.same(shaping.gated_reward(lost, episode, 1), [0, 0, 0, -1])


@each_kind
def test_gate_of_three_levels_at_once(kind):
    # E16: one row per level, so that the sum shows which level passed: .3 is level 0, .5 level 1, 1 level 2.
    def gated(levels):
        rows = np.zeros((3, 3))
        np.fill_diagonal(rows, levels)
        return shaping.gated_reward(kind.x(rows), kind.i([0, 0, 0]), 1)

    kind.same(gated([0.3, 0.5, 1]), [0.3, 0.5, 1])
    kind.same(gated([0.3, 0.5, -1]), [0, 0, -1])
    kind.same(gated([0.3, -0.2, 1]), [0, -0.2, 1])


@each_kind
def test_igpo_rewards_probability_gains_and_normalises_the_pool(kind):
    # E17
    prob, episode = kind.x([0.1, 0.3, 0.25, 0.1, 0.15]), kind.i([0, 0, 0, 1, 1])
    reward = redistribute.igpo_reward(prob, episode, kind.x([1, 0]))
    kind.same(reward, [0.2, -0.05, 1, 0.05, 0])
    group = kind.i([0, 0])
    kind.same(redistribute.igpo(reward, episode, group, gamma=0.9), [0.723169, 0.905685, 1.747007, -0.93327, -0.551686])
    # Without a discount every turn of episode 1 has the sum of its z-scores.
    z = [-0.091948, -0.666621, 1.747007, -0.436752, -0.551686]
    kind.same(redistribute.igpo(reward, episode, group, gamma=0.0), z)


@each_kind
def test_infopo_gates_the_intrinsic_part(kind):
    # E18; the last turn of each episode has no next action, hence gain 0 (its length does not matter).
    gain, length = kind.x([0.4, 0.1, 0, 0.2, 0]), kind.i([4, 5, 3, 2, 3])
    episode, group = kind.i([0, 0, 0, 1, 1]), kind.i([0, 0])
    got = redistribute.infopo(gain, length, episode, group, kind.x([1, 0.2]))
    kind.same(got, [0.707107, 0.707104, 0.707106, -0.707104, -0.707106])
    # Equal outcomes: gate 1/2, so A = .1 · .5 · z with z = .870367, -1.044441, .870367.
    open_gate = redistribute.infopo(gain, length, episode, group, kind.x([0.5, 0.5]))
    kind.same(open_gate, [0.05 * 0.870367, -0.05 * 1.044441, 0, 0.05 * 0.870367, 0])


@each_kind
def test_infopo_gain_is_credited_to_the_turn_before(kind):
    # Two tokens of turn 1 change by .3 and .5: mean .4, credited to turn 0; turn 1 is last.
    gain = redistribute.infopo_gain(kind.x([-1, -0.7, -0.5]), kind.x([-1, -1, -1]), kind.i([0, 1, 1]), kind.i([0, 0]))
    kind.same(gain, [0.4, 0])


@each_kind
def test_spa_reward_and_loss(kind):
    # E19
    guess, episode, outcome = kind.x([0.2, 0.5, -0.1]), kind.i([0, 0, 0]), kind.x([1])
    kind.same(redistribute.spa_loss(guess, episode, outcome), [0.16])
    grounding = kind.x([1, 1, 0])
    kind.same(redistribute.spa_reward(guess, episode, grounding=grounding), [0.7, 1, -0.1])
    exact = redistribute.spa_reward(guess, episode, outcome=outcome, enforce_sum=True)
    kind.same(exact, [0.333333, 0.633333, 0.033333])
    both = redistribute.spa_reward(guess, episode, grounding=grounding, outcome=outcome, enforce_sum=True)
    kind.same(both, [0.833333, 1.133333, 0.033333])
    kind.near(redistribute.spa_release_weight(kind.i([0, 0, 0, 1])), [2, 1, 0, 0])


@each_kind
def test_checklist_items_wait_for_their_dependencies(kind):
    # E20
    weight, passed, turn = kind.x([2, 1, 1]), kind.x([1, 0, 1]), kind.i([0, 0, 0])
    kind.same(shaping.checklist_reward(weight, passed, turn, 1), [0.75])
    kind.same(shaping.checklist_reward(weight, passed, turn, 1, item=kind.i([2]), needs=kind.i([1])), [0.5])


@each_kind
def test_intervention_marks_the_row_before_or_at_takeover(kind):
    # E21: human control starts at row 2 (for two rows) and right after row 5.
    human, episode = kind.b([0, 0, 1, 1, 0, 0]), kind.i([0] * 6)
    task = kind.x([0] * 6)
    before = shaping.intervention_reward(human, episode, human_after_end=kind.b([1]), reward=task)
    kind.same(before, [0, -1, 0, 0, 0, -1])
    kind.same(shaping.intervention_reward(human, episode, timing="at", reward=task), [0, 0, -1, 0, 0, 0])


@each_kind
def test_potential_shaping_truncated_and_terminated(kind):
    # E22: the discounted sum after termination is -.1, minus the first potential.
    now, after = kind.x([0.1, 0.4, 0.3]), kind.x([0.4, 0.3, 0.8])
    kind.same(shaping.potential_shaping(now, after, 0.9, kind.b([0, 0, 0])), [0.26, -0.13, 0.42])
    ended = shaping.potential_shaping(now, after, 0.9, kind.b([0, 0, 1]))
    kind.same(ended, [0.26, -0.13, -0.3])
    kind.near(ended[0] + 0.9 * ended[1] + 0.81 * ended[2], -0.1)
