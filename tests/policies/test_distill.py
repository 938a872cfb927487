"""Distillation: whose observations who reads, one step against plain torch, what is refused, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl import api
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.on_policy import OnPolicy, train_on_policy
from robot_rl.policies.online.distill import Distill, DistillOptions
from robot_rl.policies.online.recurrent_ppo import RecurrentPpo, RecurrentPpoOptions
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.worlds.pendulum import Pendulum
from robot_rl.sim.worlds.recall import Recall
from robot_rl.types import Action, IOSpec, PolicyParts, Rollout
from robot_rl.types.io import PRIVILEGED

SMALL = {"teacher": "teacher", "rollout_steps": 30, "sequence": 12, "memory": 8, "hidden": (8,), "minibatch": 60}


class Knowing:
    """Goes to the lamp, or with the sign of a component of what it sees."""

    parts = PolicyParts()

    def __init__(self, io: IOSpec, column: int = 3) -> None:
        self.io, self._column = io, column
        self.asked = 0

    def reset(self, rows=None):
        """Nothing to forget."""

    def act(self, obs, *, deterministic=False):
        assert deterministic
        self.asked += len(obs["state"])
        return Action(0.8 * np.sign(obs["state"][:, self._column : self._column + 1]))


def lamps(steps=30, num_envs=3, seed=0):
    return ArrayVectorEnv(Recall(steps=steps), num_envs, seed, critic_state=True)


def teacher_of(path="teacher"):
    assert path == "teacher"
    return Knowing(ArrayVectorEnv(Recall(), 1, 0, teacher_state=True).io)


def student(env, seed=0, load=teacher_of, **options):
    return Distill(DistillOptions(**{**SMALL, **options}), env.io, seed=seed, load=load)


def collected(learner, env) -> Rollout:
    loop = OnPolicy(env, learner, seed=0)
    loop._stepper.reset(0)
    return loop._collect()


@pytest.mark.parametrize("memory", [0, 8])
def test_one_update_is_that_of_plain_torch(memory):
    """One pass over one piece of each row: the gradient of the mean squared distance, one step of AdamW."""
    env = lamps(steps=50)
    learner = student(env, memory=memory, epochs=1, minibatch=10_000, sequence=30, max_grad_norm=100.0)
    weights = {name: x.detach().clone() for name, x in learner.net.named_parameters()}
    rollout = collected(learner, env)
    metrics = learner.update(iter((rollout,)))

    state = rollout.obs["state"].transpose(0, 1)  # (N, T, S); no episode ends in 30 of 50 steps
    label = 0.8 * rollout.obs[PRIVILEGED][..., 3:4].transpose(0, 1)
    read = torch.nn.GRU(3, 8, batch_first=True) if memory else torch.nn.Identity()
    head = torch.nn.Sequential(torch.nn.Linear(memory or 3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    if memory:
        read.load_state_dict({name[11:]: x for name, x in weights.items() if name.startswith("memories.0.")})
    head.load_state_dict({name[8:]: x for name, x in weights.items() if name.startswith("heads.0.")})
    optimiser = torch.optim.AdamW([*read.parameters(), *head.parameters()], lr=2e-3, weight_decay=0.0)
    seen = read(state)[0] if memory else state
    loss = (head(seen) - label).square().mean()
    loss.backward()
    optimiser.step()
    assert metrics["train/imitation_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-5)
    found = dict(learner.net.named_parameters())
    for prefix, module in (("memories.0.", read), ("heads.0.", head)):
        for name, weight in module.named_parameters():
            torch.testing.assert_close(found[prefix + name], weight, atol=1e-6, rtol=1e-4)
    assert torch.equal(found["log_std"], weights["log_std"])


def test_what_is_no_step_is_not_learnt_from_and_the_teacher_reads_what_it_was_trained_with():
    env = lamps()
    learner, other = student(env), student(env)
    rollout = collected(learner, env)
    assert torch.equal(learner.labels(rollout.obs), 0.8 * rollout.obs[PRIVILEGED][..., 3:4])
    columns = rollout.valid.clone()
    columns[5, 1] = False
    spoiled = {key: x.clone() for key, x in rollout.obs.items()}
    spoiled[PRIVILEGED][5, 1] *= -1.0  # another label there
    one = learner.update(iter((replace(rollout, valid=columns),)))
    two = other.update(iter((replace(rollout, valid=columns, obs=spoiled),)))
    assert one["train/loss"] == two["train/loss"]
    assert float(learner.value(rollout.obs).abs().sum()) == 0.0


def test_a_run_that_goes_on_equals_one_that_was_not_cut():
    whole, first, second = (student(lamps()) for _ in range(3))
    train_on_policy(lamps(), whole, total_steps=360)
    loop = train_on_policy(lamps(), first, total_steps=180)
    assert loop.stats.metrics()["rollout/rewardless"] == 1.0  # so that no diagnosis blames the reward
    second.load_state_dict(first.state_dict())
    train_on_policy(lamps(), second, total_steps=360, start_state=loop.state_dict())
    for mine, theirs in zip(second.net.parameters(), whole.net.parameters()):
        assert torch.equal(mine, theirs)


def test_who_deploys_the_student_needs_neither_the_teacher_nor_what_it_saw():
    env = lamps()
    learner = student(env)
    train_on_policy(env, learner, total_steps=180)
    alone = Distill(DistillOptions(**SMALL), env.io.acting).policy
    alone.load_state_dict(learner.policy.state_dict())
    learner.policy.reset()
    state = env.reset(seed=3)[0]["state"]
    for _ in range(3):
        one, two = (x.act({"state": state}, deterministic=True).value for x in (learner.policy, alone))
        assert np.array_equal(one, two)
    assert sorted(alone.io.obs) == ["state"]
    assert alone.parts.remembers
    without = student(env, memory=0).policy
    assert not without.parts.remembers
    graph = without.parts.graph({"state": torch.from_numpy(state)})
    np.testing.assert_allclose(graph.detach(), without.act({"state": state}, deterministic=True).value, atol=1e-7)


def test_both_may_see_the_same_and_then_the_teacher_is_read_when_it_is_asked():
    env = ArrayVectorEnv(Recall(steps=30), 2, 0)
    asked = []

    def load(path):
        asked.append(path)
        return Knowing(env.io, column=0)

    learner = student(env, load=load)
    assert not asked
    train_on_policy(env, learner, total_steps=60)
    assert asked == ["teacher"]


def test_teachers_that_cannot_be_asked_are_refused():
    env = lamps()
    blind = ArrayVectorEnv(Recall(), 1, 0)
    with pytest.raises(
        ValueError, match=r"train it with env.teacher_state=true.*\n.*float32\[3\] here and float32\[4\]"
    ):
        student(env, load=lambda path: Knowing(blind.io))
    remembers = RecurrentPpo(RecurrentPpoOptions(memory=8, hidden=(8,)), blind.io)
    with pytest.raises(ValueError, match="decides from more than the present observation"):
        student(env, load=lambda path: remembers.policy)
    with pytest.raises(ValueError, match="nobody reads the teacher"):
        student(env, load=None)


def test_from_a_teacher_of_the_command_line_to_a_student_that_is_exported(tmp_path: Path, robot_rl):
    few = ("eval_every=0", "final_episodes=2", "video_episodes=0", f"output={tmp_path}")
    world = ("train", "env=pendulum", "env.world.wind=[-1,1]")

    def run(*words):
        done = robot_rl(*words)
        assert done.returncode == 0, done.stderr

    run(
        *world,
        "env.teacher_state=true",
        "policy=online/ppo",
        "policy.rollout_steps=64",
        "total_steps=64",
        *few,
        "name=t",
    )
    (teacher,) = (tmp_path / "train").glob("*_t")
    distil = (
        *world,
        "env.world.velocity=false",
        "critic_state=true",
        "policy=online/distill",
        f"policy.teacher={teacher}",
    )
    run(*distil, "policy.rollout_steps=64", "policy.memory=8", "total_steps=128", *few, "name=s")
    (run_folder,) = (tmp_path / "train").glob("*_s")
    teacher.rename(tmp_path / "gone")  # who evaluates or exports the student needs it no more
    run("eval", f"path={run_folder}", "episodes=2", f"output={tmp_path}")
    run("export", f"path={run_folder}", f"out={tmp_path / 'graph'}")
    assert (tmp_path / "graph" / "policy.onnx").is_file()
    refused = robot_rl(*distil, "total_steps=64", *few)
    assert refused.returncode == 2
    assert str(teacher) in refused.stderr


def test_a_student_with_a_memory_learns_what_only_its_teacher_sees():
    """The side of the lamp is shown in the first steps alone: with a memory the loss falls towards 0, without one no
    answer is better than 0, whose squared distance from -0.8 and 0.8 is 0.64."""
    torch.set_num_threads(1)
    found = {}
    for memory in (16, 0):
        env = lamps(num_envs=8)
        learner = student(env, memory=memory, sequence=30, lr=5e-3)
        last: list[float] = []

        def tick(step, metrics, last=last):
            last.append(metrics["train/imitation_loss"])
            return False

        train_on_policy(env, learner, total_steps=240 * 40, tick=tick)
        found[memory] = last[0], float(np.mean(last[-8:]))
    assert found[16][0] == pytest.approx(0.64, abs=0.05)
    assert found[16][1] < 0.05
    assert found[0][1] == pytest.approx(0.64 * 0.9, abs=0.12)  # in a tenth of the steps the lamp is lit


@pytest.mark.slow
def test_the_pendulum_without_its_velocity_is_swung_up_by_a_student_with_a_memory():
    torch.set_num_threads(1)
    env = api.make("pendulum", world={"wind": (-1.0, 1.0)}, teacher_state=True)
    run = api.train("online/ppo", env, steps=100_000, eval_every=0, final_episodes=1, video_episodes=0)
    teacher = api.load(run)
    returns = {}
    for memory in (128, 0):
        env = ArrayVectorEnv(Pendulum(velocity=False, wind=(-1.0, 1.0)), 8, 0, critic_state=True)
        options = DistillOptions(teacher="teacher", memory=memory)
        learner = Distill(options, env.io, load=lambda path: teacher)
        train_on_policy(env, learner, total_steps=100_000)
        returns[memory] = np.mean(evaluate(env, learner.policy, episodes=40).returns)
    assert returns[128] > -450.0, returns
    assert returns[0] < -800.0, returns
