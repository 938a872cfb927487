"""Cameras that nobody knows, in MuJoCo's pictures: found to the millimetre, or refused by a sentence."""

import re
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from robot_rl.real.calibration.board import Board
from robot_rl.real.calibration.camera import CalibrationError, Shot, by_board, by_motion, read_views
from robot_rl.real.calibration.fit import Lens, hand_eye, pose, rotation
from robot_rl.real.calibration.marker import find_markers
from robot_rl.real.cameras import PictureError, straighten
from robot_rl.sim.tool import Tool
from robot_rl.types.card import CalibrationCard
from tests.real.calibration_scene import ARM, JOINTS, SIZE, TOOL, Scene, board_of, scene

TIP = Tool(str(ARM), TOOL, JOINTS)


def as_it_is(picture: np.ndarray) -> np.ndarray:
    return picture


def views_of(made: Scene) -> list[Shot]:
    return [Shot(f"{i}", picture, TIP.pose(row)) for i, (picture, row) in enumerate(zip(made.pictures, made.joints))]


@pytest.fixture(scope="module")
def hand() -> Scene:
    return scene("board", "tool", 100, views=12)


@pytest.fixture(scope="module")
def motion() -> Scene:
    return scene("motion", "world", 100, views=24)


def check(made: Scene, card: CalibrationCard, millimetres: float, degrees: float) -> None:
    found = made.errors(card.position, card.rotation)
    sys.stdout.write(f"{found[0]:.2f} mm, {found[1]:.3f} degrees\n")  # pytest -s shows them
    assert found[0] <= millimetres, f"{found[0]:.2f} mm and {found[1]:.3f} degrees off"
    assert found[1] <= degrees, f"{found[0]:.2f} mm and {found[1]:.3f} degrees off"


# ------------------------------------------------------------ in pictures


def test_camera_in_the_hand_is_found_with_a_board_on_the_table(hand: Scene) -> None:
    card = by_board(views_of(hand), board_of("tool"), "tool").card
    check(hand, card, 2.0, 0.3)
    assert card.focal == pytest.approx((hand.matrix[0, 0], hand.matrix[1, 1]), rel=0.005)
    assert card.centre == pytest.approx((hand.matrix[0, 2], hand.matrix[1, 2]), abs=1.5)
    assert card.residual < 0.3


def test_camera_is_found_from_a_ball_on_the_tool_and_where_the_ball_is(motion: Scene) -> None:
    found = by_motion(views_of(motion))
    check(motion, found.card, 5.0, 0.5)
    told = re.search(r"marker is at (\S+), (\S+), (\S+) mm", "; ".join(found.notes))
    assert told is not None
    assert [float(x) for x in told.groups()] == pytest.approx([0.0, 0.0, 40.0], abs=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("kind", "mount", "millimetres", "degrees"),
    [("board", "tool", 2.0, 0.3), ("board", "world", 2.0, 0.3), ("motion", "world", 5.0, 0.5)],
)
def test_twenty_unknown_cameras_are_found(kind: str, mount: str, millimetres: float, degrees: float, seed: int) -> None:
    made = scene(kind, mount, seed, views=25 if kind == "board" else 60)
    views = views_of(made)
    if kind == "motion":
        found = by_motion(views)
    else:
        found = by_board(views, board_of(mount), "tool" if mount == "tool" else "world")
    check(made, found.card, millimetres, degrees)


# ------------------------------------------------------------ refused


def test_few_pictures_are_refused(hand: Scene, motion: Scene) -> None:
    with pytest.raises(CalibrationError, match="seen in 7 of 7 pictures, expected at least 8"):
        by_board(views_of(hand)[:7], board_of("tool"), "tool")
    with pytest.raises(CalibrationError, match=r"seen in \d+ of 11 pictures, expected at least 12"):
        by_motion(views_of(motion)[:11])
    with pytest.raises(CalibrationError, match=r"seen in 0 of 24 pictures.*blob that is green"):
        by_motion(views_of(motion), colour="green")


def test_poses_of_other_pictures_are_refused(hand: Scene, motion: Scene) -> None:
    views = views_of(hand)
    mixed = [Shot(a.name, a.pixels, b.tool) for a, b in zip(views, [*views[5:], *views[:5]])]
    with pytest.raises(CalibrationError, match="differ by"):
        by_board(mixed, board_of("tool"), "tool")
    views = views_of(motion)
    mixed = [Shot(a.name, a.pixels, b.tool) for a, b in zip(views, [*views[5:], *views[:5]])]
    with pytest.raises(CalibrationError, match=r"differ by|no camera sees"):
        by_motion(mixed)


def test_wrong_size_of_a_square_is_refused(hand: Scene) -> None:
    with pytest.raises(CalibrationError, match="differ by"):
        by_board(views_of(hand), board_of("tool")._replace(square=0.05), "tool")


def test_hand_that_turns_about_one_axis_is_refused(hand: Scene) -> None:
    first = views_of(hand)[0]
    views = []
    for i in range(10):  # the hand spins about the camera's own axis: so does the picture
        camera = TIP.pose(hand.joints[0]) @ hand.camera @ pose(rotation(np.array([0.0, 0.0, 0.2 * i])), np.zeros(3))
        turn = cv2.getRotationMatrix2D((hand.matrix[0, 2] - 0.5, hand.matrix[1, 2] - 0.5), np.rad2deg(0.2 * i), 1.0)
        spun = cv2.warpAffine(first.pixels, turn, SIZE[::-1], borderValue=(255, 255, 255))
        views.append(Shot(f"{i}", spun, camera @ np.linalg.inv(hand.camera)))
    with pytest.raises(CalibrationError, match="turns about one axis alone"):
        by_board(views, board_of("tool"), "tool")


def test_points_in_a_plane_and_a_tool_that_keeps_its_direction_are_refused(motion: Scene) -> None:
    views = views_of(motion)
    level = [Shot(v.name, v.pixels, pose(np.eye(3), v.tool[:3, 3])) for v in views]
    with pytest.raises(CalibrationError, match=r"marker=\[0,0,0\.02\]"):
        by_motion(level)
    flat = [Shot(v.name, v.pixels, pose(np.eye(3), v.tool[:3, 3] * [1, 1, 0])) for v in views]
    with pytest.raises(CalibrationError, match="one plane"):
        by_motion(flat, marker=(0.0, 0.0, 0.0))


# ------------------------------------------------------------ parts


def test_hand_eye_answers_exactly_where_nothing_is_measured() -> None:
    rng = np.random.default_rng(0)
    camera, body = (pose(rotation(rng.normal(size=3)), rng.normal(size=3)) for _ in range(2))
    move = np.array([pose(rotation(rng.normal(size=3)), rng.normal(size=3)) for _ in range(6)])
    seen = np.array([np.linalg.inv(camera) @ m @ body for m in move])
    found = hand_eye(move, seen)
    assert np.allclose(found[0], camera, atol=1e-9)
    assert np.allclose(found[1], body, atol=1e-9)
    spin = np.array([pose(rotation(np.array([0.0, 0.0, x])), rng.normal(size=3)) for x in range(6)])
    assert hand_eye(spin, np.array([np.linalg.inv(camera) @ m @ body for m in spin]))[2] < 1e-6


def test_lens_bends_as_that_of_opencv_and_pictures_are_made_straight_again() -> None:
    lens = Lens(400.0, 1.02, (310.0, 250.0), (-0.3, 0.1, 0.002, -0.003))
    points = np.random.default_rng(1).uniform([-0.4, -0.3, 0.8], [0.4, 0.3, 1.4], (50, 3))
    theirs = cv2.projectPoints(points, np.zeros(3), np.zeros(3), lens.matrix, np.array(lens.bend))[0][:, 0]
    assert np.allclose(lens.see(points), theirs, atol=1e-6)
    card = CalibrationCard(
        height=480, width=640, focal=(400.0, 408.0), centre=(310.5, 250.5), distortion=lens.bend, mount="world",
        position=(0.0, 0.0, 0.0), rotation=(1, 0, 0, 0, 1, 0, 0, 0, 1), residual=0.1, views=9,
    )  # fmt: skip
    corner = np.array([[0.35, 0.25, 1.0]])
    bent, straight = lens.see(corner)[0], (lens.matrix @ corner[0])[:2]
    assert np.linalg.norm(bent - straight) > 5.0  # 12 pixels
    picture = np.zeros((480, 640, 3), np.uint8)
    cv2.circle(picture, tuple(np.rint(bent).astype(int).tolist()), 4, (255, 255, 255), -1)
    seen = straighten(as_it_is, card)(picture)[..., 0].astype(float)
    rows, columns = np.indices(seen.shape)
    middle = np.array([(columns * seen).sum(), (rows * seen).sum()]) / seen.sum()
    assert np.allclose(middle, straight, atol=1.0)
    with pytest.raises(PictureError, match=r"320 x 240, and the camera was calibrated with pictures of 640 x 480"):
        straighten(as_it_is, card)(picture[::2, ::2])


def test_calibration_of_another_size_sees_the_same_point_at_the_same_part_of_the_picture() -> None:
    card = CalibrationCard(
        height=480, width=640, focal=(400.0, 410.0), centre=(310.0, 250.0), mount="world", position=(0.1, 0.2, 0.3),
        rotation=(1, 0, 0, 0, 1, 0, 0, 0, 1), residual=0.1, views=9,
    )  # fmt: skip
    small = card.of_size(64, 64)
    assert small.focal == pytest.approx((40.0, 410.0 * 64 / 480))
    assert small.centre == pytest.approx((31.0, 250.0 * 64 / 480))
    with pytest.raises(ValueError, match="is no rotation"):
        CalibrationCard(**{**card.model_dump(), "rotation": (1, 0, 0, 0, 1, 0, 0, 0, 2)})


def test_calibration_of_a_part_of_the_picture_sees_the_same_point_there() -> None:
    card = CalibrationCard(
        height=100, width=200, focal=(150, 150), centre=(100, 50), mount="world", position=(0, 0, 0),
        rotation=(1, 0, 0, 0, 1, 0, 0, 0, 1), residual=0.1, views=10,
    )  # fmt: skip
    part = card.of_size(50, 50, crop=(0.25, 0.2, 0.75, 0.8))  # columns 50 to 150 and rows 20 to 80, to 50 by 50 pixels
    # the middle of the whole, pixel (100, 50), is 50 of 100 columns and 30 of 60 rows of the part
    assert part.centre == pytest.approx((25.0, 25.0))
    assert part.focal == pytest.approx((75.0, 125.0))


def test_board_is_printed_in_its_true_size(tmp_path: Path) -> None:
    board = Board(7, 5, 0.035)
    assert "269 x 199 mm" in board.print_to(tmp_path / "board.pdf")
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", (tmp_path / "board.pdf").read_bytes())
    assert box is not None
    assert [float(x) / 72 * 25.4 for x in box.groups()] == pytest.approx([7 * 35 + 24, 5 * 35 + 24], abs=0.2)
    board.print_to(tmp_path / "board.png")
    page = Image.open(tmp_path / "board.png")
    found = board.find(np.asarray(page.convert("RGB")))
    assert found is not None
    points, pixels = found
    assert len(points) == 6 * 4
    steps = np.linalg.norm(pixels[1:6] - pixels[:5], axis=1) / page.info["dpi"][0] * 25.4
    assert steps == pytest.approx(np.full(5, 35.0), abs=0.05)
    with pytest.raises(ValueError, match=r"\.pdf or \.png"):
        board.print_to(tmp_path / "board.jpg")


def test_ball_that_is_partly_hidden_or_always_there_is_left_out() -> None:
    pictures = []
    for i in range(5):
        picture = np.full((120, 160, 3), 120, np.uint8)
        cv2.circle(picture, (20, 20), 9, (230, 20, 210), -1)  # belongs to the scene
        cv2.circle(picture, (60 + 10 * i, 70 + 5 * i), 8, (230, 20, 210), -1)
        pictures.append(picture)
    pictures[3][:, :91] = 120  # half of it
    found = find_markers(pictures, "magenta")
    assert found[3] is None
    assert [x for x in found if x] == [pytest.approx((60 + 10 * i, 70 + 5 * i), abs=0.2) for i in (0, 1, 2, 4)]


# ------------------------------------------------------------ a folder


def test_folder_is_read_by_joints_or_by_poses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (8, 10, 3), np.uint8)).save(tmp_path / "a.png")
    row = rng.uniform(-0.5, 0.5, 6)
    (tmp_path / "poses.csv").write_text(
        "picture," + ",".join(JOINTS) + ",u,v\na.png," + ",".join(f"{x}" for x in row) + ",3.5,4\n"
    )
    (view,) = read_views(tmp_path, JOINTS, TIP.pose)
    assert np.allclose(view.tool, TIP.pose(row))
    assert view.click == (3.5, 4.0)
    (tmp_path / "poses.csv").write_text("picture, x, y, z, qw, qx, qy, qz\na.png, 1, 2, 3, 0, 1, 0, 0\n")
    (view,) = read_views(tmp_path, JOINTS, TIP.pose)
    assert np.allclose(view.tool, pose(np.diag([1.0, -1.0, -1.0]), np.array([1.0, 2.0, 3.0])))
    assert view.click is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no .*poses.csv"),
        ("picture,waist\na.png,1\n", "lacks the columns shoulder"),
        ("picture,x,y,z,qw,qx,qy,qz\na.png,1,2,x,1,0,0,0\n", "line 2: z is 'x', expected a number"),
        ("picture,x,y,z,qw,qx,qy,qz\na.png,1,2,nan,1,0,0,0\n", "expected finite numbers"),
        ("picture,x,y,z,qw,qx,qy,qz\na.png,1,2,3,1,1,0,0\n", "quaternion's length is 1.41"),
        ("picture,x,y,z,qw,qx,qy,qz\nb.png,1,2,3,1,0,0,0\n", "b.png is no picture"),
    ],
)
def test_folder_that_cannot_be_read_is_one_sentence(text: str | None, said: str, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 10, 3), np.uint8)).save(tmp_path / "a.png")
    if text is not None:
        (tmp_path / "poses.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_views(tmp_path, JOINTS, TIP.pose)
