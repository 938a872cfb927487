"""Rollouts in workers: what they send, what is counted, and what happens when one dies (the latter with Ray)."""

import importlib.util
import sys
import time
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.cluster import Cluster, ClusterOffPolicy, RolloutWorker, on_host
from robot_rl.loops.contract import every
from robot_rl.policies.contrib.dqn import Dqn, DqnOptions
from robot_rl.policies.contrib.tdmpc2 import Tdmpc2, Tdmpc2Options
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.policies.human.safe_set import SafeExploration, SafeExplorationOptions
from robot_rl.policies.offline.td3_bc import Td3Bc, Td3BcOptions
from robot_rl.policies.online.recurrent_sac import RecurrentSac, RecurrentSacOptions
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.policies.sequence.qc import Qc, QcOptions
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.worlds.pendulum import Pendulum
from robot_rl.sim.worlds.recall import Recall
from robot_rl.types import Action, EnvParts, IOSpec, Learner, Options, PolicyParts

IO = IOSpec({"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 20.0)
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra cluster)")


class Counting:
    """State counts the steps of an episode of five; reward is the environment's number."""

    parts = EnvParts()

    def __init__(self, num_envs, seed, render=False, delay=0.0):
        self.num_envs, self.io, self.metadata = num_envs, IO, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.t, self.delay = np.zeros(num_envs, np.float32), delay

    def reset(self, *, seed=None, options=None):
        self.t[:] = 0
        return {"state": self.t[:, None].copy()}, {}

    def step(self, action):
        time.sleep(self.delay)
        self.t += 1
        over = self.t == 5
        final = {"state": self.t[:, None].copy()}
        self.t[over] = 0
        no = np.zeros(self.num_envs, bool)
        reward = np.arange(self.num_envs, dtype=np.float32)
        info = {"final_obs": final, "success": no}
        return {"state": self.t[:, None].copy()}, reward, over & (reward == 0), over & (reward > 0), info


class Half(Learner):
    """Always acts 0.5, whatever it is sent."""

    @property
    def parts(self):
        return PolicyParts()

    def __init__(self, io=IO):
        super().__init__(Options(), io)
        self.io, self.policy, self.updates = io, self, 0

    def act(self, obs, *, deterministic=False):
        return Action(np.full((len(obs["state"]), 1), 0.5, np.float32))

    def reset(self, rows=None):
        """No memory."""

    def update(self, batches):
        assert torch.isfinite(next(batches).reward).all()
        self.updates += 1
        return {"train/seen": float(self.updates)}

    def state_dict(self):
        return {"w": torch.zeros(1)}

    def load_state_dict(self, state):
        assert "w" in state


def slow_world(num_envs, seed, render):
    return Counting(num_envs, seed, render, delay=0.01)


def broken_world(num_envs, seed, render):
    raise OSError("no simulator on this machine")


def test_worker_sends_episodes_that_the_replay_understands():
    worker = RolloutWorker(Counting, Half, 2, 0)
    first, second = worker.collect(None, 0, 3), worker.collect({"w": torch.zeros(1)}, 4, 4)
    assert (first.steps, second.steps, second.version) == (6, 8, 4)
    assert not first.returns
    assert sorted(second.returns) == [0.0, 5.0]  # five steps of reward 0 and of reward 1
    assert second.lengths == [5, 5]
    assert all(episode.action.flat[0] == 0.5 for episode in second.episodes)
    cut, ended = first.episodes[0], second.episodes[0]
    assert (len(cut), cut.terminated, cut.truncated) == (3, False, False)
    assert cut.obs["state"].ravel().tolist() == [0, 1, 2, 3]
    assert (len(ended), ended.terminated) == (2, True)
    assert ended.obs["state"].ravel().tolist() == [3, 4, 5]
    buffer = ReplayBuffer(IO, 100, gamma=0.5)
    for fragment in (first, second):
        for episode in fragment.episodes:
            buffer.add_episode(episode)
    assert len(buffer) == 14
    batch = buffer.sample(400)
    last = batch.next_obs["state"][:, 0] == 5
    terminated = last & (batch.reward == 0)
    assert torch.equal(batch.discount == 0, terminated)  # the truncated environment bootstraps
    # every row's successor is one further, also at the end of a cut fragment
    assert torch.equal(batch.next_obs["state"] - batch.obs["state"], torch.ones(400, 1))


def test_rows_that_are_no_transition_do_not_reach_the_replay():
    class Faulty(Counting):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, {**info, "valid": info["final_obs"]["state"][:, 0] != 2}

    fragment = RolloutWorker(Faulty, Half, 1, 0).collect(None, 0, 4)
    assert fragment.steps == 4
    assert [episode.obs["state"].ravel().tolist() for episode in fragment.episodes] == [[0, 1], [2, 3, 4]]
    assert not any(episode.terminated or episode.truncated for episode in fragment.episodes)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_error_says_how_to_install_it():
    with pytest.raises(ImportError, match=r"pip install \"robot_rl\[cluster\]\""):
        Cluster(Counting, Half, workers=1, num_envs=1)


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="expected >= 1"):
        Cluster(Counting, Half, workers=0, num_envs=1)


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra cluster)")
    path = ":".join([*sys.path, str(__import__("pathlib").Path(__file__).parent)])
    env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": env})
    ray_cloudpickle = __import__("ray.cloudpickle", fromlist=["register_pickle_by_value"])
    ray_cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield ray
    ray.shutdown()


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_worker_is_replaced_and_every_step_is_accounted_for(ray):
    cluster = Cluster(slow_world, Half, workers=2, num_envs=2, fragment=10, seed=1)
    buffer, learner = ReplayBuffer(IO, 10_000, gamma=0.5), Half()
    loop = ClusterOffPolicy(cluster, learner, buffer, batch_size=8, learning_starts=40, updates_per_step=0.25)
    rows = []

    def hook(step, metrics):
        rows.append((step, metrics))
        if len(rows) == 2:
            ray.kill(cluster.actors()[0])
        if len(rows) == 4:
            cluster.resize(3)
            ray.wait(list(cluster._starting), num_returns=len(cluster._starting), timeout=200)  # until it is there
        if len(rows) == 6:
            cluster.resize(1)
        return False

    loop.run(1000, hook, due=every(100))
    assert cluster.lost == 1
    assert loop.env_steps == 1000 == len(buffer)
    assert cluster.in_flight == 0
    assert learner.updates == loop.updates == pytest.approx((1000 - 40) * 0.25, abs=12)
    assert [metrics["rollout/workers"] for _, metrics in rows][-1] == 1
    assert max(metrics["rollout/workers"] for _, metrics in rows) == 3
    cluster.close()


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_that_cannot_build_their_world_end_the_run_with_the_reason(ray):
    cluster = Cluster(broken_world, Half, workers=1, num_envs=1)
    loop = ClusterOffPolicy(cluster, Half(), ReplayBuffer(IO, 10))
    with pytest.raises(RuntimeError, match="no simulator on this machine"):
        loop.run(100)
    cluster.close()


def inside_a_safe_set(io):
    def method(io, seed, **_):
        return ImitationSac(ImitationSacOptions(hidden=(8,)), io, seed=seed)

    return SafeExploration(SafeExplorationOptions(method=method, hidden=(8,)), io, seed=0)


@pytest.mark.parametrize("make", [lambda io: Sac(SacOptions(hidden=(8,)), io, seed=0), inside_a_safe_set])
def test_workers_and_fragments_have_noise_of_their_own(make):
    def world(num_envs, seed, render=False):
        return ArrayVectorEnv(Pendulum(), num_envs, seed)

    weights, drawn = on_host(make(world(1, 0).io).policy.state_dict()), []
    for seed in (1, 2):
        worker = RolloutWorker(world, make, 1, seed)
        for _ in range(2):
            worker.collect(weights, 0, 0)
            drawn.append(float(worker._policy.act({"state": np.zeros((1, 3), np.float32)}).value[0, 0]))
    assert len(set(drawn)) == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda io: RecurrentSac(RecurrentSacOptions(hidden=(8,), width=4), io, seed=0),
        lambda io: Td3Bc(Td3BcOptions(hidden=(8,)), io, seed=0),
        lambda io: Qc(QcOptions(hidden=(8,)), io, seed=0),
    ],
)
def test_workers_of_every_policy_have_noise_of_their_own(make):
    def drawn(seed):
        worker = RolloutWorker(lambda n, seed, render=False: ArrayVectorEnv(Pendulum(), n, seed), make, 1, seed)
        return worker._policy.act({"state": np.zeros((16, 3), np.float32)}).value.tolist()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


class Choosing(Counting):
    """One of three choices."""

    def __init__(self, num_envs, seed, render=False):
        super().__init__(num_envs, seed, render)
        self.io = replace(IO, action_low=(0.0,), action_high=(2.0,), action_choices=(3,))


class Here:
    """A cluster of one worker in this process."""

    workers, lost, in_flight = 1, 0, 0

    def __init__(self, worker):
        self.worker, self.sent = worker, []

    def ask(self, weights, version, steps):
        self.sent.append(self.worker.collect(weights, version, 5))

    def receive(self, patience):
        done, self.sent = self.sent, []
        return done


def test_exploration_ends_with_what_all_workers_did_and_a_resumed_run_does_not_begin_it_anew():
    def dqn(io):
        return Dqn(DqnOptions(hidden=(8,), explore_steps=20, explore_end=0.0, batch_size=4), io, seed=0)

    def loop():
        worker = RolloutWorker(Choosing, dqn, 2, 0)
        buffer, here = ReplayBuffer(worker._io, 1000, gamma=0.5), cast("Any", Here(worker))
        return worker, ClusterOffPolicy(here, dqn(worker._io), buffer, batch_size=4, learning_starts=10)

    worker, first = loop()
    first.run(20)  # ten at random, ten by the policy
    assert worker._policy.exploration == 0.5
    worker, again = loop()
    again.load_state_dict(first.state_dict())
    again.run(30)
    assert worker._policy.exploration == 0.0


def test_a_worker_goes_on_with_its_plans():
    def tdmpc2(io):
        return Tdmpc2(Tdmpc2Options(latent=8, hidden=8, samples=8, elites=2, iterations=1), io, seed=0)

    worker = RolloutWorker(Counting, tdmpc2, 2, 0)
    weights = on_host(tdmpc2(IO).policy.state_dict())
    worker.collect(weights, 0, 2)
    worker.collect(weights, 0, 0)
    assert len(worker._policy.state_dict()["plan"]) == 2


def test_the_memory_of_a_worker_ends_with_the_episode():
    def make(io):
        return RecurrentSac(RecurrentSacOptions(hidden=(16,), width=8), io, seed=0)

    worker = RolloutWorker(lambda n, seed, render=False: ArrayVectorEnv(Recall(steps=30), n, seed), make, 1, 0)
    worker.collect(on_host(worker._policy.state_dict()), 0, 31)
    assert worker._policy.memory.count.tolist() == [1]
