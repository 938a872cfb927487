"""Isaac Lab's environments behind our contract, against a double that steps and resets in the order of the real one."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from robot_rl.sim import isaac_lab_env

LIMIT = 5
ID = "Isaac-Double-v0"


class DoubleEnv(gymnasium.Env):
    """Counts: the observation is (environment, step, last action); the order of calls is `DirectRLEnv.step`'s."""

    metadata = {"render_modes": [None, "rgb_array"]}  # noqa: RUF012

    def __init__(self, cfg: Any, render_mode: str | None = None) -> None:
        self.cfg, self.render_mode = cfg, render_mode
        self.num_envs, self.device, self.step_dt = cfg.num_envs, cfg.device, 0.02
        self.max_episode_length = LIMIT
        box = gymnasium.spaces.Box
        self.single_observation_space = gymnasium.spaces.Dict({"policy": box(-np.inf, np.inf, (3,))})
        self.single_action_space = box(-np.inf, np.inf, (2,))
        self.count = torch.zeros(self.num_envs)
        self.acted = torch.zeros(self.num_envs, 2)
        self.buffer = torch.zeros(self.num_envs, 3)  # handed out and written again
        self.resets: list[list[int]] = []

    def _get_observations(self) -> dict[str, torch.Tensor]:
        self.buffer[:, 0], self.buffer[:, 1] = torch.arange(self.num_envs), self.count
        self.buffer[:, 2] = self.acted[:, 0]
        return {"policy": self.buffer}

    def _reset_idx(self, env_ids: torch.Tensor) -> None:
        self.resets.append(env_ids.tolist())
        self.count[env_ids.long()] = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._reset_idx(torch.arange(self.num_envs))
        return self._get_observations(), {}

    def step(self, action: torch.Tensor) -> Any:
        if not isinstance(action, torch.Tensor) or tuple(action.shape) != (self.num_envs, 2):
            raise TypeError("Isaac Lab wants a tensor (num_envs, actions)")
        self.acted = action.to(self.device)
        self.count += 1
        terminated = (self.acted[:, 1] > 1.5) & (self.count > 1)
        timed_out = self.count >= LIMIT
        ended = (terminated | timed_out).nonzero(as_tuple=False).squeeze(-1)
        reward = self.count.clone()
        if len(ended):
            self._reset_idx(ended)
        return self._get_observations(), reward, terminated, timed_out, {}


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Any:
    """isaaclab and isaaclab_tasks as modules with the real signatures."""
    launched: list[Any] = []

    class AppLauncher:
        def __init__(self, launcher_args: Any = None, **kwargs: Any) -> None:
            launched.append(launcher_args)

    def parse_env_cfg(
        task_name: str, device: str = "cuda:0", num_envs: int | None = None, use_fabric: bool | None = None
    ):
        assert launched, "the application has to run before a configuration is made"
        return SimpleNamespace(
            num_envs=num_envs, device=device, seed=None, sim=SimpleNamespace(dt=0.005), task=task_name
        )

    parts: dict[str, dict[str, Any]] = {
        "isaaclab": {},
        "isaaclab.app": {"AppLauncher": AppLauncher},
        "isaaclab_tasks": {},
        "isaaclab_tasks.utils": {"parse_env_cfg": parse_env_cfg},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(isaac_lab_env, "_APPS", [])
    entry: Any = DoubleEnv
    gymnasium.register(ID, entry_point=entry, disable_env_checker=True)
    yield launched
    gymnasium.registry.pop(ID)


def make(**options: Any) -> Any:
    return isaac_lab_env.make(4, 7, "cpu", id=ID, **options)


def test_application_starts_once_and_the_task_gets_its_seed(lab: Any) -> None:
    first, second = make(), make(overrides={"sim.dt": 0.01})
    assert lab == [{"headless": True, "device": "cpu", "enable_cameras": False}]
    assert first.env.unwrapped.cfg.seed == 7
    assert second.env.unwrapped.cfg.sim.dt == 0.01
    with pytest.raises(ValueError, match=r"has no 'sim\.dx'"):
        make(overrides={"sim.dx": 1})
    with pytest.raises(ValueError, match="there is no task 'Isaac-Nothing-v0'"):
        isaac_lab_env.make(1, 0, "cpu", id="Isaac-Nothing-v0")
    with pytest.raises(ValueError, match="expected the group 'critic'"):
        make(group="critic")


def test_true_successors_are_seen_before_the_reset(lab: Any) -> None:
    env = make(action_scale=2.0)
    obs, _ = env.reset()
    assert env.io.control_hz == pytest.approx(50.0)
    assert env.io.action_high == (2.0, 2.0)
    action = torch.zeros(4, 2)
    for step in range(1, 12):
        action[:, 0] = step / 20
        action[:, 1] = torch.tensor([0.0, 1.0 if step == 3 else 0.0, 0.0, 0.0])  # environment 1 ends at step 3
        kept = obs["state"].clone()
        before = obs["state"]
        obs, reward, terminated, truncated, info = env.step(action)
        assert torch.equal(before, kept)  # not written again
        final = info["final_obs"]["state"]
        done = terminated | truncated
        assert torch.equal(final[:, 1], reward)  # the successor's count, reset or not
        assert torch.equal(obs["state"][:, 1], torch.where(done, 0.0, reward))
        assert torch.allclose(final[:, 2], 2.0 * action[:, 0])
        if step == 3:
            assert terminated.tolist() == [False, True, False, False]
        if step == LIMIT:
            assert truncated.tolist() == [True, False, True, True]
        assert not (terminated & truncated).any()
    env.close()
    assert env.env.unwrapped._reset_idx.__func__ is DoubleEnv._reset_idx


def test_what_isaac_lab_cannot_do_is_said(lab: Any) -> None:
    env = make()
    with pytest.raises(RuntimeError, match="before the first reset"):
        env.step(torch.zeros(4, 2))
    env.reset()
    with pytest.raises(ValueError, match=r"expected \(4, 2\)"):
        env.step(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="environment 2 is nan"):
        env.step(torch.tensor([[0.0, 0.0], [0.0, 0.0], [torch.nan, 0.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match=r"one int"):
        env.reset(seed=[1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"inside step\(\) only"):
        env.reset(options={"reset_mask": np.array([True, False, False, False])})
    state = env.state_dict()
    assert state["exact"] is False
    env.step(torch.zeros(4, 2))
    env.load_state_dict(state)
    assert env.observe()["state"][:, 1].tolist() == [0.0] * 4  # new episodes


def test_without_isaac_lab_the_error_says_how_to_install_it() -> None:
    with pytest.raises(ImportError, match=r"isaaclab\[isaacsim,all\].*pypi.nvidia.com.*\n.*doctor isaac"):
        isaac_lab_env.make(1, 0, "cpu", id=ID)
