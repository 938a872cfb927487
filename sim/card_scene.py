"""The model of any card as tasks step it: an arm, legs on a plane, or a base on wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.card_arm import CardArm
from robot_rl.sim.legs_scene import scene
from robot_rl.sim.robot_model import add_floor, add_sky, load, mujoco
from robot_rl.types.card import Card

if TYPE_CHECKING:
    from mujoco import MjData, MjModel


def fit(card: Card) -> list[str]:
    """Whether a card fits its model; what is worth saying of the model.

    Raises:
        ValueError: the model cannot be read, or does not have what the card names.
    """
    notes = load(card.model.path).notes
    at_home(card)
    return notes


def at_home(card: Card) -> tuple[MjModel, MjData]:
    """The compiled model with its floor, and its data in the card's home pose.

    Raises:
        ValueError: the model cannot be read, or does not have what the card names.
    """
    if card.legs is not None:
        legs = scene(card)
        model, home = mujoco.MjModel.from_xml_string(legs.xml), legs.stand
    elif card.tool:
        arm = CardArm(card, action="joint", control_hz=10.0)
        model = mujoco.MjModel.from_xml_string(arm.xml)
        home = np.array(model.qpos0)
        home[arm.first : arm.first + arm.count] = card.home
    else:
        spec = load(card.model.path).spec
        add_floor(spec)
        add_sky(spec)
        model = spec.compile()
        home = np.array(model.qpos0)
    data = mujoco.MjData(model)
    data.qpos[:] = home
    data.mocap_pos[:] = 100.0  # a goal is no part of the robot
    mujoco.mj_forward(model, data)
    return model, data
