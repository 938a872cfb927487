"""A robot's model from the file of its maker: URDF or MJCF, meshes from anywhere, some of them perhaps absent."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from robot_rl.extras import find_fault, remedy, require_foreign
from robot_rl.sim import mesh_files, robot_shapes, urdf
from robot_rl.sim.headless import load_mujoco
from robot_rl.sim.model_text import read_xml
from robot_rl.types.card import DEFAULTS, OPEN, JointCard, simulated_effort

if TYPE_CHECKING:
    from mujoco import MjData, MjModel, MjsElement, MjSpec

mujoco = load_mujoco()

SCALAR = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
"""Types of joints that have one number."""
FLOOR = "robot_rl_floor"
"""Body of the floor that `add_floor` puts in."""
_PLAIN = (
    (
        *("type", "size", "pos", "quat", "contype", "conaffinity", "condim", "friction", "priority", "margin", "gap"),
        *("solref", "solimp", "solmix", "density", "group", "rgba", "material"),
    ),
    ("scale", "refpos", "refquat"),
    ("pos", "quat"),
    ("gear", "armature", "damping", "delay", "nsample"),
)
"""Of geoms, meshes, sites, actuators: what ours have as MuJoCo has it, and not as the classes of a file do."""


@dataclass
class RobotModel:
    """A model that was read.

    Attributes:
        spec: MuJoCo's editable form; every file in it has its whole path.
        notes: what was left out or put in, one sentence each.
        limits: joint -> {"velocity": …, "effort": …} as a URDF states them; MJCF has no velocity.
        mimic: joints of a URDF that follow another one.
    """

    spec: MjSpec
    notes: list[str] = field(default_factory=list)
    limits: dict[str, dict[str, float]] = field(default_factory=dict)
    mimic: set[str] = field(default_factory=set)


def load(path: str | Path, *, legs: bool = False, hand: str = "") -> RobotModel:
    """Read URDF or MJCF.

    Meshes are found where the file says, or below its folder or one of that folder's parents (`package://` paths as
    drivers publish them, also in ROS_PACKAGE_PATH and AMENT_PREFIX_PATH). Visual meshes that are absent, or of a form
    that MuJoCo does not read, are left out; a link without any shape then gets capsules along its bones. Meshes are
    looked at and weighed; what touches is a capsule fitted to each, which costs a tenth of a mesh's time.

    Args:
        path: of the file.
        legs: of a robot that stands on some. The last link of each limb touches with the convex hull of its meshes: a
            capsule along a sole is a line. And its links touch nothing of the robot itself: where capsules stick out of
            the links that they stand for, they would hold hips that are free.
        hand: a joint, beyond which fingers grasp. Links that it moves touch with the convex hulls of their meshes: what
            capsules around fingers hold turns between them, and slips.

    Raises:
        ValueError: there is no such file, or MuJoCo cannot read it; says why.
    """
    path = Path(path).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"there is no model {path}; give the path of a URDF or MJCF file")
    root, made = read_xml(path), None
    try:
        if root.tag in ("robot", "mujoco") and not any("xacro" in _space(part) for part in root.iter()):
            made = _urdf(path, root) if root.tag == "robot" else _mjcf(path)
            made.spec.compiler.fusestatic = False  # bodies are found by their names
            for i, body in enumerate(made.spec.bodies):
                body.name = body.name or f"body_{i}"  # what is put on a body is put there by its name
            robot_shapes.fit_capsules(made.spec, soles=legs, hand=hand)
            if legs:
                robot_shapes.miss_one_another(made.spec)
            model, notes = robot_shapes.weigh_flat_meshes(made.spec)
            made.notes += notes + robot_shapes.mend_large_inertias(made.spec, model)
            return made
    except (ValueError, RuntimeError) as error:
        told = "".join(f"; {note}" for note in ([] if made is None else made.notes))
        raise ValueError(f"MuJoCo cannot read {path}: {' '.join(str(error).split())}{told}") from error
    if root.tag == "robot" or path.suffix == ".xacro":
        raise ValueError(
            f"{path} is a xacro, of which a URDF is made first: xacro {path.name} > robot.urdf (without a ROS: "
            f"pip install xacrodoc; xacrodoc -d <folder of its packages> {path.name} -o robot.urdf)"
        )
    raise ValueError(f"{path} begins with <{root.tag}>, expected <robot> (URDF) or <mujoco> (MJCF)")


def find(name: str) -> str:
    """The model's file that a name means: a path, or `menagerie:<robot>` of the package mujoco-menagerie.

    Raises:
        ValueError: that package is absent, or has no such robot, or cannot fetch it.
    """
    kind, colon, robot = name.partition(":")
    if not colon or kind != "menagerie":
        return name
    try:
        menagerie = require_foreign("mujoco_menagerie", "It fetches models: pip install mujoco-menagerie")
    except ImportError as error:
        raise ValueError(f"{name} cannot be fetched: {error}") from error
    try:
        entry = menagerie.get(robot)
        return str(entry.xml(entry.default_model))
    except (menagerie.MenagerieError, OSError) as error:
        raise ValueError(f"{name} cannot be fetched: {error}") from error


def hold_others(spec: MjSpec, names: set[str]) -> None:
    """Hold every hinge and slide but those of some names where the model has it: no policy moves it."""
    for item in list(spec.equalities):  # of fingers that follow one another, say
        if item.type == mujoco.mjtEq.mjEQ_JOINT and not {item.name1, item.name2} <= {"", *names}:
            spec.delete(item)
    for tendon in list(spec.tendons):
        if any(part.type == mujoco.mjtWrap.mjWRAP_JOINT and part.target.name not in names for part in tendon.path):
            spec.delete(tendon)
    for joint in list(spec.joints):
        if joint.type != mujoco.mjtJoint.mjJNT_FREE and joint.name not in names:
            spec.delete(joint)


def hold_base(spec: MjSpec, model: MjModel, joints: Iterable[int]) -> MjModel:
    """Take out joints of a base, which then stands still, with what drives, measures or remembers them.

    Args:
        spec: changed.
        model: what it compiles to.
        joints: hinges and slides of it.

    Returns:
        What it compiles to now.
    """
    names = {model.joint(j).name for j in joints}
    for item in [*(a for a in spec.actuators if a.target in names), *(s for s in spec.sensors if s.objname in names)]:
        spec.delete(item)
    for key in spec.keys:
        key.qpos = np.delete(key.qpos, [int(model.jnt_qposadr[j]) for j in joints]) if len(key.qpos) else key.qpos
        key.qvel = key.ctrl = key.act = []
    hold_others(spec, {model.joint(j).name for j in range(model.njnt)} - names)
    return spec.compile()


def joints_to(model: MjModel, body: int) -> list[int]:
    """Hinges and slides between the world and a body, from the world."""
    found: list[int] = []
    while body > 0:
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        found = [j for j in range(first, first + count) if int(model.jnt_type[j]) in SCALAR] + found
        body = int(model.body_parentid[body])
    return found


def driven_joints(model: MjModel) -> set[int]:
    """Joints that an actuator of the file moves, itself or by a tendon."""
    kind = int(mujoco.mjtTrn.mjTRN_JOINT)
    own = {int(model.actuator_trnid[i, 0]) for i in range(model.nu) if int(model.actuator_trntype[i]) == kind}
    return own.union(*joints_of_tendons(model))


def actuators_of(model: MjModel, joint: int) -> list[int]:
    """Actuators that move a joint itself."""
    at_joint = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)
    return np.flatnonzero(at_joint & (model.actuator_trnid[:, 0] == joint)).tolist()


def joints_of_tendons(model: MjModel) -> list[set[int]]:
    """Joints of every tendon that an actuator pulls."""
    found, joint = [], int(mujoco.mjtWrap.mjWRAP_JOINT)
    for i in range(model.nu):
        if int(model.actuator_trntype[i]) == int(mujoco.mjtTrn.mjTRN_TENDON):
            first = int(model.tendon_adr[model.actuator_trnid[i, 0]])
            parts = range(first, first + int(model.tendon_num[model.actuator_trnid[i, 0]]))
            found.append({int(model.wrap_objid[k]) for k in parts if int(model.wrap_type[k]) == joint})
    return found


def end_link(model: MjModel, body: int) -> int:
    """The link that hangs from a body by the most joints."""
    found = {body: 0}
    for child in range(body + 1, model.nbody):  # parents come first
        above = int(model.body_parentid[child])
        if above in found:
            found[child] = found[above] + int(model.body_jntnum[child])
    return max(found, key=lambda link: found[link])


def floor_gaps(model: MjModel, data: MjData) -> dict[int, float]:
    """Distance of every shape that touches and moves from the floor [m]."""
    floor = int(model.body_geomadr[model.body(FLOOR).id])
    own = np.flatnonzero(model.geom_contype * model.body_weldid[model.geom_bodyid]).tolist()
    return {g: float(mujoco.mj_geomDistance(model, data, g, floor, 10.0, None)) for g in own}


def strip(spec: MjSpec, *kinds: Iterable[MjsElement]) -> None:
    """Delete all elements of some kinds, such as `spec.actuators`."""
    for items in kinds:
        for item in list(items):
            spec.delete(item)


def add_servo(
    spec: MjSpec, robot: str, joint: str, gains: tuple[float, float], effort: float | str, usual: float | None = None
) -> MjsElement:
    """A position servo of a joint.

    Args:
        spec: of the model; changed.
        robot: its name.
        joint: name of the joint.
        gains: (kp, kd).
        effort: largest torque or force; `?`: `usual`, or what overcomes the joint's friction.
        usual: None for `DEFAULTS`.

    Returns:
        The joint.

    Raises:
        ValueError: the model of `robot` has no such joint.
    """
    found = spec.joint(joint)
    if found is None:
        raise ValueError(f"the model of {robot} has no joint '{joint}', which its card lists")
    servo = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    servo.set_to_position(kp=gains[0], kv=gains[1])
    overcome = 3.0 * found.frictionloss if found.frictionloss >= DEFAULTS["effort"] else 0.0
    most = max(usual or DEFAULTS["effort"], overcome) if effort == OPEN else float(effort)
    servo.ctrllimited = mujoco.mjtLimited.mjLIMITED_FALSE  # whatever the file's default class says
    servo.forcelimited, servo.forcerange = mujoco.mjtLimited.mjLIMITED_TRUE, [-most, most]
    return found


def add_joint(spec: MjSpec, robot: str, joint: JointCard) -> None:
    """Limits, servo and rotor of a joint as its card states them.

    Raises:
        ValueError: the model of `robot` has no such joint.
    """
    found = add_servo(
        spec, robot, joint.name, (joint.kp, joint.kd), joint.effort, simulated_effort(joint.effort, joint.kp)
    )
    degrees = found.type == mujoco.mjtJoint.mjJNT_HINGE and found.compiler.degree  # as its file counts
    unit = math.degrees(1.0) if degrees else 1.0
    found.range = [unit * (joint.lower or 0.0), unit * (joint.upper or 0.0)]
    found.limited = mujoco.mjtLimited.mjLIMITED_FALSE if joint.continuous else mujoco.mjtLimited.mjLIMITED_TRUE
    found.armature = joint.armature or found.armature


def calm_springs(spec: MjSpec) -> None:
    """Give joints armature whose springs would swing faster than steps of `spec.option.timestep` can follow, and
    damping to tendons that would swing on.

    A spring of stiffness k needs an inertia of k dt^2; links of fingers that a tendon ties have less.
    """
    model = spec.compile()
    data, mass = mujoco.MjData(model), np.zeros((model.nv, model.nv))
    mujoco.mj_forward(model, data)
    mujoco.mj_fullM(model, data, mass)
    stiffness = np.zeros(model.nv)
    for joint in range(model.njnt):
        stiffness[model.jnt_dofadr[joint]] += model.jnt_stiffness[joint]
    for tendon in range(model.ntendon):
        first = int(model.tendon_adr[tendon])
        for part in range(first, first + int(model.tendon_num[tendon])):
            if int(model.wrap_type[part]) == int(mujoco.mjtWrap.mjWRAP_JOINT):
                dof = model.jnt_dofadr[model.wrap_objid[part]]
                stiffness[dof] += model.tendon_stiffness[tendon] * model.wrap_prm[part] ** 2
    lack = stiffness * model.opt.timestep**2 - np.diag(mass)
    for joint in spec.joints:
        dof = int(model.jnt_dofadr[joint.id])
        if int(model.jnt_type[joint.id]) in SCALAR and stiffness[dof] and lack[dof] > 0.0:
            joint.armature += float(lack[dof])
    for tendon in spec.tendons:
        stiff = float(model.tendon_stiffness[tendon.id])
        if stiff and not np.any(tendon.damping):
            tendon.damping = [stiff * model.opt.timestep, 0.0, 0.0]  # half of critical at an inertia of k dt^2


def add_floor(spec: MjSpec) -> None:
    """A plane at height 0, on a body of its own: what touches the robot's base does not speak for the floor."""
    ground = spec.worldbody.add_body(name=FLOOR)
    ground.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[3.0, 3.0, 0.1], rgba=[0.87, 0.89, 0.91, 1.0])


def add_sky(spec: MjSpec) -> None:
    """A sky, light from the viewer, and room for pictures of 1280 x 960."""
    spec.add_texture(
        name="robot_rl_sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.86, 0.91, 0.96], rgb2=[0.45, 0.55, 0.68], width=128, height=768,
    )  # fmt: skip
    spec.visual.headlight.ambient = [0.35, 0.35, 0.35]
    view = getattr(spec.visual, "global")
    view.offwidth, view.offheight = 1280, 960


def digest(path: str | Path) -> str:
    """SHA-256 of a model and of every file that it names and that is there; "" where the model itself is not.

    Raises:
        ValueError: it is no XML.
    """
    path = Path(path)
    if not path.is_file():
        return ""
    total = hashlib.sha256()
    for file in [path, *sorted(set(_files(path)))]:
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _space(element: ElementTree.Element) -> str:
    """Of a tag `{space}name` the space, else ""."""
    return str(element.tag).rpartition("}")[0]


def _files(path: Path) -> Iterator[Path]:
    root = read_xml(path)
    compilers = [*root.findall("compiler"), *root.findall("mujoco/compiler")]  # of MJCF, of a URDF
    folders = ["", *(item.get(key, "") for item in compilers for key in ("assetdir", "meshdir", "texturedir"))]
    for element in root.iter():
        name = element.get("filename") or element.get("file")
        if not name:
            continue
        if element.tag in ("include", "model"):
            inner = path.parent / name
            if inner.is_file():
                yield inner
                yield from _files(inner)
            continue
        places = [path.parent / folder / part for folder in folders for part in (name, Path(name).name)]
        found = urdf.find_mesh(name, path) or next((file for file in places if file.is_file()), None)
        if found is not None:
            yield found


def _urdf(path: Path, root: ElementTree.Element) -> RobotModel:
    read = urdf.prepare(path, root)
    assets = {short: file.read_bytes() for short, file in read.meshes.items()}
    spec = mujoco.MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"), assets=assets)
    made = RobotModel(spec, read.notes, read.limits, read.mimic)
    for mesh in spec.meshes:
        file = read.meshes.get(mesh.file)
        if file is None:
            continue
        mesh.file = str(file)
        if (shape := mesh_files.triangles(file)) is not None:
            mesh.file, mesh.uservert, mesh.userface = "", shape[0].ravel(), shape[1].ravel()
    _say_absent(made, read.absent)
    for name in read.bare:
        body = spec.body(name)
        if body is None or not robot_shapes.add_bones(body):
            continue
        made.notes.append(f"link {name} has no shape that can be read: capsules along its bones stand for it")
    return made


def _mjcf(path: Path) -> RobotModel:
    spec, fresh = mujoco.MjSpec.from_file(str(path)), mujoco.MjSpec()
    made, own, plain = RobotModel(spec), spec.default, fresh.default
    spec.option.gravity, spec.option.disableflags = [0.0, 0.0, -9.81], 0  # tasks are on Earth, whatever a scene was for
    kinds = (own.geom, plain.geom), (own.mesh, plain.mesh), (own.site, plain.site), (own.actuator, plain.actuator)
    for (mine, theirs), names in zip(kinds, _PLAIN):  # the file's elements have taken theirs from its classes already
        for name in names:
            setattr(mine, name, getattr(theirs, name))
    robot_shapes.touch_by_pairs(spec)
    _leave_objects(made)
    low, high = spec.compiler.inertiagrouprange
    for geom in spec.geoms:
        if not low <= geom.group <= high:
            geom.mass = 0.0
    spec.compiler.inertiagrouprange = [0, 5]  # what tasks add weighs something, whatever its group
    absent = {
        what: [item for item in list(items) if not _locate(item, path.parent, spec.strippath, what)]
        for what, items in (
            ("meshes", spec.meshes),
            ("height fields", spec.hfields),
            ("skins", spec.skins),
            ("textures", spec.textures),
        )
    }
    spec.meshdir = spec.texturedir = ""
    spec.strippath = False
    spec.modelfiledir = ""
    for what, items in absent.items():
        _say_absent(made, [Path(item.file or "a cube's").name for item in items], what)
    names, heights, _, pictures = ({_name_of(item) for item in items} for items in absent.values())
    for material in spec.materials:
        material.textures = ["" if name in pictures else name for name in material.textures]
    bodies = []
    for geom in list(spec.geoms):
        if geom.meshname in names or geom.hfieldname in heights:
            bodies.append(geom.parent)
            spec.delete(geom)
        elif (
            geom.type == mujoco.mjtGeom.mjGEOM_MESH and geom.typeinertia == mujoco.mjtGeomInertia.mjINERTIA_SHELL
        ):  # as files of before MuJoCo 3.3 say it
            geom.typeinertia = mujoco.mjtGeomInertia.mjINERTIA_VOLUME
            spec.mesh(geom.meshname).inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    strip(spec, *absent.values())
    for body in bodies:
        if body.name != "world" and not list(body.geoms) and robot_shapes.add_bones(body):
            made.notes.append(f"body {body.name} has no shape that can be read: capsules along its bones stand for it")
    _drop_dangling(spec)
    return made


def _drop_dangling(spec: MjSpec) -> None:
    """Take out pairs and sensors of what is not in the file, such as the floor of a scene that includes it."""
    strip(spec, [pair for pair in spec.pairs if None in (spec.geom(pair.geomname1), spec.geom(pair.geomname2))])
    types = mujoco.mjtObj
    kinds = {types.mjOBJ_GEOM: spec.geom, types.mjOBJ_SITE: spec.site, types.mjOBJ_JOINT: spec.joint}
    kinds |= dict.fromkeys((types.mjOBJ_BODY, types.mjOBJ_XBODY), spec.body)
    for item in list(spec.sensors):
        watched = (item.objtype, item.objname), (item.reftype, item.refname)
        if any(name and kind in kinds and kinds[kind](name) is None for kind, name in watched):
            spec.delete(item)


def _leave_objects(made: RobotModel) -> None:
    """Take what is no robot out of a scene: bodies of the world that move freely and have no joint within, and those
    that a program moves (mocap), which pull a hand by a weld where simulations have no inverse kinematics."""
    spec, free, joints = made.spec, mujoco.mjtJoint.mjJNT_FREE, list(made.spec.joints)
    loose = [joint.parent for joint in joints if joint.type == free]
    loose = [body for body in loose if len([j for j in joints if j.parent in (body, *body.find_all("body"))]) == 1]
    if len(loose) == len(joints):
        loose = []
    if loose:
        strip(spec, spec.keys)  # they place the objects, too
    for key in spec.keys:
        key.mpos = key.mquat = []
    loose += [body for body in spec.bodies if body.mocap]
    if not loose:
        return
    made.notes.append(f"objects of the scene are left out: {', '.join(body.name or '?' for body in loose)}")
    names = {part.name for body in loose for part in (body, *body.find_all("body"))} - {""}
    watching = [item for item in (*spec.lights, *spec.cameras) if item.targetbody in names]
    strip(spec, watching, loose)


def _locate(item: MjsElement, folder: Path, strip_path: bool, what: str) -> bool:
    """Give the files of a mesh, texture … their whole paths; whether they are there."""
    compiler, textures = item.compiler, what == "textures"  # of a model that another one attaches: its own
    folder, files = folder / (compiler.texturedir if textures else compiler.meshdir), []

    def whole(name: str) -> str:
        files.append((folder / (Path(name).name if strip_path else name)).resolve())
        return str(files[-1])

    if item.file:
        item.file = whole(item.file)
    for side, name in enumerate(item.cubefiles if textures else ()):
        if name:
            item.cubefiles[side] = whole(name)
    return all(file.is_file() for file in files)


def _name_of(item: MjsElement) -> str:
    """Name of a mesh or texture, which is that of its file where none is given."""
    return item.name or Path(item.file).stem


def _say_absent(made: RobotModel, absent: list[str], what: str = "meshes") -> None:
    if absent:
        few = ", ".join(dict.fromkeys(absent[:4])) + (f" and {len(absent) - 4} more" if len(absent) > 4 else "")
        made.notes.append(f"{len(absent)} {what} are absent or of a form that is not read, and left out: {few}")
        if find_fault("collada") and any(name.lower().endswith(".dae") for name in absent):
            made.notes.append(f"files that end in .dae are read after: {remedy('collada')}")
