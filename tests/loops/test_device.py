"""Loops on a device: no waits, exact resumption, true successors, bridges, and what is refused."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from benchmarks.point_world import PointWorld
from robot_rl import parallel
from robot_rl.advantage import use_backend
from robot_rl.loops.contract import every
from robot_rl.loops.device import DeviceOffPolicy
from robot_rl.loops.device_on_policy import DeviceOnPolicy
from robot_rl.loops.device_world import HostWorld, TensorWorld, open_world
from robot_rl.loops.stepping import NonFiniteError
from robot_rl.policies.online.fast_ppo import FastPpo, FastPpoOptions
from robot_rl.policies.online.fast_sac import FastSac, FastSacOptions
from robot_rl.policies.online.fast_td3 import FastTd3, FastTd3Options
from robot_rl.types import EnvParts

sys.path.insert(0, str(Path(__file__).parent))
from device_guard import HostSyncError, no_host_sync

CPU = torch.device("cpu")
SMALL = {"batch_size": 16, "updates": 2, "actor_delay": 2, "actor_hidden": (8,), "critic_hidden": (8,), "bins": 11}


class NumpyPoints:
    """PointWorld behind NumPy arrays, as a CPU engine hands them over."""

    parts = EnvParts(saves=True)

    def __init__(self, *args, **kwargs):
        self.world = PointWorld(*args, **kwargs)
        self.num_envs, self.io, self.metadata = self.world.num_envs, self.world.io, self.world.metadata

    def reset(self, *, seed=None, options=None):
        return {"state": self.world.reset(seed=seed)[0]["state"].numpy().copy()}, {}

    def step(self, action):
        obs, reward, terminated, truncated, info = self.world.step(torch.from_numpy(action))
        info = {"final_obs": {"state": info["final_obs"]["state"].numpy()}, "success": info["success"].numpy()}
        return {"state": obs["state"].numpy()}, reward.numpy(), terminated.numpy(), truncated.numpy(), info

    def state_dict(self):
        return self.world.state_dict()

    def load_state_dict(self, state):
        self.world.load_state_dict(state)


def off_policy(kind=FastSac, stated=FastSacOptions, env=None, seed=0, **options):
    env = env or PointWorld(4, 3, length=5)
    learner = kind(stated.model_validate({**SMALL, **options}), env.io, seed=seed)
    return DeviceOffPolicy(env, learner, buffer_size=64, n_step=2, gamma=0.9, learning_starts=12, seed=seed)


def on_policy(env=None, seed=0, **options):
    env = env or PointWorld(4, 3, length=5)
    given = {"rollout_steps": 6, "hidden": (8,), "epochs": 2, **options}
    learner = FastPpo(FastPpoOptions.model_validate(given), env.io, seed=seed, gamma=0.9)
    return DeviceOnPolicy(env, learner, seed=seed)


LOOPS = {
    "sac": off_policy,
    "sac_hlgauss": lambda **o: off_policy(value_head="hlgauss", reduce="min", amp="bf16", **o),
    "td3": lambda **o: off_policy(FastTd3, FastTd3Options, **o),  # pyright: ignore[reportArgumentType]
    "ppo": on_policy,
}


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
        lambda x: x[x > 0],
        lambda x: float(x[0]),
        lambda x: x.tolist(),
        lambda x: x.masked_fill_(x > 0, float(x.max())),
    ],
)
def test_guard_finds_what_waits_for_a_device(wait):
    x = torch.arange(3.0)
    with no_host_sync(), pytest.raises(HostSyncError):
        wait(x)


@pytest.mark.parametrize("name", LOOPS)
def test_loop_waits_for_nothing_between_two_readings(name):
    # CPU tensors take NumPy's way through the advantage; here they go the way of tensors on a device
    with use_backend("torch"):
        loop = LOOPS[name]()
        loop.run(48)  # beyond the random phase, several episode ends
        before, learner = loop.env_steps, loop.learner
        updates = learner.updates
        with no_host_sync():
            if name == "ppo":
                for _ in range(2):
                    learner.update(iter((loop.collect(),)))
            else:
                for _ in range(12):
                    loop.iterate()
    assert loop.env_steps > before
    assert learner.updates > updates
    metrics = loop.read()
    assert metrics["rollout/episodes"] > 0
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", LOOPS)
def test_resumed_loop_equals_one_that_was_not_interrupted(name):
    whole, first, second = LOOPS[name](), LOOPS[name](), LOOPS[name](seed=5)
    whole.run(48)
    whole.run(96)
    first.run(48)
    second.learner.load_state_dict(first.learner.state_dict())
    second.load_state_dict(first.state_dict())
    if name != "ppo":
        second.replay.load_state_dict(first.replay.state_dict())
    second.run(96)
    ours, theirs = second.learner.policy.state_dict(), whole.learner.policy.state_dict()
    assert torch.equal(ours["actor"], theirs["actor"])
    assert second.learner.updates == whole.learner.updates
    assert second.env_steps == whole.env_steps
    assert torch.equal(second._world.obs["state"], whole._world.obs["state"])


class Opaque(NumpyPoints):
    """Its state is no state: who loads it begins new episodes."""

    def state_dict(self):
        return {"exact": False}

    def load_state_dict(self, state):
        self.reset(seed=9)


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_an_environment_that_could_not_be_saved_begins_new_episodes(name):
    first, second = (LOOPS[name](env=Opaque(4, 3, length=10)) for _ in range(2))
    first.run(24)
    second.load_state_dict(first.state_dict())
    if name == "sac":
        second.replay.load_state_dict(first.replay.state_dict())
    second.run(64)
    assert second.read()["rollout/length"] == 10.0
    if name == "sac":  # row 6 is of new episodes: neither a step nor a return of two leads there
        rows = second.replay.gather(torch.full((4,), 5), torch.arange(4))
        assert torch.equal(rows.discount, torch.full((4,), 0.9))
        assert not torch.equal(
            rows.next_obs["state"], second.replay.gather(torch.full((4,), 6), torch.arange(4)).obs["state"]
        )


def test_bridged_world_makes_the_same_run_as_the_native_one():
    native, bridged = off_policy(), off_policy(env=NumpyPoints(4, 3, length=5))
    assert isinstance(native._world, TensorWorld)
    assert isinstance(bridged._world, HostWorld)
    native.run(80)
    bridged.run(80)
    assert torch.equal(native.replay.record, bridged.replay.record)
    for name, part in native.learner.policy.state_dict().items():
        if isinstance(part, torch.Tensor):
            assert torch.equal(part, bridged.learner.policy.state_dict()[name])


def test_replay_holds_the_true_successor_of_a_truncated_step_and_no_reset_observation():
    loop = off_policy(env=PointWorld(3, 0, length=2))
    loop.run(12)
    action = loop.replay.record[1, :, loop.replay._layout.action]
    last = loop.replay.gather(torch.ones(3, dtype=torch.int64), torch.arange(3))
    assert last.truncated.all()
    torch.testing.assert_close(last.discount, torch.full((3,), 0.9))
    torch.testing.assert_close(last.next_obs["state"], last.obs["state"] - 0.1 * action)


def test_rollout_values_the_true_successor_where_an_episode_was_cut():
    loop = on_policy(env=PointWorld(3, 0, length=4), normalize_obs=False)
    loop._world.reset(0)
    rollout = loop.collect()
    assert rollout.truncated[3].all()
    assert rollout.boundary[[3, 5]].all()
    assert not rollout.boundary[[0, 1, 2, 4]].any()
    final = rollout.obs["state"][3] - 0.1 * rollout.action[3].clamp(-1, 1)
    torch.testing.assert_close(rollout.next_value[3], loop.learner.value({"state": final}))


def test_a_row_that_turns_nan_is_left_out_and_reported_with_its_number():
    class Breaks(PointWorld):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward.index_fill(0, torch.tensor([2]), float("nan")), terminated, truncated, info

    world = open_world(Breaks(4, 0), CPU)
    world.reset(0)
    row = world.step(torch.zeros(4, 2))
    assert row.valid.tolist() == [True, True, False, True]
    assert torch.isfinite(torch.as_tensor(row.reward)).all()
    with pytest.raises(NonFiniteError, match="first in environment 2"):
        world.check()
    world.check()  # said once


def test_worlds_that_a_device_loop_cannot_step_are_refused():
    late = PointWorld(2, 0)
    late.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    with pytest.raises(ValueError, match=r"resets in mode"):
        open_world(late, CPU)

    class Silent(PointWorld):
        def step(self, action):
            return (*super().step(action)[:4], {})

    world = open_world(Silent(2, 0), CPU)
    world.reset(0)
    with pytest.raises(ValueError, match="final_obs"):
        world.step(torch.zeros(2, 2))


def test_tick_comes_at_the_period_and_can_stop_the_run():
    loop, seen = off_policy(), []
    loop.run(200, lambda step, metrics: bool(seen.append(step) or len(seen) == 3), due=every(20))
    assert seen == [20, 40, 60]
    assert loop.env_steps == 60
    loop.run(62)
    assert loop.env_steps == 64  # whole steps of four environments


def test_a_process_draws_its_share_of_the_batch(monkeypatch):
    monkeypatch.setattr(parallel, "size", lambda: 2)
    monkeypatch.setattr(parallel, "rank", lambda: 0)
    loop = off_policy(batch_size=16)
    assert loop._batches._size == 8
