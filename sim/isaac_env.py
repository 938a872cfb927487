"""The Isaac Gym engine: worlds on Isaac Gym Preview 4, which runs in a process and an interpreter of its own.

Isaac Gym needs Python 3.6 to 3.8; everything else here needs 3.10. `ISAACGYM_PYTHON` names its interpreter, in which
`sim/isaac_worker.py` holds the simulation. States and targets lie in memory that both processes map; a control step is
one line on a pipe. On a GPU the states cross the bus once per step in each direction: processes of different CUDA
runtimes share no device memory. Episodes, observations and rewards are those of every other engine.

The contact model is PhysX and not MuJoCo: returns agree with the other engines in kind, not in digits.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from robot_rl.extras import require
from robot_rl.sim import isaac_model, isaac_worker
from robot_rl.sim.engine_options import TensorOptions
from robot_rl.sim.mujoco_physics import substeps
from robot_rl.sim.randomize import Randomize
from robot_rl.sim.scene import check_scene
from robot_rl.sim.tensor_env import TensorVectorEnv, refuse, torch_device
from robot_rl.sim.world import World

if TYPE_CHECKING:
    from mujoco import MjModel

VARIABLE = "ISAACGYM_PYTHON"


DEFAULTS = TensorOptions()


def make(
    num_envs: int,
    seed: int,
    device: str = "cpu",
    *,
    world: World,
    options: TensorOptions = DEFAULTS,
    render_mode: str | None = None,
) -> TensorVectorEnv:
    """Make N copies of a world on Isaac Gym; arguments as for the CPU engine.

    Args:
        num_envs: N.
        seed: of resets, randomisation and noise; the draws are those of the CPU engine.
        device: "cuda", "cuda:1" ... or "cpu": where PhysX runs and where tensors are handed over.
        world: the task.
        options: latency and noise (factors that change the model are refused), what `render()` draws from the joint
            state with MuJoCo; without threads and pictures.
        render_mode: "rgb_array" or None.

    Raises:
        ImportError: no interpreter with Isaac Gym; says how to get one.
        ValueError: an option or a part of the model that this engine does not have.
    """
    randomize = options.randomize or Randomize()
    if randomize.needs_models:
        raise ValueError("randomize changes the model, which the Isaac Gym engine cannot; use engine=mujoco or warp")
    where = torch_device(device)
    refuse("Isaac Gym", num_envs, world, options, render_mode)
    mujoco = require("mujoco")
    physics = IsaacPhysics(
        mujoco.MjModel.from_xml_string(world.mjcf()),
        num_envs,
        world.control_hz,
        device=where,
        latency=randomize.latency is not None,
    )
    check_scene(world, physics.model)
    return TensorVectorEnv(
        num_envs, seed, world=world, physics=physics, device=where, options=options, render_mode=render_mode
    )


def interpreter() -> str:
    """The Python that has Isaac Gym.

    Raises:
        ImportError: ISAACGYM_PYTHON is not set or names no program.
    """
    path = os.environ.get(VARIABLE, "")
    if path and shutil.which(path):
        return path
    found = f"{VARIABLE} is '{path}', which is no program" if path else f"{VARIABLE} is not set"
    raise ImportError(
        f"Isaac Gym is needed here and was not found ({found}). It runs in an interpreter of its own: download Isaac "
        "Gym Preview 4 from https://developer.nvidia.com/isaac-gym, then\n"
        "  conda create -n isaacgym python=3.8 && conda run -n isaacgym pip install -e isaacgym/python\n"
        f"  export {VARIABLE}=$(conda run -n isaacgym which python)\n"
        "and check it with: robot-rl doctor isaac"
    )


class IsaacPhysics:
    """`sim.episodes_torch.TensorPhysics` of a worker process with Isaac Gym.

    Args:
        model: compiled model of the world.
        num_envs: N copies.
        control_hz: calls of `advance` per simulated second.
        device: where PhysX runs and where the tensors lie.
        latency: whether controls come for each physics step.
        command: how to start the worker; None takes ISAACGYM_PYTHON and `sim/isaac_worker.py`.

    Raises:
        ImportError: no interpreter with Isaac Gym.
        RuntimeError: the worker failed to start; its words.
        ValueError: a part of the model that has no counterpart.
    """

    def __init__(
        self,
        model: MjModel,
        num_envs: int,
        control_hz: float,
        *,
        device: torch.device,
        latency: bool = False,
        command: Sequence[str] | None = None,
    ) -> None:
        self.model, self.device = model, device
        timestep = float(model.opt.timestep)
        self.substeps = substeps(control_hz, timestep)
        self.sensors: dict[str, Tensor] = {}
        self._actors = isaac_model.actors(model)
        ground = isaac_model.ground(model)
        if command is None:
            command = [interpreter(), str(Path(isaac_worker.__file__).resolve())]
        fast = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(prefix="robot_rl_isaac_", dir=fast if fast.is_dir() else None)
        dofs = sum(len(actor.drives) for actor in self._actors)
        rows = self.substeps if latency else 1
        task = {
            "num_envs": num_envs,
            "device": str(device),
            "timestep": timestep,
            "substeps": self.substeps,
            "gravity": [float(x) for x in model.opt.gravity],
            "ground": ground,
            "actors": [actor.plain() for actor in self._actors],
            "folder": self._folder.name,
            "rows": rows,
        }
        self._shared = isaac_worker.arrays(self._folder.name, num_envs, len(self._actors), dofs, rows, "w+")
        self._host = {name: torch.from_numpy(value) for name, value in self._shared.items()}
        self._worker = _Worker(command)
        names = self._worker.start(task)["dofs"]
        self._map(names)

        def zeros(width: int) -> Tensor:
            return torch.zeros((num_envs, width), device=device)

        self.qpos, self.qvel, self.ctrl = zeros(model.nq), zeros(model.nv), zeros(model.nu)
        self.pending = torch.zeros((self.substeps if latency else 0, num_envs, model.nu), device=device)

    def advance(self) -> None:
        """`substeps` physics steps with the controls in `ctrl` (or `pending`)."""
        controls = self.pending if len(self.pending) else self.ctrl[None]
        values = torch.clamp(controls, self._low, self._high) * self._gear
        targets = torch.zeros((3, *values.shape[:2], self._host["dof"].shape[1]), device=self.device)
        for kind, (actuators, dofs) in enumerate(self._drive_map):
            targets[kind][:, :, dofs] = values[:, :, actuators]
        self._host["targets"].copy_(targets)
        self._worker.ask("step")
        self._read()

    def forward(self) -> None:
        """Nothing: models with sensors are refused."""

    def place(self, mask: Tensor, qpos: Tensor, qvel: Tensor, ctrl: Tensor) -> None:
        """Put the copies of `mask` (N,) bool into a new state."""
        column = mask[:, None]
        for target, value in ((self.qpos, qpos), (self.qvel, qvel), (self.ctrl, ctrl)):
            target.copy_(torch.where(column, value.to(target.dtype), target))
        self._host["mask"].copy_(mask)
        self._write()
        self._worker.ask("place")

    def scale(self, mask: Tensor, factors: dict[str, Tensor]) -> None:
        """Refused: the models are the worker's."""
        raise ValueError("the Isaac Gym engine cannot change models; use engine=mujoco or engine=warp")

    def trouble(self) -> str | None:
        """Nothing: the worker's errors are raised when they happen."""
        return None

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the state; PhysX keeps more than it tells, so contacts begin anew after a load."""
        return {"qpos": self.qpos.clone(), "qvel": self.qvel.clone(), "ctrl": self.ctrl.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put all copies into the saved state."""
        everyone = torch.ones(len(self.qpos), dtype=torch.bool, device=self.device)
        self.place(everyone, *(state[key].to(self.device) for key in ("qpos", "qvel", "ctrl")))

    def close(self) -> None:
        """End the worker and free the shared memory."""
        self._worker.stop()
        self._folder.cleanup()

    def _map(self, names: list[str]) -> None:
        """Where joints and actuators lie in the worker's order."""
        wanted = [drive.joint for actor in self._actors for drive in actor.drives]
        if sorted(names) != sorted(wanted):
            self.close()
            raise RuntimeError(f"the worker has the joints {names}, expected {wanted}")
        addresses = {name: pair for actor in self._actors for name, pair in actor.joints.items()}
        pairs = [addresses[name] for name in names]
        self._qpos_of, self._qvel_of = torch.tensor(pairs, dtype=torch.int64, device=self.device).reshape(-1, 2).T
        drives = {drive.joint: drive for actor in self._actors for drive in actor.drives if drive.actuator >= 0}
        by_actuator = sorted(drives.values(), key=lambda drive: drive.actuator)
        self._gear, self._low, self._high = (
            torch.tensor([vars(drive)[key] for drive in by_actuator], dtype=torch.float32, device=self.device)
            for key in ("gear", "low", "high")
        )
        self._drive_map = []
        for mode in ("position", "velocity", "effort"):
            chosen = [drive for drive in by_actuator if drive.mode == mode]
            self._drive_map.append(([d.actuator for d in chosen], [names.index(d.joint) for d in chosen]))

    def _read(self) -> None:
        """The worker's states as MuJoCo writes them: quaternions real part first, body rates of free bodies."""
        root, dof = self._host["root"].to(self.device), self._host["dof"].to(self.device)
        self.qpos[:, self._qpos_of], self.qvel[:, self._qvel_of] = dof[:, :, 0], dof[:, :, 1]
        for index, actor in enumerate(self._actors):
            if actor.free:
                state = root[:, index]
                p, v = actor.qpos, actor.qvel
                self.qpos[:, p : p + 3] = state[:, :3]
                self.qpos[:, p + 3 : p + 7] = state[:, [6, 3, 4, 5]]
                self.qvel[:, v : v + 3] = state[:, 7:10]
                self.qvel[:, v + 3 : v + 6] = _turn(state[:, 3:7], state[:, 10:13], back=True)

    def _write(self) -> None:
        """Inverse of `_read`."""
        root = torch.zeros(self._host["root"].shape, device=self.device)
        root[:, :, 6] = 1.0
        for index, actor in enumerate(self._actors):
            if actor.free:
                p, v = actor.qpos, actor.qvel
                quaternion = self.qpos[:, p + 3 : p + 7][:, [1, 2, 3, 0]]
                root[:, index, :3] = self.qpos[:, p : p + 3]
                root[:, index, 3:7] = quaternion
                root[:, index, 7:10] = self.qvel[:, v : v + 3]
                root[:, index, 10:13] = _turn(quaternion, self.qvel[:, v + 3 : v + 6], back=False)
        self._host["root"].copy_(root)
        dof = torch.stack([self.qpos[:, self._qpos_of], self.qvel[:, self._qvel_of]], dim=2)
        self._host["dof"].copy_(dof)


def _turn(quaternion: Tensor, vector: Tensor, *, back: bool) -> Tensor:
    """Turn vectors (N, 3) by quaternions (N, 4), imaginary part first; `back` by their inverse."""
    u, w = quaternion[:, :3], quaternion[:, 3:]
    u = -u if back else u
    twice = 2.0 * torch.linalg.cross(u, vector)
    return vector + w * twice + torch.linalg.cross(u, twice)


class _Worker:
    """The process and the two pipes to it."""

    def __init__(self, command: Sequence[str]) -> None:
        commands, ours_out = os.pipe()
        ours_in, answers = os.pipe()
        self._process = subprocess.Popen([*command, str(commands), str(answers)], pass_fds=(commands, answers))
        os.close(commands)
        os.close(answers)
        self._out, self._in = os.fdopen(ours_out, "w"), os.fdopen(ours_in)

    def start(self, task: Mapping[str, object]) -> dict[str, Any]:
        return self.ask(json.dumps(task))

    def ask(self, line: str) -> dict[str, Any]:
        try:
            self._out.write(line + "\n")
            self._out.flush()
            answer = self._in.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._process.wait()
            raise RuntimeError(f"the Isaac Gym worker ended (exit code {code}); what it wrote is above")
        content = json.loads(answer)
        if "error" in content:
            raise RuntimeError(f"the Isaac Gym worker reports: {content['error']}")
        return content

    def stop(self) -> None:
        if self._out.closed:
            return
        try:
            self._out.write("close\n")
            self._out.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._in.close()
