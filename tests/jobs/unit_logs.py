"""Logs of an actuator of +-2 N*m in every format, with their range declared or without."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from broken import episode, robomimic  # pyright: ignore[reportMissingImports]

from robot_rl.data import d4rl, lerobot_write, minari
from robot_rl.data.recorder import Recorder
from robot_rl.types import Episode, IOSpec

FORMATS = ("d4rl", "minari", "robomimic", "lerobot", "csv", "npz", "recording", "rosbag")
NAMES = ("a_effort", "b_effort")
"""Of the actions, where a format names them: those of a robot of two joints that takes efforts."""
STATE = (*(f"joint_positions_{i}" for i in range(2)), *(f"joint_velocities_{i}" for i in range(2)))
ENV = IOSpec({"state": ((4,), "float32")}, NAMES, (-4.0, -4.0), (4.0, 4.0), ("N*m", "N*m"), 20.0)
TORQUE = (0.5, -1.5)  # what the robot is to be commanded, N*m
LOW, HIGH = -2.0, 2.0


def physical() -> list[Episode]:
    """Episodes whose actions are torques within +-2 N*m; the first of all is `TORQUE`."""
    made = []
    for i in range(3):
        one = episode(i, 20, size=4)
        action = (one.action * 2.0).astype(np.float32)
        action[0], action[1], action[2] = TORQUE, (LOW, LOW), (HIGH, HIGH)
        made.append(replace(one, action=action, proposed=action))
    return made


def _csv(path: Path, scale: float | None) -> tuple[Path, dict[str, Any]]:
    rows = [",".join(("t", *STATE, "u", "v"))]
    for number, one in enumerate(physical()[:1]):
        for t, (s, a) in enumerate(zip(one.obs["state"], one.action)):
            rows.append(",".join(f"{v:.9g}" for v in (number + t / 20, *s, *a)))
        rows.append(",".join(f"{v:.9g}" for v in (number + 1.0, *one.obs["state"][-1], 0.0, 0.0)))
    path.write_text("\n".join(rows) + "\n")
    action: list[dict[str, Any]] = [{"column": c, "name": n, "unit": "N*m"} for c, n in zip("uv", NAMES)]
    if scale is not None:
        action = [{**item, "scale": scale} for item in action]
    state = [{"column": c} for c in STATE]
    return path, {"map": {"time": "t", "state": state, "action": action}}


def _bag(path: Path) -> Path:
    """Positions and speeds of two joints, and the torque that was commanded at the same moments."""
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    kinds = store.types
    layout = kinds["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        state = writer.add_connection("/joint_states", "sensor_msgs/msg/JointState", typestore=store)
        command = writer.add_connection("/command", "std_msgs/msg/Float64MultiArray", typestore=store)
        one = physical()[0]
        for t, row in enumerate(one.obs["state"]):
            at = 100 * 10**9 + t * 50_000_000
            stamp = kinds["builtin_interfaces/msg/Time"](sec=at // 10**9, nanosec=at % 10**9)
            header = kinds["std_msgs/msg/Header"](stamp=stamp, frame_id="")
            row = row.astype(float)
            joints = kinds["sensor_msgs/msg/JointState"](header, ["a", "b"], row[:2], row[2:], np.zeros(2))
            writer.write(state, at, store.serialize_cdr(joints, state.msgtype))
            torque = kinds["std_msgs/msg/Float64MultiArray"](layout, one.action[min(t, 19)].astype(float))
            writer.write(command, at, store.serialize_cdr(torque, command.msgtype))
    return path


def _plan(told: bool) -> dict[str, Any]:
    fields = [{"topic": "/joint_states", "field": name} for name in ("position", "velocity")]
    plan: dict[str, Any] = {"clock": "/joint_states", "observation": fields}
    plan["action"] = {"topic": "/command", "field": "data"}
    return {**plan, "action_low": LOW, "action_high": HIGH, "action_units": "N*m"} if told else plan


def write(kind: str, folder: Path, *, told: bool) -> tuple[Path, dict[str, Any]]:
    """A log of torques in a format, with its range or without; and what its reader is told."""
    episodes, io = physical(), replace(ENV, action_low=(LOW,) * 2, action_high=(HIGH,) * 2)
    if kind == "csv":
        return _csv(folder / "log.csv", 0.5 if told else None)
    if kind == "minari":
        minari.write(folder / "log-v0", episodes, dataset_id="log-v0")
        if told:
            file = folder / "log-v0/data/metadata.json"
            facts = json.loads(file.read_text())
            space = {**json.loads(facts["action_space"]), "low": [LOW] * 2, "high": [HIGH] * 2}
            file.write_text(json.dumps({**facts, "action_space": json.dumps(space)}))
        return folder / "log-v0", {}
    if kind == "lerobot":
        lerobot_write.write(folder / "log", episodes, fps=20)
        file = folder / "log/meta/info.json"
        facts = json.loads(file.read_text())
        if told:  # as LeRobot's own writer: statistics alone
            del facts["action_bounds"]
        file.write_text(json.dumps(facts))
        return folder / "log", {}
    if kind == "npz":
        one = episodes[0]
        arrays: dict[str, Any] = {"obs": one.obs["state"][:-1], "next_obs": one.obs["state"][1:]}
        arrays |= {"action": one.action, "reward": one.reward, "done": np.arange(20) == 19}
        arrays |= {"action_low": LOW, "action_high": HIGH} if told else {}
        np.savez(folder / "log.npz", **arrays)
        return folder / "log.npz", {}
    if kind == "recording":
        scaled = [replace(e, action=e.action / 2, proposed=e.action / 2) if told else e for e in episodes]
        with Recorder(folder / "log") as recorder:
            for one in scaled:
                recorder.append(replace(one, meta={**one.meta, "io": io}) if told else one)
        return folder / "log", {}
    if kind == "rosbag":
        return _bag(folder / "bag"), {"map": _plan(told), "ros_distro": "humble"}
    path = folder / "log.hdf5"
    if kind == "robomimic":
        robomimic(path, episodes)
    else:
        d4rl.write(path, episodes)
    if told:
        with h5py.File(path, "r+") as file:
            file.attrs.update({"action_low": LOW, "action_high": HIGH, "action_units": "N*m"})
    return path, {}
