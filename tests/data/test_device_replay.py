"""Replay on the device: n-step returns, the ring's seam, rows that are no transitions, save and load."""

import numpy as np
import pytest
import torch

from robot_rl.data.device_replay import DeviceReplay
from robot_rl.types import IOSpec, Step

IO = IOSpec(
    obs={"state": ((1,), "float32"), "extra": ((2,), "float32")},
    action_names=("a",),
    action_low=(-1.0,),
    action_high=(1.0,),
    action_units=("1",),
    control_hz=10.0,
)


def step(t, *, reward, terminated=(), truncated=(), invalid=(), envs=2):
    rows = torch.arange(envs)
    state = (100.0 * rows + t)[:, None]
    obs = {"state": state, "extra": torch.cat([state, -state], 1)}
    after = {"state": state + 0.5, "extra": torch.cat([state, state], 1)}

    def flags(which):
        return torch.tensor([i in which for i in range(envs)])

    off = torch.zeros(envs, dtype=torch.bool)
    return Step(
        obs, torch.full((envs, 1), 0.01 * t), torch.full((envs,), float(reward)), after, flags(terminated),
        flags(truncated), after, ~flags(invalid), off, torch.zeros(envs, 1),
    )  # fmt: skip


def at(replay, age, env):
    return replay.gather(torch.tensor([age]), torch.tensor([env]))


def test_n_step_return_stops_where_an_episode_ends_and_at_the_newest_row():
    replay = DeviceReplay(IO, 8, num_envs=2, n_step=3, gamma=0.5)
    replay.add(step(0, reward=1))
    replay.add(step(1, reward=2, terminated=(0,)))
    replay.add(step(2, reward=4))
    replay.add(step(3, reward=8, truncated=(1,)))
    # environment 0 from t=0: 1 + .5 * 2, ended truly after two steps: no bootstrap
    row = at(replay, 0, 0)
    assert row.reward.item() == 2.0
    assert row.discount.item() == 0.0
    assert bool(row.terminated)
    # environment 1 from t=0: 1 + .5 * 2 + .25 * 4, bootstrap gamma^3 from the successor of t=2
    row = at(replay, 0, 1)
    assert row.reward.item() == 3.0
    assert row.discount.item() == 0.125
    assert row.next_obs["state"].item() == 102.5
    # environment 1 from t=2: 4 + .5 * 8, truncated: bootstrap gamma^2 from the true successor
    row = at(replay, 2, 1)
    assert row.reward.item() == 8.0
    assert row.discount.item() == 0.25
    assert bool(row.truncated)
    assert row.next_obs["extra"].tolist() == [[103.0, 103.0]]
    # environment 0 from t=3, the newest row: one step, bootstrap gamma
    row = at(replay, 3, 0)
    assert row.reward.item() == 8.0
    assert row.discount.item() == 0.5
    assert row.obs["extra"].tolist() == [[3.0, -3.0]]


def test_row_that_is_no_transition_is_masked_and_ends_the_chain_before_it():
    replay = DeviceReplay(IO, 8, num_envs=2, n_step=2, gamma=0.5)
    replay.add(step(0, reward=1))
    replay.add(step(1, reward=2, invalid=(0,)))
    replay.add(step(2, reward=4))
    assert at(replay, 0, 0).reward.item() == 1.0  # not 1 + .5 * 2
    assert at(replay, 0, 0).discount.item() == 0.5
    assert not bool(at(replay, 1, 0).mask)
    assert at(replay, 0, 1).reward.item() == 2.0


def test_random_stream_over_the_seam_equals_a_slow_reference():
    rng, gamma, n, keep, envs = np.random.default_rng(0), 0.9, 4, 7, 3
    replay, log = DeviceReplay(IO, keep, num_envs=envs, n_step=n, gamma=gamma), []
    for t in range(19):
        ended = rng.random(envs) < 0.2
        cut = ~ended & (rng.random(envs) < 0.2)
        row = step(t, reward=rng.normal(), terminated=np.flatnonzero(ended), truncated=np.flatnonzero(cut), envs=envs)
        replay.add(row)
        log.append(row)
    log = log[-keep:]
    assert len(replay) == keep * envs
    for age in range(keep):
        for env in range(envs):
            total, last = 0.0, age
            for k in range(n):
                if age + k == keep:
                    break
                last = age + k
                total += gamma**k * float(log[last].reward[env])
                if log[last].terminated[env] or log[last].truncated[env]:
                    break
            steps = last - age + 1
            row = at(replay, age, env)
            assert row.reward.item() == pytest.approx(total, rel=1e-5)
            assert row.discount.item() == pytest.approx(gamma**steps * (not log[last].terminated[env]), rel=1e-6)
            assert row.next_obs["state"].item() == log[last].next_obs["state"][env].item()
            assert row.obs["state"].item() == log[age].obs["state"][env].item()


def test_sampling_reaches_every_row_about_equally():
    replay = DeviceReplay(IO, 8, num_envs=4, seed=3)
    for t in range(5):  # not full: rows 5..7 must not come up
        replay.add(step(t, reward=t, envs=4))
    rows = replay.sample(20_000).obs["state"].flatten()
    values, counts = rows.unique(return_counts=True)
    assert len(values) == 20
    assert counts.min() > 850  # 1000 expected, deviation 31
    assert counts.max() < 1150


def test_saved_buffer_continues_with_the_same_batches(tmp_path):
    first = DeviceReplay(IO, 4, num_envs=2, n_step=2, seed=1)
    for t in range(6):
        first.add(step(t, reward=t))
    first.sample(3)
    first.save(tmp_path / "buffer")
    second = DeviceReplay(IO, 4, num_envs=2, n_step=2, seed=9)
    second.load(tmp_path / "buffer")
    for replay in (first, second):
        replay.add(step(6, reward=1))
    assert torch.equal(first.sample(64).reward, second.sample(64).reward)
    with pytest.raises(ValueError, match="num_envs: 2 saved, 3 here"):
        DeviceReplay(IO, 4, num_envs=3).load(tmp_path / "buffer")


@pytest.mark.parametrize(("room", "kept"), [(3, [4, 5, 6]), (9, [3, 4, 5, 6])])
def test_buffer_of_another_size_takes_over_the_newest_steps_in_order(room, kept):
    first, second = DeviceReplay(IO, 4, num_envs=2), DeviceReplay(IO, room, num_envs=2)
    for t in range(7):
        first.add(step(t, reward=t))
    second.load_state_dict(first.state_dict())
    assert [at(second, age, 1).reward.item() for age in range(len(kept))] == kept
    second.add(step(7, reward=7))
    newest = len(second) // 2 - 1
    assert at(second, newest, 0).reward.item() == 7
    assert at(second, newest - 1, 0).reward.item() == 6


@pytest.mark.parametrize("room", [4, 5, 9, 20])
def test_links_of_a_saved_buffer_hold_in_one_of_another_size(room, tmp_path):
    """Steps -4 to 6 through a ring of eight, rewards 2^t, environment 1 ends at t=4; sums of three steps."""
    first = DeviceReplay(IO, 8, num_envs=2, n_step=3, gamma=0.5)
    for t in range(-4, 7):
        first.add(step(t, reward=2.0**t, truncated=(1,) if t == 4 else ()))
    first.save(tmp_path / "a")
    second = DeviceReplay(IO, room, num_envs=2, n_step=3, gamma=0.5)
    second.load(tmp_path / "a")
    kept = min(room, 8)
    assert len(second) == 2 * kept
    # 2^t (1 + 1 + 1), of fewer steps at the end of the stream and of the episode
    expected = {0: [3, 3, 3, 3, 3, 3, 2, 1], 1: [3, 3, 3, 3, 2, 1, 2, 1]}
    for env, steps in expected.items():
        for age in range(kept):
            t = 7 - kept + age
            row = at(second, age, env)
            assert row.reward.item() == 2.0**t * steps[8 - kept + age]
            assert row.obs["state"].item() == 100.0 * env + t
            assert row.discount.item() == 0.5 ** steps[8 - kept + age]


def test_second_save_writes_only_what_is_new(tmp_path):
    replay = DeviceReplay(IO, 50, num_envs=2)
    for t in range(20):
        replay.add(step(t, reward=t))
    replay.save(tmp_path / "a")
    replay.add(step(20, reward=20))
    replay.save(tmp_path / "b", base=tmp_path / "a")
    old = {file.name: file.stat().st_ino for file in (tmp_path / "a").glob("rows.*")}
    new = {file.name: file for file in (tmp_path / "b").glob("rows.*")}
    assert all(new[name].stat().st_ino == place for name, place in old.items())
    assert [len(np.load(file)) for name, file in new.items() if name not in old] == [2]


def test_images_and_an_empty_buffer_are_refused_with_the_way_out():
    camera = IOSpec({"image.front": ((8, 8, 3), "uint8")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
    with pytest.raises(ValueError, match="policy=online/sac"):
        DeviceReplay(camera, 4, num_envs=1)
    with pytest.raises(ValueError, match="add steps"):
        DeviceReplay(IO, 4, num_envs=1).sample(2)
