"""Two tasks one after another: the first is kept with replay and lost without; numbers of the sequence by hand."""
# pyright: reportCallIssue=false, reportPossiblyUnboundVariable=false

import numpy as np
import pytest
import torch

from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import write_store
from robot_rl.ope.continual import continual
from robot_rl.policies.offline.mopo import Mopo, MopoOptions
from robot_rl.policies.offline.oer import Oer, OerOptions
from robot_rl.types import Episode, IOSpec, LogFacts

IO = IOSpec({"state": ((2,), "float32")}, ("x", "y"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0)
GOALS, STEPS = ((1.0, 0.0), (-1.0, 0.0)), 10
SMALL = {
    **{"hidden": (32, 32), "batch_size": 64, "keep": 200, "pool": 2000, "horizon": 10, "starts": 16, "lr": 2e-3},
    **{"model_hidden": (16, 16), "model_members": 2, "model_updates": 100, "tasks": 2},
    **{"metrics_every": 1, "alpha": 0.5},
}


def log(folder, goal):
    rng, episodes = np.random.default_rng(0), []
    for _ in range(60):
        x = rng.uniform(-1, 1, 2)
        states, actions = [x], []
        for _ in range(STEPS):
            a = np.clip((np.array(goal) - x) * 2 + rng.normal(0, 0.3, 2), -1, 1)
            x = x + 0.3 * a
            states.append(x)
            actions.append(a)
        state, action = np.array(states, np.float32), np.array(actions, np.float32)
        episodes.append(
            Episode(
                obs={"state": state},
                action=action,
                proposed=action,
                reward=-((state[1:] - np.array(goal, np.float32)) ** 2).sum(1),
                terminated=False,
                truncated=True,
                intervened=np.zeros(STEPS, bool),
                stamp=np.arange(STEPS + 1.0),
            )
        )
    return write_store(folder / f"{goal[0]}.store", episodes, io=IO)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return [log(tmp_path_factory.mktemp("tasks"), goal) for goal in GOALS]


def batches(store):
    return LogDataset(store, LogView(gamma=0.9, extras=("episode", "step")), seed=0).batches(64)


def learn(store, updates=160, **options) -> Oer:
    learner = Oer(OerOptions(updates=updates, **{**SMALL, **options}), IO)
    learner.prepare(LogFacts(*store.moments(), -8.0, 0.0, 0.9, STEPS))
    stream = batches(store)
    for _ in range(updates):
        learner.update(stream)
    return learner


def distance(policy, task: int) -> float:
    """From the goal after ten steps."""
    policy.task = task
    x = np.random.default_rng(1).uniform(-1, 1, (32, 2)).astype(np.float32)
    for _ in range(STEPS):
        x = x + 0.3 * policy.act({"state": x}, deterministic=True).value
    return float(np.abs(x - np.array(GOALS[task], np.float32)).mean())


def test_first_task_survives_the_second_with_replay_and_not_without(stores, tmp_path):
    first = learn(stores[0])
    assert distance(first.policy, 0) < 0.3
    assert first.kept[0].shape == (200, 4)
    torch.save(first.state_dict(), tmp_path / "learner.pt")
    second = learn(stores[1], previous=str(tmp_path / "learner.pt"))
    assert distance(second.policy, 1) < 0.3
    assert distance(second.policy, 0) < 0.35
    assert len(second.kept) == 2
    forgetful = Oer(OerOptions(updates=160, previous=str(tmp_path / "learner.pt"), **SMALL), IO)
    forgetful.kept = []  # the same run without its memory
    forgetful.prepare(LogFacts(*stores[1].moments(), -8.0, 0.0, 0.9, STEPS))
    stream = batches(stores[1])
    for _ in range(160):
        forgetful.update(stream)
    assert distance(forgetful.policy, 0) > 2 * distance(second.policy, 0)


def test_kept_steps_are_logged_ones(stores):
    learner = learn(stores[0], updates=40)
    logged = torch.from_numpy(np.array(stores[0].column("action")))
    for row in learner.kept[0][:20]:
        assert (logged == row[2:]).all(1).any()


def test_resume_is_exact_and_an_unfinished_run_cannot_be_followed(stores, tmp_path):
    one, other = (Oer(OerOptions(updates=6, **SMALL), IO, seed=s) for s in (1, 2))
    stream = batches(stores[0])
    drawn = [next(stream) for _ in range(6)]
    for b in drawn[:3]:
        one.update(iter([b]))
    torch.save(one.state_dict(), tmp_path / "learner.pt")
    other.load_state_dict(torch.load(tmp_path / "learner.pt", weights_only=True))
    for b in drawn[3:]:
        assert one.update(iter([b])) == other.update(iter([b]))
    assert torch.equal(one.kept[0], other.kept[0])
    with pytest.raises(ValueError, match="did not finish"):
        Oer(OerOptions(previous=str(tmp_path / "learner.pt"), **SMALL), IO)
    with pytest.raises(FileNotFoundError, match="expected the run of the task before"):
        Oer(OerOptions(previous=str(tmp_path / "nothing"), **SMALL), IO)
    (tmp_path / "learner.pt").write_text("no checkpoint")
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        Oer(OerOptions(previous=str(tmp_path / "learner.pt"), **SMALL), IO)


def test_what_is_resumed_goes_to_the_device_of_the_learner():
    """Checkpoints are read on the host; a device without data stands for another."""
    state = Oer(OerOptions(**SMALL), IO).state_dict() | {"kept": {"0": torch.zeros(2, 3)}}
    learner = Oer(OerOptions(**SMALL), IO)
    learner._pool = learner._pool.to("meta")
    learner.load_state_dict(state)
    assert learner.kept[0].device.type == "meta"
    mopo = Mopo(MopoOptions(model_hidden=(4,), rollout_batch=4), IO)
    mopo.phase.branches.rows = mopo.phase.branches.rows.to("meta")
    mopo.phase.load_state_dict(mopo.phase.state_dict() | {"held": {"0": {"0": torch.zeros(2, 3)}}})
    assert mopo.phase._held[0][0].device.type == "meta"


def test_numbers_of_a_sequence_by_hand():
    # after task 1: 10, 2; after task 2: 6, 20; untrained 0, 1
    result = continual([[10.0, 2.0], [6.0, 20.0]], [0.0, 1.0])
    assert (result.average, result.forgetting, result.forward) == (13.0, 4.0, 1.0)
    with pytest.raises(ValueError, match=r"expected \(n, n\)"):
        continual([[1.0, 2.0]])


def test_steps_that_fill_up_are_the_nearest_and_none_is_kept_twice(stores, monkeypatch):
    learner = learn(stores[0], updates=10, keep=50, pool=50)
    pool, kept = learner._pool[: learner._filled], learner.kept[0]
    assert len(kept.unique(dim=0)) == len(pool.unique(dim=0))

    learner._pool = torch.cat([torch.arange(50.0)[:, None].expand(-1, 2), torch.zeros(50, 2)], 1)
    learner._filled, learner._begun = 50, 1
    learner._begin = torch.full((1, 2), 40.0)
    learner.model.input_norm.scale[:] = 1.0
    monkeypatch.setattr(learner.model, "step", lambda x, action: (x + 2.0,))  # 40, 42, 44, 46, 48
    learner.o = learner.o.model_copy(update={"keep": 12, "horizon": 5})
    assert sorted(learner._choose()[:, 0].tolist()) == [38.0, *range(39, 50)]
