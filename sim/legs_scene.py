"""A robot on legs on a plane: the model that tasks step, where it stands and where its feet are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl.sim.legs_plant import free_trunk
from robot_rl.sim.model_text import write_xml
from robot_rl.sim.robot_model import (
    FLOOR,
    add_floor,
    add_joint,
    add_sky,
    floor_gaps,
    hold_others,
    joints_to,
    load,
    mujoco,
    strip,
)
from robot_rl.types.card import Card

if TYPE_CHECKING:
    from mujoco import MjModel, MjSpec

    from robot_rl.sim.terrain import Ground

TIMESTEP = 0.004
"""Of the physics [s]: a fifth of a decision at 50 Hz."""
FOOT, HEIGHT, SPEED = "robot_rl_foot", "robot_rl_foot_place", "robot_rl_foot_speed"
"""Prefixes of a foot's site, and of its two sensors."""
_LEVEL = 0.005
"""Shapes of a limb so near to its lowest one belong to the sole [m]."""
_LIMB = 2
"""Joints that a leg has at least."""
_LOW = 0.1
"""Legs end so near to the floor where the robot stands, as a part of its trunk's height; heads and arms do not."""


@dataclass(frozen=True)
class LegsScene:
    """What tasks need of a robot on legs.

    Attributes:
        xml: model with floor, servos, feet and their sensors.
        stand: (7 + J,) positions of the trunk's free joint and of the joints: home, feet on the floor.
        feet: (F, 3) places of the feet in that pose [m].
    """

    xml: str
    stand: np.ndarray
    feet: np.ndarray


def scene(card: Card) -> LegsScene:
    """The scene of a robot's card.

    Raises:
        ValueError: no legs, no gains, a model that cannot be read or does not have what the card names.
    """
    if card.legs is None:
        raise ValueError(f"the card of {card.name} is that of a robot without legs; env=reach robot=… takes arms")
    weak = [joint.name for joint in card.joints if not (joint.kp and joint.kd)]
    if weak:
        raise ValueError(
            f"kp and kd of {weak[0]} are not in the card of {card.name}: write the gains that its driver is to have"
        )
    return _scene(card.model_dump_json(include={"name", "model", "base", "joints", "home"}))


@lru_cache(4)
def _scene(text: str) -> LegsScene:
    card = Card.model_validate({"command_mode": "pd", "legs": {}, **Card.model_validate_json(text).model_dump()})
    spec = load(card.model.path, legs=True).spec
    strip(spec, spec.actuators, spec.keys, spec.sensors, spec.lights, spec.cameras)
    hold_others(spec, {joint.name for joint in card.joints})
    add_floor(spec)
    free_trunk(spec, card.base)
    spec.option.timestep, spec.option.integrator = TIMESTEP, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.iterations, spec.option.ls_iterations = 20, 10
    for joint in card.joints:
        add_joint(spec, card.name, joint)
    model = spec.compile()
    names = [model.joint(int(j)).name for j in range(1, model.njnt)]
    if names != [joint.name for joint in card.joints] or model.nq != 7 + len(names):
        raise ValueError(
            f"the joints of {card.name} are {', '.join(joint.name for joint in card.joints)}; those of the model "
            f"behind its trunk are {', '.join(names)}, expected the same in the same order"
        )
    data = mujoco.MjData(model)
    stand = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, *card.home])
    data.qpos[:] = stand
    mujoco.mj_forward(model, data)
    gaps = floor_gaps(model, data)
    if not gaps:
        raise ValueError(f"nothing in the model of {card.name} touches: its links need <collision> shapes to stand on")
    stand[2] -= min(gaps.values())
    feet = []
    near = min(gaps.values()) + _LOW * stand[2]
    for i, limb in enumerate(limb for limb in _limbs(model) if min(gaps[g] for g in limb) <= near):
        low = min(gaps[g] for g in limb)
        sole = [g for g in limb if gaps[g] < low + _LEVEL]
        body = int(model.geom_bodyid[sole[0]])
        middle = np.mean([data.geom_xpos[g] for g in sole], axis=0)
        local = data.xmat[body].reshape(3, 3).T @ (middle - data.xpos[body])
        spec.body(model.body(body).name).add_site(name=f"{FOOT}{i}", pos=local.tolist())
        for kind, prefix in ((mujoco.mjtSensor.mjSENS_FRAMEPOS, HEIGHT), (mujoco.mjtSensor.mjSENS_FRAMELINVEL, SPEED)):
            spec.add_sensor(name=f"{prefix}{i}", type=kind, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=f"{FOOT}{i}")
        feet.append([*middle[:2], middle[2] + stand[2]])
    if len(feet) < 2:
        raise ValueError(
            f"with its trunk {card.base} level, z up, and in its home pose the model of {card.name} stands on "
            f"{len(feet)} limbs of {_LIMB} joints and more, expected legs (base=<body> chooses another trunk)"
        )
    _look(spec, card.base)
    spec.compile()
    return LegsScene(write_xml(spec), stand, np.array(feet))


def on_ground(xml: str, ground: Ground) -> str:
    """A scene with blocks on its plane."""
    spec = mujoco.MjSpec.from_string(xml)
    spec.stat.extent = 3.0  # of pictures: shadows of the whole map would be coarser than a robot
    floor = spec.body(FLOOR)
    floor.geoms[0].size, floor.geoms[0].rgba = [0.0, 0.0, 0.1], [0.6, 0.63, 0.6, 1.0]  # endless for rays too
    for i, block in enumerate(ground.blocks):
        shade = 0.5 + 0.2 * (i * 7 % 5) / 4
        look: dict[str, Any] = {"rgba": [shade, shade + 0.02, shade + 0.04, 1.0], "pos": [block.x, block.y, 0.0]}
        look["density"] = 0.0  # who weighs the robot adds up all bodies
        if block.top is None:
            look["pos"][2] = 0.5 * block.height
            floor.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[*block.half, 0.5 * block.height], **look)
            continue
        corners = [
            (x * side, y * side, z)
            for side, z in ((block.half[0], 0.0), (block.top, block.height))
            for x in (-1.0, 1.0)
            for y in (-1.0, 1.0)
        ]
        spec.add_mesh(name=f"{FLOOR}_{i}", uservert=np.ravel(corners).tolist())
        floor.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname=f"{FLOOR}_{i}", **look)
    spec.compile()
    return write_xml(spec)


def _limbs(model: MjModel) -> list[list[int]]:
    """Shapes of the last link of every limb, in the order of the model."""
    shapes: dict[tuple[int, ...], list[int]] = {}
    for g in range(model.ngeom):
        chain = joints_to(model, int(model.geom_bodyid[g]))
        if len(chain) >= _LIMB and model.geom_contype[g]:
            shapes.setdefault(tuple(chain), []).append(g)
    ends = [c for c in shapes if not any(other != c and other[: len(c)] == c for other in shapes)]
    return [shapes[chain] for chain in sorted(ends)]


def _look(spec: MjSpec, base: str) -> None:
    """A light, a sky and a camera that goes along."""
    spec.worldbody.add_light(
        pos=[0.0, 0.0, 4.0], dir=[0.0, 0.0, -1.0], type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, diffuse=[0.6] * 3
    )
    camera = spec.body(base).add_camera(name="track", pos=[-1.2, -1.8, 0.8], fovy=42.0)
    camera.mode, camera.quat = mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM, [0.7798, 0.555, -0.168, -0.2361]  # down at it
    add_sky(spec)
