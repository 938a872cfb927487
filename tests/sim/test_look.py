"""`look=`: a seed decides how a scene looks, unknown looks lie outside the known ones, and the task stays."""

import colorsys
from xml.etree import ElementTree

import numpy as np
import pytest

from robot_rl import api
from robot_rl.sim.look import Look, dress
from robot_rl.sim.mujoco_physics import mujoco
from robot_rl.sim.worlds.halfcheetah import HalfCheetah
from robot_rl.sim.worlds.insert import CLEARANCE, Insert
from robot_rl.sim.worlds.pick import Pick
from robot_rl.words import Refused


def scene(world, seed: int, kind: str, part: str = "all") -> ElementTree.Element:
    look = Look.model_validate({"seed": seed, "range": kind, "part": part})
    return ElementTree.fromstring(dress(world.mjcf(), look))


def found(root: ElementTree.Element, tag: str, name: str) -> ElementTree.Element:
    element = root.find(f".//{tag}[@name='{name}']")
    assert element is not None
    return element


def numbers(element: ElementTree.Element, key: str) -> np.ndarray:
    return np.array([float(word) for word in element.get(key, "").split()])


def facts(root: ElementTree.Element) -> tuple[np.ndarray, set]:
    """(3,) hue of the cube in (-0.5, 0.5], size of the ball, turn of `front` from its place; kinds of textures."""
    hue = colorsys.rgb_to_hsv(*numbers(found(root, "geom", "cube"), "rgba")[:3])[0]
    axes = numbers(found(root, "camera", "front"), "xyaxes")
    back = np.cross(axes[:3], axes[3:])
    turn = np.arctan2(back[1], back[0]) - np.deg2rad(-40.0)
    kinds = {found(root, "texture", f"look_{name}").get("mark") for name in ("table", "floor")}
    return np.array([(hue + 0.5) % 1.0 - 0.5, numbers(found(root, "geom", "goal"), "size")[0], turn]), kinds


def test_a_seed_decides():
    text = Pick().mjcf()
    assert dress(text, Look(seed=3)) == dress(text, Look(seed=3))
    assert dress(text, Look(seed=3)) != dress(text, Look(seed=4))
    assert dress(text, Look(seed=3)) != dress(text, Look(seed=3, range="known"))


def test_unknown_looks_are_outside_the_known_ones():
    known = [facts(scene(Pick(), seed, "known")) for seed in range(30)]
    unknown = [facts(scene(Pick(), seed, "unknown")) for seed in range(30)]
    inside, outside = (np.stack([row[0] for row in rows]) for rows in (known, unknown))
    low, high = inside[:, 1].min(), inside[:, 1].max()
    assert not ((outside[:, 1] >= low) & (outside[:, 1] <= high)).any()
    # hues of the cube: known ones lie on both sides of each gap in which the unknown ones are
    gaps = [(-0.08, -0.04), (0.11, 0.15)]
    for hues, there in ((outside[:, 0], True), (inside[:, 0], False)):
        within = np.any([(hues > low + 1e-3) & (hues < high - 1e-3) for low, high in gaps], axis=0)
        near = np.any([np.abs(hues - edge) <= 1e-3 for gap in gaps for edge in gap], axis=0)
        assert (near | (within == there)).all()
    assert inside[:, 0].min() < -0.08
    assert inside[:, 0].max() > 0.15
    # the camera rolls by up to 0.13 rad about its own axis, which does not turn that axis
    assert np.abs(inside[:, 2]).max() < 0.35 < np.abs(outside[:, 2]).min()
    assert not set.union(*(row[1] for row in known)) & set.union(*(row[1] for row in unknown))


def test_one_part_of_a_look_is_unknown():
    one = [facts(scene(Pick(), seed, "unknown", part="cameras")) for seed in range(10)]
    known = [facts(scene(Pick(), seed, "known")) for seed in range(10)]
    assert min(abs(row[0][2]) for row in one) > 0.35  # the camera's turn
    assert all(0.0127 < row[0][1] < 0.0189 for row in one)  # the ball is 0.85 to 1.25 times 15 mm
    assert set.union(*(row[1] for row in one)) == set.union(*(row[1] for row in known))
    assert facts(scene(Pick(), 3, "unknown", part="sizes"))[0][2] == pytest.approx(0.0, abs=0.35)


def test_the_task_stays_and_views_are_further_cameras():
    plain = mujoco.MjModel.from_xml_string(Pick().mjcf())
    other = mujoco.MjModel.from_xml_string(dress(Pick().mjcf(), Look(seed=5), views=2))
    assert np.array_equal(plain.body_mass, other.body_mass)
    assert np.array_equal(plain.qpos0, other.qpos0)
    assert other.ncam == 3 * plain.ncam
    places = [other.cam(name).pos for name in ("side", "side_0", "side_1")]
    assert len({tuple(place) for place in places}) == 3


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_socket_of_another_width_keeps_its_hole(seed):
    root = scene(Insert(), seed, "unknown")
    for number, axis in ((1, 0), (2, 0), (3, 1), (4, 1)):
        wall = found(root, "geom", f"wall_{number}")
        inner = abs(numbers(wall, "pos")[axis]) - numbers(wall, "size")[axis]
        assert inner == pytest.approx(0.010 + CLEARANCE, abs=1e-6)
        assert 0.028 < inner + 2.0 * numbers(wall, "size")[axis] < 0.056


def test_other_scenes_are_refused():
    with pytest.raises(ValueError, match="reach, pick and insert with the desk arm"):
        dress(HalfCheetah().mjcf(), Look())
    with pytest.raises(Refused, match="desk arm"):
        api.make("halfcheetah", 1, look={"seed": 1})
