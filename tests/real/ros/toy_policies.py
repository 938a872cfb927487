"""A policy node with small policies: the folder's name says what kind. And the method `Expert` for deployments."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from robot_rl import checkpoint
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.port import SpecPort
from robot_rl.sim.port import WorldPort
from robot_rl.sim.world import parts_of
from robot_rl.sim.worlds.reach import Reach
from robot_rl.types import Action, IOSpec, Learner, Loaded, Options, PolicyParts

JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_pitch", "wrist_roll")

RATE = 50.0


def io(joints=3, low=-2.0):
    return IOSpec(
        obs={"state": ((2 * joints,), "float32")},
        action_names=tuple(f"j{i}_absolute" for i in range(joints)),
        action_low=(low + 0.02,) * joints,
        action_high=(-low - 0.02,) * joints,
        action_units=("rad",) * joints,
        control_hz=RATE,
        obs_names=tuple(f"{key}_{i}" for key in ("joint_positions", "joint_velocities") for i in range(joints)),
    )


class Toward:
    """Steps towards a target, at most 0.02 rad per decision from where the robot is."""

    parts = PolicyParts()

    def __init__(self, target, bad=False, half=1.98):
        self.io, self.target, self.bad, self.half = io(), target, bad, half

    def reset(self, rows=None):
        pass

    def act(self, obs, *, deterministic=False):
        place = np.asarray(obs["state"])[:, :3]
        goal = place + np.clip(self.target - place, -0.05, 0.05)
        value = np.clip(goal / self.half, -1.0, 1.0).astype(np.float32)
        return Action(value * np.nan if self.bad else value)


def load(path, *, device, threads, trust):
    name = path.rsplit("/", 1)[-1]
    if name == "looks":
        return looks(path)
    if name == "slow":
        time.sleep(6.0)  # the request itself may take a second on a busy machine
    if name == "corrupt":
        raise ValueError("policy.pt cannot be read as tensors and plain values")
    if name == "wrong":
        return Loaded(Toward(0.5), io(2), None, name)
    if name == "narrow":  # its 1 is 1 rad, the robot's 1.98 rad
        own = replace(io(), action_low=(-1.0,) * 3, action_high=(1.0,) * 3)
        return Loaded(Toward(0.25, half=1.0), own, None, name)
    target = {"good": 0.5, "back": -0.5}.get(name, 0.0)
    return Loaded(Toward(target, bad=name == "nan"), io(), None, name)


class Looks:
    """Holds the arm where it is, but turns the waist by 0.3 rad as long as it sees something."""

    parts = PolicyParts()

    def __init__(self, spec):
        self.io, self.seen = spec, None

    def reset(self, rows=None):
        pass

    def act(self, obs, *, deterministic=False):
        state = np.asarray(obs["state"])[0, : len(self.io.action_names)]
        goal = np.array(state)
        sight = [value.std() for key, value in obs.items() if key.startswith("image.")]
        goal[0] = state[0] + np.clip(0.3 - state[0], -0.05, 0.05) if min(sight) > 5.0 else state[0]
        low, high = np.array(self.io.action_low), np.array(self.io.action_high)
        return Action((2.0 * (goal - low) / (high - low) - 1.0)[None].astype(np.float32))


def looks(path):
    spec = RobotSpec.load(Path(path).parent / "seeing.yaml")
    raw = SpecPort(spec, RATE).io.to_dict()
    raw["obs"] |= {f"image.{name}": {"shape": [24, 32, 3], "dtype": "uint8"} for name in spec.cameras}
    io = IOSpec.from_dict(raw)
    return Loaded(Looks(io), io, None, "looks")


class ExpertPolicy:
    """The scripted controller of the world reach as a policy."""

    parts = PolicyParts()

    def __init__(self, io):
        self.io, self.expert = io, parts_of(WorldPort(Reach(), JOINTS).world).ask_expert

    def reset(self, rows=None):
        pass

    def act(self, obs, *, deterministic=False):
        return Action(np.clip(np.asarray(self.expert(obs["state"])), -1.0, 1.0).astype(np.float32))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Expert(Learner):
    """A method of somebody's own that has nothing to learn."""

    def __init__(self, io, *, seed=0, device="cpu"):
        super().__init__(Options(), io)
        self.policy = ExpertPolicy(io)


def save_expert(folder):
    """A run folder whose method is `Expert`; it is deployed with trust=true."""
    config = {"policy": {"name": f"{Path(__file__).resolve()}:Expert"}, "env": {"world": {"name": "reach"}}}
    config |= {"seed": 0, "gamma": 0.99, "device": "cpu"}
    io = WorldPort(Reach(), JOINTS).io
    checkpoint.save(folder / "checkpoints", 1, states={"policy": {}}, io=io, config=yaml.safe_dump(config), meta={})


if __name__ == "__main__":
    from robot_rl.real.ros.node_base import leave, run
    from robot_rl.real.ros.policy_node import PolicyNode

    leave(run(partial(PolicyNode, load)))
