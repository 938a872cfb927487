"""What stands around learners, on a device that is none: replay, credit, estimates, judges, loops of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl import build
from robot_rl.advantage import Pipeline, Stage, entries
from robot_rl.checkpoint import load_state, save_state
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.device_replay import DeviceReplay
from robot_rl.loops.contract import batches_for
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.loops.stepping import Stepper
from robot_rl.verbs import logs

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / x) for x in ("advantage", "data", "policies", "policies/vla"))]
sys.path[:0] = [str(HERE.parent / x) for x in ("policies/offline", "policies/reward")]
import pretend_device  # noqa: E402
from clean_process import CleanProcess  # noqa: E402
from noise import IO, Noise, from_log, make, observations  # noqa: E402

if why := pretend_device.missing():
    pytest.skip(why, allow_module_level=True)

DEVICE = "pretend"


def there_and_back(pair: Sequence[Any], folder: Path) -> None:
    """The state of a part of the device goes to the host, and back."""
    device, host = pair
    save_state(folder / "there.pt", device.state_dict())
    host.load_state_dict(load_state(folder / "there.pt"))
    save_state(folder / "here.pt", host.state_dict())
    device.load_state_dict(load_state(folder / "here.pt"))
    device.load_state_dict(load_state(folder / "there.pt", device=DEVICE))


def rules(folder: Path) -> None:
    """The device itself: what it refuses, and what CUDA allows."""
    there, here = torch.zeros(3, device=DEVICE), torch.ones(3)
    refused: list[Callable[[], Any]] = [
        lambda: there + here, lambda: here + there, there.numpy, lambda: torch.cat([there, here]),
        lambda: here.add_(there),
        lambda: here[torch.tensor([0], device=DEVICE)], lambda: torch.stack([there[0], torch.tensor(1.0)]),
        lambda: torch.rand(2, generator=torch.Generator(), device=DEVICE),
        lambda: torch.rand(2, generator=torch.Generator(DEVICE)),
    ]  # fmt: skip
    for call in refused:
        with pytest.raises((RuntimeError, TypeError)):
            call()
    there[torch.tensor([0, 1])] = torch.tensor(2.0)
    there[2:] = torch.tensor([3.0])
    assert (there * torch.tensor(2.0)).tolist() == [4.0, 4.0, 6.0]
    draws = torch.Generator(DEVICE).manual_seed(1)
    saved = draws.get_state()
    first = torch.randn(4, generator=draws, device=DEVICE)
    draws.set_state(saved)
    assert torch.equal(torch.randn(4, generator=draws, device=DEVICE), first)


def replay(folder: Path) -> None:
    import test_device_replay as given

    def place(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: place(item) for key, item in value.items()}
        return value.to(DEVICE) if isinstance(value, torch.Tensor) else value

    pair = [DeviceReplay(given.IO, 8, num_envs=2, n_step=3, gamma=0.5, device=device) for device in (DEVICE, "cpu")]
    for t in range(5):
        step = given.step(t, reward=1, terminated=(0,) if t == 2 else ())
        pair[0].add(replace(step, **{item.name: place(getattr(step, item.name)) for item in fields(step)}))
    assert pair[0].sample(4).reward.device.type == DEVICE
    there_and_back(pair, folder)
    pair[0].save(folder / "replay")
    for one in pair:
        one.load(folder / "replay")
        one.sample(4)
    buffers = [
        ReplayBuffer(IO, 32, num_envs=3, n_step=2, gamma=0.9, seed=0, device=device) for device in (DEVICE, "cpu")
    ]
    stepper = Stepper(Noise())
    stepper.reset(seed=0)
    for _ in range(6):
        buffers[0].add(stepper.step(np.zeros((3, 2), np.float32)))
    there_and_back(buffers, folder)
    assert buffers[0].sample(4).reward.device.type == DEVICE


def credit(folder: Path) -> None:
    """Every estimator and every stage of rewards of the zoo gives the same there."""
    import test_pipeline as given

    for item in given.ESTIMATORS:
        batch = given.full_batch()
        if item.name == "archer":
            batch = given.full_batch(extras=given.twin_heads(len(batch)))
        pair = [Pipeline([given.stage(item.name)])(one).advantage for one in (batch, batch.to(DEVICE))]
        np.testing.assert_allclose(pair[1].cpu().numpy(), pair[0], atol=1e-9, err_msg=item.name)
    for item in entries("redistribute"):
        batch, pipeline = given.full_batch(), Pipeline([Stage("gae")], redistribute=[Stage(item.name)])
        pair = [pipeline(one).advantage for one in (batch, batch.to(DEVICE))]
        np.testing.assert_allclose(pair[1].cpu().numpy(), pair[0], atol=1e-9, err_msg=item.name)


def estimates(folder: Path) -> None:
    policy = make("offline/iql", IO, DEVICE).policy
    for node in ({"name": "fqe"}, {"name": "model", "members": 2, "rollouts": 2}):
        given: dict[str, Any] = {**node, "hidden": (16, 16), "batch_size": 8}
        made = build.make("ope", given, IO, policy, seed=0, device=DEVICE, gamma=0.9)
        data = from_log(made, IO, folder)[1]
        made.prepare(logs.facts(data))
        batches = batches_for(made, data.batches(made.need.rows))
        for _ in range(3):
            made.update(batches)
        assert made.state_values(next(batches).obs["state"]).device.type == DEVICE


def adam(folder: Path) -> None:
    """As compiled for the host, also where gradients are not finite."""
    from robot_rl.policies.nets.actor_critic import Adam

    pair = [torch.ones(4, device=device) for device in (DEVICE, "cpu")]
    steps = [Adam(params, 0.1, 1.0) for params in pair]
    for number in range(6):
        grad = (
            torch.full((4,), float("nan")) if number in (0, 3) else torch.tensor([0.1, -2.0, 0.3, 1.0]) / (number + 1)
        )
        for params, step in zip(pair, steps):
            step.step(grad.to(params.device, copy=True))
    torch.testing.assert_close(pair[0].cpu(), pair[1])
    there_and_back(steps, folder)
    assert steps[1].state_dict()["count"] == 4


def teacher(folder: Path) -> None:
    import test_distill as given

    env = given.lamps()
    node = {"name": "online/distill", **given.SMALL}
    OnPolicy(env, build.make("policy", node, env.io, seed=0, device=DEVICE, load=given.teacher_of), seed=0).run(200)


def groups(folder: Path) -> None:
    import test_grpo as given

    for head, progress in (("gaussian", "none"), ("token", "srpo"), ("flow", "none")):
        options = given.learner(head).o.model_copy(
            update={"progress": progress, "demos": 2, "groups": 2, "group_size": 4}
        )
        pair = [given.VlaGrpo(options, given.Rail().io, device=device) for device in (DEVICE, "cpu")]
        for one in pair:
            one.attach(given.Rail(8))
        pair[0].run(192, lambda *_: False)
        there_and_back(pair, folder)


def language(folder: Path) -> None:
    import test_language_agent as given

    env = given.TextVectorEnv(given.TextTools(), 2, 0)
    options = given.LanguageAgentOptions(**{**given.TINY, "warmup_dialogues": 8})
    agent = given.LanguageAgent(options, env.io, device=DEVICE)
    agent.attach(env)
    agent.run(60, lambda *_: False)
    agent.policy.reset()
    assert isinstance(agent.policy.act(env.reset(seed=0)[0]).value, np.ndarray)


def foreign(folder: Path) -> None:
    made = build.make("policy", {"name": "online/sb3"}, IO, seed=0, device=DEVICE, gamma=0.9)
    made.attach(Noise())
    made.run(50, lambda *_: False)


def chains(folder: Path) -> None:
    import test_chain_search as given

    made = given.ChainSearch(given.ChainSearchOptions(), given.IO, device=DEVICE)
    made.update(batches_for(made, given.batches(folder, given.log(4, 100), made)))
    assert isinstance(made.policy.act({"state": np.zeros((2, 3), np.float32)}).value, np.ndarray)


def critics(folder: Path) -> None:
    import test_critic as given

    from robot_rl.policies.vla.context import ContextCriticOptions, ContextLearner

    clips, size, words = given.clips(), (given.SIZE, given.SIZE), ["x"] * 3
    for kind, options in (
        (given.CriticLearner, given.TinyCriticOptions(size=size, items=8, goals=1, width=32)),
        (ContextLearner, ContextCriticOptions(size=size, items=8, width=32)),
    ):
        pair = [kind(options, device=device) for device in (DEVICE, "cpu")]
        batches = pair[0].sampler(clips)
        pair[0].update(next(batches))
        pair[0].calibrate(clips)
        critic = pair[0].critic()
        critic(given.pictures(3), given.pictures(3, 1), words)
        critic.trajectory(given.pictures(5), "x")
        critic.score(torch.from_numpy(given.pictures(4))[None], ["x"])
        there_and_back(pair, folder)
        pair[0].update(next(batches))


def judges(folder: Path) -> None:
    import test_preferences as given

    node = {"name": "success", "hidden": (16,), "steps": 3, "batch_size": 8, "members": 2}
    pair = [build.make("classifier", node, IO, seed=0, device=device) for device in (DEVICE, "cpu")]
    obs, label = observations(IO, 40, np.random.default_rng(0)), np.arange(40) % 2 == 0
    pair[0].prepare(obs, label)
    pair[0].update()
    pair[0].calibrate(obs, label)
    assert isinstance(pair[0].probability(obs), np.ndarray)
    there_and_back(pair, folder)
    options = given.RewardOptions(members=2, hidden=(8,), batch_size=8)
    found = [given.RewardEnsemble(options, 2, 1, device=device) for device in (DEVICE, "cpu")]
    found[0].update(given.pairs())
    found[0].probabilities(given.pairs()).numpy()
    found[0].calibrate(torch.randn(20, 2), torch.randn(20, 1))
    found[0].reward(torch.randn(4, 2), torch.randn(4, 1)).numpy()
    there_and_back(found, folder)


QUICK = (rules, replay, credit, estimates, judges, adam)
SLOW = (teacher, groups, language, foreign, chains, critics)


@pytest.mark.parametrize(
    "part", [*QUICK, *(pytest.param(x, marks=pytest.mark.slow) for x in SLOW)], ids=lambda part: part.__name__
)
def test_part_on_a_device(part: Callable[[Path], None], tmp_path: Path, clean: CleanProcess) -> None:
    assert not clean.run("part", part.__name__, tmp_path)
