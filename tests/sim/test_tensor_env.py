"""The tensor environment against the CPU engine, on a physics that torch computes (no GPU engine needed)."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.loops.stepping import Stepper
from robot_rl.sim import mujoco_env
from robot_rl.sim.arrays import constant, solve_definite
from robot_rl.sim.check import check
from robot_rl.sim.crash import UnstableSimulationError
from robot_rl.sim.draw import Streams
from robot_rl.sim.draw_torch import TorchStreams
from robot_rl.sim.engine_options import EngineOptions, TensorOptions
from robot_rl.sim.randomize import Randomize
from robot_rl.sim.tensor_env import TensorVectorEnv, torch_device

_SPEC = importlib.util.spec_from_file_location("torch_slider", Path(__file__).with_name("torch_slider.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
TorchSlider: Any = _MODULE.TorchSlider


def make(world: Any, num_envs: int = 4, seed: int = 0, **options: Any) -> TensorVectorEnv:
    randomize = Randomize(**options)
    physics = TorchSlider(num_envs, latency=randomize.latency is not None)
    cpu, o = torch.device("cpu"), TensorOptions(randomize=randomize)
    return TensorVectorEnv(num_envs, seed, world=world, physics=physics, device=cpu, options=o)


def test_streams_draw_the_same_numbers_as_on_the_cpu_engine() -> None:
    ours, theirs = TorchStreams(5, 123, 2), Streams(5, 123, 2)
    everyone = torch.ones(5, dtype=torch.bool)
    a, b = ours.draw(everyone), theirs.draw()
    np.testing.assert_array_equal(a.uniform(7).numpy(), b.uniform(7))
    np.testing.assert_array_equal(
        a.uniform(2, low=np.array([0.0, -3.0]), high=1.5).numpy(), b.uniform(2, low=np.array([0.0, -3.0]), high=1.5)
    )
    np.testing.assert_allclose(a.normal(3, std=0.5).numpy(), b.normal(3, std=0.5), rtol=1e-6)
    # only rows 1 and 4 move on
    mask = torch.tensor([False, True, False, False, True])
    picked = ours.draw(mask).uniform(3).numpy()[[1, 4]]
    np.testing.assert_array_equal(picked, theirs.draw(np.array([1, 4])).uniform(3))
    np.testing.assert_array_equal(ours.draw(everyone).uniform().numpy(), theirs.draw().uniform())
    assert ours.state_dict()["counter"].tolist() == theirs.state_dict()["counter"].tolist()


def test_definite_systems_are_solved_as_numpy_solves_them() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(9, 6, 6))
    matrix, right = root @ root.transpose(0, 2, 1) + 1e-4 * np.eye(6), rng.normal(size=(9, 6, 1))
    ours = solve_definite(torch.from_numpy(matrix), torch.from_numpy(right))
    np.testing.assert_allclose(np.asarray(ours), np.linalg.solve(matrix, right), rtol=1e-6, atol=1e-8)
    single = solve_definite(torch.full((2, 1, 1), 4.0), torch.full((2, 1, 1), 2.0))
    assert single.flatten().tolist() == [0.5, 0.5]


def test_constants_are_made_once_per_kind() -> None:
    like = torch.zeros(2)
    assert constant((1.0, 2.0), like) is constant((1.0, 2.0), torch.ones(5))
    assert constant((1.0, 2.0), like.double()).dtype == torch.float64
    numpy = constant((1.0, 2.0), np.zeros(1))
    assert isinstance(numpy, np.ndarray)
    with pytest.raises(ValueError, match="read-only"):
        numpy[0] = 3.0


@pytest.mark.parametrize("options", [{}, {"latency": [0.0, 0.09], "noise": 0.01}, {"noise": [0.1, 0.0, 0.0, 0.0, 0.2]}])
def test_episodes_are_those_of_the_cpu_engine(slider: Any, options: dict[str, Any]) -> None:
    """Same seed, same actions: same starts, noise, latency, rewards, ends and successors, over several episodes."""
    ours = make(slider(limit=0.7), seed=3, **options)
    theirs = mujoco_env.make(4, 3, world=slider(limit=0.7), options=EngineOptions(randomize=Randomize(**options)))
    a, b = ours.reset()[0], theirs.reset()[0]
    rng = np.random.default_rng(0)
    ended = 0
    for step in range(60):
        np.testing.assert_allclose(a["state"].numpy(), b["state"], atol=2e-5, err_msg=f"step {step}")
        action = rng.uniform(-1.5, 1.5, (4, 1)).astype(np.float32)
        a, *first, info = ours.step(torch.from_numpy(action))
        b, *second, other = theirs.step(action)
        for mine, his in zip(first, second):
            np.testing.assert_allclose(mine.numpy().astype(float), his.astype(float), atol=2e-5)
        np.testing.assert_allclose(info["final_obs"]["state"].numpy(), other["final_obs"]["state"], atol=2e-5)
        assert info["success"].tolist() == other["success"].tolist()
        np.testing.assert_array_equal(info["executed"].numpy(), other["executed"])
        ended += int(first[1].sum() + first[2].sum())
        assert not (first[1] & first[2]).any()
    assert ended > 8


def test_tensor_environment_keeps_the_contract(slider: Any) -> None:
    findings = check(make(slider(limit=0.8), noise=0.01, latency=[0.0, 0.05]))
    assert not findings, "\n".join(findings)


def test_models_are_drawn_as_the_cpu_engine_draws_them(slider: Any) -> None:
    options: dict[str, Any] = {"mass": [0.5, 2.0], "gain": [0.8, 1.2]}
    theirs = mujoco_env.make(3, 7, world=slider(), options=EngineOptions(randomize=Randomize(**options)))
    theirs.reset()
    for per, count in (("episode", 2), ("environment", 1)):
        ours = make(slider(), 3, 7, per=per, **options)
        ours.reset()
        for _ in range(slider.episode_steps):
            ours.step(torch.zeros((3, 1)))
        physics: Any = ours.physics
        assert len(physics.scaled) == count  # at the reset, and again with a new episode
        mask, factors = physics.scaled[0]
        assert mask.all()
        assert sorted(factors) == ["gain", "mass"]
        saved = theirs.state_dict()
        np.testing.assert_array_equal(factors["gain"].numpy(), saved["random.factor.gain"])


def test_tensors_that_were_handed_out_are_not_written_again(slider: Any) -> None:
    env = make(slider())
    obs, _ = env.reset()
    kept = obs["state"].clone()
    out = env.step(torch.ones((4, 1)))
    copies = [out[0]["state"].clone(), out[1].clone(), out[4]["final_obs"]["state"].clone()]
    env.step(torch.ones((4, 1)))
    assert torch.equal(obs["state"], kept)
    for value, copy in zip((out[0]["state"], out[1], out[4]["final_obs"]["state"]), copies):
        assert torch.equal(value, copy)


def test_saved_state_continues_in_a_new_environment(slider: Any) -> None:
    first, second = make(slider(), noise=0.02), make(slider(), seed=99, noise=0.02)
    first.reset()
    for _ in range(15):
        first.step(torch.ones((4, 1)))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.observe()["state"], second.observe()["state"])
    for _ in range(30):  # over an episode's end
        a, b = first.step(-torch.ones((4, 1))), second.step(-torch.ones((4, 1)))
        assert torch.equal(a[0]["state"], b[0]["state"])
        assert torch.equal(a[1], b[1])
    with pytest.raises(ValueError, match="4 copies"):
        first.load_state_dict(make(slider(), 2).state_dict())


def test_state_of_before_the_first_reset_is_taken_up_too(slider: Any) -> None:
    unused, used = make(slider()), make(slider(), seed=99)
    saved = unused.state_dict()
    used.reset()
    for env in (make(slider(), seed=99), used):
        env.load_state_dict(saved)
        assert torch.equal(env.reset()[0]["state"], make(slider()).reset()[0]["state"])


def test_a_resumed_run_hands_over_tensors_again_also_on_the_cpu(slider: Any) -> None:
    first, second = Stepper(make(slider())), Stepper(make(slider(), seed=99))
    first.reset(0)
    first.step(torch.ones((4, 1)))
    saved = first.state_dict()
    second.load_state_dict({**saved, "obs": {key: value.clone() for key, value in saved["obs"].items()}})
    assert isinstance(second.obs["state"], torch.Tensor)
    a, b = first.step(torch.ones((4, 1))), second.step(torch.ones((4, 1)))
    assert isinstance(b.obs["state"], torch.Tensor)
    assert torch.equal(torch.as_tensor(a.obs["state"]), b.obs["state"])


def test_trouble_is_reported_with_its_environment(slider: Any) -> None:
    env = make(slider())
    with pytest.raises(RuntimeError, match="before the first reset"):
        env.step(torch.zeros((4, 1)))
    env.reset()
    with pytest.raises(ValueError, match=r"shape \(3, 1\), expected \(4, 1\)"):
        env.step(torch.zeros((3, 1)))
    action = torch.zeros((4, 1))
    action[2] = torch.nan
    with pytest.raises(ValueError, match="environment 2 is nan"):
        env.step(action)
    env.physics.qvel[1] = torch.inf
    with pytest.raises(UnstableSimulationError, match="environment 1 diverged") as error:
        env.step(torch.zeros((4, 1)))
    assert (error.value.index, error.value.key) == (1, "state")
    env.reset()
    physics: Any = env.physics
    physics.words = "the buffers are full"
    with pytest.raises(RuntimeError, match="slider: the buffers are full"):
        env.step(torch.zeros((4, 1)))
    env.close()
    assert physics.closed


def test_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="expected cpu or cuda"):
        torch_device("meta")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="sees no CUDA device"):
            torch_device("cuda")
