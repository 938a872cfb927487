"""A strict double of Isaac Gym Preview 4: the calls that our worker makes, with their real parameter lists, on MuJoCo.

Every call checks its arguments and the order of calls, and is recorded. Physics is MuJoCo's, one model per actor, with
drives as Isaac Gym defines them, so that a wrong mapping of joints, quaternions or drives shows in the motion. Run as a
program it is the worker: `python isaac_double.py <read fd> <write fd>`.

Source of the signatures: Isaac Gym Preview 4 Python API reference; isaac-sim/IsaacGymEnvs.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

mujoco: Any = importlib.import_module("mujoco")
WORKER = Path(__file__).resolve().parents[2] / "sim" / "isaac_worker.py"
NONE, POS, VEL, EFFORT = 0, 1, 2, 3


def load_worker() -> Any:
    spec = importlib.util.spec_from_file_location("isaac_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Strict:
    """Only the attributes of the real class can be set."""

    _fields: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        for name, value in self._fields.items():
            object.__setattr__(self, name, value() if isinstance(value, type) else value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no '{name}'")
        object.__setattr__(self, name, value)


class Vec3:
    def __init__(self, x: float = 0.0, y: float = 0.0, z: float = 0.0) -> None:
        self.x, self.y, self.z = float(x), float(y), float(z)


class Quat:
    def __init__(self, x: float = 0.0, y: float = 0.0, z: float = 0.0, w: float = 1.0) -> None:
        self.x, self.y, self.z, self.w = x, y, z, w


class Transform(Strict):
    _fields: ClassVar[dict[str, Any]] = {"p": Vec3, "r": Quat}


class PhysX(Strict):
    _fields: ClassVar[dict[str, Any]] = dict.fromkeys(
        (
            "use_gpu",
            "solver_type",
            "num_threads",
            "num_position_iterations",
            "num_velocity_iterations",
            "contact_offset",
            "rest_offset",
            "bounce_threshold_velocity",
            "max_depenetration_velocity",
            "max_gpu_contact_pairs",
            "default_buffer_size_multiplier",
            "num_subscenes",
            "contact_collection",
        ),
        0,
    )


class SimParams(Strict):
    _fields: ClassVar[dict[str, Any]] = {
        "dt": 1 / 60,
        "substeps": 2,
        "up_axis": 0,
        "gravity": Vec3,
        "use_gpu_pipeline": False,
        "physx": PhysX,
        "flex": None,
        "num_client_threads": 0,
        "stress_visualization": False,
        "enable_actor_creation_warning": True,
    }


class PlaneParams(Strict):
    _fields: ClassVar[dict[str, Any]] = {
        "normal": Vec3,
        "distance": 0.0,
        "static_friction": 1.0,
        "dynamic_friction": 1.0,
        "restitution": 0.0,
        "segmentation_id": 0,
    }


class AssetOptions(Strict):
    _fields: ClassVar[dict[str, Any]] = {
        "fix_base_link": False,
        "disable_gravity": False,
        "default_dof_drive_mode": 0,
        "density": 1000.0,
        "collapse_fixed_joints": False,
        "replace_cylinder_with_capsule": False,
        "flip_visual_attachments": False,
        "angular_damping": 0.5,
        "linear_damping": 0.0,
        "armature": 0.0,
        "thickness": 0.02,
        "override_com": False,
        "override_inertia": False,
        "max_angular_velocity": 64.0,
        "max_linear_velocity": 1000.0,
        "slices_per_cylinder": 20,
        "use_mesh_materials": False,
        "vhacd_enabled": False,
    }


def _is(value: Any, *kinds: type) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"argument {value!r} is a {type(value).__name__}, expected {[kind.__name__ for kind in kinds]}")


class Descriptor:
    """What gymtorch wraps and unwraps."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Gym:
    """One simulation."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ready = False
        self.envs: list[list[tuple[Any, Any]]] = []
        self.plane: PlaneParams | None = None
        self.depth = 0

    def _note(self, name: str, *, ready: bool) -> None:
        self.calls.append(name)
        if self.ready != ready:
            raise RuntimeError(f"{name} {'before' if ready else 'after'} prepare_sim")

    def create_sim(self, compute_device: int, graphics_device: int, type: int, params: SimParams) -> Any:
        self._note("create_sim", ready=False)
        _is(compute_device, int)
        _is(graphics_device, int)
        _is(params, SimParams)
        if params.up_axis != 1:
            raise ValueError("up_axis is not UP_AXIS_Z")
        self.params = params
        return self

    def add_ground(self, sim: Any, params: PlaneParams) -> None:
        self._note("add_ground", ready=False)
        _is(params, PlaneParams)
        self.plane = params

    def load_asset(self, sim: Any, rootpath: str, filename: str, options: AssetOptions) -> Any:
        self._note("load_asset", ready=False)
        _is(options, AssetOptions)
        spec = mujoco.MjSpec.from_file(os.path.join(rootpath, filename))
        model = spec.compile()
        base = model.body(1)
        if options.fix_base_link != (base.jntnum[0] == 0):
            raise ValueError("fix_base_link does not fit the first body")
        names = [model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] != 0]
        # Isaac Gym orders degrees of freedom by itself: the double turns them round, so that nobody relies on ours
        return SimpleNamespace(spec=spec, model=model, options=options, names=names[::-1])

    def get_asset_dof_names(self, asset: Any) -> list[str]:
        return list(asset.names)

    def get_asset_dof_properties(self, asset: Any) -> np.ndarray:
        kinds = [
            ("hasLimits", "?"),
            ("lower", "f4"),
            ("upper", "f4"),
            ("driveMode", "i4"),
            ("velocity", "f4"),
            ("effort", "f4"),
            ("stiffness", "f4"),
            ("damping", "f4"),
            ("friction", "f4"),
            ("armature", "f4"),
        ]
        return np.zeros(len(asset.names), np.dtype(kinds))

    def get_asset_rigid_body_count(self, asset: Any) -> int:
        return asset.model.nbody - 1

    def get_asset_rigid_shape_count(self, asset: Any) -> int:
        return asset.model.ngeom

    def create_env(self, sim: Any, lower: Vec3, upper: Vec3, num_per_row: int) -> int:
        self._note("create_env", ready=False)
        _is(lower, Vec3)
        _is(num_per_row, int)
        self.envs.append([])
        return len(self.envs) - 1

    def begin_aggregate(self, env: int, max_bodies: int, max_shapes: int, enable_self_collisions: bool) -> bool:
        self.depth += 1
        return True

    def end_aggregate(self, env: int) -> bool:
        self.depth -= 1
        return self.depth == 0

    def create_actor(
        self,
        env: int,
        asset: Any,
        pose: Transform,
        name: str,
        group: int = -1,
        filter: int = -1,
        segmentation_id: int = 0,
    ) -> int:
        self._note("create_actor", ready=False)
        _is(pose, Transform)
        _is(name, str)
        if group != env:
            raise ValueError("environments would touch one another")
        self.envs[env].append((asset, None))
        return len(self.envs[env]) - 1

    def set_actor_dof_properties(self, env: int, actor: int, props: np.ndarray) -> bool:
        asset, _ = self.envs[env][actor]
        self.envs[env][actor] = (asset, props.copy())
        return True

    def get_actor_index(self, env: int, actor: int, domain: int) -> int:
        if domain != 1:
            raise ValueError("domain is not DOMAIN_SIM")
        return sum(len(row) for row in self.envs[:env]) + actor

    def prepare_sim(self, sim: Any) -> bool:
        self._note("prepare_sim", ready=False)
        self.ready = True
        self.bodies = [self._body(*pair) for row in self.envs for pair in row]
        dofs = sum(len(body.names) for body in self.bodies)
        self.root = torch.zeros(len(self.bodies), 13)
        self.root[:, 6] = 1.0
        self.dof = torch.zeros(dofs, 2)
        self.targets = [torch.zeros(dofs) for _ in range(3)]
        return True

    def _body(self, asset: Any, props: Any) -> Any:
        spec = asset.spec.copy()
        spec.option.timestep = self.params.dt
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        gravity = self.params.gravity
        spec.option.gravity = [0.0, 0.0, 0.0] if asset.options.disable_gravity else [gravity.x, gravity.y, gravity.z]
        if self.plane is not None:
            friction = [self.plane.static_friction, 0.005, 0.0001]
            spec.worldbody.add_geom(
                type=mujoco.mjtGeom.mjGEOM_PLANE,
                size=[0, 0, 1],
                pos=[0, 0, -self.plane.distance],
                friction=friction,
                contype=1,
                conaffinity=15,
            )
        for index, name in enumerate(asset.names):
            p = props[index]
            joint = spec.joint(name)
            joint.damping = [0.0] * len(np.atleast_1d(joint.damping)) if np.ndim(joint.damping) else 0.0
            joint.armature, joint.frictionloss = float(p["armature"]), float(p["friction"])
            k, d, limit = float(p["stiffness"]), float(p["damping"]), float(p["effort"])
            gain = {POS: k, VEL: d, EFFORT: 1.0, NONE: 0.0}[int(p["driveMode"])]
            actuator = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
            actuator.gainprm[0] = gain
            actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
            actuator.biasprm[1], actuator.biasprm[2] = -k if int(p["driveMode"]) == POS else 0.0, -d
            actuator.forcelimited = True
            actuator.forcerange = [-limit, limit]
        model = spec.compile()
        free = model.jnt_type[0] == 0
        modes = [int(p["driveMode"]) for p in props] if props is not None else []
        return SimpleNamespace(model=model, data=mujoco.MjData(model), names=asset.names, free=free, modes=modes)

    def acquire_actor_root_state_tensor(self, sim: Any) -> Descriptor:
        self._note("acquire_actor_root_state_tensor", ready=True)
        self.seen_root = torch.full_like(self.root, torch.nan)  # nothing to see before a refresh
        return Descriptor(self.seen_root)

    def acquire_dof_state_tensor(self, sim: Any) -> Descriptor:
        self._note("acquire_dof_state_tensor", ready=True)
        self.seen_dof = torch.full_like(self.dof, torch.nan)
        return Descriptor(self.seen_dof)

    def refresh_actor_root_state_tensor(self, sim: Any) -> bool:
        self._note("refresh_actor_root_state_tensor", ready=True)
        self.seen_root.copy_(self.root)
        return True

    def refresh_dof_state_tensor(self, sim: Any) -> bool:
        self._note("refresh_dof_state_tensor", ready=True)
        self.seen_dof.copy_(self.dof)
        return True

    def _target(self, kind: int, descriptor: Descriptor) -> bool:
        _is(descriptor, Descriptor)
        if descriptor.tensor.numel() != len(self.dof) or descriptor.tensor.dtype != torch.float32:
            raise ValueError("targets need one float32 per degree of freedom")
        self.targets[kind].copy_(descriptor.tensor.flatten())
        return True

    def set_dof_position_target_tensor(self, sim: Any, tensor: Descriptor) -> bool:
        return self._target(0, tensor)

    def set_dof_velocity_target_tensor(self, sim: Any, tensor: Descriptor) -> bool:
        return self._target(1, tensor)

    def set_dof_actuation_force_tensor(self, sim: Any, tensor: Descriptor) -> bool:
        return self._target(2, tensor)

    def _indices(self, descriptor: Descriptor, count: int) -> list[int]:
        _is(descriptor, Descriptor)
        _is(count, int)
        if descriptor.tensor.dtype != torch.int32 or count != descriptor.tensor.numel():
            raise ValueError("indices must be int32, as many as said")
        return descriptor.tensor.tolist()

    def set_actor_root_state_tensor_indexed(
        self, sim: Any, states: Descriptor, indices: Descriptor, count: int
    ) -> bool:
        self._note("set_actor_root_state_tensor_indexed", ready=True)
        for index in self._indices(indices, count):
            self.root[index] = states.tensor.view(-1, 13)[index]
        self._push()
        return True

    def set_dof_state_tensor_indexed(self, sim: Any, states: Descriptor, indices: Descriptor, count: int) -> bool:
        self._note("set_dof_state_tensor_indexed", ready=True)
        wanted, first = set(self._indices(indices, count)), 0
        for index, body in enumerate(self.bodies):
            last = first + len(body.names)
            if index in wanted:
                if first == last:
                    raise ValueError("an actor without degrees of freedom has no joint state")
                self.dof[first:last] = states.tensor.view(-1, 2)[first:last]
            first = last
        self._push()
        return True

    def _push(self) -> None:
        first = 0
        for index, body in enumerate(self.bodies):
            data, model = body.data, body.model
            if body.free:
                root = self.root[index].double().numpy()
                quaternion = root[[6, 3, 4, 5]]
                data.qpos[:3], data.qpos[3:7], data.qvel[:3] = root[:3], quaternion, root[7:10]
                mujoco.mju_rotVecQuat(data.qvel[3:6], root[10:13], quaternion * np.array([1, -1, -1, -1]))
            for name in body.names:
                data.qpos[model.joint(name).qposadr[0]] = float(self.dof[first, 0])
                data.qvel[model.joint(name).dofadr[0]] = float(self.dof[first, 1])
                first += 1

    def simulate(self, sim: Any) -> None:
        self._note("simulate", ready=True)
        first = 0
        for index, body in enumerate(self.bodies):
            data, model = body.data, body.model
            for k, mode in enumerate(body.modes):
                data.ctrl[k] = 0.0 if mode == NONE else float(self.targets[mode - 1][first + k])
            mujoco.mj_step(model, data)
            if body.free:
                spin = np.zeros(3)
                mujoco.mju_rotVecQuat(spin, data.qvel[3:6], data.qpos[3:7])
                state = np.concatenate([data.qpos[:3], data.qpos[[4, 5, 6, 3]], data.qvel[:3], spin])
                self.root[index] = torch.from_numpy(state).float()
            for name in body.names:
                self.dof[first, 0] = float(data.qpos[model.joint(name).qposadr[0]])
                self.dof[first, 1] = float(data.qvel[model.joint(name).dofadr[0]])
                first += 1
        self.targets[2].zero_()  # forces hold for one step

    def fetch_results(self, sim: Any, wait_for_latest_sim_step: bool) -> None:
        self._note("fetch_results", ready=True)
        _is(wait_for_latest_sim_step, bool)

    def destroy_sim(self, sim: Any) -> None:
        self._note("destroy_sim", ready=True)


def modules() -> tuple[Any, Any, Gym]:
    """gymapi, gymtorch and the gym behind them."""
    gym = Gym()
    gymapi = SimpleNamespace(
        acquire_gym=lambda: gym,
        SimParams=SimParams,
        PlaneParams=PlaneParams,
        AssetOptions=AssetOptions,
        Vec3=Vec3,
        Quat=Quat,
        Transform=Transform,
        UP_AXIS_Y=0,
        UP_AXIS_Z=1,
        SIM_PHYSX=0,
        SIM_FLEX=1,
        DOF_MODE_NONE=NONE,
        DOF_MODE_POS=POS,
        DOF_MODE_VEL=VEL,
        DOF_MODE_EFFORT=EFFORT,
        DOMAIN_ENV=0,
        DOMAIN_SIM=1,
    )

    def unwrap(tensor: torch.Tensor) -> Descriptor:
        if not tensor.is_contiguous():
            raise ValueError("unwrap_tensor wants a contiguous tensor")
        return Descriptor(tensor)

    return gymapi, SimpleNamespace(wrap_tensor=lambda descriptor: descriptor.tensor, unwrap_tensor=unwrap), gym


def main() -> None:
    worker = load_worker()
    commands, answers = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    task = json.loads(commands.readline())
    gymapi, gymtorch, _ = modules()
    worker.serve(task, commands, answers, lambda task: worker.Engine(task, gymapi, gymtorch, torch))


if __name__ == "__main__":
    main()
