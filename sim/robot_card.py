"""The card of a robot out of its model: what the file says, a home and a workspace by search, `?` for the rest."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.sim.arm import TIMESTEP
from robot_rl.sim.robot_model import (
    FLOOR,
    SCALAR,
    RobotModel,
    actuators_of,
    add_floor,
    digest,
    driven_joints,
    end_link,
    find,
    hold_base,
    joints_of_tendons,
    joints_to,
    load,
    mujoco,
)
from robot_rl.sim.robot_probe import RobotProbe, corners_of, limits_of
from robot_rl.types.card import DEFAULTS, OPEN, SERVO_SPEED, Card, GripperCard, JointCard, ModelCard, WorkspaceCard

if TYPE_CHECKING:
    from mujoco import MjData, MjModel

_TOOLS = ("tcp", "tool0", "grasp", "grip_?site", "gripper_?frame", "pinch", "^gripper$", "attachment", "tool",
          "end_?effector", "(^|_)ee(_|$)", "flange", "right_hand", "hand")  # fmt: skip
"""Names of tool frames, the best first; those that end in _x, _y or _z draw the axes of one."""
_JAW, _WITH_JAW = "jaw|gripper|claw|finger", 5
"""What a single jaw is called, and the fewest joints of an arm with one: it is the gripper, no part of the arm."""
_STIFF = 5.0
"""Their gain is at least this part of the largest effort [1/rad], so that friction does not hold small joints."""
_HELD = 0.01
"""Friction holds a joint at most so far from where it should be [rad or m]."""
_STUCK = 20.0
"""Friction holds fingers at most this part of their way, 1/20, from where they should be."""
_LOCKED = 1e4
"""Damping of joints that the file holds by it, such as those of a base that does not drive [N s/m or N m s/rad]."""
_DRIVE = 5.0
"""Slides that are longer belong to a base that drives about [m]."""
_SWINGS = 0.1
"""Servos whose damping is less than this part of sqrt(gain x inertia), 1/20 of critical, swing about their command."""
_SAMPLES = 3000
_SETTLED = 300
"""Steps after which linkages have followed."""
_THIN = 0.02
"""Smallest side of a workspace [m]."""


def new_card(path: str, name: str, *, tool: str = "", base: str = "") -> tuple[Card, list[str]]:
    """The card of an arm.

    Args:
        path: URDF or MJCF.
        name: of the robot.
        tool: site or body that tasks move; "" = guessed by its name, else the end of the longest chain.
        base: body below which the arm begins; "" = the world.

    Returns:
        The card, and what is worth saying aloud.

    Raises:
        ValueError: a file that cannot be read, a name that is not in it, a robot without a fixed base, or joints on the
            way to the tool that a card has no place for.
    """
    path = find(path)
    made = load(path)
    add_floor(made.spec)
    model = made.spec.compile()
    notes = list(made.notes)
    if any(int(kind) == int(mujoco.mjtJoint.mjJNT_FREE) for kind in model.jnt_type):
        raise ValueError(
            f"{path} has a free base; without tool= it gets the card of a robot on legs, and as an arm on a base that "
            "stands still without its <freejoint/>"
        )
    where, body = _tool(model, tool)
    if not tool:
        notes.append(f"tool frame: {where} (tool=<site or body> chooses another)")
    if not base and (driven := _driven_base(model, joints_to(model, body))):
        base = driven
        notes.append(f"what drives the base stands still: the arm begins at {base} (base=<body> chooses another)")
    if base:
        model = hold_base(made.spec, model, joints_to(model, _base(model, body, base)))
    chain = [j for j in joints_to(model, body) if model.dof_damping[model.jnt_dofadr[j]] < _LOCKED]
    others = {
        c[0]: model.body(b).name for b in range(1, model.nbody) if len(set(c := joints_to(model, b)) - set(chain)) >= 3
    }
    limbs = [end for first, end in others.items() if first not in chain[:1]]
    if len(limbs) >= 2 and not tool:
        raise ValueError(
            f"{path} has {len(limbs) + 1} limbs, which end at {', '.join([where, *limbs])}, and does not stand on "
            "them; say what tasks should move: tool=<site or body>"
        )
    if len(chain) < 2:
        raise ValueError(
            f"only {len(chain)} joints move {where}, expected an arm of at least 2; choose tool=<site or body>"
        )
    _need_free_joints(model, chain, body, where)
    arm = _Survey(model, chain, where)
    arm.ignore = arm.overlaps()
    home = arm.home()
    joints = tuple(_joint(model, made, j, *inertia) for j, inertia in zip(chain, arm.inertia(home)))
    card = Card(
        name=name,
        model=model_card(path),
        base=base or model.body(int(model.body_rootid[body])).name,
        tool=where,
        joints=joints,
        gripper=_gripper(model, made, arm, home),
        home=within(joints, home),
        rest=within(joints, rest) if (rest := arm.key("rest")) is not None else None,
        workspace=arm.workspace(home),
        ignore=arm.ignore,
    )
    return card, notes


class _Survey(RobotProbe):
    """What a card says beyond its file: a home pose, a workspace, inertias.

    Attributes:
        rank: directions in which the tool can be moved where the arm is at its best, at most three.
    """

    rank = 3

    def key(self, name: str) -> np.ndarray | None:
        """(J,) positions of a keyframe, or None."""
        index = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_KEY, name)
        if index < 0:
            return None
        low, high = np.array([limits_of(self.model, j) for j in self.chain]).T
        return np.clip(self.model.key_qpos[index][self.qpos], low, high)

    def home(self) -> np.ndarray:
        """The file's own home, or the sampled pose that is freest: dexterous, ahead, far from limits and contacts."""
        own = self.key("home")
        if own is not None:
            return own
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        poses = middle + 0.7 * half * self.random.uniform(-1.0, 1.0, (_SAMPLES, len(half)))
        ranks = []
        for pose in poses[:20]:
            self.place(pose)
            ranks.append(int(np.linalg.matrix_rank(self.jacobian(), tol=1e-6)))
        self.rank = max(ranks)
        worth = [self.worth(pose) for pose in poses]
        best = int(np.argmax(worth))
        if worth[best] <= 0.0 and (more := self.overlaps_at_zero()):  # fat capsules of short links
            self.ignore = tuple(sorted({*self.ignore, *more}))
            return self.home()
        if worth[best] <= 0.0:
            raise ValueError(
                "no pose of this arm is free of contacts with the tool at least 2 cm above z = 0, where the floor is; "
                "turn the model upright or mount it higher (<origin> of its first joint), or choose tool=<site or body>"
            )
        home, value = poses[best], worth[best]
        for j in range(len(home)):  # joints that matter little stand in the middle of their range
            tidy = home.copy()
            tidy[j] = middle[j]
            if (again := self.worth(tidy)) > 0.9 * value:
                home, value = tidy, max(value, again)
        return home

    def jacobian(self) -> np.ndarray:
        """(3, J) how the tool moves with the joints where the arm is."""
        return self.frame.jacobian(self.data)[:3, self.dof]

    def worth(self, joints: np.ndarray) -> float:
        """How good a pose is to begin work in; 0 where something touches."""
        if not self.free(joints):
            return 0.0
        tip = self.tip()
        # The volume of what the tool can do, in as many directions as this arm has at its best: two for a planar one.
        dexterity = float(np.prod(np.linalg.svd(self.jacobian(), compute_uv=False)[: self.rank]))
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        centred = 1.0 - 0.5 * float(np.mean(((joints - middle) / half) ** 2))
        ahead = 1.0 + float(tip[0]) / max(float(np.linalg.norm(tip[:2])), 1e-9)  # 2 straight along x
        return dexterity * centred * ahead

    def workspace(self, home: np.ndarray) -> WorkspaceCard:
        """Box around most places of the tool in poses around home."""
        _, tips = self.cloud(home, 1000)
        if len(tips) < 20:
            raise ValueError("hardly any pose around home is free of contacts; give the model a home keyframe or tool=")
        low, high = np.quantile(tips, 0.15, axis=0), np.quantile(tips, 0.85, axis=0)
        thin = np.maximum(_THIN - (high - low), 0.0) / 2.0  # the plane of an arm that moves in one
        return WorkspaceCard(lower=_place(low - thin), upper=_place(high + thin))

    def inertia(self, home: np.ndarray) -> np.ndarray:
        """(J, 2) inertias of each joint near home [kg m2 or kg]: largest, and least when the others give way."""
        mass = np.zeros((self.model.nv, self.model.nv))
        most, least = np.zeros(len(self.dof)), np.full(len(self.dof), np.inf)
        for _ in range(20):
            self.place(np.clip(home + self.random.uniform(-0.5, 0.5, len(home)), self.low, self.high))
            mujoco.mj_fullM(self.model, self.data, mass)
            most = np.maximum(most, np.diag(mass)[self.dof])
            least = np.minimum(least, 1.0 / np.diag(np.linalg.inv(mass))[self.dof])
        return np.stack([most, least], axis=1)


def _servo(model: MjModel, joint: int) -> tuple[float, float] | None:
    """(kp, kd) of the position servo that a file has of a joint, the last of several."""
    found = None
    for i in actuators_of(model, joint):
        square = float(model.actuator_gear[i, 0]) ** 2  # of the gear: both the error and the force go through it
        gain, bias = square * float(model.actuator_gainprm[i, 0]), square * model.actuator_biasprm[i]
        if gain > 0.0 and float(bias[1]) == -gain:
            found = gain, 0.0 - float(bias[2])
    return found


def model_card(path: str) -> ModelCard:
    """Where a model is, and the hash of what it is now."""
    file = Path(path).expanduser().resolve()
    return ModelCard(path=str(file), sha256=digest(file))


def joint_card(model: MjModel, made: RobotModel, joint: int, **servo: float) -> JointCard:
    """What a joint's files say of it, and the `servo` (kp, kd, armature) that it is to have."""
    name, limited = model.joint(joint).name, bool(model.jnt_limited[joint])
    if not name:
        body = model.body(int(model.jnt_bodyid[joint])).name
        raise ValueError(f"a joint of body '{body}' has no name, by which a card knows it: name it in the model")
    low, high = (round(float(limit), 6) if limited else None for limit in model.jnt_range[joint])
    stated = {**made.limits.get(name, {}), "effort": largest_effort(model, made, joint) or OPEN}
    return JointCard(name=name, lower=low, upper=high, continuous=not limited, **stated, **servo)


def _joint(model: MjModel, made: RobotModel, joint: int, inertia: float, least: float) -> JointCard:
    effort = largest_effort(model, made, joint)
    own = _servo(model, joint)
    if own is not None and (own[1] * TIMESTEP > 0.6 * inertia or own[0] * TIMESTEP**2 > inertia):
        own = None  # meant for smaller steps than ours: it would chatter where its force is cut
    dof = int(model.jnt_dofadr[joint])
    if own is not None and own[1] + float(model.dof_damping[dof]) < _SWINGS * math.sqrt(own[0] * inertia):
        own = None
    friction = float(model.dof_frictionloss[dof]) / _HELD
    if own is not None and own[0] < friction:
        own = None  # it would stop where friction holds it, far from where it should be
    kp, kd = own or (max(inertia * SERVO_SPEED**2, _STIFF * (effort or DEFAULTS["effort"]), friction), 0.0)
    # At its largest effort a servo is stepped as a plain force: a joint lighter than kd dt / 2 would shake by itself,
    # and where axes come to lie in line (1 and 3 of most arms with seven joints) those two weigh next to nothing.
    kd = kd if own else 2.0 * kp / SERVO_SPEED
    bound, rotor = 0.5 * kd * TIMESTEP, float(model.dof_armature[dof])
    lack = bound - least if own else max(kp / SERVO_SPEED**2 - inertia, bound)
    armature = round(rotor + lack, 5) if lack > 0.0 else 0.0
    return joint_card(model, made, joint, kp=_short(kp), kd=_short(kd), armature=armature)


def largest_effort(model: MjModel, made: RobotModel, joint: int) -> float | None:
    """Largest effort that a URDF states, or MJCF: of the joint, or of its actuator."""
    if stated := made.limits.get(model.joint(joint).name, {}).get("effort"):
        return stated
    if model.jnt_actfrclimited[joint]:
        return _smaller(model.jnt_actfrcrange[joint])
    for i in actuators_of(model, joint)[:1]:
        gear = abs(float(model.actuator_gear[i, 0]))
        if model.actuator_forcelimited[i]:
            return gear * _smaller(model.actuator_forcerange[i])
        motor = int(model.actuator_biastype[i]) == int(mujoco.mjtBias.mjBIAS_NONE)
        if motor and model.actuator_ctrllimited[i]:  # its command is a force
            return gear * float(model.actuator_gainprm[i, 0]) * _smaller(model.actuator_ctrlrange[i])
    return None


def _smaller(limits: np.ndarray) -> float:
    """What an actuator can do in both directions: a card has one number."""
    sides = [abs(float(limit)) for limit in limits if limit and math.isfinite(limit)]
    return min(sides, default=0.0)


def _tool(model: MjModel, wanted: str) -> tuple[str, int]:
    """Name of the tool frame and the body that it is on."""
    frames = {model.body(i).name: i for i in range(1, model.nbody) if model.body(i).name != FLOOR}
    frames |= {model.site(i).name: int(model.site_bodyid[i]) for i in range(model.nsite) if model.site(i).name}
    if wanted:
        if wanted not in frames:
            raise ValueError(f"the model has no site or body '{wanted}'; it has {', '.join(sorted(frames))}")
        return wanted, frames[wanted]
    depth = {name: len(joints_to(model, body)) for name, body in frames.items()}
    most = max(depth.values(), default=0)
    if most < 2:
        raise ValueError("the model has no chain of two joints, expected an arm (is it a part that others include?)")
    near = [name for name in frames if depth[name] >= min(most - 2, 5) and not re.search("_[xyz]$|sensor", name)]
    for pattern in _TOOLS:
        found = [name for name in near if re.search(pattern, name.lower()) and _palm(model, frames[name]) is None]
        if found:  # none on a finger, which moves against another
            name = max(found, key=lambda name: depth[name])
            return name, frames[name]
    name = max(frames, key=lambda name: depth[name])
    palm, way = _palm(model, frames[name]), joints_to(model, frames[name])
    if palm is None and len(way) >= _WITH_JAW and re.search(_JAW, f"{name} {model.joint(way[-1]).name}".lower()):
        palm = int(model.body_parentid[int(model.jnt_bodyid[way[-1]])])
    return (name, frames[name]) if palm is None else (model.body(palm).name, palm)


def _palm(model: MjModel, finger: int) -> int | None:
    """The body within the last four joints of a chain from which another finger goes out too, or None."""
    way = joints_to(model, finger)
    chains = [(joints_to(model, b), b) for b in range(1, model.nbody)]
    body = int(model.body_parentid[finger])
    while body > 0 and (own := len(joints_to(model, body))) >= max(len(way) - 4, 2):
        if any(len(other) > own < len(way) and other[own] != way[own] for other, b in chains if _below(model, b, body)):
            return body
        body = int(model.body_parentid[body])
    return None


def _base(model: MjModel, body: int, name: str) -> int:
    """The body of that name, below which the arm begins that ends at `body`."""
    first = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
    if first <= 0 or not _below(model, body, first):
        raise ValueError(f"base '{name}' is no body between the world and the tool")
    return first


def _driven_base(model: MjModel, chain: list[int]) -> str:
    """The body that the first joints drive about on the floor, as those of a mobile base do, or ""."""
    data, drive, slides = mujoco.MjData(model), list[int](), 0
    mujoco.mj_kinematics(model, data)
    for joint in chain[:3]:
        slide = int(model.jnt_type[joint]) == int(mujoco.mjtJoint.mjJNT_SLIDE)
        upright = abs(data.xaxis[joint, 2]) > 0.99
        way = float(np.ptp(model.jnt_range[joint])) if model.jnt_limited[joint] else math.inf
        if upright == slide or way < (_DRIVE if slide else 2.0 * math.pi - 0.1):
            break
        drive, slides = [*drive, int(model.jnt_bodyid[joint])], slides + slide
    flies = len(drive) < len(chain) and int(model.jnt_bodyid[chain[len(drive)]]) in drive
    return model.body(drive[-1]).name if slides == 2 and not flies else ""


def _need_free_joints(model: MjModel, chain: list[int], body: int, where: str) -> None:
    """Refuse joints on the way to the tool that no actuator moves, have more than one number, or are tied to others."""
    first = model.jnt_bodyid[chain[0]]
    base = [j for j in range(model.njnt) if model.jnt_bodyid[j] == first]
    if sum(1 if int(model.jnt_type[j]) in SCALAR else 3 for j in base) >= 6 and not driven_joints(model) & set(base):
        raise ValueError(
            f"body '{model.body(int(first)).name}' moves freely by {len(base)} joints that no actuator moves: write "
            "<freejoint/> in their place, and the robot gets a card of legs; an arm that stands fixed has none of them"
        )
    balls = [j for j in range(model.njnt) if int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_BALL)]
    tied = [model.joint(j).name for j in balls if _below(model, body, int(model.jnt_bodyid[j]))]
    if tied := tied + tied_joints(model, set(chain)):
        raise ValueError(
            f"on the way to {where}, {', '.join(tied)} cannot be moved alone: a <mimic>, an <equality>, a closed loop "
            "or one tendon ties them to other joints, or they are ball joints. Choose a tool before them, "
            "tool=<site or body>, or fix them in the model"
        )


def tied_joints(model: MjModel, joints: set[int]) -> list[str]:
    """Those of some joints that an equality, a closed loop or the tendon of an actuator ties to others."""
    tied: set[int] = set()
    for k in range(model.neq):
        kind, one, two = int(model.eq_type[k]), int(model.eq_obj1id[k]), int(model.eq_obj2id[k])
        if not model.eq_active0[k]:
            continue
        if kind == int(mujoco.mjtEq.mjEQ_JOINT):
            tied.add(one)
        elif kind in (int(mujoco.mjtEq.mjEQ_CONNECT), int(mujoco.mjtEq.mjEQ_WELD)):
            if int(model.eq_objtype[k]) == int(mujoco.mjtObj.mjOBJ_SITE):
                one, two = int(model.site_bodyid[one]), int(model.site_bodyid[two])
            if not {one, two} & {b for b in range(model.nbody) if model.body_mocapid[b] >= 0}:
                tied |= set(joints_to(model, one)) ^ set(joints_to(model, two))
    for pulled in joints_of_tendons(model):
        tied |= pulled if len(pulled & joints) > 1 else set()
    return [model.joint(j).name for j in sorted(tied & joints)]


def _gripper(model: MjModel, made: RobotModel, arm: _Survey, home: np.ndarray) -> GripperCard | None:
    """The commanded joints that are not the arm's but move with its end."""
    last = int(model.jnt_bodyid[arm.chain[-1]])
    hand = [j for j in range(model.njnt) if j not in arm.chain and _below(model, int(model.jnt_bodyid[j]), last)]
    driven = driven_joints(model)
    joints = [j for j in hand if (j in driven if model.nu else model.joint(j).name not in made.mimic)]
    if not joints:
        return None
    # Beside fingers, which have stops, what turns without end is the wheel of their motor.
    joints = [j for j in joints if model.jnt_limited[j]] or joints
    fingers = [end_link(model, int(model.jnt_bodyid[j])) for j in joints]
    linked = [int(model.jnt_bodyid[j]) for j in hand] if model.neq and len(hand) > len(joints) else []
    arm.place(home)
    far = int(np.linalg.norm(corners_of(model, arm.data, fingers[0]) - arm.data.xanchor[joints[0]], axis=1).argmax())

    def width(ends: Sequence[float]) -> float:
        """How far apart the ends of the fingers are; that of a single one from the tool's point."""
        arm.place(home)
        for j, value in zip(joints, ends):
            arm.data.qpos[int(model.jnt_qposadr[j])] = value
        mujoco.mj_fwdPosition(model, arm.data)
        if linked:
            _take_along(model, arm.data, [*arm.chain, *joints])
            return sum(math.dist(a, b) for a, b in itertools.combinations(arm.data.xipos[linked], 2))
        if len(hand) == 1:  # a jaw that closes on the hand itself: its far end touches it when it is closed
            palm = corners_of(model, arm.data, int(model.body_parentid[fingers[0]]))
            end = corners_of(model, arm.data, fingers[0])[far]
            return float(np.linalg.norm(palm - end, axis=1).min())
        places = [arm.data.xipos[body] for body in fingers]
        pairs = itertools.combinations(places if len(places) > 1 else [*places, arm.tip()], 2)
        return sum(math.dist(a, b) for a, b in pairs)

    ends = [limits_of(model, j) for j in joints]
    low, high = ends[0]
    # Ranges that are mirror images of the first are of fingers that face it: they open towards the other end.
    ends = [pair[::-1] if np.allclose(pair, (-high, -low)) and low != -high else pair for pair in ends]
    sides = tuple(zip(*ends))
    opened, closed = sides if width(sides[0]) > width(sides[1]) else sides[::-1]
    known = [value for j in joints if (value := largest_effort(model, made, j))]
    mass = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, arm.data, mass)
    dofs = [int(model.jnt_dofadr[j]) for j in joints]
    inertia = max(float(mass[dof, dof]) for dof in dofs)
    friction = max(model.dof_frictionloss[dof] / abs(a - b) for dof, a, b in zip(dofs, opened, closed))
    stiff = max(_STIFF * min(known, default=1.0), _STUCK * friction)
    return GripperCard(
        joints=tuple(model.joint(j).name for j in joints),
        open=_round(opened),
        closed=_round(closed),
        effort=min(known) if known else OPEN,
        kp=_short(max(4.0 * inertia * SERVO_SPEED**2, stiff)),
        kd=_short(max(4.0 * inertia * SERVO_SPEED, stiff / SERVO_SPEED)),
    )


def _take_along(model: MjModel, data: MjData, joints: list[int]) -> None:
    """Let links of closed loops and tied joints follow joints that stay; no servo pulls and no contact pushes."""
    places, dofs = model.jnt_qposadr[joints], model.jnt_dofadr[joints]
    values, gravity, flags = data.qpos[places].copy(), model.opt.gravity.copy(), model.opt.disableflags
    model.opt.gravity[:] = 0.0
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_ACTUATION)
    for _ in range(_SETTLED):
        mujoco.mj_step(model, data)
        data.qpos[places], data.qvel[dofs] = values, 0.0
    model.opt.gravity[:], model.opt.disableflags = gravity, flags
    mujoco.mj_fwdPosition(model, data)


def _below(model: MjModel, body: int, ancestor: int) -> bool:
    while body > 0 and body != ancestor:
        body = int(model.body_parentid[body])
    return body == ancestor


def within(joints: tuple[JointCard, ...], values: Iterable[float]) -> tuple[float, ...]:
    """(J,) positions in few digits, inside the limits of their joints."""
    short = zip(_round(values), joints)
    return tuple(value if own.lower is None else float(np.clip(value, own.lower, own.upper)) for value, own in short)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _round(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)


def _place(values: Iterable[float]) -> tuple[float, float, float]:
    x, y, z = (round(float(value), 3) for value in values)
    return x, y, z
