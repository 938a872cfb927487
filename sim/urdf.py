"""A URDF as MuJoCo can read it: its meshes found, and what its maker left wrong put right, each in a sentence."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from robot_rl.sim import mesh_files

_MASS, _INERTIA = "0.001", "1e-6"
"""Of a link that moves and has no mass of its own [kg, kg m2]: finger tips, links between two axes."""
_FLAT = 1e-3
"""Smallest moment of inertia that a repaired body has, as a part of its largest."""
_BALL = 0.05
"""Radius of the ball whose inertia a link has of which the file says a mass alone [m]."""
LIMITS = {
    **{name: name for name in ("velocity", "effort", "acceleration", "jerk")},
    "deceleration": "stop_acceleration",
}
"""Attributes of <limit>, the last three of URDF 1.2 or of Drake -> field of a card."""


@dataclass
class Urdf:
    """What was read.

    Attributes:
        root: the XML, changed in place.
        notes: what was left out or put right, one sentence each.
        meshes: name of a mesh in the XML -> its file.
        absent: shapes that were left out, since their mesh is not there or not read.
        bare: links that had shapes and have none left.
        limits: joint -> what `LIMITS` says of it, as far as the file does, by the names of a card.
        mimic: joints that follow another one.
        endless: joints of a limited kind whose limits the file does not say.
    """

    root: ElementTree.Element
    notes: list[str] = field(default_factory=list)
    meshes: dict[str, Path] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    limits: dict[str, dict[str, float]] = field(default_factory=dict)
    mimic: set[str] = field(default_factory=set)
    endless: list[str] = field(default_factory=list)


def prepare(path: Path, root: ElementTree.Element) -> Urdf:
    """Make a URDF ready for MuJoCo.

    Args:
        path: of the file, from which its meshes are looked for.
        root: `<robot>`; changed in place.

    Raises:
        ValueError: a joint that names a link which the file does not have; a number that is none.
    """
    made = Urdf(root)
    _leave_extensions(root)
    links = {link.get("name", "") for link in root.findall("link")}
    for joint in root.findall("joint"):
        _read_joint(made, joint, links)
    if made.endless:
        made.notes.append(
            f"no limits of {', '.join(made.endless[:4])}{' …' if made.endless[4:] else ''} in the file, so they are "
            "continuous; write lower and upper into the card where the robot has stops"
        )
    compiler = root.find("mujoco/compiler")
    folder = None if compiler is None else compiler.get("meshdir")
    for link in root.findall("link"):
        _find_meshes(made, link, path, folder)
    _mend_inertias(made)
    old = root.find("mujoco")
    if old is not None:
        root.remove(old)
    options = {"strippath": "false", "discardvisual": "false", "fusestatic": "false", "balanceinertia": "true"}
    ElementTree.SubElement(ElementTree.SubElement(root, "mujoco"), "compiler", options)
    return made


def find_mesh(name: str, model: Path, meshdir: str | None = None) -> Path | None:
    """The file that a URDF means by a name: beside it, as `package://` below one of its folders, on ROS's paths, in the
    folder that its element <mujoco> names for MuJoCo, or, of a whole path on somebody else's machine, the end of it."""
    kind, _, rest = name.partition("://")
    package, _, rest = rest.partition("/")
    own = [] if meshdir is None else [model.parent / meshdir / name, model.parent / meshdir / Path(name).name]
    above = [model.parent, *model.parents[1:5]]
    if kind not in ("package", "model"):
        whole = Path(name.removeprefix("file://"))
        ends = [Path(*whole.parts[k:]) for k in range(1, len(whole.parts) - 1)] if whole.is_absolute() else []
        places = [model.parent / whole, *own, *(folder / end for end in ends for folder in above)]
        return next((place.resolve() for place in places if place.is_file()), None)
    places = own + [folder / part for folder in above for part in (f"{package}/{rest}", rest)]
    places += [Path(p) / package / rest for p in os.environ.get("ROS_PACKAGE_PATH", "").split(os.pathsep) if p]
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    places += [Path(p) / "share" / package / rest for p in prefixes if p]
    return next((place.resolve() for place in places if place.is_file()), None)


def _leave_extensions(root: ElementTree.Element) -> None:
    """Take out what other programs have written for themselves (`drake:…`), but for limits, which mean the same."""
    for element in root.iter():
        for child in [child for child in element if child.tag.startswith("{")]:
            element.remove(child)
        for key in [key for key in element.attrib if key.startswith("{")]:
            value, name = element.attrib.pop(key), key.rpartition("}")[2]
            if element.tag == "limit" and name in LIMITS:
                element.attrib.setdefault(name, value)


def _read_joint(made: Urdf, joint: ElementTree.Element, links: set[str]) -> None:
    name, limit = joint.get("name", ""), joint.find("limit")
    for side in ("parent", "child"):
        element = joint.find(side)
        link = "" if element is None else element.get("link", "")
        if link not in links:
            raise ValueError(f"joint {name} has the {side} link '{link}', which the file does not have")
    if name in made.limits:
        raise ValueError(f"two joints are called '{name}', expected names of their own")
    if joint.get("type") in ("revolute", "prismatic"):
        low, high = (0.0 if limit is None else float(limit.get(side, 0.0)) for side in ("lower", "upper"))
        if low > high or low == high != 0.0:  # 0 and 0 is how files say that they do not know
            raise ValueError(f"joint {name} goes from {low:g} to {high:g}, expected lower below upper, or type fixed")
        if low == high:  # MuJoCo takes it for one without limits
            made.endless.append(name)
    values = {own: float(limit.get(key, 0.0)) for key, own in LIMITS.items()} if limit is not None else {}
    made.limits[name] = {key: value for key, value in values.items() if 0.0 < value < math.inf}
    if joint.find("mimic") is not None:
        made.mimic.add(name)


def _find_meshes(made: Urdf, link: ElementTree.Element, path: Path, folder: str | None) -> None:
    shapes = [(kind, shape) for kind in ("visual", "collision") for shape in link.findall(kind)]
    for kind, shape in shapes:
        shape.attrib.pop("name", None)  # makers repeat these names, and MuJoCo warns of each
        mesh, solid = shape.find("geometry/mesh"), _empty_solid(shape)
        if solid:
            link.remove(shape)
            made.absent.append(f"{kind} {solid} of size 0")
        if mesh is None:
            continue
        name = mesh.get("filename", "")
        found = find_mesh(name, path, folder)
        if found is None or not mesh_files.is_readable(found):
            link.remove(shape)
            made.absent.append(f"{kind} {name.rpartition('/')[2]}")
            continue
        # A name of its own: MuJoCo takes two files of one base name for one mesh.
        short = f"{hashlib.sha256(str(found).encode()).hexdigest()[:8]}_{found.name}"
        made.meshes[short] = found
        mesh.set("filename", short)
    if shapes and not (link.findall("visual") or link.findall("collision")):
        made.bare.append(link.get("name", ""))


def _empty_solid(shape: ElementTree.Element) -> str:
    """Kind of a sphere, box or cylinder of which one side is 0, or ""."""
    for kind, keys in (("sphere", ("radius",)), ("box", ("size",)), ("cylinder", ("radius", "length"))):
        solid = shape.find(f"geometry/{kind}")
        if solid is not None and not all(float(side) for key in keys for side in solid.get(key, "0").split()):
            return kind
    return ""


def _mend_inertias(made: Urdf) -> None:
    """Give masses to links that move without one, and turn inertias that no body can have into the nearest that one
    can: both are common where a file is meant for kinematics only, and MuJoCo refuses either."""
    moved = {
        child.get("link") for joint in made.root.findall("joint") if joint.get("type") != "fixed"
        for child in joint.findall("child")
    }  # fmt: skip
    light, wrong, plain, twice = [], [], [], []
    for link in made.root.findall("link"):
        name, inertial = link.get("name", ""), link.find("inertial")
        for other in link.findall("inertial")[1:]:
            link.remove(other)
            twice.append(name)
        mass, inertia = (None if inertial is None else inertial.find(kind) for kind in ("mass", "inertia"))
        value = float(mass.get("value", 0.0)) if mass is not None else 0.0
        if value <= 0.0 and (inertial is not None or not link.findall("collision")):  # what is seen weighs nothing
            if inertial is not None:
                link.remove(inertial)
            if name in moved:
                light.append(name)
                new = ElementTree.SubElement(link, "inertial")
                ElementTree.SubElement(new, "mass", value=_MASS)
                _add_inertia(new, _INERTIA)
        elif inertial is not None and inertia is None:
            plain.append(name)
            _add_inertia(inertial, repr(0.4 * value * _BALL**2))
        elif inertia is not None and _mend(inertia):
            wrong.append(name)
    told = (
        (light, f"moves and has no mass; {1000 * float(_MASS):g} g are put in"),
        (twice, "more than one <inertial>; the first counts, as in ROS"),
        (plain, f"a mass and no inertia; that of a ball of {1000 * _BALL:g} mm is put in"),
        (wrong, "the inertia is none that a body can have; the nearest one is taken"),
    )
    made.notes += [f"{_few(names)}: {text}" for names, text in told if names]


def _add_inertia(inertial: ElementTree.Element, moment: str) -> None:
    """One that is the same about every axis."""
    about = {f"i{axis}{axis}": moment for axis in "xyz"}
    ElementTree.SubElement(inertial, "inertia", {**about, "ixy": "0", "ixz": "0", "iyz": "0"})


def _mend(inertia: ElementTree.Element) -> bool:
    """Replace a matrix that is not positive definite by the nearest that is; whether it was."""
    pairs = [(a, b) for a in range(3) for b in range(a, 3)]
    matrix = np.zeros((3, 3))
    for a, b in pairs:
        matrix[a, b] = matrix[b, a] = float(inertia.get(f"i{'xyz'[a]}{'xyz'[b]}", 0.0))
    values, axes = np.linalg.eigh(matrix)
    wrong = bool(values[0] <= max(1e-9 * values[-1], 1e-12))  # the second is about MuJoCo's own bound
    if wrong:
        matrix = (axes * np.maximum(values, _FLAT * max(values[-1], float(_INERTIA)))) @ axes.T
    for a, b in pairs:  # all six: MuJoCo takes none that is left out for zero
        inertia.set(f"i{'xyz'[a]}{'xyz'[b]}", repr(float(matrix[a, b])))
    return wrong


def _few(names: list[str], most: int = 3) -> str:
    noun = "link" if len(names) == 1 else f"{len(names)} links:"
    return f"{noun} {', '.join(names[:most])}" + (f" and {len(names) - most} more" if len(names) > most else "")
