"""The Warp engine against the CPU engine. The first run builds kernels for minutes: what steps is marked slow."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.engines import run as compare_returns
from robot_rl import card
from robot_rl.sim import mujoco_env
from robot_rl.sim.check import check
from robot_rl.sim.engine_options import WarpOptions
from robot_rl.sim.randomize import Randomize
from robot_rl.sim.worlds.double_pendulum import DoublePendulum
from robot_rl.sim.worlds.halfcheetah import HalfCheetah
from robot_rl.sim.worlds.insert import Insert
from robot_rl.sim.worlds.pick import Pick
from robot_rl.sim.worlds.quadruped import Quadruped
from robot_rl.sim.worlds.race import Race
from robot_rl.sim.worlds.reach import Reach
from robot_rl.sim.worlds.terrain import Terrain
from robot_rl.types.card import Card
from robot_rl.types.card_model import MODELS


def ready(name: str) -> Card:
    robots = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), None)
    if robots is None:
        pytest.skip("the folder shared/data/robots is absent")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MODELS, str(robots))
        return card.read(name)


def go2_on_terrain() -> Terrain:
    return Terrain(robot=ready("go2"), levels=(2, 2))


def pick_with_fingers_on_linkages() -> Pick:
    return Pick(robot=ready("xarm7"))  # equalities: what they compute from was no part of the state


# World, steps over which every observation agrees, and the tolerance. Contact amplifies rounding by about ten in five
# to ten steps of the half cheetah and by less elsewhere; those worlds are held to the distribution of returns below.
AGREEMENT = [
    (Reach, 100, 5e-5),
    (DoublePendulum, 100, 1e-4),
    (Race, 100, 1e-3),
    (Quadruped, 100, 2e-2),
    (Pick, 30, 1e-3),
    (Insert, 30, 1e-2),
    (HalfCheetah, 10, 5e-3),
    (go2_on_terrain, 25, 2e-3),
]


@pytest.fixture(scope="module")
def make() -> Any:
    pytest.importorskip("mujoco_warp", reason="mujoco-warp is not installed: pip install 'robot_rl[gpu]'")
    return importlib.import_module("robot_rl.sim.warp_env").make


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("warp", "mujoco_warp", "robot_rl.sim.warp_physics", "robot_rl.sim.warp_env"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "warp", None)
    with pytest.raises(ImportError, match=r'pip install "robot_rl\[gpu\]"'):
        importlib.import_module("robot_rl.sim.warp_env").make(1, 0, world=Reach())


def test_options_of_the_cpu_engine_are_refused_with_a_way_out(make: Any) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_threads": 2}, "num_threads is 2"),
        ({"cameras": ("front",)}, "engine=mujoco"),
        ({"state": False}, "observes the whole state only"),
        ({"proprio": "own"}, "observes the whole state only"),
        ({"render_camera": "back"}, "no camera 'back'"),
        ({"check_every": 0}, "check_every is 0"),
    ]
    for options, words in cases:
        with pytest.raises(ValueError, match=words):
            make(1, 0, world=Reach(), options=WarpOptions(**options))
    with pytest.raises(ValueError, match="expected 'rgb_array'"):
        make(1, 0, world=Reach(), render_mode="human")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="sees no CUDA device"):
            make(1, 0, "cuda", world=Reach())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("world", "steps", "tolerance"), AGREEMENT, ids=lambda x: getattr(x, "__name__", x))
def test_engines_agree_from_the_same_seed_and_actions(make: Any, world: Any, steps: int, tolerance: float) -> None:
    count = 4
    ours, theirs = make(count, 3, world=world()), mujoco_env.make(count, 3, world=world())
    a, b = ours.reset()[0], theirs.reset()[0]
    np.testing.assert_allclose(a["state"].numpy(), b["state"], atol=1e-6)
    rng = np.random.default_rng(0)
    for step in range(steps):
        action = rng.uniform(-1, 1, (count, ours.io.action_dim)).astype(np.float32)
        a, *first, info = ours.step(action)
        b, *second, other = theirs.step(action)
        np.testing.assert_allclose(
            info["final_obs"]["state"].numpy(), other["final_obs"]["state"], atol=tolerance, err_msg=f"step {step}"
        )
        np.testing.assert_allclose(first[0].numpy(), second[0], atol=tolerance, err_msg=f"reward of step {step}")
        assert first[1].tolist() == second[1].tolist()
        assert first[2].tolist() == second[2].tolist()
    ours.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world", ["pick", "quadruped"])
def test_contact_worlds_return_the_same_on_average(make: Any, world: str) -> None:
    """Returns of the noisy expert over 1000 episodes: the means differ by less than 4 standard errors or 2 percent."""
    result = compare_returns(world=world, episodes=1000)
    first, second = result["rows"].values()
    assert abs(result["z"]) < 4 or abs(result["difference"]) < 0.02 * abs(first["return"])
    assert abs(first["success"] - second["success"]) < 0.06


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [Reach, pick_with_fingers_on_linkages])
def test_warp_environment_keeps_the_contract(make: Any, world: Any) -> None:
    findings = check(make(3, 0, world=world()), steps=50)
    assert not findings, "\n".join(findings)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "options",
    [
        {"mass": [0.5, 2.0], "damping": [0.5, 2.0], "gain": [0.6, 1.4], "friction": [0.5, 1.5]},
        {"latency": [0.0, 0.13], "noise": 0.01},
    ],
    ids=["models", "latency"],
)
def test_randomised_worlds_agree_too(make: Any, options: dict[str, Any]) -> None:
    """The same factors from the same seed have the same effect, over an episode's end."""
    o = WarpOptions(randomize=Randomize(**options))
    ours, theirs = (engine(3, 5, world=Reach(), options=o) for engine in (make, mujoco_env.make))
    ours.reset()
    theirs.reset()
    rng = np.random.default_rng(1)
    for _ in range(60):
        action = rng.uniform(-1, 1, (3, 3)).astype(np.float32)
        a, b = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(a[0]["state"].numpy(), b[0]["state"], atol=5e-4)
        np.testing.assert_allclose(np.asarray(a[1]), b[1], atol=5e-4)
    ours.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sensors_belong_to_the_state_that_is_handed_out(make: Any, slider: Any) -> None:
    ours, theirs = make(3, 0, world=slider(limit=0.7)), mujoco_env.make(3, 0, world=slider(limit=0.7))
    np.testing.assert_allclose(ours.reset()[0]["state"].numpy(), theirs.reset()[0]["state"], atol=1e-6)
    for _ in range(45):
        action = np.full((3, 1), 0.4, np.float32)
        a, b = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(a[0]["state"].numpy(), b[0]["state"], atol=1e-5)  # its third component is a sensor
    ours.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_full_buffers_are_reported(make: Any) -> None:
    few = WarpOptions(max_contacts=4, max_constraints=4)  # four feet want four rows each
    env = make(2, 0, world=Quadruped(), options=few)
    env.reset()

    def stand() -> None:
        for _ in range(20):
            env.step(np.zeros((2, 12), np.float32))

    with pytest.raises(RuntimeError, match=r"did not fit .* \+env.max_contacts"):
        stand()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_activations_end_with_their_episode_and_continue_from_a_saved_state(make: Any) -> None:
    """A motor whose torque follows its command with a lag of 0.5 s."""
    physics = importlib.import_module("robot_rl.sim.warp_physics").WarpPhysics
    text = (
        '<mujoco><option timestep="0.01"/><worldbody><body><joint name="j" axis="0 1 0"/>'
        '<geom size="0.1" pos="0.2 0 0" mass="1" contype="0" conaffinity="0"/></body></worldbody>'
        '<actuator><general joint="j" dyntype="filter" dynprm="0.5" gainprm="5"/></actuator></mujoco>'
    )
    first, second = (physics(text, 2, 20.0, device=torch.device("cpu")) for _ in range(2))
    zero, everyone = torch.zeros(2, 1), torch.ones(2, dtype=torch.bool)

    def after(simulated: Any, steps: int, command: float) -> list[float]:
        for _ in range(steps):
            simulated.ctrl.fill_(command)
            simulated.advance()
        return simulated.qpos[:, 0].tolist()

    ends = []
    for _ in range(2):
        first.place(everyone, zero, zero, zero)
        ends.append(after(first, 5, 1.0))
    assert ends[0] == ends[1]
    second.load_state_dict(first.state_dict())
    assert after(first, 5, 0.0) == after(second, 5, 0.0)
