"""Models that MuJoCo reads and Python's XML does not, and models that MuJoCo writes and does not read again."""

import mujoco
import numpy as np
import pytest

from robot_rl.sim.model_text import read_xml, write_xml

ARM = """<mujoco model="arm">
  <compiler angle="radian"/>
  <default>
    <joint damping="{damping}"/>
    <default class="link"><geom size="0.02" density="{density}"/></default>
  </default>
  <worldbody>
    <body name="{name}_upper" childclass="link"><joint name="{name}_a" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0 0 .3"/>
      <body name="{name}_lower" pos="0 0 .3"><joint name="{name}_b" axis="0 1 0" damping="7"/>
        <geom type="capsule" fromto="0 0 0 0 0 .2"/></body>
    </body>
  </worldbody>
  <actuator><position name="{name}_m" joint="{name}_a" kp="30"/></actuator>
</mujoco>"""
TWO = """<mujoco>
  <asset><model name="one" file="one.xml"/><model name="two" file="two.xml"/></asset>
  <worldbody>
    <body name="left" pos="0 .3 0"><attach model="one" body="one_upper" prefix=""/></body>
    <body name="right" pos="0 -.3 0"><attach model="two" body="two_upper" prefix=""/></body>
  </worldbody>
</mujoco>"""


def test_what_is_attached_without_a_prefix_is_written_so_that_it_can_be_read(tmp_path):
    """Both arms bring an unnamed class and one called link, of unlike damping and density."""
    (tmp_path / "one.xml").write_text(ARM.format(name="one", damping=3, density=500))
    (tmp_path / "two.xml").write_text(ARM.format(name="two", damping=4, density=900))
    (tmp_path / "both.xml").write_text(TWO)
    spec = mujoco.MjSpec.from_file(str(tmp_path / "both.xml"))
    made = spec.compile()
    with pytest.raises(ValueError, match="class name"):
        mujoco.MjModel.from_xml_string(spec.to_xml())
    again = mujoco.MjModel.from_xml_string(write_xml(spec))
    assert sorted(made.dof_damping) == [3.0, 4.0, 7.0, 7.0]
    for name in ("dof_damping", "body_mass", "geom_size", "body_inertia", "actuator_gainprm"):
        assert np.allclose(getattr(again, name), getattr(made, name), rtol=1e-5), name


def test_a_model_whose_classes_have_names_is_written_as_mujoco_writes_it(tmp_path):
    spec = mujoco.MjSpec.from_string(ARM.format(name="one", damping=3, density=500))
    spec.compile()
    assert write_xml(spec) == spec.to_xml()


def test_comments_with_dashes_and_what_follows_the_root_are_read_as_by_mujoco(tmp_path):
    path = tmp_path / "arm.xml"
    path.write_text(
        "<!-- an arm -- of two joints --><!-- <robot> -->"
        + ARM.format(name="one", damping=3, density=500)
        + "\n</mujoco>"
    )
    assert mujoco.MjSpec.from_file(str(path)).compile().nq == 2
    assert [joint.get("name") for joint in read_xml(path).iter("joint") if joint.get("name")] == ["one_a", "one_b"]


def test_what_is_no_xml_is_said(tmp_path):
    path = tmp_path / "arm.xml"
    path.write_text("<mujoco><worldbody></mujoco>")
    with pytest.raises(ValueError, match=r"arm\.xml is no XML: mismatched tag"):
        read_xml(path)
