"""Every learner on a device that is none: what it is fed, what it answers, and its state on the host and back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl import build
from robot_rl.checkpoint import load_state, save_state
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.types import IOSpec
from robot_rl.types.io import PRIVILEGED

sys.path.insert(0, str(Path(__file__).parent))
import pretend_device
from clean_process import CleanProcess
from noise import IO, Noise, feed, make

if why := pretend_device.missing():
    pytest.skip(why, allow_module_level=True)

PICTURES = {f"image.{name}": ((16, 16, 3), "uint8") for name in ("top", "side")}
SIGHT = replace(IO, obs={**IO.obs, "image.top": PICTURES["image.top"]})
CRITIC = replace(IO, obs={**IO.obs, PRIVILEGED: ((2,), "float32")})
CHOICES = replace(
    IO, action_names=("x",), action_low=(-1.0,), action_high=(1.0,), action_units=("1",), action_choices=(3,)
)
HOPPER = replace(IO, obs={"state": ((11,), "float32")}, obs_names=())
GRIPPER = replace(IO, action_names=("tip_dx", "gripper_opening"))
VLA = replace(
    IO, obs={**IO.obs, **PICTURES, "instruction": ((30,), "uint8")}, action_names=("tip_dx", "tip_dy"),
    action_low=(-0.03, -0.03), action_high=(0.03, 0.03), action_units=("m", "m"), obs_names=("tip_x", "tip_y", "goal"),
)  # fmt: skip
POSES = (
    *(f"{kind}_{axis}" for kind in ("tip", "tip_velocity", "tip_lag") for axis in "xyz"), "yaw",
    *(f"start_{axis}" for axis in ("x", "y", "z", "yaw")), *(f"tip_to_hole_{axis}" for axis in "xyz"), "yaw_to_hole",
)  # fmt: skip
START = IOSpec(
    {"state": ((len(POSES),), "float32")}, ("tip_dx", "tip_dy", "tip_dz", "tip_dyaw"), (-1.0,) * 4, (1.0,) * 4,
    ("m", "m", "m", "rad"), 10.0, POSES,
)  # fmt: skip
EYE = {"encoder_channels": (4,), "encoder_strides": (2,), "latent": 8}
TINY = {"proprio": ("tip_*",), "backbone": {"kind": "tiny", "width": 16, "places": True}}
METHOD = {"name": "human/imitation_sac", "hidden": (16, 16), "batch_size": 8, "metrics_every": 1}


def world(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: ArrayVectorEnv(build.make_world({"name": name, **options}), 3, 0)


@dataclass
class Case:
    """A learner: options, what it meets, and whether the same state answers the same on every device."""

    options: dict[str, Any] = field(default_factory=dict)
    env: Callable[[], Any] = Noise
    draws: bool = False


def of(io: IOSpec) -> Callable[[], Any]:
    return lambda: Noise(io)


CASES: dict[str, Case] = {
    "contrib/barfi": Case({"hidden": 8, "inner": 1}),
    "contrib/cmat": Case({"width": 16, "heads": 2, "consensus": 2}, world("spread")),
    "contrib/crossq": Case(),
    "contrib/dqn": Case(env=of(CHOICES)),
    "contrib/dt": Case(),
    "contrib/iwocs_deep": Case(),
    "contrib/modt": Case(),
    "contrib/procedure_cloning": Case({"channels": 8, "layers": 3}, world("grid_maze", size=7), draws=True),
    "contrib/set_ppo": Case({"columns": 4, "width": 8}, world("limbs")),
    "contrib/simba": Case(),
    "contrib/sqirl": Case(),
    "contrib/tdmpc2": Case({"hidden": 16, "samples": 16, "elites": 4, "latent": 16}, draws=True),
    "human/hg_dagger": Case(),
    "human/hil_ppo": Case(),
    "human/hil_serl": Case(env=of(GRIPPER)),
    "human/imitation_sac": Case(),
    "human/imitation_sac pictures": Case(EYE, of(SIGHT)),
    "human/relative_frame": Case({"method": METHOD}, of(START)),
    "human/rlif": Case(),
    "human/safe_set": Case({"method": METHOD}, draws=True),
    "offline/awac": Case(),
    "offline/bc": Case(),
    "offline/bc gaussian": Case({"gaussian": True}),
    "offline/cal_ql": Case(),
    "offline/cql": Case(),
    "offline/cql lagrange": Case({"lagrange_gap": 1.0, "max_target_backup": True, "backup_entropy": True}),
    "offline/demo_kl": Case(),
    "offline/edac": Case({"critics": 3}),
    "offline/f_dvl": Case(),
    "offline/goal_bc": Case({"goal": (0.0, 0.0, 0.0)}),
    "offline/history_iql": Case(),
    "offline/iql": Case(),
    "offline/iql seeds": Case({"seeds": 3}),
    "offline/mopo": Case({"termination": "hopper"}, of(HOPPER)),
    "offline/oer": Case({"pool": 64, "keep": 8, "horizon": 2, "updates": 4}),
    "offline/ravl": Case({"termination": "hopper"}, of(HOPPER)),
    "offline/rebrac": Case(),
    "offline/recoil": Case(),
    "offline/sac_n": Case({"critics": 3}),
    "offline/td3_bc": Case(),
    "offline/xql": Case(),
    "online/fast_ppo": Case(),
    "online/fast_sac": Case(),
    "online/fast_sac hlgauss": Case({"value_head": "hlgauss", "reduce": "min", "amp": "bf16"}),
    "online/fast_td3": Case(),
    "online/her": Case(),
    "online/ppo": Case(),
    "online/ppo choices": Case(env=of(CHOICES)),
    "online/ppo critic": Case(env=of(CRITIC)),
    "online/ppo pictures": Case(EYE, of(SIGHT)),
    "online/ppo_async": Case(),
    "online/ppo_chunk": Case(),
    "online/recurrent_ppo": Case(),
    "online/recurrent_sac": Case(),
    "online/sac": Case({"normalize_obs": True, "utd": 2}),
    "online/sac critic": Case({"normalize_obs": True}, of(CRITIC)),
    "online/sac pictures": Case(EYE, of(SIGHT)),
    "sequence/arsq": Case(),
    "sequence/cqn_as": Case({"hidden": 16}),
    "sequence/diffusion": Case({"distill_from": 1}, draws=True),
    "sequence/fql": Case({"samples": 1}, draws=True),
    "sequence/qc": Case(draws=True),
    "sequence/qc_fql": Case({"samples": 1}, draws=True),
    "sequence/rl100": Case(draws=True),
    "sequence/sac_j": Case(),
    "sequence/srl": Case({"hidden": 16}),
    "vla/cross_view": Case({**TINY, "goal_camera": "side"}, of(VLA)),
    "vla/digi_q": Case(
        {"proprio": ("tip_*",), "candidates": 4, "flow_steps": 2, "reader": {"kind": "tiny", "width": 6}}, of(VLA), True
    ),
    "vla/imitation": Case(TINY, of(VLA)),
    "vla/imitation flow": Case({**TINY, "head": "flow", "weights": "awr"}, of(VLA), True),
    "vla/imitation token": Case({**TINY, "head": "token", "weights": "recap"}, of(VLA)),
}


def run(case: Case, name: str, folder: Path) -> None:
    """In a process of its own: learn, answer, and go to the host and back."""
    pretend_device.load()
    env = case.env()
    obs = {key: np.asarray(value) for key, value in env.reset()[0].items()}
    pair = [make(name, env.io, device, seed=seed, **case.options) for seed, device in enumerate(("pretend", "cpu"))]
    there, here = pair
    obs = {key: value for key, value in obs.items() if key in there.policy.io.obs}
    feed(there, env, folder)
    answers(there, obs)
    save_state(folder / "there.pt", there.state_dict())
    here.load_state_dict(load_state(folder / "there.pt"))
    if not case.draws:
        values = []
        for learner in pair:
            learner.policy.reset()
            values.append(learner.policy.act(obs, deterministic=True).value)
        np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-5)
    feed(here, env, folder, updates=1, prepare=False)
    save_state(folder / "here.pt", here.state_dict())
    there.load_state_dict(load_state(folder / "here.pt"))
    feed(there, env, folder, updates=1, prepare=False)
    there.load_state_dict(load_state(folder / "there.pt", device="pretend"))
    feed(there, env, folder, updates=1, prepare=False)


def answers(learner: Any, obs: dict[str, np.ndarray]) -> None:
    """Arrays with arrays, tensors of the device with tensors of the device."""
    for deterministic in (True, False):
        learner.policy.reset()
        found = learner.policy.act(obs, deterministic=deterministic)
        assert isinstance(found.value, np.ndarray)
        assert not [key for key, value in found.extras.items() if isinstance(value, torch.Tensor)]
        assert not isinstance(found.logp, torch.Tensor)
    if learner.judges:
        assert not isinstance(learner.values(obs, found.value), torch.Tensor)


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Variants and methods that wait for a result over three seeds take their time."""
    return [pytest.mark.slow] * (" " in name or name.startswith("contrib/") or "method" in CASES[name].options)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in CASES])
def test_learner_on_a_device(name: str, tmp_path: Path, clean: CleanProcess) -> None:
    assert not clean.run("learner", name, tmp_path)
