"""How a scene looks, drawn by a seed: colours, textures, lights, cameras, sizes, and things that lie about.

What differs is written into the model's text before it is compiled, so that cameras know their own calibration. Masses,
joints and the task stay; sizes of the cube and of the socket's outside are those that the arm feels, too.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from typing import Literal
from xml.etree import ElementTree

import numpy as np

from robot_rl.sim.arm_cameras import words
from robot_rl.types.options import Options, Whole

_AWAY = (0.32, 0.56), (-0.18, 0.18)  # m of the table that stay free of things which lie about
_LOOKED_AT = 0.45, 0.0, 0.05  # where lights point, m
_KINDS = {"known": ("capsule", "ellipsoid"), "unknown": ("cylinder", "box")}
_TEXTURES = {"known": ("flat", "gradient", "checker"), "unknown": ("speckles",)}


class Look(Options):
    """Which look to draw. Unknown looks lie outside the known ones in hues of all but the task's objects, in cameras,
    lamps and sizes, and in kinds of textures and of things that lie about; hues of cube and goal, and opacity and glow
    of the goal, lie in gaps that known ones leave. `encoder=robot` was trained on known ones alone."""

    seed: Whole = 0
    """Of all draws."""
    range: Literal["known", "unknown"] = "unknown"
    """Whether to draw from what `encoder=robot` was trained on, or outside of it."""
    part: Literal["all", "arm", "colours", "textures", "task", "lamps", "sizes", "things", "cameras", "wrist"] = "all"
    """What of an unknown look is unknown, the rest is as in known ones: greys of the arm; hues of all but arm, cube and
    goal; kinds of textures; hues of cube and goal, opacity and glow of the goal; lamps; sizes; kinds of things that lie
    about; cameras that stand; the camera of the hand."""


class _Draw:
    """Numbers from an interval, or from beyond its ends, for a part of a look; all parts draw from one stream."""

    def __init__(self, look: Look, part: str = "all", rng: np.random.Generator | None = None) -> None:
        self._look = look
        self.rng = rng or np.random.default_rng((look.seed, ("known", "unknown").index(look.range)))
        self._beyond = look.range == "unknown" and look.part in ("all", part)
        self.range = "unknown" if self._beyond else "known"

    def of(self, part: str) -> _Draw:
        """For a part."""
        return _Draw(self._look, part, self.rng)

    def between(
        self, low: float, high: float, *, below: float = 0.0, above: float = 0.0, under: float = 0.0, over: float = 0.0
    ) -> float:
        """From [low, high]; where unknown, from the `below` under it or the `above` over it.

        Known ones come from beyond these, too, where `under` and `over` say how far: then unknown ones are a gap.
        """
        if not self._beyond:
            known = float(self.rng.uniform(low - under, high + over))
            return known - below if known < low else known + above if known > high else known
        at = float(self.rng.uniform(-below, above))
        return low + at if at < 0.0 else high + at

    def colour(
        self,
        saturation: tuple[float, float],
        value: tuple[float, float],
        hue: tuple[float, float] = (0.0, 0.84),
        beyond: float = 0.08,
        around: float = 0.0,
    ) -> list[float]:
        """(3,) red, green, blue; only the hue is drawn from beyond."""
        tone = self.between(*hue, below=beyond, above=beyond, under=around, over=around) % 1.0
        return list(colorsys.hsv_to_rgb(tone, float(self.rng.uniform(*saturation)), float(self.rng.uniform(*value))))

    def grey(self, low: float, high: float) -> list[float]:
        """(3,) almost grey; where unknown, tinted."""
        tint = self.between(0.0, 0.15, above=0.2)
        return list(colorsys.hsv_to_rgb(float(self.rng.uniform()), tint, float(self.rng.uniform(low, high))))


def dress(mjcf: str, look: Look, views: int = 0) -> str:
    """The model in another look.

    Args:
        mjcf: of a world with the desk arm: reach, pick or insert.
        look: which.
        views: how many more of each camera there are, each as another draw would place it: `front_0`, `front_1` ...

    Raises:
        ValueError: the model of another arm or world.
    """
    root = ElementTree.fromstring(mjcf)
    world, assets = root.find("worldbody"), root.find("asset")
    if world is None or assets is None or root.find(".//geom[@name='table_top']") is None:
        raise ValueError(
            "look= changes the scenes of reach, pick and insert with the desk arm, and this is another one"
        )
    draw = _Draw(look)
    _paint(root, assets, draw)
    _light(root, world, draw.of("lamps"))
    _resize(root, draw.of("sizes"))
    _scatter(world, draw)
    parents = {child: parent for parent in root.iter() for child in parent}
    for camera in list(root.iter("camera")):
        place = dict(camera.attrib)
        for i in range(views):
            more = ElementTree.SubElement(parents[camera], "camera", {**place, "name": f"{place['name']}_{i}"})
            _move(more, place, draw)
        _move(camera, place, draw)
    return ElementTree.tostring(root, encoding="unicode")


def _paint(root: ElementTree.Element, assets: ElementTree.Element, draw: _Draw) -> None:
    """Materials, and colours of the task's objects: cubes are warm and goals green to blue, other things anything."""
    other, texture_of, task = draw.of("colours"), draw.of("textures"), draw.of("task")
    for name, low, high in (("shell", 0.5, 1.0), ("joint", 0.08, 0.45), ("leg", 0.1, 0.5), ("rubber", 0.05, 0.25)):
        _material(root, name).set("rgba", words((*draw.of("arm").grey(low, high), 1.0)))
    _material(root, "accent").set("rgba", words((*other.colour((0.3, 0.9), (0.3, 0.9)), 1.0)))
    _material(root, "table").set("specular", f"{texture_of.between(0.0, 0.3, above=0.2):.3g}")
    for name in ("table", "floor"):
        light = float(draw.rng.uniform(0.3, 0.85))
        pair = [other.colour((0.0, 0.45), (light + step, light + step + 0.05)) for step in (0.0, -0.12)]
        kind = str(draw.rng.choice(_TEXTURES[texture_of.range]))
        first, second = (words(colour) for colour in pair)
        texture = {"rgb1": first, "rgb2": first if kind == "flat" else second, "builtin": kind}
        if kind == "speckles":
            texture |= {"rgb2": first, "builtin": "flat", "mark": "random", "random": "0.1", "markrgb": second}
        size = {"type": "2d", "name": f"look_{name}", "width": "64", "height": "64"}
        ElementTree.SubElement(assets, "texture", {**texture, **size})
        repeat = f"{texture_of.between(1.0, 6.0, above=3.0):.3g}"
        material = _material(root, name)
        material.attrib.update(
            texture=f"look_{name}", rgba="1 1 1 1", texuniform="true", texrepeat=f"{repeat} {repeat}"
        )
    sky = root.find(".//texture[@name='sky']")
    if sky is not None:
        sky.set("rgb1", words(other.colour((0.0, 0.4), (0.2, 1.0))))
        sky.set("rgb2", words(other.colour((0.0, 0.5), (0.2, 0.9))))
    goal = root.find(".//material[@name='goal']")
    if goal is not None:
        colour = task.colour((0.65, 1.0), (0.5, 0.95), (0.24, 0.58), 0.04, around=0.04)
        goal.set("rgba", words((*colour, task.between(0.5, 1.0, below=0.1, under=0.1))))
        goal.set("emission", f"{task.between(0.2, 0.6, below=0.1, above=0.1, under=0.1, over=0.1):.3g}")
    cube = task.colour((0.65, 1.0), (0.5, 1.0), (-0.04, 0.11), 0.04, around=0.04)
    socket = other.colour((0.0, 0.9), (0.3, 0.95))
    peg = other.colour((0.2, 0.95), (0.35, 1.0))
    for geom in root.iter("geom"):
        name = geom.get("name", "")
        for begin, colour in (("cube", cube), ("wall_", socket), ("floor_of_hole", socket), ("peg", peg)):
            if name.startswith(begin):
                geom.set("rgba", words((*colour, 1.0)))


def _light(root: ElementTree.Element, world: ElementTree.Element, draw: _Draw) -> None:
    """The two lamps go elsewhere and become brighter or darker, and so does the light from the camera."""
    for name, low, high in (("key", 0.3, 0.75), ("fill", 0.0, 0.3)):
        lamp = world.find(f"light[@name='{name}']")
        assert lamp is not None
        turn = draw.between(-2.6, 1.6, below=0.7, above=0.7)
        place = np.array(
            [0.4 + 1.2 * math.cos(turn), 1.2 * math.sin(turn), draw.between(1.2, 2.0, below=0.2, above=0.3)]
        )
        warm = draw.between(-0.06, 0.06, below=0.04, above=0.04)
        bright = draw.between(low, high, above=0.1)
        lamp.set("pos", words(place))
        lamp.set("dir", words(np.array(_LOOKED_AT) - place))
        lamp.set("diffuse", words(bright * np.array([1.0 + warm, 1.0, 1.0 - warm])))
    head = root.find(".//headlight")
    assert head is not None
    head.set("ambient", words([draw.between(0.2, 0.42, below=0.05, above=0.05)] * 3))
    head.set("diffuse", words([draw.between(0.1, 0.35, below=0.05, above=0.05)] * 3))


def _resize(root: ElementTree.Element, draw: _Draw) -> None:
    """Cube, ball and the outside of the socket; the hole stays."""
    for geom in root.iter("geom"):
        name, size = geom.get("name", ""), _numbers(geom.get("size", ""))
        if name == "cube":  # not higher than the world has it: it begins on the table
            size = [
                x * draw.between(0.84, top, below=0.06, above=over)
                for x, top, over in zip(size, (1.05, 1.05, 1.0), (0.06, 0.06, 0.0))
            ]
        elif name == "goal":
            size = [size[0] * draw.between(0.85, 1.25, below=0.08, above=0.15)]
        geom.set("size", words(size))
    if root.find(".//geom[@name='wall_1']") is None:
        return
    out = 0.04 * draw.between(0.8, 1.25, below=0.08, above=0.12)
    for number, axis in ((1, 0), (2, 0), (3, 1), (4, 1)):
        wall = root.find(f".//geom[@name='wall_{number}']")
        assert wall is not None
        size, place = _numbers(wall.get("size", "")), _numbers(wall.get("pos", ""))
        hole = abs(place[axis]) - size[axis]
        size[axis] = 0.5 * (out - hole)
        place[axis] = math.copysign(hole + size[axis], place[axis])
        if axis == 0:
            size[1] = out
        wall.set("size", words(size))
        wall.set("pos", words(place))


def _scatter(world: ElementTree.Element, draw: _Draw) -> None:
    """Low things on the table, beside the place where the task is; nothing touches them."""
    for i in range(int(draw.rng.integers(0, 6))):
        while True:
            x, y = draw.rng.uniform(0.0, 0.7), draw.rng.uniform(-0.38, 0.38)
            inside = [low - 0.05 < at < high + 0.05 for at, (low, high) in zip((x, y), _AWAY)]
            if not all(inside) and math.hypot(x, y) > 0.15:
                break
        kind = str(draw.rng.choice(_KINDS[draw.of("things").range]))
        size = draw.rng.uniform((0.012, 0.02, 0.008), (0.04, 0.05, 0.02))
        flat = {"capsule": (0.5 * size[0], size[1]), "cylinder": (size[0], size[2])}.get(kind, tuple(size))
        lying = "1.5708 0 " if kind == "capsule" else "0 0 "
        thing = {"type": kind, "size": words(flat), "pos": words((x, y, flat[-1] if kind != "capsule" else flat[0]))}
        colour = draw.of("colours").colour((0.0, 0.9), (0.15, 0.95))
        thing |= {
            "name": f"thing_{i}",
            "rgba": words((*colour, 1.0)),
            "euler": f"{lying}{draw.rng.uniform(-3.1, 3.1):.3g}",
        }
        ElementTree.SubElement(world, "geom", thing)


def _move(camera: ElementTree.Element, place: dict[str, str], draw: _Draw) -> None:
    """A camera near where it was: around what it looks at where it stands, a little aside where the hand carries it."""
    at, axes = np.array(_numbers(place["pos"])), _numbers(place["xyaxes"])
    right, up = np.array(axes[:3]), np.array(axes[3:])
    back = np.cross(right, up)
    fovy = math.radians(float(place["fovy"]))
    draw = draw.of("wrist" if place["name"] == "wrist" else "cameras")
    if place["name"] == "wrist":
        at = at + [draw.between(-0.006, 0.006, below=0.003, above=0.003) for _ in range(3)]
        tilt = [draw.between(-0.05, 0.05, below=0.02, above=0.02) for _ in range(3)]
        wide = draw.between(0.95, 1.12, below=0.03, above=0.05)
    else:
        distance = 0.85
        aim = at - distance * back + [draw.between(-0.02, 0.02, below=0.01, above=0.01) for _ in range(3)]
        turn = math.atan2(back[1], back[0]) + draw.between(-0.35, 0.35, below=0.1, above=0.1)
        lift = math.asin(float(back[2])) + draw.between(-0.17, 0.21, below=0.05, above=0.07)
        far = distance * draw.between(0.88, 1.15, below=0.05, above=0.07)
        back = np.array([math.cos(lift) * math.cos(turn), math.cos(lift) * math.sin(turn), math.sin(lift)])
        at, right = aim + far * back, np.array([-math.sin(turn), math.cos(turn), 0.0])
        up = np.cross(back, right)
        fovy = 2.0 * math.atan(math.tan(0.5 * fovy) * distance / far)  # as much is seen from elsewhere
        tilt = [0.0, 0.0, draw.between(-0.09, 0.09, below=0.04, above=0.04)]
        wide = draw.between(0.97, 1.15, above=0.07)
    turned = np.stack([right, up, back], 1) @ _rotation(tilt)
    camera.set("pos", words(at))
    camera.set("xyaxes", words((*turned[:, 0], *turned[:, 1])))
    camera.set("fovy", f"{math.degrees(2.0 * math.atan(math.tan(0.5 * fovy) * wide)):.5g}")


def _rotation(tilt: Sequence[float]) -> np.ndarray:
    """(3, 3) about x, then y, then z [rad]."""
    out = np.eye(3)
    for axis, angle in enumerate(tilt):
        one, other = (axis + 1) % 3, (axis + 2) % 3
        step = np.eye(3)
        step[one, one] = step[other, other] = math.cos(angle)
        step[other, one], step[one, other] = math.sin(angle), -math.sin(angle)
        out = out @ step
    return out


def _material(root: ElementTree.Element, name: str) -> ElementTree.Element:
    found = root.find(f".//material[@name='{name}']")
    assert found is not None
    return found


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]
