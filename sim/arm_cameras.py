"""Where the cameras around the desk arm stand: two at a right angle, which together show depth, and the wrist's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree

_DISTANCE, _ELEVATION = 0.85, math.radians(25.0)  # m from the middle of the work space, above the horizontal
_AZIMUTH = {"front": math.radians(-40.0), "side": math.radians(50.0)}  # of their places, from the x axis
_WRIST = (0.025, 0.0, 0.075)  # in the frame of the hand, whose x axis is the direction of the tool, m
_BELOW = 0.02  # m below the tip that the wrist camera looks at


@dataclass(frozen=True)
class Aim:
    """What a world's cameras look at.

    Attributes:
        middle: (3,) of the work space, m: `front` and `side` look at it.
        fovy: vertical angle of these two, degrees.
        tip: from the hand's frame to the tip, along the tool, m.
        wrist_fovy: vertical angle of the wrist camera, degrees.
    """

    middle: tuple[float, float, float]
    fovy: float = 30.0
    tip: float = 0.108
    wrist_fovy: float = 60.0


def place_cameras(root: ElementTree.Element, aim: Aim) -> None:
    """Move the model's `front` and `wrist` cameras, and add `side`; `root` is changed in place."""
    world = root.find("worldbody")
    front, wrist = root.find(".//camera[@name='front']"), root.find(".//camera[@name='wrist']")
    assert world is not None
    assert front is not None
    assert wrist is not None
    side = ElementTree.SubElement(world, "camera", name="side")
    for name, camera in (("front", front), ("side", side)):
        turn = _AZIMUTH[name]
        out = math.cos(_ELEVATION) * math.cos(turn), math.cos(_ELEVATION) * math.sin(turn), math.sin(_ELEVATION)
        right = -math.sin(turn), math.cos(turn), 0.0
        up = -math.sin(_ELEVATION) * math.cos(turn), -math.sin(_ELEVATION) * math.sin(turn), math.cos(_ELEVATION)
        camera.set("pos", words(m + _DISTANCE * x for m, x in zip(aim.middle, out)))
        camera.set("xyaxes", words((*right, *up)))
        camera.set("fovy", f"{aim.fovy:g}")
    ahead, down = aim.tip + _BELOW - _WRIST[0], _WRIST[2]
    length = math.hypot(ahead, down)
    wrist.set("xyaxes", words((0.0, -1.0, 0.0, down / length, 0.0, ahead / length)))
    wrist.set("fovy", f"{aim.wrist_fovy:g}")


def words(numbers: Iterable[float]) -> str:
    """Numbers as MJCF writes them, with six digits."""
    return " ".join(f"{x:.6g}" for x in numbers)
