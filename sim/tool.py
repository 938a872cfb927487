"""Forward kinematics of one site of a MuJoCo model by joint name, without torch: for processes that guard a robot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.extras import require
from robot_rl.sim.headless import prefer_headless

if TYPE_CHECKING:
    from mujoco import MjData, MjModel


class Tool:
    """Position and Jacobian of a site as functions of named joints; other joints stay as the model has them.

    Args:
        model: path of MJCF or URDF, or MJCF text.
        site: name of a site or, where there is none of that name, of a body.
        joints: names in the order of the joint vectors; hinge and slide joints.

    Raises:
        ValueError: no such site or joint.
        FileNotFoundError: no such file.
    """

    def __init__(self, model: str, site: str, joints: Sequence[str]) -> None:
        self._mujoco, self._model = load(model)
        self._data = self._mujoco.MjData(self._model)
        self._frame = ToolFrame(self._mujoco, self._model, site)
        self._qpos, self._dof = addresses(self._mujoco, self._model, joints)

    def position(self, joints: np.ndarray) -> np.ndarray:
        """(J,) joint positions -> (3,) [m] in the world frame of the model."""
        self._place(joints)
        return self._frame.position(self._data)

    def pose(self, joints: np.ndarray) -> np.ndarray:
        """(J,) joint positions -> (4, 4) of the tool [m] in the world frame of the model."""
        made = np.eye(4)
        made[:3, 3] = self.position(joints)
        made[:3, :3] = self._frame.turn(self._data)
        return made

    def jacobian(self, joints: np.ndarray) -> np.ndarray:
        """(J,) joint positions -> (6, J): velocity [m/s], then turning rate [rad/s], per unit of joint speed."""
        self._place(joints)
        self._mujoco.mj_comPos(self._model, self._data)
        return self._frame.jacobian(self._data)[:, self._dof]

    def _place(self, joints: np.ndarray) -> None:
        self._data.qpos[self._qpos] = joints
        self._mujoco.mj_kinematics(self._model, self._data)


class ToolFrame:
    """A site of a model or, where there is none of that name, a body, in any state of the model.

    Args:
        mujoco: the module.
        model: compiled.
        name: of the site or body.

    Raises:
        ValueError: no such site or body.
    """

    def __init__(self, mujoco: ModuleType, model: MjModel, name: str) -> None:
        self._mujoco, self._model = mujoco, model
        self._index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, name)
        self._on_site = self._index >= 0
        if not self._on_site:
            self._index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
        if self._index < 0:
            names = [model.site(i).name for i in range(model.nsite)]
            raise ValueError(f"the model has no site or body {name!r}; its sites: {', '.join(names) or 'none'}")

    def position(self, data: MjData) -> np.ndarray:
        """(3,) [m] in the world."""
        return np.array((data.site_xpos if self._on_site else data.xpos)[self._index])

    def turn(self, data: MjData) -> np.ndarray:
        """(3, 3) whose columns are its axes in the world."""
        return (data.site_xmat if self._on_site else data.xmat)[self._index].reshape(3, 3)

    def jacobian(self, data: MjData) -> np.ndarray:
        """(6, nv): velocity, then turning rate, per velocity of each degree of freedom."""
        both = np.zeros((6, self._model.nv))
        function = self._mujoco.mj_jacSite if self._on_site else self._mujoco.mj_jacBody
        function(self._model, data, both[:3], both[3:], self._index)
        return both


def bodies_below(model: MjModel, roots: Iterable[int]) -> set[int]:
    """Some bodies and all that they carry."""
    found = set(roots)
    for body in range(1, model.nbody):  # parents come first
        if int(model.body_parentid[body]) in found:
            found.add(body)
    return found


def tool_position(model: str, site: str, joints: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Function (J,) joint positions -> (3,) tool position [m], as `SafetySupervisor` takes it; see `Tool`."""
    return Tool(model, site, joints).position


def tool_pose(model: str, site: str, joints: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Function (J,) joint positions -> (4, 4) pose of the tool, as calibration takes it; see `Tool`."""
    return Tool(model, site, joints).pose


def tool_jacobian(model: str, site: str, joints: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
    """Function (J,) joint positions -> (6, J) of the tool, as the teleoperation node takes it; see `Tool`."""
    return Tool(model, site, joints).jacobian


def load(model: str) -> tuple[ModuleType, MjModel]:
    """The module mujoco and a compiled model from a path (MJCF, URDF) or MJCF text.

    Raises:
        FileNotFoundError: no such file.
        ValueError: MuJoCo cannot read it; says why.
    """
    prefer_headless()
    mujoco = require("mujoco")
    try:
        if model.lstrip().startswith("<"):
            return mujoco, mujoco.MjModel.from_xml_string(model)
        if not Path(model).exists():
            raise FileNotFoundError(f"model is {model!r}, which does not exist; give a path of MJCF or URDF")
        from robot_rl.sim import robot_model  # finds meshes as drivers name them, goes on without absent ones

        return mujoco, robot_model.load(model).spec.compile()
    except ValueError as error:
        raise ValueError(f"MuJoCo cannot read the model: {error}") from error


def addresses(mujoco: ModuleType, model: MjModel, joints: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(J,) indices into qpos and into qvel of named hinge and slide joints.

    Raises:
        ValueError: a joint is not in the model or has more than one degree of freedom.
    """
    qpos, dof = [], []
    for name in joints:
        i = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name)
        kind = -1 if i < 0 else int(model.jnt_type[i])
        if kind not in (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)):
            known = [model.joint(k).name for k in range(model.njnt)]
            raise ValueError(f"joint {name!r} is no hinge or slide of the model, which has: {', '.join(known)}")
        qpos.append(int(model.jnt_qposadr[i]))
        dof.append(int(model.jnt_dofadr[i]))
    return np.array(qpos, int), np.array(dof, int)
