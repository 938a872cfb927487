"""bench gpu and bench engines, as far as they run without a GPU."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import engines, gpu
from robot_rl.types import EnvParts


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no world 'moon'"):
        gpu.run(worlds=["moon"])
    with pytest.raises(ValueError, match="no part 'coffee'"):
        gpu.run(parts=["coffee"])


def test_rates_count_copies_and_physics_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that takes 10 ms of 50 copies and 5 physics steps: 5000 and 25000 per second."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: clock.now)

    def step() -> None:
        clock.now += 0.01

    def maker(world: str, count: int, device: str) -> Any:
        return gpu._Stepped(step, lambda: None, lambda: None, 5)

    def absent(world: str, count: int, device: str) -> Any:
        raise ImportError("not here\nand more")

    monkeypatch.setattr(gpu, "_warp", maker)
    monkeypatch.setattr(gpu, "_mujoco", absent)
    result = gpu.run(device="cpu", parts=["environment"], worlds=["pick"], copies=[50])
    assert result["rows"]["warp pick 50"]["steps_per_s"] == pytest.approx(5000)
    assert result["rows"]["warp pick 50"]["physics_per_s"] == pytest.approx(25000)
    assert result["rows"]["mujoco (cpu) pick 50"] == {"missing": "not here"}
    assert result["device"] == "cpu"


def test_parts_that_answer_with_lists_are_named() -> None:
    rows = [
        {"what": "update", "contestant": "ours", "per_s": 3.0},
        {"what": "update", "contestant": "theirs", "per_s": 2.0},
    ]
    assert gpu._by_name(rows) == {"update ours": {"per_s": 3.0}, "update theirs": {"per_s": 2.0}}


def test_cpu_engine_is_measured_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(world: str, count: int, device: str) -> Any:
        raise ImportError("kernels take minutes to build")

    monkeypatch.setattr(gpu, "_warp", absent)
    result = gpu.run(quick=True, device="cpu", parts=["environment"], worlds=["reach"], copies=[4])
    assert result["rows"]["mujoco (cpu) reach 4"]["steps_per_s"] > 0
    assert set(result["rows"]["warp reach 4"]) == {"missing"}


def test_returns_of_whole_episodes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stand-ins with known returns: the second gives 0.5 more per step and ends after 3 steps instead of 4."""

    class Stand:
        num_envs, io = 3, SimpleNamespace(action_dim=1)

        @property
        def parts(self):
            return EnvParts(expert=self.expert)

        def __init__(self, extra: float, length: int) -> None:
            self.extra, self.length, self.count = extra, length, 0

        def reset(self, seed: int) -> Any:
            self.count = 0
            return {"state": np.zeros((3, 1))}, {}

        def expert(self, obs: Any) -> Any:
            return np.zeros((3, 1))

        def step(self, action: Any) -> Any:
            self.count += 1
            end = np.full(3, self.count >= self.length)
            none = np.zeros(3, bool)
            info = {"success": end & np.array([True, False, True])}
            return {"state": np.zeros((3, 1))}, np.arange(3.0) + self.extra, none, end, info

        def close(self) -> None:
            pass

    made = {"mujoco_env": Stand(0.0, 4), "warp_env": Stand(0.5, 3)}

    def load(path: str) -> Any:
        if "worlds" in path:
            return lambda: None
        return lambda *args, **kwargs: made[path.split(".")[-2]]

    monkeypatch.setattr(engines, "load", load)
    result = engines.run(world="reach", episodes=6, num_envs=3)
    cpu, warp = result["rows"]["mujoco_env"], result["rows"]["warp_env"]
    assert (cpu["return"], cpu["length"], cpu["episodes"]) == (4.0, 4.0, 6)  # 4 steps of 0, 1 and 2
    assert (warp["return"], warp["length"]) == (4.5, 3.0)  # 3 steps of 0.5, 1.5 and 2.5
    assert cpu["success"] == pytest.approx(2 / 3)
    assert result["difference"] == pytest.approx(0.5)
    paired = np.array([1.5, 0.5, -0.5] * 2)
    assert result["paired_z"] == pytest.approx(0.5 / (paired.std(ddof=1) / math.sqrt(6)))
