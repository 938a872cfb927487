"""A compiled MuJoCo model as the actors of Isaac Gym: one plain MJCF per kinematic tree, and drives for its joints.

Isaac Gym's importer knows a part of MJCF. What it is given is therefore written anew from the compiled model: bodies
with explicit inertia, joints, and the geoms that can collide; no defaults, no assets, no actuators. Actuators become
drives of degrees of freedom. What has no counterpart is refused by name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from robot_rl.extras import require

if TYPE_CHECKING:
    from mujoco import MjModel

_FREE, _SLIDE, _HINGE = 0, 2, 3  # mjtJoint
_SHAPES = {2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box"}  # mjtGeom
_PLANE = 0
_SIZES = {"sphere": 1, "capsule": 2, "ellipsoid": 3, "cylinder": 2, "box": 3}
_BASE = "fixed_base"


@dataclass
class Drive:
    """How one degree of freedom is driven.

    Attributes:
        joint: its name.
        mode: "position", "velocity", "effort" or "none".
        stiffness: N*m/rad or N/m.
        damping: N*m*s/rad or N*s/m, the joint's own included.
        effort: largest force.
        armature: rotor inertia.
        friction: dry friction.
        actuator: index into `ctrl`, or -1.
        gear: what a control of 1 means: rad, rad/s or N*m.
        low: control is clipped to it.
        high: control is clipped to it.
    """

    joint: str
    mode: str = "none"
    stiffness: float = 0.0
    damping: float = 0.0
    effort: float = 1e9
    armature: float = 0.0
    friction: float = 0.0
    actuator: int = -1
    gear: float = 1.0
    low: float = -1e9
    high: float = 1e9


@dataclass
class Actor:
    """One kinematic tree.

    Attributes:
        name: of its root body.
        xml: MJCF.
        free: whether its root moves freely; its pose is then the root state.
        gravity: whether it falls (an arm with gravity compensation does not).
        qpos: address of the root's seven numbers, where it is free.
        qvel: address of the root's six numbers.
        joints: name -> (address in qpos, address in qvel).
        drives: one per joint.
    """

    name: str
    xml: str
    free: bool
    gravity: bool
    qpos: int = -1
    qvel: int = -1
    joints: dict[str, tuple[int, int]] = field(default_factory=dict)
    drives: list[Drive] = field(default_factory=list)

    def plain(self) -> dict[str, object]:
        """JSON-ready, as the worker reads it."""
        return asdict(self)


def ground(model: MjModel) -> dict[str, float] | None:
    """The horizontal plane that things stand on: "height" [m] and "friction"; None where nothing can be touched.

    Raises:
        ValueError: something else that can be touched is fixed to the world.
    """
    found, touched = None, _find_colliding(model)
    for geom in range(model.ngeom):
        if model.body_weldid[model.geom_bodyid[geom]] != 0 or not touched[geom]:
            continue
        level = np.allclose(model.geom_quat[geom], (1.0, 0.0, 0.0, 0.0))
        if model.geom_type[geom] != _PLANE or not level or found is not None:
            raise ValueError(
                f"geom {_name(model, 'geom', geom)} is fixed to the world; the Isaac Gym engine has one horizontal "
                "plane and nothing else that stands still. Use engine=mujoco or engine=warp"
            )
        found = {"height": float(model.geom_pos[geom][2]), "friction": float(model.geom_friction[geom][0])}
        for pair in range(model.npair):  # a pair has a friction of its own
            if geom in (model.pair_geom1[pair], model.pair_geom2[pair]):
                found["friction"] = float(model.pair_friction[pair][0])
    return found


def actors(model: MjModel) -> list[Actor]:
    """The trees of a model, in the order of their root bodies; mocap and other bodies that nothing moves are left out.

    Raises:
        ValueError: ball joints, tendons, equality constraints, sensors, actuators of an unknown kind, or meshes that
            can be touched.
    """
    for count, what in ((model.ntendon, "tendons"), (model.neq, "equality constraints"), (model.nsensor, "sensors")):
        if count:
            raise ValueError(f"the model has {what}, which the Isaac Gym engine does not know; use another engine")
    drives = _drives(model)
    found = []
    for root in range(1, model.nbody):
        if model.body_parentid[root] != 0:
            continue
        bodies = [body for body in range(1, model.nbody) if model.body_rootid[body] == root]
        joints = [j for body in bodies for j in _joints_of(model, body)]
        if not joints:
            continue
        free = int(model.jnt_type[joints[0]]) == _FREE
        actor = Actor(
            name=_name(model, "body", root),
            xml=_write(model, root, free),
            free=free,
            gravity=not all(model.body_gravcomp[body] == 1.0 for body in bodies if model.body_weldid[body] != 0),
        )
        for joint in joints:
            position, velocity = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
            kind = int(model.jnt_type[joint])
            if kind == _FREE:
                actor.qpos, actor.qvel = position, velocity
            elif kind in (_HINGE, _SLIDE):
                name = _name(model, "joint", joint)
                actor.joints[name] = (position, velocity)
                actor.drives.append(drives[joint])
            else:
                raise ValueError(f"joint {_name(model, 'joint', joint)} is a ball joint, expected hinge, slide or free")
        found.append(actor)
    return found


def _drives(model: MjModel) -> dict[int, Drive]:
    drives = {}
    for joint, dof in enumerate(model.jnt_dofadr.tolist()):
        drives[joint] = Drive(
            joint=_name(model, "joint", joint),
            damping=float(model.dof_damping[dof]),
            armature=float(model.dof_armature[dof]),
            friction=float(model.dof_frictionloss[dof]),
        )
    for index in range(model.nu):
        name = _name(model, "actuator", index)
        joint = int(model.actuator_trnid[index][0])
        simple = int(model.actuator_trntype[index]) == 0 and int(model.actuator_gaintype[index]) == 0
        if not simple or int(model.actuator_dyntype[index]) != 0 or drives[joint].actuator >= 0:
            raise ValueError(
                f"actuator {name} is of a kind that the Isaac Gym engine does not know, expected at most one motor, "
                "position or velocity servo without dynamics per joint"
            )
        drive, gain, bias = drives[joint], float(model.actuator_gainprm[index][0]), model.actuator_biasprm[index]
        gear = float(model.actuator_gear[index][0])
        drive.actuator = index
        if model.actuator_ctrllimited[index]:
            drive.low, drive.high = (float(x) for x in model.actuator_ctrlrange[index])
        if model.actuator_forcelimited[index]:
            drive.effort = float(abs(model.actuator_forcerange[index]).max()) * abs(gear)
        if int(model.actuator_biastype[index]) == 0:
            drive.mode, drive.gear = "effort", gain * gear
        elif bias[1] != 0.0:
            drive.mode, drive.gear = "position", gain / -float(bias[1]) / gear
            drive.stiffness = -float(bias[1]) * gear**2
            drive.damping += -float(bias[2]) * gear**2
        else:
            drive.mode, drive.gear = "velocity", gain / -float(bias[2]) / gear
            drive.damping += -float(bias[2]) * gear**2
    return drives


def _write(model: MjModel, root: int, free: bool) -> str:
    top = ElementTree.Element("mujoco", model=_name(model, "body", root))
    ElementTree.SubElement(top, "compiler", angle="radian", inertiafromgeom="false", autolimits="true")
    world = ElementTree.SubElement(top, "worldbody")
    parent = world
    if not free:  # something to hold on to: the importer fixes the first body
        parent = ElementTree.SubElement(world, "body", name=_BASE, pos="0 0 0")
        ElementTree.SubElement(parent, "inertial", pos="0 0 0", mass="1", diaginertia="0.01 0.01 0.01")
    _body(model, root, parent)
    return ElementTree.tostring(top, encoding="unicode")


def _body(model: MjModel, body: int, parent: ElementTree.Element) -> None:
    name = _name(model, "body", body)
    node = ElementTree.SubElement(
        parent, "body", name=name, pos=_words(model.body_pos[body]), quat=_words(model.body_quat[body])
    )
    # the importer wants a mass: bodies that only carry frames get next to none
    mass = max(float(model.body_mass[body]), 1e-6)
    inertia = np.maximum(model.body_inertia[body], 1e-9)
    ElementTree.SubElement(
        node,
        "inertial",
        pos=_words(model.body_ipos[body]),
        quat=_words(model.body_iquat[body]),
        mass=_words([mass]),
        diaginertia=_words(inertia),
    )
    for joint in _joints_of(model, body):
        _joint(model, joint, node)
    touched = _find_colliding(model)
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom] != body or not touched[geom]:
            continue
        shape = _SHAPES.get(int(model.geom_type[geom]))
        if shape is None:
            raise ValueError(f"geom {_name(model, 'geom', geom)} can be touched and is a mesh; use primitives")
        ElementTree.SubElement(
            node,
            "geom",
            type=shape,
            size=_words(model.geom_size[geom][: _SIZES[shape]]),
            pos=_words(model.geom_pos[geom]),
            quat=_words(model.geom_quat[geom]),
            friction=_words(model.geom_friction[geom]),
            contype=str(int(model.geom_contype[geom]) or 1),
            conaffinity=str(int(model.geom_conaffinity[geom])),
        )
    for child in range(body + 1, model.nbody):
        if model.body_parentid[child] == body:
            _body(model, child, node)


def _joint(model: MjModel, joint: int, node: ElementTree.Element) -> None:
    if int(model.jnt_type[joint]) == _FREE:
        ElementTree.SubElement(node, "freejoint", name=_name(model, "joint", joint))
        return
    dof = int(model.jnt_dofadr[joint])
    wanted = {
        "name": _name(model, "joint", joint),
        "type": "hinge" if int(model.jnt_type[joint]) == _HINGE else "slide",
        "axis": _words(model.jnt_axis[joint]),
        "pos": _words(model.jnt_pos[joint]),
        "damping": _words([model.dof_damping[dof]]),
        "armature": _words([model.dof_armature[dof]]),
        "frictionloss": _words([model.dof_frictionloss[dof]]),
        "stiffness": _words([model.jnt_stiffness[joint]]),
    }
    if model.jnt_limited[joint]:
        wanted["range"] = _words(model.jnt_range[joint])
    ElementTree.SubElement(node, "joint", wanted)


def _find_colliding(model: MjModel) -> np.ndarray:
    """(ngeom,) bool: geoms that can collide, by their bits or by a pair that names them."""
    touched = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    touched[model.pair_geom1], touched[model.pair_geom2] = True, True
    return touched


def _joints_of(model: MjModel, body: int) -> range:
    first = int(model.body_jntadr[body])
    return range(first, first + int(model.body_jntnum[body])) if first >= 0 else range(0)


def _name(model: MjModel, kind: str, index: int) -> str:
    mujoco = require("mujoco")
    return mujoco.mj_id2name(model, mujoco.mju_str2Type(kind), index) or f"{kind}_{index}"


def _words(values: object) -> str:
    return " ".join(f"{float(value):.9g}" for value in np.asarray(values).ravel())
