"""The step size over a run: by hand, in PPO's own metrics, and across a resume."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import robot_rl as rr
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.offline import Offline
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.loops.stepping import Stepper
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.step_size import StepSize
from robot_rl.policies.online.fast_ppo import FastPpo, FastPpoOptions
from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.policies.online.recurrent_ppo import RecurrentPpo, RecurrentPpoOptions
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.worlds.pendulum import Pendulum


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.4, 0.4, 0.4, 0.4]), ("linear", [0.4, 0.3, 0.2, 0.0]), ("cosine", [0.4, 0.3414214, 0.2, 0.0])],
)
def test_the_step_size_falls_as_its_schedule_says(schedule, expected):
    lr, found = StepSize(0.4, schedule), []
    for lr.progress in (0.0, 0.25, 0.5, 1.0):
        found.append(lr())
        lr.follow(9.0)  # only adaptive cares
    assert found == pytest.approx(expected)


def test_an_adaptive_step_size_follows_the_divergence():
    lr = StepSize(1e-3, "adaptive", kl=0.01)
    for kl, expected in ((0.021, 1e-3 / 1.5), (0.02, 1e-3 / 1.5), (0.005, 1e-3 / 1.5), (0.004, 1e-3)):
        lr.follow(kl)
        assert lr() == pytest.approx(expected), kl
    for _ in range(30):
        lr.follow(0.0)
    assert lr() == 1e-2
    for _ in range(30):
        lr.follow(1.0)
    assert lr() == 1e-5


def test_a_halved_step_size_is_the_one_that_is_told():
    learner = Sac(SacOptions(lr=4e-4, lr_schedule="linear", hidden=(8,), metrics_every=1), Pendulum().io)
    learner.set_progress(0.5)
    assert learner.metrics()["train/lr"] == pytest.approx(2e-4)
    learner.calm()
    assert learner.metrics()["train/lr"] == pytest.approx(1e-4)
    taken = learner.critic.lr
    assert callable(taken)
    assert taken() == pytest.approx(1e-4)


def test_a_number_of_the_host_is_told_beside_those_of_a_device(monkeypatch):
    """A step size is one; a device without data refuses to join the two."""
    monkeypatch.setattr(torch.Tensor, "tolist", lambda values: [1.0] * len(values))
    state = LearnerState("this method", metrics_every=1, parts={})
    told = state.report({"loss": torch.zeros((), device="meta"), "lr": torch.tensor(1.0)})
    assert sorted(told) == ["train/loss", "train/lr"]


@pytest.mark.parametrize(
    ("make", "keeps"),
    [
        (lambda lr, io: Ppo(PpoOptions(lr=lr), io), False),
        (lambda lr, io: RecurrentPpo(RecurrentPpoOptions(lr=lr, lr_schedule="linear"), io), False),
        (lambda lr, io: FastPpo(FastPpoOptions(lr=lr, hidden=(8,), desired_kl=None), io), False),
        (lambda lr, io: Ppo(PpoOptions(lr=lr, lr_schedule="adaptive"), io), True),
        (lambda lr, io: FastPpo(FastPpoOptions(lr=lr, hidden=(8,)), io), True),
    ],
)
def test_a_run_goes_on_with_the_step_size_that_is_asked_for_unless_it_has_found_its_own(make, keeps):
    learner = make(1e-4, Pendulum().io)
    learner.load_state_dict(make(3e-4, Pendulum().io).state_dict())
    found = learner.lr if isinstance(learner, FastPpo) else (learner._lr if isinstance(learner, Ppo) else learner.lr)()
    assert float(found) == pytest.approx(3e-4 if keeps else 1e-4)


def rates(method, schedule, steps=256, stop=None):
    """Step size of each update of a run of 4 updates, and the loop and learner behind it."""
    env = rr.make("pendulum", num_envs=1, seed=0)
    options = {"rollout_steps": 64, "epochs": 1, "lr": 4e-4, "lr_schedule": schedule}
    learner = (
        Ppo(PpoOptions(**options), env.io) if method == "ppo" else RecurrentPpo(RecurrentPpoOptions(**options), env.io)
    )
    loop, found = OnPolicy(env, learner), []

    def tick(step, metrics):
        found.append(metrics["train/lr"])
        return step == stop

    loop.run(steps, tick)
    return found, loop, learner


@pytest.mark.parametrize("method", ["ppo", "recurrent"])
def test_a_run_lowers_it_from_its_first_update_to_its_last(method):
    assert rates(method, "linear")[0] == pytest.approx([4e-4, 3e-4, 2e-4, 1e-4])
    assert rates(method, "constant")[0] == pytest.approx([4e-4] * 4)


@pytest.mark.parametrize("method", ["ppo", "recurrent"])
def test_an_adaptive_run_goes_on_with_the_step_size_that_it_had(method):
    """Pieces of 64 steps barely move the policy, so it grows; the learner that is loaded grows on from there."""
    found, _, learner = rates(method, "adaptive", stop=128)
    assert found == pytest.approx([4e-4, 6e-4])
    _, _, other = rates(method, "adaptive", stop=64)
    other.load_state_dict(learner.state_dict())
    env = rr.make("pendulum", num_envs=1, seed=0)
    more = []
    OnPolicy(env, other).run(64, lambda step, metrics: bool(more.append(metrics["train/lr"])))
    assert more == pytest.approx([9e-4])


def test_an_adaptive_update_never_ends_early():
    """Without it 20 passes at a step size of .1 end at the bound of the divergence; with it all of them are made."""
    made = {}
    for schedule in ("constant", "adaptive"):
        env = rr.make("pendulum", num_envs=1, seed=0)
        options = PpoOptions(
            rollout_steps=64, minibatch=64, epochs=20, lr=0.1, target_kl=0.01, lr_schedule=schedule, kernel="autograd"
        )
        seen = []
        OnPolicy(env, Ppo(options, env.io)).run(
            64, lambda _, m, seen=seen: bool(seen.append(m["train/gradient_steps"]))
        )
        made[schedule] = seen[0]
    assert made["adaptive"] == 20
    assert made["constant"] < 20


def test_training_from_a_log_lowers_it_too():
    env = ArrayVectorEnv(Pendulum(), 2, 0)
    stepper, buffer = Stepper(env), ReplayBuffer(env.io, 500, num_envs=2)
    stepper.reset(0)
    for _ in range(50):
        buffer.add(stepper.step(np.zeros((2, 1), np.float32)))
    learner = Sac(SacOptions(hidden=(8,), batch_size=16, lr_schedule="linear", metrics_every=1), env.io)
    seen = []
    loop = Offline(learner, buffer, batch_size=16)
    loop.run(100, lambda _, found: bool(seen.append(found["train/lr"])), due=lambda before, now: now % 20 == 0)
    assert seen == pytest.approx([3e-4 * (1.0 - (now - 1) / 100) for now in (20, 40, 60, 80, 100)])


def test_a_step_size_that_begins_beyond_the_usual_limits_stays_its_own():
    """1e-6 became 1e-5 with the first divergence that asked for less, 0.05 became 0.01 with the first that asked for
    more."""
    for lr, kl, expected in ((1e-6, 1.0, 1e-6), (1e-6, 0.0, 1.5e-6), (0.05, 0.0, 0.05), (0.05, 1.0, 0.05 / 1.5)):
        size = StepSize(lr, "adaptive")
        size.follow(kl)
        assert size() == pytest.approx(expected), (lr, kl)
    ones = torch.ones(4)
    batch = {"mask": ones, "target": ones}
    for lr, ratio, expected in ((1e-6, 1.0, 1e-6), (0.0, 1e-4, 0.0), (0.05, 1e-4, 0.05), (0.05, 1.0, 0.05 / 1.5)):
        learner = FastPpo(FastPpoOptions(lr=lr, hidden=(8,)), Pendulum().io)
        learner._follow(0.0, ratio * ones, ones, batch)
        assert float(learner.lr) == pytest.approx(expected), (lr, ratio)
