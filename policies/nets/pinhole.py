"""Points in space and in pictures of calibrated cameras: projection, and triangulation by weighted least squares."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from robot_rl.types.camera import Calibration

_RIDGE = 1e-6
"""Added to the normal equations, relative to their trace: one ray alone leaves its own direction open."""


def downward(yaw: Tensor) -> Tensor:
    """(B, 3, 3) columns: axes of a tool that points down, turned by `yaw` (B,) rad about the vertical."""
    sine, cosine, zero = yaw.sin(), yaw.cos(), torch.zeros_like(yaw)
    rows = [torch.stack(row, -1) for row in ((cosine, sine, zero), (sine, -cosine, zero), (zero, zero, zero - 1.0))]
    return torch.stack(rows, -2)


def camera_pose(camera: Calibration, tool: Tensor) -> tuple[Tensor, Tensor]:
    """Where a camera is while the tool is at a pose.

    Args:
        camera: its calibration.
        tool: (B, 4) tip [m] and turn about the vertical [rad].

    Returns:
        (B, 3) its place [m] and (B, 3, 3) with its axes as columns, in the world.
    """
    place = tool.new_tensor(camera.position).expand(len(tool), 3)
    turn = tool.new_tensor(camera.rotation).reshape(3, 3).expand(len(tool), 3, 3)
    if camera.mount == "world":
        return place, turn
    hand = downward(tool[:, 3])
    return (hand @ place[:, :, None])[:, :, 0] + tool[:, :3], hand @ turn


def project(camera: Calibration, tool: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Where points fall in a camera's picture.

    Args:
        camera: its calibration.
        tool: (B, 4) pose of the tool.
        points: (B, P, 3) in the world, m.

    Returns:
        (B, P, 2) pixels (x to the right, y down), and (B, P) bool: in front of the camera and inside the picture.

    Source: Hartley and Zisserman, Multiple View Geometry, equation 6.6.
    """
    place, turn = camera_pose(camera, tool)
    seen = torch.einsum("bpi,bij->bpj", points - place[:, None], turn)
    depth = seen[..., 2].clamp_min(1e-6)
    pixel = seen[..., :2] / depth[..., None] * tool.new_tensor(camera.focal) + tool.new_tensor(camera.centre)
    size = tool.new_tensor((camera.width, camera.height))
    inside = ((pixel >= 0.0) & (pixel < size)).all(-1) & (seen[..., 2] > 1e-3)
    return pixel, inside


def triangulate(
    cameras: Sequence[Calibration], tool: Tensor, pixels: Sequence[Tensor], weights: Sequence[Tensor]
) -> Tensor:
    """The points nearest to their rays, in units of pixels: near cameras count more.

    Minimises sum_c w_c (f_c / z_c)^2 |(I - d_c d_c') (p - o_c)|^2 over p, where o_c and d_c are a ray's origin and
    direction and z_c is the distance along it, which comes from a first solution without it.

    Args:
        cameras: C of them.
        tool: (B, 4) pose of the tool.
        pixels: of each camera (B, P, 2).
        weights: of each camera (B, P), at least 0; where all are 0 the answer means nothing, but is finite.

    Returns:
        (B, P, 3) in the world, m.

    Source: Hartley and Sturm, Triangulation (iterated linear least squares).
    """
    origins, directions = [], []
    for camera, pixel in zip(cameras, pixels):
        place, turn = camera_pose(camera, tool)
        flat = (pixel - tool.new_tensor(camera.centre)) / tool.new_tensor(camera.focal)
        ray = torch.cat([flat, torch.ones_like(flat[..., :1])], -1)
        ray = torch.nn.functional.normalize(torch.einsum("bij,bpj->bpi", turn, ray), dim=-1)
        origins.append(place[:, None].expand_as(ray))
        directions.append(ray)
    origin, direction = torch.stack(origins), torch.stack(directions)
    weight = torch.stack(list(weights)).clamp_min(1e-6)
    across = torch.eye(3).to(tool) - direction[..., :, None] * direction[..., None, :]
    focal = tool.new_tensor([camera.focal[0] for camera in cameras])[:, None, None]

    def solve(w: Tensor) -> Tensor:
        parts = w[..., None, None] * across
        left = parts.sum(0)
        right = (parts @ origin[..., None]).sum(0)
        ridge = _RIDGE * left.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        anchor = (w[..., None] * (origin + 0.8 * direction)).sum(0) / w.sum(0)[..., None]
        return torch.linalg.solve(left + ridge * torch.eye(3).to(tool), right + ridge * anchor[..., None])[..., 0]

    first = solve(weight)
    depth = ((first.detach() - origin) * direction).sum(-1).clamp(0.02, 5.0)
    return solve(weight * (focal / depth).square())
