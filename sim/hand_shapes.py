"""Shapes of fingers out of meshes that are not convex: hulls of slices, so that no jaw fills the gap it bounds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.robot_model import mujoco
from robot_rl.sim.robot_probe import corners_in

if TYPE_CHECKING:
    from mujoco import MjData, MjModel, MjSpec

_THICK = 0.012  # of a slice [m]
_THIN = 0.001  # pieces that are smaller than it in all directions are left out [m]


def slice_meshes(spec: MjSpec, model: MjModel, data: MjData, bodies: set[int], along: np.ndarray) -> None:
    """Let the meshes of some bodies touch by the hulls of their slices.

    Args:
        spec: of the model; changed.
        model: compiled from it.
        data: kinematics of it, in the pose in which the slices are cut.
        bodies: whose shapes are sliced.
        along: (3,) direction across the slices in the world: the one in which fingers reach.
    """
    geoms = list(spec.geoms)
    for geom in range(model.ngeom):
        if int(model.geom_bodyid[geom]) not in bodies or int(model.geom_type[geom]) != int(mujoco.mjtGeom.mjGEOM_MESH):
            continue
        if not (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            continue
        mesh = int(model.geom_dataid[geom])
        points = np.array(corners_in(model, geom), float)
        first, count = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
        faces = np.array(model.mesh_face[first : first + count])
        axis = data.geom_xmat[geom].reshape(3, 3).T @ along
        old = geoms[geom]
        for i, piece in enumerate(slices(points, faces, axis)):
            made = spec.add_mesh(name=f"robot_rl_slice_{geom}_{i}", uservert=piece.ravel())
            made.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_CONVEX
            part = old.parent.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname=made.name, mass=0.0, group=4)
            part.pos, part.quat = model.geom_pos[geom], model.geom_quat[geom]
            part.contype, part.conaffinity, part.friction = old.contype, old.conaffinity, old.friction
        old.contype = old.conaffinity = 0


def slices(points: np.ndarray, faces: np.ndarray, axis: np.ndarray) -> list[np.ndarray]:
    """The connected pieces of a surface between planes across an axis.

    Args:
        points: (P, 3) [m].
        faces: (F, 3) indices.
        axis: (3,) unit vector.

    Returns:
        One (K, 3) per piece: corners of its surface, whose hull stands for it.
    """
    height = points @ axis
    edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
    edges, index = np.unique(edges, axis=0, return_inverse=True)
    of_face = index.reshape(3, -1).T
    reach = height[edges].min(axis=1), height[edges].max(axis=1)
    bottom, top = float(height.min()), float(height.max())
    planes = np.linspace(bottom, top, max(math.ceil((top - bottom) / _THICK), 1) + 1)
    found = []
    for low, high in pairwise(planes):
        near = (reach[0] <= high) & (reach[1] >= low)
        label = _connect(edges, near, of_face[near[of_face].any(axis=1)], (height >= low) & (height <= high))
        start, end = points[edges[:, 0]], points[edges[:, 1]]
        rise = height[edges[:, 1]] - height[edges[:, 0]]
        level = np.where(rise == 0.0, 1.0, rise)
        for name in np.unique(label[near]):
            own = near & (label == name)
            share = [np.clip((plane - height[edges[own, 0]]) / level[own], 0.0, 1.0)[:, None] for plane in (low, high)]
            piece = np.concatenate([start[own] + part * (end - start)[own] for part in share])
            piece = piece[np.unique((piece @ _LOOKS.T).argmax(axis=0))]
            thinnest = np.linalg.svd(piece - piece.mean(axis=0), compute_uv=False)[-1]
            if len(piece) >= 4 and thinnest > 1e-4 and np.ptp(piece, axis=0).max() > _THIN:
                found.append(piece)
    return found


def _connect(edges: np.ndarray, near: np.ndarray, of_face: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """(E,) label of the piece of each edge that is `near`: edges of a face, or with a corner `inside`, are of one."""
    none = len(edges)
    label = np.where(near, np.arange(none), none)
    own = np.flatnonzero(near)
    while True:
        before = label.copy()
        face = label[of_face].min(axis=1)
        for k in range(3):
            np.minimum.at(label, of_face[:, k], face)
        label[~near] = none
        corner = np.full(len(inside), none)
        for k in range(2):
            np.minimum.at(corner, edges[own, k], label[own])
        corner[~inside] = none
        label[own] = np.minimum(label[own], corner[edges[own]].min(axis=1))
        while (further := label[label[own]]).tolist() != label[own].tolist():
            label[own] = further
        if (label == before).all():
            return label


def _around(count: int) -> np.ndarray:
    """(count, 3) directions, evenly on the sphere (Fibonacci's spiral)."""
    height = 1.0 - (2.0 * np.arange(count) + 1.0) / count
    turn, wide = np.arange(count) * math.pi * (3.0 - math.sqrt(5.0)), np.sqrt(1.0 - height**2)
    return np.stack([wide * np.cos(turn), wide * np.sin(turn), height], axis=1)


_LOOKS = _around(200)  # in which directions a piece's furthest corners are kept
