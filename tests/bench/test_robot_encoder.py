"""`benchmarks.robot_encoder`: labels stay true where pictures are moved, and where something hides a thing."""

import numpy as np
import pytest
import torch

from benchmarks.robot_encoder import SIZE, cover, visible, warp
from robot_rl.sim.mujoco_physics import mujoco

SCENE = """<mujoco><worldbody>
<camera name="eye" pos="0 0 1" xyaxes="1 0 0 0 1 0"/>
<body name="thing"><geom name="cube" type="box" size=".02 .02 .02" mass="1"/></body>
<body name="ball" mocap="true" pos="5 5 0"><geom name="goal" size=".015" contype="0" conaffinity="0"/></body>
<body pos="{place} 0 .5"><joint type="slide" axis="1 0 0"/><geom type="box" size=".03 .03 .01" mass="1"/></body>
</worldbody></mujoco>"""


def test_labels_move_with_the_picture():
    generator = torch.Generator().manual_seed(3)
    places = 16.0 + 32.0 * torch.rand((20, 1, 2), generator=generator)
    axis = torch.arange(SIZE) + 0.5
    far = (axis[None, :, None] - places[:, :, 1, None]) ** 2 + (axis[None, None, :] - places[:, :, :1]) ** 2
    spots = (-far / 8.0).exp()[..., None].expand(-1, -1, -1, 3)
    moved, there = warp(spots, places, 1.0, generator)
    heat = moved[..., 0] / moved[..., 0].sum((1, 2), keepdim=True)
    seen = torch.stack([(heat * axis).sum((1, 2)), (heat * axis[:, None]).sum((1, 2))], -1)
    assert (seen - there[:, 0]).abs().max() < 0.1
    assert (there - places).norm(dim=-1).max() > 2.0


def test_patches_say_what_they_lie_on():
    generator = torch.Generator().manual_seed(3)
    places = SIZE * torch.rand((200, 2, 2), generator=generator)
    covered, free = cover(torch.full((200, SIZE, SIZE, 3), 9.0), places, generator)
    cells = places.long()
    shown = covered[torch.arange(200)[:, None], cells[..., 1], cells[..., 0], 0] == 9.0
    assert 0 < int((~free).sum()) < 100
    assert (shown != free).float().mean() < 0.02  # a patch may begin within a pixel


@pytest.mark.parametrize(("place", "expected"), [(0.0, [False, True]), (0.2, [True, False]), (1.0, [True, True])])
def test_a_thing_behind_another_is_hidden(place, expected):
    """Half way to a camera that looks down from 1 m, a plate of 6 cm: it hides what is below, twice as far aside."""
    model = mujoco.MjModel.from_xml_string(SCENE.format(place=place))
    points = np.array([[0.0, 0.0, 0.0], [0.4, 0.0, 0.0]])
    assert visible(model, np.zeros(model.nq), "eye", points, ("object", "goal")).tolist() == expected
