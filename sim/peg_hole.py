"""Sizes of the peg and the hole of `insert`, and the socket's shapes."""

from __future__ import annotations

PEG = 0.010
"""Half the width of the peg [m]; these and all lengths below are the desk arm's, smaller arms have them smaller."""
CLEARANCE = 0.001
"""Between peg and hole on each side when the peg is centred [m]."""
DEPTH = 0.03
"""From the mouth of the hole to its floor [m]."""
TOP = 0.04
"""Height of the socket's upper face above the table [m]."""
_HOLE, _OUT = PEG + CLEARANCE, 0.04  # half the width of hole and socket


def socket(scale: float = 1.0) -> str:
    """A box with a square hole, which only shapes of contact type 4 or 8 touch, as MJCF elements.

    It stands where its three joints are; they are so heavy and damped that no push of an arm moves them.

    Args:
        scale: of its size.
    """
    hole, out = _HOLE * scale, _OUT * scale
    wall, height = 0.5 * (out - hole), 0.5 * DEPTH * scale
    middle, floor = TOP * scale - height, 0.5 * (TOP - DEPTH) * scale
    look = 'contype="0" conaffinity="12" rgba="0.25 0.45 0.70 1" friction="0.3 0.005 0.0001"'
    return f"""
<body name="socket">
  <joint name="socket_x" type="slide" axis="1 0 0" armature="1000" damping="1e9"/>
  <joint name="socket_y" type="slide" axis="0 1 0" armature="1000" damping="1e9"/>
  <joint name="socket_yaw" type="hinge" axis="0 0 1" armature="1000" damping="1e9"/>
  <geom name="wall_1" type="box" size="{wall} {out} {height}" pos="{hole + wall} 0 {middle}" {look} mass="0.5"/>
  <geom name="wall_2" type="box" size="{wall} {out} {height}" pos="{-hole - wall} 0 {middle}" {look}/>
  <geom name="wall_3" type="box" size="{hole} {wall} {height}" pos="0 {hole + wall} {middle}" {look}/>
  <geom name="wall_4" type="box" size="{hole} {wall} {height}" pos="0 {-hole - wall} {middle}" {look}/>
  <geom name="floor_of_hole" type="box" size="{out} {out} {floor}" pos="0 0 {floor}"
        {look}/>
</body>
"""
