"""The card of a robot on legs out of its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.legs_plant import free_trunk
from robot_rl.sim.legs_pose import lowest, standing
from robot_rl.sim.legs_scene import scene
from robot_rl.sim.robot_card import joint_card, largest_effort, model_card, tied_joints, within
from robot_rl.sim.robot_model import SCALAR, driven_joints, find, joints_to, load, mujoco
from robot_rl.types.card import OPEN, Card, LegsCard

if TYPE_CHECKING:
    from mujoco import MjData, MjModel

_LIMB = 3
"""Joints that a leg has at least, or two with limits, which casters and wheels do not have."""
_WAIST = 3
"""Joints that a waist has at most."""
_BELOW = 0.05
"""Metres that a trunk's frame may lie below its shapes."""
_DAMPED, _SPEED = 40.0, 100.0
"""Of simulated servos that no file describes: gain over damping [1/s], and the natural frequency that needs no smaller
step than ours [rad/s], where the model's rotors have no inertia."""
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
        ValueError: a file that cannot be read, a name that is not in it, or legs whose joints are tied to one another.
    """
    path = find(path)
    made = load(path)
    trunk = base or _trunk(made.spec.compile())
    joined = made.spec.body(base) is not None and made.spec.body(base).parent.name != "world"
    if not trunk or (joined and not any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in made.spec.joints)):
        return None  # an arm, which may begin at any body
    free_trunk(made.spec, trunk)
    model = made.spec.compile()
    data, body = mujoco.MjData(model), int(model.body(trunk).id)
    mujoco.mj_kinematics(model, data)
    frame = float(data.xpos[body][2])
    below = _height(model, data, body) - frame
    if below > _BELOW and below > frame - float(lowest(model, data, _robot(model, trunk)[1])[2]):  # nearer to the feet
        raise ValueError(
            f"the frame of {trunk} lies {below:.2f} m below its lowest shape, perhaps on the floor; height and speed "
            f"would be measured there; expected inside it. Move the frame of {trunk} in the file: its "
            "shapes, its inertia and the joints on it down by as much"
        )
    notes = [*made.notes, f"legs: {trunk} moves freely (base=<body> chooses another; tool=<site> is for arms)"]
    driven = driven_joints(model)
    chain = [
        j for j in range(model.njnt)
        if int(model.jnt_type[j]) in SCALAR and (j in driven or not driven) and model.joint(j).name not in made.mimic
    ]  # fmt: skip
    own = _robot(model, trunk)[1]
    apart = [model.joint(j).name for j in chain if int(model.jnt_bodyid[j]) not in own]
    chain = [j for j in chain if int(model.jnt_bodyid[j]) in own]
    if apart:
        notes.append(f"not on {trunk} and so not of the robot: {', '.join(apart)}")
    pose = next((key for key in _POSES if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, key) >= 0), "")
    legs = _legs(model, trunk)
    if not base and len(legs) % 2:
        raise ValueError(
            f"{trunk} moves freely, and limbs of two joints or more that reach down from it are {len(legs)}: legs come "
            f"in pairs, fingers and a thumb do not. A robot that stands on these limbs: base={trunk}; a hand or an arm "
            "on a base that stands still: take the <freejoint/> out of the model, and say tool=<site or body>"
        )
    if tied := tied_joints(model, {j for leg in legs for j in leg}):
        raise ValueError(
            f"{', '.join(tied[:4])} of the legs cannot be moved alone: a <mimic>, an <equality>, a closed loop or one "
            "tendon ties them to other joints, and the simulation of a card would hold those. Take a model whose legs "
            "are plain chains"
        )
    at = model.key(pose).qpos if pose and legs else standing(model, legs)
    weight, inertia = _weight(model, at, trunk)
    joints, home = [], []
    for j in chain:
        home.append(float(at[int(model.jnt_qposadr[j])]))
        effort = largest_effort(model, made, j)
        kp = weight if any(j in leg for leg in legs) else min(effort or weight, weight)
        joints.append(
            joint_card(
                model,
                made,
                j,
                kp=float(f"{kp:.3g}"),
                kd=float(f"{kp / _DAMPED:.3g}"),
                armature=round(max(kp / _SPEED**2 - inertia[int(model.jnt_dofadr[j])], 0.0), 5),
            )
        )
    if not pose:
        notes.append(
            "home is a pose found by search, feet below the hips and knees bent: look at it with robot-rl robot show"
        )
    notes.append(
        "kp and kd of the joints are by a rule, for simulation: policy=<description of a policy> gives those that it "
        "walks with, or write your driver's into the card, and legs.gains: driver"
    )
    card = Card(
        name=name,
        model=model_card(path),
        base=trunk,
        legs=LegsCard(gains=OPEN),
        joints=tuple(joints),
        home=within(tuple(joints), home),
        command_mode="pd",
    )
    scene(card)  # whether it stands on legs in the simulation
    return card, notes


def _trunk(model: MjModel) -> str:
    """Body with the free joint, or the one that the robot's lowest two limbs hang from, where both reach below all that
    does not move; "" for a robot that stands fixed."""
    for j in range(model.njnt):
        if int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_FREE):
            return str(model.body(int(model.jnt_bodyid[j])).name)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    fixed, limbs = [], {}
    chains = {body: tuple(joints_to(model, body)) for body in range(1, model.nbody)}
    ends = {c for c in chains.values() if c and not any(len(o) > len(c) and o[: len(c)] == c for o in chains.values())}
    for body, whole in chains.items():
        shared = sum(sum(j in end for end in ends) > 1 for j in whole)
        chain = whole[shared:] if shared <= _WAIST else whole  # legs hang from a waist, fingers from an arm
        height = _height(model, data, body)
        if not whole:
            fixed.append(height)
        elif len(chain) >= _LIMB or (len(chain) == 2 and all(model.jnt_limited[j] for j in chain)):  # no caster
            limbs[chain[0]] = min(height, limbs.get(chain[0], height))
    feet = sorted(limbs, key=lambda first: limbs[first])[:2]
    roots = {int(model.body_rootid[int(model.jnt_bodyid[first])]) for first in feet}
    if len(feet) < 2 or len(roots) > 1 or not fixed or limbs[feet[1]] > min(fixed) - 1e-3:
        return ""
    return str(model.body(roots.pop()).name)


def _weight(model: MjModel, pose: np.ndarray, trunk: str) -> tuple[float, np.ndarray]:
    """The largest gain of a joint [N m/rad] by a rule, and (nv,) inertias of the joints.

    At an error of 1 rad it gives the torque that holds the whole robot by a lever as long as it stands high. Policies
    that others walk with have .5 to 1.1 of their joints' largest effort and 1/20 to 1/75 of the gain as damping
    (unitree_rl_gym: Go2, G1, H1; legged_gym: ANYmal)."""
    data, mass = mujoco.MjData(model), np.zeros((model.nv, model.nv))
    data.qpos[:] = pose
    mujoco.mj_fwdPosition(model, data)
    mujoco.mj_fullM(model, data, mass)
    root, bodies = _robot(model, trunk)
    high = float(data.xpos[root][2] - lowest(model, data, bodies)[2])
    return 9.81 * float(model.body_subtreemass[root]) * high, np.diag(mass)


def _height(model: MjModel, data: MjData, body: int) -> float:
    """Of its frame, or of its lowest point where that is higher: a trunk's frame may lie on the floor between feet."""
    frame = float(data.xpos[body][2])
    return max(frame, float(lowest(model, data, [body])[2])) if model.body_geomnum[body] else frame


def _robot(model: MjModel, trunk: str) -> tuple[int, list[int]]:
    """The trunk, and all bodies that move with it: what else stands in a scene is no part of the robot."""
    root = int(model.body(trunk).id)
    return root, np.flatnonzero(model.body_rootid == root).tolist()


def _legs(model: MjModel, trunk: str) -> list[list[int]]:
    """Joints of every limb that ends in the lower half of the robot in its zero pose, from the trunk or the waist."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    root, bodies = _robot(model, trunk)
    chains = {tuple(joints_to(model, body)): float(data.xpos[body][2]) for body in bodies if body != root}
    ends = {c: z for c, z in chains.items() if len(c) > 1 and not any(o != c and o[: len(c)] == c for o in chains)}
    base = float(data.xpos[root][2])
    low = [c for c, z in ends.items() if z <= base - 0.5 * (base - min(ends.values(), default=base))]
    shared = {j for c in low for j in c if sum(j in other for other in low) > 1}  # of a waist that legs hang from
    return [[j for j in c if j not in shared] for c in low]
