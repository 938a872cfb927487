"""Bundles that the package leapp itself writes: `python tests/real/leapp_bundles.py` makes leapp_walker anew.

The walker has two parts, a memory of a GRU and its last action fed back from the second part to the first, joints in
another order than the robot's, a quaternion w first, and gains as static outputs: what Isaac Lab's exports have.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

WALKER = Path(__file__).parent / "leapp_walker"
JOINTS = ["knee", "hip"]
HZ, STEPS = 50.0, 12
INPUTS = {
    "joint_pos": ("state/joint/position", JOINTS),
    "joint_vel": ("state/joint/velocity", JOINTS),
    "base_quat": ("state/body/rotation", ["qw", "qx", "qy", "qz"]),
    "base_ang_vel": ("state/body/angular_velocity", ["x", "y", "z"]),
    "base_velocity": ("command/body/velocity", ["lin_vel_x", "lin_vel_y", "ang_vel_z"]),
    "height": (None, None),
}
SIZES = {"joint_pos": 2, "joint_vel": 2, "base_quat": 4, "base_ang_vel": 3, "base_velocity": 3, "height": 1}


class Walker(torch.nn.Module):
    """Something that depends on all of its inputs and on its past."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = torch.nn.GRUCell(sum(SIZES.values()) + 2, 8)
        self.head = torch.nn.Linear(8, 2)

    def see(self, values: list[torch.Tensor], last: torch.Tensor) -> torch.Tensor:
        """(1, 17): everything, scaled, and the last action."""
        return torch.cat([*values[:1], 0.05 * values[1], *values[2:], last], -1)

    def decide(self, seen: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Action (1, 2), targets (1, 2) [rad], and the memory behind them."""
        memory = self.cell(seen, memory)
        action = torch.tanh(self.head(memory))
        return action, 0.25 * action + torch.tensor([[-0.3, 0.1]]), memory


def measured(steps: int = STEPS) -> list[dict[str, np.ndarray]]:
    """What a robot might see."""
    rng = np.random.default_rng(7)
    return [{name: rng.standard_normal((1, n)).astype(np.float32) for name, n in SIZES.items()} for _ in range(steps)]


def targets(steps: int = STEPS) -> np.ndarray:
    """(steps, 2) of `Walker` for `measured`, by torch alone, in the order of JOINTS."""
    net, found = Walker().eval(), []
    last, memory = torch.full((1, 2), 0.5), torch.full((1, 8), 0.1)
    with torch.no_grad():
        for seen in measured(steps):
            last, target, memory = net.decide(net.see([torch.as_tensor(x) for x in seen.values()], last), memory)
            found.append(target[0].numpy())
    return np.array(found)


def write_walker(folder: Path, export_with: str = "onnx") -> Path:
    """The bundle folder/walker, made by leapp; returns its description."""
    import leapp
    from leapp import GraphConfigs, TensorSemantics, annotate

    def named(name: str, value: torch.Tensor) -> Any:
        kind, names = INPUTS[name]
        return TensorSemantics(name, value, kind=kind, element_names=names)

    net = Walker().eval()
    leapp.start("walker", save_path=str(folder))
    last, memory = torch.full((1, 2), 0.5), torch.full((1, 8), 0.1)
    with torch.no_grad():
        for seen in measured(3):
            given = annotate.input_tensors("see", [named(key, torch.as_tensor(x)) for key, x in seen.items()])
            last = annotate.input_tensors("see", {"last_action": last})
            all_of_it = net.see(list(given), last)
            annotate.output_tensors("see", {"seen": all_of_it}, export_with=export_with)
            all_of_it = annotate.input_tensors("decide", {"seen": all_of_it})
            before = annotate.state_tensors("decide", {"memory": memory})
            last, target, memory = net.decide(all_of_it, before)
            annotate.update_state("decide", {"memory": memory})
            gains = [
                TensorSemantics(kind, torch.full((1, 2), value), kind=kind, element_names=JOINTS)
                for kind, value in (("kp", 20.0), ("kd", 0.5))
            ]
            told = TensorSemantics("legs", target, kind="target/joint/position", element_names=JOINTS)
            last_out = TensorSemantics("action", last)
            annotate.output_tensors("decide", [told, last_out], static_outputs=gains, export_with=export_with)
    leapp.stop()
    leapp.compile_graph(visualize=False, graph_configs=GraphConfigs(frequency=HZ))
    return folder / "walker" / "walker.yaml"


def write_g1(folder: Path, weights: Path, description: dict[str, Any], joints: list[str]) -> Path:
    """The G1's policy of unitree_rl_gym with all that its deploy_mujoco.py computes around it, as one ONNX part.

    Args:
        folder: where folder/g1 is written.
        weights: its TorchScript file, of which the tensors are read.
        description: its policy.yaml.
        joints: in the policy's order.
    """
    import leapp
    from leapp import GraphConfigs, TensorSemantics, annotate

    told = torch.jit.load(str(weights)).state_dict()
    cell = torch.nn.LSTMCell(47, 64)
    cell.load_state_dict({name: told[f"memory.{name}_l0"] for name in cell.state_dict()})
    actor = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ELU(), torch.nn.Linear(32, 12))
    actor.load_state_dict({key.removeprefix("actor."): x for key, x in told.items() if key.startswith("actor.")})
    default, command_scale = (torch.tensor([description[key]]) for key in ("default_angles", "cmd_scale"))
    inputs = {
        "joint_pos": (torch.zeros(1, 12), "state/joint/position", joints),
        "joint_vel": (torch.zeros(1, 12), "state/joint/velocity", joints),
        "quat": (torch.tensor([[0.1, 0.2, 0.3, 0.9]]), "state/body/rotation", ["x", "y", "z", "w"]),
        "gyro": (torch.ones(1, 3), "state/body/angular_velocity", ["x", "y", "z"]),
        "command": (torch.ones(1, 3), "command/body/velocity", ["x", "y", "yaw"]),
    }
    leapp.start("g1", save_path=str(folder))
    with torch.no_grad():
        position, velocity, turn, gyro, command = annotate.input_tensors(
            "policy",
            [TensorSemantics(key, x, kind=kind, element_names=names) for key, (x, kind, names) in inputs.items()],
        )
        state = {"hidden": torch.zeros(1, 64), "cell": torch.zeros(1, 64), "last": torch.zeros(1, 12)}
        hidden, memory, last, ticks = annotate.state_tensors("policy", {**state, "ticks": torch.zeros(1, 1)})
        x, y, z, w = (turn[:, i : i + 1] for i in range(4))
        gravity = torch.cat([2 * (w * y - x * z), -2 * (y * z + w * x), x * x + y * y - w * w - z * z], -1)
        gravity = gravity / (x * x + y * y + z * z + w * w)
        ticks = ticks + 1.0
        phase = 2.0 * torch.pi * torch.remainder(ticks * 0.02 / 0.8, 1.0)
        seen = [gyro * 0.25, gravity, command * command_scale, position - default, velocity * 0.05, last]
        seen = torch.cat([*seen, torch.sin(phase), torch.cos(phase)], -1)
        hidden, memory = cell(seen, (hidden, memory))
        action = actor(hidden)
        annotate.update_state("policy", {"hidden": hidden, "cell": memory, "last": action, "ticks": ticks})
        target = TensorSemantics("legs", default + 0.25 * action, kind="target/joint/position", element_names=joints)
        gains = [
            TensorSemantics(kind, torch.tensor([description[f"{kind}s"]]).float(), kind=kind, element_names=joints)
            for kind in ("kp", "kd")
        ]
        annotate.output_tensors("policy", [target], static_outputs=gains, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False, graph_configs=GraphConfigs(frequency=50.0))
    return folder / "g1" / "g1.yaml"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        made = write_walker(Path(place)).parent
        (made / "log.txt").unlink()
        shutil.rmtree(WALKER, ignore_errors=True)
        shutil.copytree(made, WALKER)
