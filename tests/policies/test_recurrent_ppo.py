"""PPO with a memory: what it remembers, what its gradients see, and a task that cannot be done without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl.loops.episodes import EpisodeStats
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.on_policy import RolloutStorage, collect, train_on_policy
from robot_rl.loops.stepping import Stepper
from robot_rl.policies.nets.trajectory import TrajectoryMemory
from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.policies.online.recurrent_ppo import MemoryNet, RecurrentPpo, RecurrentPpoOptions, cut
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.worlds.recall import Recall
from robot_rl.types import Rollout

SMALL = RecurrentPpoOptions(rollout_steps=70, sequence=32, minibatch=60, epochs=2, memory=8, hidden=(8,))


def collected(learner: RecurrentPpo, env: ArrayVectorEnv) -> Rollout:
    """The rollout of one iteration."""
    stepper, storage = Stepper(env), RolloutStorage(learner.need.rollout_steps)
    stepper.reset(0)
    collect(stepper, learner.policy, storage, EpisodeStats(env.num_envs), learner.need.record)
    return storage.rollout(learner)


@pytest.fixture
def env() -> ArrayVectorEnv:
    return ArrayVectorEnv(Recall(steps=30), 3, 0)


def test_recall_by_hand() -> None:
    world = Recall(steps=50)
    state = {key: value[None] for key, value in world.start(np.random.default_rng(0)).items()}
    state |= {"side": np.array([-1.0]), "place": np.zeros(1)}
    for _ in range(5):  # lit: the cart is held, and nothing is paid
        assert world.observe(state).tolist() == [[-1.0, 0.0, 0.0]]
        assert world.step(state, np.array([[1.0]]))[0] == [0.0]
    assert world.observe(state).tolist() == [[0.0, 1.0, 0.0]]
    reward, _, success = world.step(state, np.array([[-1.0]]))  # 0.1 m towards it
    assert reward == pytest.approx([1.0 - 0.9])
    assert not success
    for _ in range(9):
        reward, _, success = world.step(state, np.array([[-1.0]]))
    assert reward == pytest.approx([1.0])
    assert success


def test_the_kept_memory_gives_the_acting_policy_again(env: ArrayVectorEnv) -> None:
    """Unrolled from the memory at each piece's start, means and values are those of acting: log-densities agree."""
    learner = RecurrentPpo(SMALL, env.io, seed=0)
    rollout = collected(learner, env)
    pieces = learner._pieces(rollout)
    assert pieces["mask"].shape == (9, 30)  # 3 environments, 70 steps of episodes of 30: the third begun has 10
    assert pieces["mask"].sum() == 210
    mean, value = learner.net(pieces["obs"], pieces["memory"])
    std = learner.net.log_std.exp()
    logp = torch.distributions.Normal(mean, std).log_prob(pieces["action"]).sum(-1)
    mask = pieces["mask"]
    torch.testing.assert_close(logp[mask], pieces["logp"][mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(value[mask], pieces["value"][mask], atol=1e-5, rtol=0)
    assert not pieces["memory"].any()  # every piece begins with an episode


def test_long_episodes_are_cut_where_the_kept_memory_goes_on() -> None:
    env = ArrayVectorEnv(Recall(steps=50), 2, 0)
    learner = RecurrentPpo(SMALL, env.io, seed=0)
    pieces = learner._pieces(collected(learner, env))
    assert pieces["mask"].sum(-1).tolist() == [32, 18, 20] * 2
    assert pieces["memory"].any(-1).tolist() == [False, True, False] * 2
    mean, _ = learner.net(pieces["obs"], pieces["memory"])
    logp = torch.distributions.Normal(mean, learner.net.log_std.exp()).log_prob(pieces["action"]).sum(-1)
    torch.testing.assert_close(logp[pieces["mask"]], pieces["logp"][pieces["mask"]], atol=1e-5, rtol=0)


def test_a_successor_is_judged_with_what_is_known_behind_the_step(env: ArrayVectorEnv) -> None:
    learner = RecurrentPpo(SMALL, env.io, seed=0)
    rollout = collected(learner, env)
    within = ~rollout.boundary[:-1]
    memory, after = rollout.extras["memory"], rollout.extras["next_memory"]
    torch.testing.assert_close(after[:-1][within], memory[1:][within])
    ends = torch.nonzero(rollout.truncated)
    assert len(ends) == 6
    for t, i in ends.tolist():
        assert not memory[t + 1, i].any()  # a new episode knows nothing
        assert float(rollout.next_value[t, i]) != pytest.approx(float(rollout.value[t + 1, i]))


def test_what_is_seen_later_does_not_matter_before() -> None:
    generator = torch.Generator().manual_seed(0)
    net = MemoryNet(3, (1, 1), generator, memory=8, hidden=(8,), log_std=0.0)
    x = torch.randn(1, 6, 3, generator=generator, requires_grad=True)
    mean, value = net(x, torch.randn(1, 16, generator=generator))
    (mean[0, 4, 0] + value[0, 4]).backward()
    assert x.grad is not None
    assert x.grad.abs().sum(-1).gt(0)[0].tolist() == [True] * 5 + [False]


def test_masked_rows_change_nothing(env: ArrayVectorEnv) -> None:
    learner, other = (RecurrentPpo(SMALL, env.io, seed=0) for _ in range(2))
    pieces = learner._pieces(collected(learner, env))
    spoiled = {name: x.clone() for name, x in pieces.items()}
    for name in ("action", "logp", "advantage", "target", "obs"):
        spoiled[name][~pieces["mask"]] = 1e3
    learner._fit(pieces)
    other._fit(spoiled)
    for mine, theirs in zip(learner.net.parameters(), other.net.parameters()):
        torch.testing.assert_close(mine, theirs)


def test_a_run_that_goes_on_equals_one_that_was_not_cut(env: ArrayVectorEnv) -> None:
    whole, first, second = (RecurrentPpo(SMALL, env.io, seed=0) for _ in range(3))
    train_on_policy(ArrayVectorEnv(Recall(steps=30), 3, 0), whole, total_steps=420)
    loop = train_on_policy(ArrayVectorEnv(Recall(steps=30), 3, 0), first, total_steps=210)
    second.load_state_dict(first.state_dict())
    state = loop.state_dict()
    train_on_policy(ArrayVectorEnv(Recall(steps=30), 3, 0), second, total_steps=420, start_state=state)
    for mine, theirs in zip(second.net.parameters(), whole.net.parameters()):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("policy", ["online/recurrent_ppo", "online/ppo_chunk"])
def test_an_evaluation_in_between_changes_nothing(tmp_path: Path, robot_rl, policy: str) -> None:
    line = ("train", "env=recall", f"policy={policy}", "policy.rollout_steps=70", "total_steps=210", "video_episodes=0")
    weights = []
    for name, every in (("without", 0), ("with", 70)):
        done = robot_rl(*line, f"eval_every={every}", "eval_episodes=2", f"output={tmp_path / name}")
        assert done.returncode == 0, done.stderr
        (run,) = (tmp_path / name / "train").iterdir()
        rows = (run / "metrics.jsonl").read_text()
        assert ("eval/return" in rows.splitlines()[0]) == bool(every)
        weights.append(next((run / "checkpoints").glob("step_*")) / "policy.pt")
    one, other = (torch.load(path, weights_only=True) for path in weights)

    def flat(state: dict, prefix: str = "") -> dict[str, torch.Tensor]:
        found = {}
        for key, value in state.items():
            found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        return found

    for (name, mine), theirs in zip(flat(one).items(), flat(other).values()):
        assert not isinstance(mine, torch.Tensor) or torch.equal(mine, theirs), name


def test_rows_that_have_seen_nothing_may_be_reset() -> None:
    """As when a run's actions are all drawn at random, so that it is never asked (`robot-rl collect random=1`)."""
    policy = RecurrentPpo(SMALL, Recall().io).policy
    policy.reset(np.array([True, False]))
    first = policy.act({"state": np.ones((3, 3), np.float32)}, deterministic=True).value
    policy.reset(np.array([True, False]))  # of another number of rows
    policy.reset(np.ones(3, bool))
    assert np.array_equal(policy.act({"state": np.ones((3, 3), np.float32)}, deterministic=True).value, first)
    memory = TrajectoryMemory(4, 3, 1, device=torch.device("cpu"))
    memory.forget(np.array([True, False]))
    assert len(memory.count) == 0


def test_the_row_of_a_reset_is_no_piece() -> None:
    """Next-step autoreset: step 2 ends, row 3 resets. A gradient of that row alone would be a mean of nothing."""
    flags = {name: torch.zeros(6, 1, dtype=torch.bool) for name in ("terminated", "truncated", "boundary")}
    flags["terminated"][2], flags["valid"] = True, torch.tensor([True, True, True, False, True, True])[:, None]
    numbers = {name: torch.zeros(6, 1) for name in ("logp", "value", "reward", "next_value")}
    io = Recall().io
    memory = torch.arange(6.0)[:, None, None].repeat(1, 1, 4)
    rollout = Rollout(
        {"state": torch.randn(6, 1, 3)}, torch.zeros(6, 1, 1), **numbers, **flags, extras={"memory": memory}
    )
    pieces = cut({"mask": flags["valid"]}, rollout, 8)
    assert pieces["mask"].tolist() == [[True, True, True], [True, True, False]]
    assert pieces["memory"][:, 0].tolist() == [0.0, 4.0]
    options = RecurrentPpoOptions(rollout_steps=6, sequence=8, minibatch=1, epochs=8, memory=2, hidden=(4,))
    for seed in range(4):  # each piece is some update's last gradient, whose numbers are told
        RecurrentPpo(options, io, seed=seed).update(iter([rollout]))


@pytest.mark.slow
def test_who_remembers_finds_the_lamp_and_who_does_not_guesses() -> None:
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"memory": [], "none": []}
    for seed in range(3):
        for name, learner in (
            ("memory", RecurrentPpo(RecurrentPpoOptions(), Recall().io, seed=seed)),
            ("none", Ppo(PpoOptions(), Recall().io, seed=seed)),
        ):
            train_on_policy(ArrayVectorEnv(Recall(), 1, seed), learner, total_steps=40_000, seed=seed)
            result = evaluate(ArrayVectorEnv(Recall(), 10, 0), learner.policy, episodes=100)
            found[name].append(float(np.mean(result.successes)))
    assert min(found["memory"]) >= 0.9, found
    assert max(found["none"]) <= 0.6, found
