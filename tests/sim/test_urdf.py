"""URDFs as makers publish them: with inertias that no body has, links without mass, and meshes that MuJoCo refuses."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robot_rl.card import read
from robot_rl.sim.card_pictures import pictures
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.robot_model import digest, load, mujoco
from robot_rl.types.card import ModelCard

INERTIA = '<inertia ixx="{0}" iyy="{1}" izz="{2}" ixy="{3}" ixz="{3}" iyz="{3}"/>'
GOOD = INERTIA.format(0.01, 0.01, 0.01, 0)
CORNERS = ("0 0 0", "0.1 0 0", "0 0.1 0", "0 0 0.1")
FACES = ((0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3))


def link(name: str, inside: str) -> str:
    return f'<link name="{name}">{inside}</link>'


def mass(value: float, inertia: str = GOOD) -> str:
    return f'<inertial><mass value="{value}"/>{inertia}</inertial>'


def joint(parent: str, child: str, kind: str = "revolute", place: str = "0 0 0.3", axis: str = "0 1 0") -> str:
    return (
        f'<joint name="{child}_joint" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{place}"/><axis xyz="{axis}"/><limit lower="-2" upper="2" velocity="2" effort="10"/></joint>'
    )


def urdf(folder: Path, *parts: str) -> Path:
    path = folder / "robot.urdf"
    path.write_text(f'<robot name="r">{"".join(parts)}</robot>')
    return path


def stl(triangles: tuple[tuple[int, int, int], ...]) -> str:
    """An STL in words."""
    rows = "".join(
        "facet normal 0 0 0\nouter loop\n" + "".join(f"vertex {CORNERS[i]}\n" for i in face) + "endloop\nendfacet\n"
        for face in triangles
    )
    return f"solid words\n{rows}endsolid words\n"


def test_inertia_that_no_body_has_becomes_the_nearest_one(tmp_path: Path) -> None:
    flat = INERTIA.format(1e-3, 1e-3, 1e-3, 1e-3)  # as of a rod without thickness along (1, -1, 0) and its like
    made = load(urdf(tmp_path, link("base", mass(1.0)), link("tip", mass(0.2, flat)), joint("base", "tip")))
    assert made.notes == ["link tip: the inertia is none that a body can have; the nearest one is taken"]
    # Eigenvalues 3e-3, 0 and 0 become 3e-3, 3e-6 and 3e-6, which MuJoCo balances to their mean.
    assert made.spec.compile().body("tip").inertia == pytest.approx([1.002e-3] * 3, rel=1e-3)


def test_inertia_with_missing_entries_and_one_of_a_body_are_left_alone(tmp_path: Path) -> None:
    part = '<inertia ixx="0.01" iyy="0.02" izz="0.015"/>'
    made = load(urdf(tmp_path, link("base", mass(1.0)), link("tip", mass(0.2, part)), joint("base", "tip")))
    assert made.notes == []
    assert sorted(made.spec.compile().body("tip").inertia) == pytest.approx([0.01, 0.015, 0.02])


def test_link_that_moves_without_mass_gets_a_gram_and_a_frame_gets_none(tmp_path: Path) -> None:
    parts = (link("base", mass(1.0)), link("between", ""), link("tip", mass(0, INERTIA.format(0, 0, 0, 0))))
    frame = (link("tool0", ""), joint("tip", "tool0", "fixed"))
    made = load(urdf(tmp_path, *parts, *frame, joint("base", "between"), joint("between", "tip")))
    model = made.spec.compile()
    assert made.notes == ["2 links: between, tip: moves and has no mass; 1 g are put in"]
    assert [float(model.body(name).mass[0]) for name in ("between", "tip", "tool0")] == [0.001, 0.001, 0.0]


def test_meshes_in_words_and_sheets_are_read(tmp_path: Path) -> None:
    (tmp_path / "words.stl").write_text(stl(FACES))
    sheet = "".join(f"v {corner}\n" for corner in CORNERS[:3]) + "v 0.1 0.1 0\nf 1 2 3\nf 2 4 3\n"
    (tmp_path / "sheet.obj").write_text(sheet)
    shape = '<visual name="same"><geometry><mesh filename="{}"/></geometry></visual>'
    shapes = shape.format("words.stl") + shape.format("sheet.obj")
    made = load(urdf(tmp_path, link("base", mass(1.0)), link("tip", mass(0.2) + shapes), joint("base", "tip")))
    model = mujoco.MjModel.from_xml_string(made.spec.to_xml())  # as other processes read it
    assert model.nmesh == 2
    tall = [
        float(np.ptp(model.mesh_vert[a : a + n], axis=0).max()) for a, n in zip(model.mesh_vertadr, model.mesh_vertnum)
    ]
    assert max(tall) == pytest.approx(0.1 * np.sqrt(2.0), abs=0.02)
    assert len(made.notes) == 1
    assert "enclose no volume and are weighed by their surface" in made.notes[0]


@pytest.mark.parametrize("name", ["words.stl", "of/its/maker/words.stl", "package://maker/words.stl"])
def test_meshes_are_found_in_the_folder_that_the_file_names_for_mujoco(name: str, tmp_path: Path) -> None:
    (tmp_path / "meshes").mkdir()
    (tmp_path / "meshes/words.stl").write_text(stl(FACES))
    shape = f'<collision><geometry><mesh filename="{name}"/></geometry></collision>'
    options = '<mujoco><compiler meshdir="meshes"/></mujoco>'
    path = urdf(tmp_path, options, link("base", mass(1.0)), link("tip", mass(0.2) + shape), joint("base", "tip"))
    made = load(path)
    assert (made.notes, made.spec.compile().nmesh) == ([], 1)
    before = digest(path)
    (tmp_path / "meshes/words.stl").write_text(stl(FACES[::-1]))
    assert digest(path) != before


def test_joint_of_a_link_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = urdf(tmp_path, link("base", mass(1.0)), joint("base", "propeller"))
    with pytest.raises(ValueError, match="joint propeller_joint has the child link 'propeller', which the file"):
        load(path)


def test_arm_that_moves_in_a_plane_gets_a_card_and_a_thin_workspace(tmp_path: Path) -> None:
    parts = [link(name, mass(0.5)) for name in ("base", "upper", "lower", "tool0")]
    way = (joint("base", "upper"), joint("upper", "lower"), joint("lower", "tool0", "fixed"))
    card, _ = new_card(str(urdf(tmp_path, *parts, *way)), "planar")
    assert card.workspace is not None
    low, high = np.array(card.workspace.lower), np.array(card.workspace.upper)
    assert card.tool == "tool0"
    assert high[1] - low[1] == pytest.approx(0.02)  # the plane of y = 0
    assert (high - low)[[0, 2]].min() > 0.05
    assert abs(card.home[1]) > 0.3  # a bent elbow: straight, the tool moves in one direction only


def hand(fingers: int, palm: bool) -> list[str]:
    """An arm of two joints with fingers of two joints; without `palm` the fingers go out from the base."""
    parts = [link("base", mass(1.0))]
    if palm:
        parts += [link("upper", mass(1.0)), link("lower", mass(1.0)), joint("base", "upper"), joint("upper", "lower")]
    root = "lower" if palm else "base"
    for i in range(fingers):
        parts += [link(f"near{i}", mass(0.1)), link(f"middle{i}", mass(0.1)), link(f"far{i}", mass(0.1))]
        parts += [joint(root, f"near{i}", place=f"0 {0.1 * i} 0.1"), joint(f"near{i}", f"middle{i}", place="0 0 0.05")]
        parts += [joint(f"middle{i}", f"far{i}", place="0 0 0.05")]
    return parts


def test_tool_of_an_arm_whose_frames_have_no_telling_names_is_its_palm(tmp_path: Path) -> None:
    card, _ = new_card(str(urdf(tmp_path, *hand(3, palm=True))), "hand")
    assert card.tool == "lower"
    assert card.gripper is not None
    assert len(card.gripper.joints) == 9


def test_robot_with_several_limbs_asks_which_one_and_takes_the_answer(tmp_path: Path) -> None:
    path = str(urdf(tmp_path, *hand(4, palm=False)))
    with pytest.raises(ValueError, match=r"has 4 limbs, which end at .*tool=<site or body>"):
        new_card(path, "hand")
    assert len(new_card(path, "hand", tool="far2")[0].joints) == 3


def test_a_base_that_stands_on_a_frame_without_shapes_is_shown(tmp_path: Path) -> None:
    shape = '<collision><geometry><box size="0.3 0.2 0.1"/></geometry></collision>'
    parts = (link("base_footprint", ""), link("base_link", mass(3.0) + shape))
    path = urdf(tmp_path, *parts, joint("base_footprint", "base_link", "fixed"))
    ready = read("diff_drive")
    drawn, told = pictures(ready.model_copy(update={"base": "base_link", "model": ModelCard(path=str(path))}))
    if not drawn:
        pytest.skip(told[-1])
    shot = np.asarray(Image.open(io.BytesIO(base64.b64decode(drawn[0][1]))))
    assert shot[:, -100:].std() > 1.0  # to its edge: sky and floor


def test_limits_that_are_infinite_are_unknown(tmp_path: Path) -> None:
    parts = [link("base", mass(2.0)), link("upper", mass(1.0)), link("lower", mass(0.5))]
    free = joint("base", "upper").replace('velocity="2" effort="10"', 'velocity="inf" effort="INF"')
    card, _ = new_card(str(urdf(tmp_path, *parts, free, joint("upper", "lower"))), "arm")
    assert [(each.velocity, each.effort) for each in card.joints] == [("?", "?"), (2.0, 10.0)]
