"""What touches of a robot's model: capsules in place of meshes, soles, fingers, links whose shapes are absent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.headless import load_mujoco

if TYPE_CHECKING:
    from mujoco import MjModel, MjsElement, MjSpec

mujoco = load_mujoco()

_HEAVY, _FAR = 1.0, 5.0
"""An inertia above the first [kg m2] is doubted whose masses would lie so many times beyond the link's reach."""
_BONE = 0.03
"""Radius of the capsule that stands for a link whose shapes are all absent [m]."""
_LIMB = 2
"""Joints that a limb has at least, the free one of a trunk counted."""


def fit_capsules(spec: MjSpec, *, soles: bool, hand: str) -> None:
    """Give meshes that touch a capsule of their size to touch in their place, but not those of last links (`soles`) nor
    of the links that the joint `hand` moves, where what is drawn touches if nothing else does."""
    moved = _moved_by(spec, hand)
    drawn = [geom for geom in spec.geoms if geom.parent.name in moved]
    if not any(geom.contype or geom.conaffinity for geom in drawn):
        for geom in drawn:
            geom.contype = geom.conaffinity = 1
    for geom in list(spec.geoms):
        if geom.type != mujoco.mjtGeom.mjGEOM_MESH or not (geom.contype or geom.conaffinity):
            continue
        if geom.parent.name in moved or (soles and _ends_a_limb(geom.parent)):
            continue
        proxy = geom.parent.add_geom()
        proxy.type, proxy.meshname = mujoco.mjtGeom.mjGEOM_CAPSULE, geom.meshname
        proxy.pos, proxy.quat, proxy.alt = geom.pos, geom.quat, geom.alt
        proxy.contype, proxy.conaffinity, proxy.friction = geom.contype, geom.conaffinity, geom.friction
        proxy.mass, proxy.group, proxy.rgba = 0.0, 4, [0.2, 0.5, 0.9, 0.4]
        geom.contype = geom.conaffinity = 0


def _moved_by(spec: MjSpec, joint: str) -> set[str]:
    """Names of the bodies that a joint moves."""
    found = spec.joint(joint) if joint else None
    return set() if found is None else {found.parent.name, *(body.name for body in found.parent.find_all("body"))}


def _ends_a_limb(body: MjsElement) -> bool:
    """Whether two joints or more carry a body, and none moves on it."""
    below, above = list(body.bodies), 0
    while below:
        part = below.pop()
        if list(part.joints):
            return False
        below.extend(part.bodies)
    while body.name != "world":
        above += len(list(body.joints))
        body = body.parent
    return above >= _LIMB


def miss_one_another(spec: MjSpec) -> None:
    """Let the shapes of a model touch others, such as a floor, and not one another."""
    for geom in spec.geoms:
        if geom.contype or geom.conaffinity:
            geom.contype, geom.conaffinity = 1, 0


def touch_by_pairs(spec: MjSpec) -> None:
    """Let shapes touch that a file lets touch its floor or a loose object by a `<pair>` alone: those stay behind."""
    for pair in spec.pairs:
        ends = spec.geom(pair.geomname1), spec.geom(pair.geomname2)
        known = [geom for geom in ends if geom is not None]
        if len(known) == 2 and _root(known[0].parent) == _root(known[1].parent):
            continue
        for geom in known:
            if not (geom.contype or geom.conaffinity):
                geom.contype = geom.conaffinity = 1


def _root(body: MjsElement) -> str:
    """Name of the body of the world that carries a body; that of the world itself."""
    name = body.name
    while body.name != "world":
        name, body = body.name, body.parent
    return name


def weigh_flat_meshes(spec: MjSpec) -> tuple[MjModel, list[str]]:
    """Take meshes without a volume, such as sheets and open shells, by their surface: MuJoCo refuses them otherwise.

    Returns:
        The compiled model, and a sentence that names them, if there are any.
    """
    flat: list[str] = []
    while True:
        try:
            model = spec.compile()
            break
        except ValueError as error:
            found = re.search(r"mesh volume is too small: (\S+)", str(error))
            mesh = spec.mesh(found[1]) if found is not None else None
            if mesh is None or mesh.name in flat:
                raise
            flat.append(mesh.name)
            mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    many = f"{len(flat)} meshes enclose no volume and are weighed by their surface: {', '.join(flat[:4])}"
    return model, [many] if flat else []


def mend_large_inertias(spec: MjSpec, model: MjModel) -> list[str]:
    """Make the inertias smaller that no mass within the link's reach can have, as of a drawing in millimetres: a joint
    could not move them.

    Args:
        spec: changed where one is.
        model: what it compiles to.

    Returns:
        A sentence for each.
    """
    notes = []
    for body in spec.bodies[1:]:
        i = body.id
        largest, mass = float(model.body_inertia[i].max()), float(model.body_mass[i])
        own, below = model.geom_bodyid == i, (model.body_parentid == i) & (np.arange(model.nbody) > 0)
        ends = np.linalg.norm(model.geom_pos[own] - model.body_ipos[i], axis=1) + model.geom_rbound[own]
        ends = [*ends, *np.linalg.norm(model.body_pos[below] - model.body_ipos[i], axis=1)]
        if not mass or largest <= _HEAVY or not ends or largest <= mass * (_FAR * max(ends)) ** 2:
            continue
        share, away = 0.25 * mass * max(ends) ** 2 / largest, (largest / mass) ** 0.5
        body.inertia, body.fullinertia = share * body.inertia, share * body.fullinertia
        notes.append(
            f"link {body.name}: an inertia of {largest:.3g} kg m2 at {mass:.3g} kg means masses {away:.2g} m away, "
            f"and the link reaches {max(ends):.2g} m; {share * largest:.2g} is taken"
        )
    return notes


def add_bones(body: MjsElement) -> int:
    """Add capsules from a body's origin to its children's; how many."""
    count = 0
    for child in body.bodies:
        end = child.pos
        if (end**2).sum() > (2.0 * _BONE) ** 2:
            geom = body.add_geom()
            geom.type = mujoco.mjtGeom.mjGEOM_CAPSULE
            geom.fromto = [0.0, 0.0, 0.0, *end]
            geom.size = [_BONE, 0.0, 0.0]
            geom.mass = 0.0
            count += 1
    return count
