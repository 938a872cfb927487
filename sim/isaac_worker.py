"""The process that holds Isaac Gym Preview 4: raw physics on the tensor API, one command after the other.

Stand-alone: Python 3.6 to 3.8 (all that Isaac Gym runs on), isaacgym, torch and numpy, nothing of robot_rl. It is
started by `sim.isaac_env` with the interpreter named in ISAACGYM_PYTHON. The task arrives as one JSON line, arrays lie
in files that both processes map into memory, commands are lines on a pipe: "step", "place", "close". Standard output is
left to isaacgym, which writes there.

Source: Isaac Gym Preview 4, docs/programming/tensors.html and python API; isaac-sim/IsaacGymEnvs, tasks/anymal.py and
tasks/base/vec_task.py, for the order of calls.
"""

import json
import math
import os
import sys
import tempfile

import numpy as np


class Engine:
    """N environments of the same actors.

    Args:
        task: num_envs, device ("cpu" or "cuda:k"), timestep, substeps, gravity (3,), ground (height and friction, or
            None), actors (as `sim.isaac_model.Actor.plain` gives them).
        gymapi, gymtorch, torch: the modules.
    """

    def __init__(self, task, gymapi, gymtorch, torch):
        self.gymapi, self.gymtorch, self.torch = gymapi, gymtorch, torch
        self.count, self.substeps = task["num_envs"], task["substeps"]
        self.device = task["device"]
        self.gym = gymapi.acquire_gym()
        self.sim = self._make_sim(task)
        if task["ground"] is not None:
            self._make_ground(task["ground"])
        self._make_envs(task)
        self.gym.prepare_sim(self.sim)
        self._acquire()

    def _make_sim(self, task):
        gymapi = self.gymapi
        params = gymapi.SimParams()
        params.dt = task["timestep"]
        params.substeps = 1
        params.up_axis = gymapi.UP_AXIS_Z
        params.gravity = gymapi.Vec3(*task["gravity"])
        on_gpu = self.device != "cpu"
        params.use_gpu_pipeline = on_gpu
        params.physx.use_gpu = on_gpu
        params.physx.solver_type = 1
        params.physx.num_position_iterations = 8
        params.physx.num_velocity_iterations = 1
        params.physx.contact_offset = 0.01
        params.physx.rest_offset = 0.0
        index = int(self.device.split(":")[1]) if on_gpu and ":" in self.device else 0
        sim = self.gym.create_sim(index, -1, gymapi.SIM_PHYSX, params)
        if sim is None:
            raise RuntimeError("gym.create_sim returned nothing; see what Isaac Gym wrote above")
        return sim

    def _make_ground(self, ground):
        plane = self.gymapi.PlaneParams()
        plane.normal = self.gymapi.Vec3(0.0, 0.0, 1.0)
        plane.distance = -ground["height"]
        plane.static_friction = ground["friction"]
        plane.dynamic_friction = ground["friction"]
        self.gym.add_ground(self.sim, plane)

    def _load(self, actor, folder):
        gymapi = self.gymapi
        options = gymapi.AssetOptions()
        options.fix_base_link = not actor["free"]
        options.disable_gravity = not actor["gravity"]
        options.default_dof_drive_mode = int(gymapi.DOF_MODE_NONE)
        options.collapse_fixed_joints = False
        options.replace_cylinder_with_capsule = False
        options.angular_damping = 0.0
        options.linear_damping = 0.0
        options.armature = 0.0
        options.override_com = False
        options.override_inertia = False
        file = actor["name"] + ".xml"
        with open(os.path.join(folder, file), "w") as out:
            out.write(actor["xml"])
        asset = self.gym.load_asset(self.sim, folder, file, options)
        if asset is None:
            raise RuntimeError("gym.load_asset returned nothing for the actor '{}'".format(actor["name"]))
        return asset

    def _properties(self, asset, actor):
        """Degrees of freedom of an asset in its own order, with our drives."""
        gymapi = self.gymapi
        modes = {
            "position": gymapi.DOF_MODE_POS,
            "velocity": gymapi.DOF_MODE_VEL,
            "effort": gymapi.DOF_MODE_EFFORT,
            "none": gymapi.DOF_MODE_NONE,
        }
        names = list(self.gym.get_asset_dof_names(asset))
        drives = {drive["joint"]: drive for drive in actor["drives"]}
        if sorted(names) != sorted(drives):
            raise RuntimeError(
                "Isaac Gym read the joints {} of actor '{}', expected {}".format(names, actor["name"], sorted(drives))
            )
        found = self.gym.get_asset_dof_properties(asset)
        for index, name in enumerate(names):
            found["driveMode"][index] = int(modes[drives[name]["mode"]])
            for key in ("stiffness", "damping", "effort", "armature", "friction"):
                found[key][index] = drives[name][key]
        return names, found

    def _make_envs(self, task):
        gymapi, gym = self.gymapi, self.gym
        self.actors, self.dofs = [], []
        with tempfile.TemporaryDirectory() as folder:
            assets = [self._load(actor, folder) for actor in task["actors"]]
        parts = [self._properties(asset, actor) for asset, actor in zip(assets, task["actors"])]
        for names, _ in parts:
            self.dofs += names
        # all environments lie on one place (groups keep them apart), so that states need no offsets
        lower = upper = gymapi.Vec3(0.0, 0.0, 0.0)
        per_row = max(1, int(math.sqrt(self.count)))
        # aggregates keep the broad phase quick where an environment has several bodies
        bodies = sum(gym.get_asset_rigid_body_count(asset) for asset in assets)
        shapes = sum(gym.get_asset_rigid_shape_count(asset) for asset in assets)
        indices = []
        for number in range(self.count):
            env = gym.create_env(self.sim, lower, upper, per_row)
            gym.begin_aggregate(env, bodies, shapes, True)
            row = []
            for asset, actor, (_, found) in zip(assets, task["actors"], parts):
                pose = gymapi.Transform()
                pose.p = gymapi.Vec3(0.0, 0.0, 1.0 if actor["free"] else 0.0)
                pose.r = gymapi.Quat(0.0, 0.0, 0.0, 1.0)
                # group: environments do not touch one another; filter 0: parts of one may
                handle = gym.create_actor(env, asset, pose, actor["name"], number, 0)
                if actor["drives"]:
                    gym.set_actor_dof_properties(env, handle, found)
                row.append(gym.get_actor_index(env, handle, gymapi.DOMAIN_SIM))
            gym.end_aggregate(env)
            indices.append(row)
        self.indices = self.torch.tensor(indices, dtype=self.torch.int32, device=self.device)
        self.with_dofs = [index for index, actor in enumerate(task["actors"]) if actor["drives"]]

    def _acquire(self):
        gym, wrap, count = self.gym, self.gymtorch.wrap_tensor, self.count
        self.root = wrap(gym.acquire_actor_root_state_tensor(self.sim)).view(count, -1, 13)
        gym.refresh_actor_root_state_tensor(self.sim)
        # Isaac Gym's order of actors and ours agree when indices rise within each environment
        if self.dofs:
            self.dof = wrap(gym.acquire_dof_state_tensor(self.sim)).view(count, -1, 2)
            gym.refresh_dof_state_tensor(self.sim)
        else:
            self.dof = self.torch.zeros((count, 0, 2), device=self.device)
        self.targets = [self.torch.zeros((count, len(self.dofs)), device=self.device) for _ in range(3)]

    def step(self, targets):
        """Physics steps with targets (3, substeps or 1, N, D): positions, velocities, efforts."""
        gym, sim, unwrap = self.gym, self.sim, self.gymtorch.unwrap_tensor
        for index in range(self.substeps):
            if self.dofs and index < targets.shape[1]:
                for target, value in zip(self.targets, targets):
                    target.copy_(value[index])
            if self.dofs:  # efforts hold for one physics step only
                gym.set_dof_position_target_tensor(sim, unwrap(self.targets[0]))
                gym.set_dof_velocity_target_tensor(sim, unwrap(self.targets[1]))
                gym.set_dof_actuation_force_tensor(sim, unwrap(self.targets[2]))
            gym.simulate(sim)
            if self.device == "cpu":
                gym.fetch_results(sim, True)
        if self.device != "cpu":
            gym.fetch_results(sim, True)
        gym.refresh_actor_root_state_tensor(sim)
        if self.dofs:
            gym.refresh_dof_state_tensor(sim)

    def place(self, mask, root, dof):
        """Put environments `mask` (N,) into root states (N, A, 13) and joint states (N, D, 2)."""
        torch, gym, unwrap = self.torch, self.gym, self.gymtorch.unwrap_tensor
        rows = torch.nonzero(mask.to(self.device)).flatten()
        if not len(rows):
            return
        self.root[rows] = root.to(self.device)[rows]
        actors = self.indices[rows].flatten().contiguous()
        # the tensors behind the descriptors have to live until the next simulate
        self.kept = [actors]
        gym.set_actor_root_state_tensor_indexed(self.sim, unwrap(self.root.view(-1, 13)), unwrap(actors), len(actors))
        if self.dofs:
            self.dof[rows] = dof.to(self.device)[rows]
            jointed = self.indices[rows][:, self.with_dofs].flatten().contiguous()
            self.kept.append(jointed)
            gym.set_dof_state_tensor_indexed(self.sim, unwrap(self.dof.view(-1, 2)), unwrap(jointed), len(jointed))

    def close(self):
        """Free the simulation."""
        self.gym.destroy_sim(self.sim)


def arrays(folder, count, actors, dofs, rows, mode):
    """The shared arrays: root (N, A, 13), dof (N, D, 2), targets (3, rows, N, D) float32 and mask (N,) uint8.

    Args:
        folder: where the files lie.
        count: N environments.
        actors: A.
        dofs: D.
        rows: physics steps per control step with latency, else 1.
        mode: "w+" makes them, "r+" opens them.
    """
    shapes = {"root": (count, actors, 13), "dof": (count, dofs, 2), "targets": (3, rows, count, dofs)}
    out = {}
    for name, shape in shapes.items():
        if 0 in shape:  # an empty file cannot be mapped
            out[name] = np.zeros(shape, np.float32)
        else:
            out[name] = np.memmap(os.path.join(folder, name), np.float32, mode, 0, shape)
    out["mask"] = np.memmap(os.path.join(folder, "mask"), np.uint8, mode, 0, (count,))
    return out


def serve(task, commands, answers, make_engine):
    """Answer commands until "close" or the end of the pipe.

    Args:
        task: see `Engine`; also "folder" and "rows" of the shared arrays.
        commands: file to read from.
        answers: file to write to: one JSON line per command, {"error": text} where it failed.
        make_engine: task -> `Engine`.
    """

    def answer(**content):
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        engine = make_engine(task)
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
        return
    import torch  # after isaacgym, which refuses to come second

    shared = arrays(task["folder"], engine.count, len(task["actors"]), len(engine.dofs), task["rows"], "r+")
    tensors = {name: torch.from_numpy(value) for name, value in shared.items()}
    answer(dofs=engine.dofs)
    for line in commands:
        command = line.strip()
        try:
            if command == "step":
                engine.step(tensors["targets"].to(engine.device))
                tensors["root"].copy_(engine.root)
                tensors["dof"].copy_(engine.dof)
            elif command == "place":
                engine.place(tensors["mask"], tensors["root"], tensors["dof"])
            elif command == "close":
                break
            else:
                raise ValueError(f"unknown command '{command}'")
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")
            continue
        answer(done=command)
    engine.close()


def main():
    """Arguments: file descriptors to read from and to write to."""
    commands, answers = os.fdopen(int(sys.argv[1]), "r"), os.fdopen(int(sys.argv[2]), "w")
    task = json.loads(commands.readline())

    def make(task):
        from isaacgym import gymapi, gymtorch  # isort: skip  # isaacgym wants to come before torch
        import torch

        return Engine(task, gymapi, gymtorch, torch)

    serve(task, commands, answers, make)


if __name__ == "__main__":
    main()
