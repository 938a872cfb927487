"""A card's robot as pictures: model, frames and workspace, from two sides."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.card_arm import TOOL
from robot_rl.sim.card_scene import at_home
from robot_rl.sim.robot_model import load, mujoco
from robot_rl.types.card import Card

if TYPE_CHECKING:
    from mujoco import MjvGeom, MjvScene

_AXES = ((0.9, 0.2, 0.2, 1.0), (0.2, 0.75, 0.25, 1.0), (0.2, 0.35, 0.95, 1.0))
_ORANGE = (0.95, 0.6, 0.1, 1.0)
_SIZE = (720, 960)


def pictures(card: Card) -> tuple[list[tuple[str, str]], list[str]]:
    """Pictures of a robot in its home pose.

    Args:
        card: of the robot.

    Returns:
        (caption, PNG in base64) each, and what is worth saying aloud; no picture where there is no OpenGL.

    Raises:
        ValueError: the card does not fit its model.
    """
    told = load(card.model.path).notes
    model, data = at_home(card)
    box = card.workspace
    if box is not None:
        low, high = np.array(box.lower), np.array(box.upper)
        middle, reach = 0.5 * (low + high) * [0.5, 0.5, 0.8], float(np.abs([low, high]).max())
    else:
        trunk = int(model.body(card.base).id)
        low = high = np.zeros(3)
        middle = np.array(data.subtree_com[trunk])
        own = model.body_rootid[model.geom_bodyid] == model.body_rootid[trunk]
        away = np.linalg.norm(data.geom_xpos - middle, axis=1) + model.geom_rbound
        reach = 1.5 * float(away[own].max())
    try:
        from robot_rl.sim.render import open_context

        context = open_context(_SIZE[1], _SIZE[0])
    except (RuntimeError, ImportError) as error:
        return [], [*told, f"no pictures: {str(error).splitlines()[0]}"]
    scene = mujoco.MjvScene(model, maxgeom=10_000)
    drawn = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150.value)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, drawn)
    frame, pixels = mujoco.MjrRect(0, 0, _SIZE[1], _SIZE[0]), np.empty((*_SIZE, 3), np.uint8)
    made = []
    for name, angle in (("home from the front", 140.0), ("home from the side", 90.0)):
        view = mujoco.MjvCamera()
        view.lookat[:] = middle
        view.distance, view.azimuth, view.elevation = 2.6 * reach, angle, -18.0
        option = mujoco.MjvOption()
        option.geomgroup[4] = 0
        mujoco.mjv_updateScene(model, data, option, None, view, mujoco.mjtCatBit.mjCAT_ALL.value, scene)
        if box is not None:
            _box(scene, low, high)
        frame_of = data.site(TOOL) if card.tool else data.body(card.base)
        _axes(scene, np.array(frame_of.xpos), np.array(frame_of.xmat).reshape(3, 3), 0.15 * reach)
        _axes(scene, np.zeros(3), np.eye(3), 0.25 * reach)
        for i in range(model.njnt):
            if int(model.jnt_type[i]) == int(mujoco.mjtJoint.mjJNT_FREE):
                continue
            half = 0.16 * reach * data.xaxis[i]
            _line(scene, data.xanchor[i] - half, data.xanchor[i] + half, 0.006 * reach, _ORANGE)
        shown = "workspace as a box, frames of world and tool" if card.tool else f"frames of world and {card.base}"
        caption = f"{name}: {shown}, joint axes in orange"
        mujoco.mjr_render(frame, scene, drawn)
        mujoco.mjr_readPixels(pixels, None, frame, drawn)
        made.append((caption, _png(pixels[::-1])))
    drawn.free()
    context.free()
    return made, told


def _png(picture: np.ndarray) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _axes(scene: MjvScene, place: np.ndarray, turn: np.ndarray, length: float) -> None:
    for axis, colour in enumerate(_AXES):
        _line(scene, place, place + length * turn[:, axis], 0.03 * length, colour)


def _line(scene: MjvScene, start: np.ndarray, end: np.ndarray, width: float, colour: tuple[float, ...]) -> None:
    geom = _new(scene, mujoco.mjtGeom.mjGEOM_CAPSULE, colour)
    mujoco.mjv_connector(geom, mujoco.mjtGeom.mjGEOM_CAPSULE, width, start, end)


def _box(scene: MjvScene, low: np.ndarray, high: np.ndarray) -> None:
    geom = _new(scene, mujoco.mjtGeom.mjGEOM_BOX, (0.2, 0.6, 0.9, 0.18))
    geom.size[:], geom.pos[:] = 0.5 * (high - low), 0.5 * (high + low)


def _new(scene: MjvScene, kind: object, colour: tuple[float, ...]) -> MjvGeom:
    geom = scene.geoms[scene.ngeom]
    mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.eye(3).flatten(), np.array(colour, np.float32))
    scene.ngeom += 1
    return geom
