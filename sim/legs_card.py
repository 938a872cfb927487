"""The card of a robot on legs out of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.sim.legs_plant import free_trunk
from robot_rl.sim.robot_card import largest_effort
from robot_rl.sim.robot_model import digest, find, load, mujoco
from robot_rl.types.card import OPEN, Card, JointCard, LegsCard, ModelCard

_SCALAR = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
_LIMB = 3
"""Joints that a limb has at least."""
_POSES = ("home", "stand", "standing")
"""Keyframes that are a standing pose, the best first."""


def new_legs_card(path: str, name: str, *, base: str = "") -> tuple[Card, list[str]] | None:
    """The card of a robot on legs.

    Args:
        path: URDF or MJCF.
        name: of the robot.
        base: body that the legs carry; "" = the one with the free joint, or the one that the limbs hang from.

    Returns:
        The card, and what is worth saying aloud; None for a robot whose base is fixed.

    Raises:
        ValueError: a file that cannot be read, or a name that is not in it.
    """
    path = find(path)
    made = load(path)
    trunk = base or _trunk(made.spec.compile())
    if not trunk:
        return None
    free_trunk(made.spec, trunk)
    model = made.spec.compile()
    notes = [*made.notes, f"legs: {trunk} moves freely (base=<body> chooses another; tool=<site> is for arms)"]
    driven = {int(model.actuator_trnid[i, 0]) for i in range(model.nu)}
    chain = [
        j for j in range(model.njnt)
        if int(model.jnt_type[j]) in _SCALAR and (j in driven or not driven) and model.joint(j).name not in made.mimic
    ]  # fmt: skip
    pose = next((key for key in _POSES if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, key) >= 0), "")
    at = model.key(pose).qpos if pose else model.qpos0
    joints, home = [], []
    for j in chain:
        low, high = (float(x) for x in model.jnt_range[j])
        limited = bool(model.jnt_limited[j])
        stated = made.limits.get(model.joint(j).name, {})
        value = float(at[int(model.jnt_qposadr[j])])
        home.append(round(float(np.clip(value, low, high)) if limited else value, 4))
        joints.append(
            JointCard(
                name=model.joint(j).name,
                lower=round(low, 6) if limited else None,
                upper=round(high, 6) if limited else None,
                continuous=not limited,
                velocity=stated.get("velocity", OPEN),
                effort=stated.get("effort") or largest_effort(model, j) or OPEN,
            )
        )
    if not pose:
        notes.append(
            "home is the model's zero pose: policy=<description of a policy> gives a standing one, or the card"
        )
    file = Path(path).expanduser().resolve()
    card = Card(
        name=name,
        model=ModelCard(path=str(file), sha256=digest(file)),
        base=trunk,
        legs=LegsCard(),
        joints=tuple(joints),
        home=tuple(home),
        command_mode="pd",
    )
    return card, notes


def _trunk(model: Any) -> str:
    """Body with the free joint, or the one that several limbs hang down from; "" for a robot that stands fixed."""
    for j in range(model.njnt):
        if int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_FREE):
            return str(model.body(int(model.jnt_bodyid[j])).name)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    parents = {int(p) for p in model.body_parentid[1:]}
    ends = [b for b in range(1, model.nbody) if b not in parents and len(_joints(model, b)) >= _LIMB]
    roots = {_joints(model, b)[0] for b in ends}
    if len(roots) < 2:
        return ""
    trunks = {int(model.body_parentid[int(model.jnt_bodyid[j])]) for j in roots}
    body = min(trunks)
    below = all(data.xpos[b][2] < data.xpos[body][2] - 1e-3 for b in ends)
    return str(model.body(body).name) if len(trunks) == 1 and body > 0 and below else ""


def _joints(model: Any, body: int) -> list[int]:
    """Hinges and slides between the world and a body, from the world."""
    found: list[int] = []
    while body > 0:
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        found = [j for j in range(first, first + count) if int(model.jnt_type[j]) in _SCALAR] + found
        body = int(model.body_parentid[body])
    return found
