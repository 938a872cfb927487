"""Goals across episodes: where they come from, and that two half ways become one."""

import numpy as np
import pytest
import torch

from robot_rl.data.goals import GoalDataset, kmeans
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import write_store
from robot_rl.policies.offline.goal_bc import GoalBc, GoalBcOptions
from robot_rl.types import Episode, IOSpec

IO = IOSpec({"state": ((2,), "float32")}, ("x", "y"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0)
HALF = 6


def episode(first, second) -> Episode:
    """From `first` to the origin in six steps, then to `second` in six, with x' = x + 0.2 a."""
    points = [np.asarray(first, float) * (1 - t / HALF) for t in range(HALF)]
    points += [np.asarray(second, float) * (t / HALF) for t in range(HALF + 1)]
    state = np.stack(points).astype(np.float32)
    action = (np.diff(state, axis=0) / 0.2).astype(np.float32)
    return Episode(
        obs={"state": state},
        action=action,
        proposed=action,
        reward=np.zeros(len(action), np.float32),
        terminated=False,
        truncated=True,
        intervened=np.zeros(len(action), bool),
        stamp=np.arange(len(state), dtype=float),
    )


@pytest.fixture(scope="module")
def crossing(tmp_path_factory):
    """West to north, and south to east, both through the origin: nobody went from west to east."""
    rng = np.random.default_rng(0)

    def near(x, y):
        return np.array([x, y]) + rng.normal(0, 0.02, 2)

    episodes = [e for _ in range(20) for e in (episode(near(-1, 0), near(0, 1)), episode(near(0, -1), near(1, 0)))]
    return write_store(tmp_path_factory.mktemp("crossing") / "crossing.store", episodes, io=IO)


def data(store, **options) -> GoalDataset:
    return GoalDataset(LogDataset(store, LogView(extras=("episode", "step")), seed=1), **{"clusters": 12, **options})


def test_goals_without_augmentation_are_reached_later_in_the_same_episode(crossing):
    batch = next(data(crossing, stitch=0.0).batches(512))
    states = np.asarray(crossing.column("obs/state"))
    for goal, episode_, step in zip(batch.extras["goal"], batch.extras["episode"], batch.extras["step"]):
        begin = int(crossing.start_obs[episode_])
        later = states[begin + int(step) + 1 : begin + 2 * HALF + 1]
        assert (later == goal.numpy()).all(1).any()


def test_augmented_goals_lead_from_west_to_east_only_through_the_crossing(crossing):
    drawn = next(data(crossing, stitch=1.0).batches(4000))
    west = drawn.obs["state"][:, 0] < -0.5
    east = drawn.extras["goal"][:, 0] > 0.5
    # one later state in nine is the crossing, half of its neighbours go east, three of their seven goals are far enough
    assert 0.01 < (west & east).float().sum() / west.float().sum() < 0.1
    plain = next(data(crossing, stitch=0.0).batches(4000))
    assert not ((plain.obs["state"][:, 0] < -0.5) & (plain.extras["goal"][:, 0] > 0.5)).any()
    north = drawn.obs["state"][:, 1] > 0.5  # behind the crossing there is no way to the east any more
    assert not (north & (drawn.extras["goal"][:, 0] > 0.5)).any()


def test_policy_reaches_a_goal_that_no_episode_from_there_reached(crossing):
    learner = GoalBc(GoalBcOptions(hidden=(64, 64), batch_size=128, goal=(1.0, 0.0), clusters=12, lr=3e-3), IO)
    mean, std = crossing.moments()
    learner.prepare(type("Facts", (), {"state_mean": mean, "state_std": std})())  # type: ignore[arg-type]
    batches = data(crossing, **(learner.need.goals or {})).batches(128)
    for _ in range(600):
        learner.update(batches)
    x = np.array([[-1.0, 0.0]], np.float32)
    for _ in range(2 * HALF + 1):
        x = x + 0.2 * learner.policy.act({"state": x}, deterministic=True).value
    assert abs(x - [[1.0, 0.0]]).max() < 0.35


def test_resume_draws_the_same_goals_and_learns_the_same(crossing):
    one, other = data(crossing), data(crossing)
    options = GoalBcOptions(hidden=(16,), batch_size=8, metrics_every=1)
    first, second = (GoalBc(options, IO, seed=s) for s in (1, 2))
    stream = one.batches(8)
    for _ in range(3):
        first.update(stream)
    other.load_state_dict(one.state_dict())
    second.load_state_dict(first.state_dict())
    again = other.batches(8)
    for _ in range(2):
        assert first.update(stream) == second.update(again)


def test_goal_read_from_the_observation_is_hidden_from_the_network(crossing):
    io = IOSpec({"state": ((4,), "float32")}, ("x", "y"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0)
    policy = GoalBc(GoalBcOptions(hidden=(16,), achieved=(0, 1), desired=(2, 3), normalize=False), io).policy
    wide = policy.join(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert wide.tolist() == [[1.0, 2.0, 0.0, 0.0, 3.0, 4.0]]
    with pytest.raises(ValueError, match="no goal is set"):
        GoalBc(GoalBcOptions(hidden=(16,)), IO).policy.act({"state": np.zeros((1, 2), np.float32)})
    with pytest.raises(ValueError, match="expected 2, one per goal"):
        GoalBc(GoalBcOptions(goal=(1.0,)), IO)


def test_kmeans_finds_separate_heaps_and_no_more_clusters_than_points():
    rng = np.random.default_rng(0)
    heaps = np.concatenate([rng.normal(c, 0.05, (30, 2)) for c in ((0, 0), (3, 0), (0, 3))])
    label = kmeans(heaps, 3)
    assert [len(set(label[i : i + 30])) for i in (0, 30, 60)] == [1, 1, 1]
    assert len(set(label)) == 3
    assert set(kmeans(np.array([[0.0], [0.0], [1.0]]), 40)) == {0, 1}
