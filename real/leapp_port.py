"""A LEAPP bundle on a robot: kinds and names of its tensors say what is measured and which joints follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from robot_rl.leapp_bundle import Bundle, Tensor
from robot_rl.real.core.spec import EFFORT, PD, POSITION, VELOCITY, RobotSpec
from robot_rl.real.legged_port import COMMAND, GAINS, IMU, check_trained
from robot_rl.types import IOSpec, Obs

JOINTS = ("state/joint/position", "state/joint/velocity")
"""Kinds of what is measured of joints."""
ORIENTATION, TURNING, SPEED = "state/body/rotation", "state/body/angular_velocity", "command/body/velocity"
"""Kinds of the IMU's orientation and angular velocity, and of the wanted velocity."""
TARGETS = {
    "target/joint/position": ("rad", (POSITION, PD)),
    "target/joint/velocity": ("rad/s", (VELOCITY,)),
    "target/joint/effort": ("N*m", (EFFORT,)),
    "target/joint/torques": ("N*m", (EFFORT,)),
}
"""Kind of an output -> unit, command modes that it suits."""
LARGEST = 1000.0
"""What an action of 1 stands for, in the unit of the target: bounds are the supervisor's."""
_NAMES = "names of its joints, so that nobody knows which is which; export it with them as element_names"
Reading = Callable[[np.ndarray, np.ndarray, Mapping[str, np.ndarray]], np.ndarray]
"""(position, velocity, task) -> value of an input."""


class LeappPort:
    """Observation and targets of a bundle whose tensors have kinds and names.

    What the robot does not measure is asked for under the name of the input, as a task variable.

    Args:
        bundle: of the policy.
        first: every output for zeros: gains are constant.
        joints: of the robot, in its order.

    Attributes:
        neutral: input -> (1, …) value that a quaternion has at rest, since none is zero.

    Raises:
        ValueError: nobody says what an input or an output is, or they are of another robot.
    """

    cameras: tuple[str, ...] = ()

    def __init__(self, bundle: Bundle, first: Mapping[str, np.ndarray], joints: Sequence[str]) -> None:
        self._file, self._joints, self.io = bundle.file, tuple(joints), interface(bundle)
        self._external: list[str] = []
        self.neutral: dict[str, np.ndarray] = {}
        self._readings = {name: self._reading(name, tensor) for name, (_, tensor) in bundle.inputs.items()}
        self.external = tuple(dict.fromkeys(self._external))
        tensors = {name: tensor for name, (_, tensor) in bundle.outputs.items()}
        targets = [tensors[name] for name in targets_of(bundle)]
        self._kind = targets[0].kind
        moved = [joint for tensor in targets for joint in self._order(tensor)]
        if lacks := [name for i, name in enumerate(self._joints) if moved.count(i) != 1]:
            raise ValueError(f"{bundle.file} commands {', '.join(lacks)} not once; expected a target for every joint")
        self._moved = np.array(moved)
        self._gains = {kind: self._gain(kind, tensors, first) for kind in GAINS}

    def check(self, spec: RobotSpec) -> None:
        """Refuse a robot that would do something else with its targets.

        Raises:
            ValueError: another command mode, no IMU, or other gains than it was trained with.
        """
        modes = TARGETS[self._kind][1]
        if spec.mode not in modes:
            raise ValueError(
                f"command_mode is {spec.command_mode}, expected {' or '.join(modes)}: it gives {self._kind}"
            )
        gains = {}
        for kind, values in self._gains.items() if spec.mode == PD else ():
            if values is None:
                raise ValueError(
                    f"{self._file} gives no {kind}: in pd mode a target is a torque, and nobody says which; export it "
                    f"with its gains as static outputs of the kind {kind}"
                )
            gains[kind] = values
        check_trained(spec, self.external, gains)

    def reset(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        """Nothing: what is remembered is in the bundle."""

    def observe(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> Obs:
        """{input: (1, …) float32}.

        Raises:
            ValueError: a task variable of another size, or an IMU without an orientation.
        """
        found = {}
        for name, reading in self._readings.items():
            shape = self.io.obs[name][0]
            value = np.asarray(reading(position, velocity, task), np.float32)
            if value.size != int(np.prod(shape)):
                raise ValueError(f"{name} has {value.size} numbers, expected {list(shape)}")
            found[name] = value.reshape(1, *shape)
        return found

    def act(self, action: np.ndarray) -> np.ndarray:
        """(1, A) in [-1, 1] -> (J,) targets in the robot's order."""
        target = np.empty(len(self._joints))
        target[self._moved] = np.asarray(action, float)[0] * LARGEST
        return target

    def _reading(self, name: str, tensor: Tensor) -> Reading:
        if tensor.dtype != "float32":
            raise ValueError(f"{self._file}: {name} is {tensor.dtype}; a robot measures float32, pictures are not read")
        if tensor.kind in JOINTS:
            order, measured = np.array(self._order(tensor)), JOINTS.index(tensor.kind)
            return lambda position, velocity, task: (position, velocity)[measured][order]
        if tensor.kind == ORIENTATION:
            self._external.append(IMU)
            parts = [item.removeprefix("q") for item in tensor.names]
            if sorted(parts) != ["w", "x", "y", "z"]:
                raise ValueError(
                    f"{self._file}: nobody says in which order {name} is a quaternion; expected element_names"
                )
            places = np.array(["xyzw".index(part) for part in parts])
            self.neutral[name] = np.array([0.0, 0.0, 0.0, 1.0], np.float32)[places].reshape(1, *tensor.row)
            return lambda position, velocity, task: _finite(task[IMU][:4])[places]
        if tensor.kind == TURNING and tensor.row == (3,):
            self._external.append(IMU)
            if tensor.isaaclab_connection.endswith("_w"):
                raise ValueError(f"{self._file}: {name} is in the world's frame, an IMU measures in its own")
            return lambda position, velocity, task: task[IMU][4:7]
        if tensor.kind == SPEED and tensor.row == (3,):
            self._external.append(COMMAND)
            return lambda position, velocity, task: task[COMMAND]
        if not name.isidentifier():
            raise ValueError(f"{self._file}: {name} is measured by nobody, and its name makes no topic robot_rl/task/…")
        self._external.append(name)
        return lambda position, velocity, task: task[name]

    def _order(self, tensor: Tensor) -> list[int]:
        if len(tensor.row) != 1 or not tensor.names:
            raise ValueError(f"{self._file}: {tensor.name} has no {_NAMES}")
        strange = [name for name in tensor.names if name not in self._joints]
        if strange:
            raise ValueError(
                f"{self._file}: {tensor.name} is of {', '.join(strange)}, which the robot has not; its joints are "
                f"{', '.join(self._joints)}"
            )
        return [self._joints.index(name) for name in tensor.names]

    def _gain(self, kind: str, tensors: Mapping[str, Tensor], first: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """(J,) in the robot's order; None where not all joints have one."""
        found = np.full(len(self._joints), np.nan)
        for name, tensor in tensors.items():
            if tensor.kind == kind:
                found[self._order(tensor)] = first[name].ravel()
        return None if np.isnan(found).any() else found


def targets_of(bundle: Bundle) -> tuple[str, ...]:
    """Names of the outputs that command joints.

    Raises:
        ValueError: there is none, they are of several kinds, or others stand beside them that nobody would follow.
    """
    kinds = {name: tensor.kind for name, (_, tensor) in bundle.outputs.items() if tensor.kind not in GAINS}
    strange = [f"{name} ({kind or 'of no kind'})" for name, kind in kinds.items() if kind not in TARGETS]
    if strange or len(set(kinds.values())) != 1:
        raise ValueError(
            f"{bundle.file} gives {', '.join(strange or kinds) or 'nothing'}; expected targets of joints of one kind: "
            f"{', '.join(TARGETS)}"
        )
    for name in kinds:
        tensor = bundle.outputs[name][1]
        if tensor.in_time:
            raise ValueError(f"{bundle.file}: {name} is a chunk of targets in time; expected those of one step")
        if len(tensor.row) != 1 or not tensor.names:
            raise ValueError(f"{bundle.file}: {name} has no {_NAMES}")
    return tuple(kinds)


def interface(bundle: Bundle) -> IOSpec:
    """What a bundle sees and does by its kinds and names, in its own order.

    Raises:
        ValueError: nobody says how often it decides, or what its outputs are.
    """
    targets = [bundle.outputs[name][1] for name in targets_of(bundle)]
    if bundle.hz is None:
        raise ValueError(
            f"{bundle.file} does not say how often it decides; export it with "
            "compile_graph(graph_configs=GraphConfigs(frequency=…)), or write `configs: {frequency: …}` under pipeline"
        )
    joints = [joint for tensor in targets for joint in tensor.names]
    return IOSpec(
        obs={name: (tensor.row, "float32") for name, (_, tensor) in bundle.inputs.items()},
        action_names=tuple(f"{joint}_target" for joint in joints),
        action_low=(-LARGEST,) * len(joints),
        action_high=(LARGEST,) * len(joints),
        action_units=(TARGETS[targets[0].kind][0],) * len(joints),
        control_hz=bundle.hz,
    )


def _finite(orientation: np.ndarray) -> np.ndarray:
    if not np.isfinite(orientation).all():
        raise ValueError("the IMU tells no orientation, and this policy reads one")
    return orientation
