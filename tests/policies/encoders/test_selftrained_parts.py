"""Geometry, heat maps and hindsight labels of `encoder=selftrained`, against numbers that are worked out by hand."""

import math

import numpy as np
import pytest
import torch

from robot_rl.policies.encoders.points_labels import Places
from robot_rl.policies.nets.heat_maps import HeatMaps, disturb, find_points, heat_loss
from robot_rl.policies.nets.pinhole import project, triangulate
from robot_rl.types.camera import Calibration

# Looks along the world's x axis from x = -1: its right is -y, its down is -z.
FRONT = Calibration(
    height=64,
    width=64,
    focal=(100.0, 100.0),
    centre=(32.0, 32.0),
    mount="world",
    position=(-1.0, 0.0, 0.0),
    rotation=(0.0, 0.0, 1.0, -1.0, 0.0, 0.0, 0.0, -1.0, 0.0),
)
# Looks along the world's y axis from y = -1: its right is x, its down is -z.
SIDE = Calibration(
    height=64,
    width=64,
    focal=(100.0, 100.0),
    centre=(32.0, 32.0),
    mount="world",
    position=(0.0, -1.0, 0.0),
    rotation=(1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0),
)
# In the hand, 10 cm behind the tip, and looks along the tool.
HAND = Calibration(
    height=64,
    width=64,
    focal=(50.0, 50.0),
    centre=(32.0, 32.0),
    mount="tool",
    position=(0.0, 0.0, -0.1),
    rotation=(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
)
STILL = torch.zeros(1, 4)


def test_a_point_falls_where_the_lens_equation_puts_it():
    pixel, inside = project(FRONT, STILL, torch.tensor([[[0.0, 0.1, -0.05], [1.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]]))
    # 1 m away: 0.1 m to the left (y is left) is 100 * 0.1 / 1 = 10 pixels, 0.05 m down is 5
    assert torch.allclose(pixel[0, :2], torch.tensor([[22.0, 37.0], [32.0, 32.0]]))
    assert inside[0].tolist() == [True, True, False]  # the last one is behind the camera


def test_a_camera_in_the_hand_goes_with_it():
    tool = torch.tensor([[0.3, 0.2, 0.5, math.pi / 2]])
    # The tool points down: the camera is 10 cm above the tip. Its x axis is the tool's, which the turn of 90 degrees
    # takes to the world's y. A point 10 cm below the tip and 2 cm along y is 20 cm away: 50 * 0.02 / 0.2 = 5 pixels.
    pixel, inside = project(HAND, tool, torch.tensor([[[0.3, 0.22, 0.4]]]))
    assert torch.allclose(pixel, torch.tensor([[[37.0, 32.0]]]), atol=1e-4)
    assert inside.all()


@pytest.mark.parametrize("cameras", [(FRONT, SIDE), (FRONT, HAND), (FRONT, SIDE, HAND)])
def test_triangulation_finds_the_point_that_was_projected(cameras):
    tool = torch.tensor([[0.1, 0.05, 0.1, 0.4], [0.0, -0.1, 0.2, -0.3]])
    points = torch.tensor([[[0.10, 0.06, -0.02], [0.05, -0.03, 0.04]], [[0.02, -0.08, 0.03], [0.01, -0.12, 0.0]]])
    pixels = [project(camera, tool, points)[0] for camera in cameras]
    found = triangulate(cameras, tool, pixels, [torch.ones(2, 2)] * len(cameras))
    assert float((found - points).norm(dim=-1).max()) < 1e-3


def test_a_camera_that_is_not_sure_does_not_count():
    points = torch.tensor([[[0.1, 0.05, -0.02]]])
    pixels = [project(camera, STILL, points)[0] for camera in (FRONT, SIDE, SIDE)]
    pixels[2] = pixels[2] + 20.0  # wrong by 20 cm
    weights = [torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1)]
    found = triangulate((FRONT, SIDE, SIDE), STILL, pixels, weights)
    assert float((found - points).norm()) < 1e-3
    weights[2] += 1.0
    assert float((triangulate((FRONT, SIDE, SIDE), STILL, pixels, weights) - points).norm()) > 0.05


def test_one_camera_leaves_the_depth_open_and_the_answer_finite():
    points = torch.tensor([[[0.1, 0.05, -0.02]]])
    found = triangulate((FRONT,), STILL, [project(FRONT, STILL, points)[0]], [torch.ones(1, 1)])
    assert torch.isfinite(found).all()
    again, _ = project(FRONT, STILL, found)
    assert torch.allclose(again, project(FRONT, STILL, points)[0], atol=0.5)  # on the ray


def test_heat_that_learned_a_point_gives_it_back_between_the_cells():
    """The least of the loss is at the four cells round the point, whose mean is the point itself."""
    pixel = torch.tensor([[[21.3, 40.9]]])
    logits = torch.zeros(1, 1, 16, 16, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.5)
    for _ in range(300):
        loss = heat_loss(logits, pixel, torch.ones(1, 1, dtype=torch.bool), torch.ones(1, 1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found, sure = find_points(logits.detach())
    assert torch.allclose(found, pixel, atol=0.05)
    assert float(sure) > 0.99


def test_a_point_that_no_picture_shows_makes_flat_heat():
    logits = torch.zeros(1, 1, 16, 16, requires_grad=True)
    loss = heat_loss(logits, torch.tensor([[[500.0, -3.0]]]), torch.zeros(1, 1, dtype=torch.bool), torch.ones(1, 1))
    assert float(torch.autograd.grad(loss, logits)[0].abs().max()) < 1e-6  # flat already
    assert float(find_points(logits.detach())[1]) < 0.15


def test_a_label_that_is_not_known_teaches_nothing():
    logits = torch.randn(2, 1, 16, 16, requires_grad=True)
    pixel, inside = torch.tensor([[[20.0, 20.0]], [[30.0, 8.0]]]), torch.ones(2, 1, dtype=torch.bool)
    loss = heat_loss(logits, pixel, inside, torch.tensor([[0.0], [1.0]]))
    gradient = torch.autograd.grad(loss, logits)[0]
    assert float(gradient[0].abs().max()) == 0.0
    assert float(gradient[1].abs().max()) > 0.0


@pytest.mark.parametrize(("further", "pixels"), [(0, 33), (2, 81)])
def test_a_cell_sees_so_many_pixels_round_it(further, pixels):
    """Columns whose pixels have a slope at a cell in the middle of the picture."""
    net = HeatMaps(1, torch.Generator().manual_seed(0), 4, further)
    picture = (torch.rand((1, 128, 128, 3), generator=torch.Generator().manual_seed(1)) - 0.5).requires_grad_()
    net(picture)[0, 0, 16, 16].backward()
    assert picture.grad is not None
    columns = picture.grad.abs().sum((0, 1, 3)).nonzero()[:, 0]
    assert int(columns.max() - columns.min()) + 1 == pixels


def test_labels_move_with_their_pictures():
    pictures = torch.zeros(16, 64, 64, 3, dtype=torch.uint8)
    pictures[:, 30, 20] = 255  # row 30, column 20
    moved, shift = disturb(pictures, 6, torch.Generator().manual_seed(0))
    assert len({tuple(row) for row in shift.tolist()}) > 8
    for picture, by in zip(moved, shift):
        where = int(picture.sum(-1).argmax())
        assert (where % 64, where // 64) == (20 + int(by[0]), 30 + int(by[1]))


def test_hindsight_of_a_grasp():
    """Reaches, closes over two frames at (0.4, 0, 0.02), and ends at (0.5, 0.1, 0.2)."""
    tool = np.zeros((6, 4))
    tool[:, :3] = [
        (0.3, 0.0, 0.2),
        (0.4, 0.0, 0.02),
        (0.4, 0.0, 0.02),
        (0.4, 0.0, 0.02),
        (0.45, 0.05, 0.1),
        (0.5, 0.1, 0.2),
    ]
    opening = np.array([1.0, 1.0, 0.5, 0.0, 0.0, 0.0])
    points, known = Places(grips=True, turns=False).label(tool, opening)
    assert points[:, 0].tolist() == [[0.4, 0.0, 0.02]] * 4 + [[0.45, 0.05, 0.1], [0.5, 0.1, 0.2]]
    assert points[:, 1].tolist() == [[0.5, 0.1, 0.2]] * 6
    assert known.all()


def test_hindsight_of_an_object_that_was_let_go_and_taken_again():
    tool = np.zeros((8, 4))
    tool[:, 0] = np.arange(8) / 10.0
    opening = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    points, known = Places(grips=True, turns=False).label(tool, opening)
    # Held in frames 1 and 2, let go, held again from frame 5: nobody knows where it lay before it was let go.
    assert known[:, 0].tolist() == [False] * 3 + [True] * 5
    assert points[3:, 0, 0].tolist() == [0.5, 0.5, 0.5, 0.6, 0.7]
    assert known[:, 1].all()


def test_hindsight_of_a_hole_and_how_it_is_turned():
    tool = np.zeros((3, 4))
    tool[-1] = (0.45, 0.1, 0.015, math.pi / 2)
    points, known = Places(grips=False, turns=True, lift=0.025).label(tool, None)
    assert known.all()
    for frame in points:
        assert np.allclose(frame, [(0.45, 0.1, 0.04), (0.45, 0.13, 0.04), (0.45, 0.07, 0.04)])
