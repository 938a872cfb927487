"""Meshes in COLLADA, as many robots' are, and files that are named by a path on their maker's machine."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from robot_rl.sim import mesh_files
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.robot_model import load

BOX = """<?xml version="1.0"?>
<COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema" version="1.4.1">
  <asset><unit name="millimeter" meter="0.001"/><up_axis>Y_UP</up_axis></asset>
  <library_geometries><geometry id="box"><mesh>
    <source id="points"><float_array id="numbers" count="24">
      -10 -20 0  10 -20 0  10 20 0  -10 20 0  -10 -20 100  10 -20 100  10 20 100  -10 20 100</float_array>
      <technique_common><accessor source="#numbers" count="8" stride="3">
        <param name="X" type="float"/><param name="Y" type="float"/><param name="Z" type="float"/>
      </accessor></technique_common></source>
    <vertices id="corners"><input semantic="POSITION" source="#points"/></vertices>
    <polylist count="6"><input semantic="VERTEX" source="#corners" offset="0"/>
      <vcount>4 4 4 4 4 4</vcount>
      <p>3 2 1 0  4 5 6 7  0 1 5 4  1 2 6 5  2 3 7 6  3 0 4 7</p></polylist>
  </mesh></geometry></library_geometries>
  <library_visual_scenes><visual_scene id="scene"><node>
    <translate>0 0 50</translate><instance_geometry url="#box"/>
  </node></visual_scene></library_visual_scenes>
  <scene><instance_visual_scene url="#scene"/></scene>
</COLLADA>"""
LINK = '<link name="{n}"><inertial><mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01"/></inertial>{shape}</link>'
SHAPE = "".join(
    f'<{kind}><geometry><mesh filename="{{file}}"/></geometry></{kind}>' for kind in ("visual", "collision")
)
JOINT = """<joint name="j{k}" type="revolute"><parent link="l{k}"/><child link="l{n}"/><origin xyz="0 0 .2"/>
  <axis xyz="0 1 0"/>  <limit lower="-1.5" upper="1.5" effort="20" velocity="2"/></joint>"""


def robot(folder: Path, file: str) -> Path:
    """A URDF of three links with this mesh, below a package's folder `urdf`."""
    links = "".join(LINK.format(n=f"l{k}", shape=SHAPE.format(file=file)) for k in range(3))
    joints = "".join(JOINT.format(k=k, n=k + 1) for k in range(2))
    path = folder / "arm_description" / "urdf" / "arm.urdf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<robot name="arm">{links}{joints}</robot>')
    return path


@pytest.fixture
def mesh(tmp_path):
    path = tmp_path / "arm_description" / "meshes" / "link.dae"
    path.parent.mkdir(parents=True)
    path.write_text(BOX)
    return path


def test_a_box_of_polygons_in_millimetres_is_twelve_triangles_where_its_node_puts_it(mesh):
    """Its up axis does not count: in ROS the URDF's frame says where up is."""
    found = mesh_files.triangles(mesh)
    assert found is not None
    corners, faces = found
    assert faces.shape == (12, 3)
    assert np.allclose(corners.min(0), [-0.01, -0.02, 0.05])
    assert np.allclose(corners.max(0), [0.01, 0.02, 0.15])
    a, b, c = corners[faces].transpose(1, 0, 2)
    assert np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2 == pytest.approx(2 * (8e-4 + 2e-3 + 4e-3))


@pytest.mark.parametrize(
    "file",
    ["../meshes/link.dae", "package://arm_description/meshes/link.dae", "file:///home/maker/ws/share/arm_description/meshes/link.dae"],
)  # fmt: skip
def test_a_robot_with_meshes_in_collada_has_their_shape(mesh, tmp_path, file):
    made = load(robot(tmp_path, file))
    assert made.notes == []
    model = made.spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    shape = np.flatnonzero((model.geom_contype != 0) & (model.geom_bodyid == model.body("l2").id))
    assert len(shape) == 1
    mesh_of = model.geom_dataid[shape[0]]
    first, count = model.mesh_vertadr[mesh_of], model.mesh_vertnum[mesh_of]
    turned = data.geom_xmat[shape[0]].reshape(3, 3)
    corners = data.geom_xpos[shape[0]] + model.mesh_vert[first : first + count] @ turned.T
    assert np.allclose(corners.min(0), [-0.01, -0.02, 0.45], atol=1e-6)
    assert np.allclose(corners.max(0), [0.01, 0.02, 0.55], atol=1e-6)
    card, _ = new_card(str(robot(tmp_path, file)), "arm")
    assert [joint.name for joint in card.joints] == ["j0", "j1"]


@pytest.mark.parametrize(
    "text", ["", BOX[:400], BOX.replace("#scene", "#other"), BOX.replace("instance_geometry", "extra")]
)
def test_a_file_that_is_cut_off_or_empty_is_left_out_with_a_sentence(mesh, tmp_path, text):
    mesh.write_text(text)
    made = load(robot(tmp_path, "../meshes/link.dae"))
    assert (
        "6 meshes are absent or of a form that is not read, and left out: visual link.dae, collision link.dae"
        in made.notes[0]
    )
    assert any("capsules along its bones" in note for note in made.notes)


def test_without_the_package_the_note_says_what_brings_it(mesh, tmp_path, monkeypatch):
    for place in ("mesh_files", "robot_model"):
        monkeypatch.setattr(f"robot_rl.sim.{place}.find_fault", lambda module: "missing")
    made = load(robot(tmp_path, "../meshes/link.dae"))
    assert 'files that end in .dae are read after: pip install "robot_rl[robot]"' in made.notes


STL = bytes(80) + (1).to_bytes(4, "little") + np.array([0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0], "<f4").tobytes() + bytes(2)


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (STL, True),
        (STL[:-1], False),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 31415\n" + bytes(40), False),
        (bytes(84), False),
        (b"solid arm\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 1 0\nendloop\n", True),
    ],
)
def test_an_stl_that_is_cut_off_or_a_pointer_to_one_is_told_from_one_in_words(tmp_path, data, read):
    path = tmp_path / "link.STL"
    path.write_bytes(data)
    assert mesh_files.is_readable(path) is read
