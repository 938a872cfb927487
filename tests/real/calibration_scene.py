"""A simulated arm before a camera that nobody knows: MuJoCo's pictures, the joints of each, and the truth."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from robot_rl.real.calibration.board import Board
from robot_rl.sim.mujoco_physics import mujoco
from robot_rl.sim.render import Cameras
from robot_rl.sim.tool import Tool

ROOT = Path(__file__).resolve().parents[2]
ARM = ROOT / "sim/assets/arm/arm.xml"
JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_pitch", "wrist_roll")
TOOL = "tip"
SIZE = (480, 640)


@dataclass
class Scene:
    """Pictures as arrays, joints (V, 6), and the camera's true matrix and pose in its mount."""

    pictures: list[np.ndarray]
    joints: np.ndarray
    matrix: np.ndarray
    camera: np.ndarray

    def write(self, folder: Path) -> Path:
        """As a folder with poses.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "poses.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["picture", *JOINTS])
            for i, (picture, joints) in enumerate(zip(self.pictures, self.joints)):
                Image.fromarray(picture).save(folder / f"{i:02d}.png")
                lines.writerow([f"{i:02d}.png", *(f"{x:.6f}" for x in joints)])
        return folder

    def errors(self, position: Any, rotation: Any) -> tuple[float, float]:
        """Distance [mm] and angle [degrees] of a camera that was found from the true one."""
        turn = self.camera[:3, :3].T @ np.array(rotation).reshape(3, 3)
        angle = np.degrees(np.arccos(np.clip((np.trace(turn) - 1.0) / 2.0, -1.0, 1.0)))
        return 1e3 * float(np.linalg.norm(np.array(position) - self.camera[:3, 3])), float(angle)


def looking(place: np.ndarray, target: np.ndarray, roll: float) -> np.ndarray:
    """(3, 3) whose columns are a camera's axes, OpenCV's way."""
    ahead = (target - place) / np.linalg.norm(target - place)
    right = np.cross(ahead, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    turn = np.stack([right, np.cross(ahead, right), ahead], 1)
    c, s = np.cos(roll), np.sin(roll)
    return turn @ np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def board_of(mount: str) -> Board:
    """What a scene of this kind shows."""
    return Board(7, 5, 0.03) if mount == "world" else Board()


def scene(kind: str, mount: str, seed: int, *, views: int = 25, level: bool = False) -> Scene:
    """Pictures of an arm with a board or a marker, by a camera of random lens and place.

    Args:
        kind: "board", or "motion": a magenta ball on the tool.
        mount: "world" or "tool": what carries the camera.
        seed: of everything.
        views: how many pictures.
        level: the tool keeps its direction ("motion").
    """
    rng = np.random.default_rng(seed)
    spec = mujoco.MjSpec.from_file(str(ARM))
    hand = spec.site(TOOL).parent
    tip = Tool(str(ARM), TOOL, JOINTS)
    wanted = rng.uniform(0.6, 1.3) * SIZE[1] if mount == "world" else rng.uniform(0.6, 0.9) * SIZE[1]
    matrix = np.array([[wanted, 0, 320 + rng.normal(0, 12)], [0, wanted, 240 + rng.normal(0, 12)], [0, 0, 1.0]])
    middle = np.array([0.42, 0.0, 0.25])
    if mount == "world":
        round_, up = rng.uniform(-1.0, 1.0), rng.uniform(0.2, 0.8)
        distance = 1.0 * wanted / SIZE[1] * rng.uniform(0.8, 1.05)
        place = middle + distance * np.array([np.cos(up) * np.cos(round_), np.cos(up) * np.sin(round_), np.sin(up)])
        camera = np.eye(4)
        camera[:3, :3] = looking(place, middle + rng.normal(0, 0.03, 3), rng.normal(0, 0.2))
        camera[:3, 3] = place
        parent, onto = spec.worldbody, np.eye(4)
    else:
        camera = np.eye(4)  # beside the tool, looking along it
        tilt = rng.normal(0, 0.15, 3)
        camera[:3, :3] = mujoco_turn(tilt)
        camera[:3, 3] = rng.normal(0, 0.03, 3) * [0.3, 1.0, 1.0] + np.array([0.1, 0.0, -0.08])  # clear of the hand
        parent, onto = hand, np.eye(4)
        onto[:3, 3] = spec.site(TOOL).pos
        onto[:3, :3] = quaternion_turn(spec.site(TOOL).quat)
    at = onto @ camera
    made = parent.add_camera(name="unknown", pos=at[:3, 3], quat=turn_quaternion(at[:3, :3] @ np.diag([1.0, -1, -1])))
    made.resolution, made.focal_pixel = [SIZE[1], SIZE[0]], [matrix[0, 0], matrix[1, 1]]
    made.sensor_size = [0.00640, 0.00480]
    made.principal_pixel = [SIZE[1] / 2 - matrix[0, 2], SIZE[0] / 2 - matrix[1, 2]]
    if kind == "board":
        add_board(spec, hand if mount == "world" else spec.worldbody, mount, rng)
    else:
        where = np.array(spec.site(TOOL).pos) + quaternion_turn(spec.site(TOOL).quat) @ np.array([0.0, 0.0, 0.04])
        hand.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.02, 0, 0], pos=where, rgba=[0.9, 0.05, 0.8, 1.0],
            contype=0, conaffinity=0, mass=0.0,
        )  # fmt: skip
    model = spec.compile()
    joints = poses(model, tip, (camera, matrix), mount, views, rng, level=level)
    drawn = Cameras(model, 2 * SIZE[1], 2 * SIZE[0], quality="fast")
    address = [int(model.joint(name).qposadr[0]) for name in JOINTS]
    pictures = []
    for row in joints:
        qpos = np.array(model.qpos0)
        qpos[address] = row
        large = drawn.render(qpos[None], ["unknown"])["unknown"][0].astype(np.float32)
        small = large.reshape(SIZE[0], 2, SIZE[1], 2, 3).mean((1, 3)) + rng.normal(0, 2.0, (*SIZE, 3))
        pictures.append(np.clip(small, 0, 255).astype(np.uint8))
    drawn.close()
    return Scene(pictures, joints, matrix, camera)


def add_board(spec: Any, body: Any, mount: str, rng: np.random.Generator) -> None:
    board = board_of(mount)
    picture = np.repeat(board.draw(board.columns * 100)[..., None], 3, axis=2)
    spec.add_texture(
        name="board", type=mujoco.mjtTexture.mjTEXTURE_2D, width=picture.shape[1], height=picture.shape[0], nchannel=3,
        data=picture.ravel().tolist(),
    )  # fmt: skip
    material = spec.add_material(name="board", texuniform=False, texrepeat=[1, 1], specular=0.0)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "board"
    half = np.array([board.columns, board.rows]) * board.square / 2
    if mount == "world":  # across the hand's axis, facing back over it or aside
        pos = np.array(spec.site(TOOL).pos) + rng.normal(0, 0.01, 3)
        pos = pos + 0.03 * quaternion_turn(spec.site(TOOL).quat)[:, 2]
        turn = quaternion_turn(spec.site(TOOL).quat) @ mujoco_turn(rng.normal(0, 0.2, 3))
        if rng.random() < 0.5:  # held upright, its face beside the hand
            turn = turn @ mujoco_turn(np.array([0.0, np.pi / 2, 0.0]))
            pos = pos + 0.06 * turn[:, 2]
    else:
        pos = np.array([0.42, 0.0, 0.01]) + rng.normal(0, 0.02, 3) * [1, 1, 0.2]
        turn = mujoco_turn(rng.normal(0, 0.05, 3))
    for name, side, material in (("front", 0.0, "board"), ("back", -0.002, "")):
        body.add_geom(
            name=f"board_{name}", type=mujoco.mjtGeom.mjGEOM_BOX, size=[*half, 0.0005], pos=pos + side * turn[:, 2],
            quat=turn_quaternion(turn), material=material, contype=0, conaffinity=0, mass=0.0,
        )  # fmt: skip


def poses(
    model: Any,
    tip: Tool,
    lens: tuple[np.ndarray, np.ndarray],
    mount: str,
    views: int,
    rng: np.random.Generator,
    *,
    level: bool,
) -> np.ndarray:
    """(V, 6) joints in which the camera sees what it is to see."""
    camera, matrix = lens
    front = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "board_front")
    half = np.array(model.geom_size[max(front, 0)][:2])
    corners = np.array([[x, y, 0] for x in (-half[0], half[0]) for y in (-half[1], half[1])])
    data, found = mujoco.MjData(model), []
    address = [int(model.joint(name).qposadr[0]) for name in JOINTS]
    low, high = np.array([model.joint(name).range for name in JOINTS]).T
    for _ in range(200_000):
        joints = rng.uniform(low, high)
        tool = tip.pose(joints)
        if level and abs(tool[2, 2] + 1.0) > 0.004:
            continue
        if not (0.2 < tool[0, 3] < 0.65 and abs(tool[1, 3]) < 0.35 and 0.05 < tool[2, 3] < 0.55):
            continue
        here = camera if mount == "world" else tool @ camera
        data.qpos[address] = joints
        mujoco.mj_kinematics(model, data)
        if front >= 0:
            turn = data.geom_xmat[front].reshape(3, 3)
            points = data.geom_xpos[front] + corners @ turn.T
            view = here[:3, 3] - data.geom_xpos[front]
            if turn[:, 2] @ view / np.linalg.norm(view) < 0.6:
                continue
        else:
            points = (tool[:3, 3] + tool[:3, :3] @ np.array([0.0, 0.0, 0.04]))[None]
        local = (points - here[:3, 3]) @ here[:3, :3]
        pixel = local[:, :2] / local[:, 2:] * matrix[0, 0] + matrix[:2, 2]
        if (local[:, 2] > 0.1).all() and ((pixel > 15) & (pixel < np.array(SIZE[::-1]) - 15)).all():
            found.append(joints)
            if len(found) == views:
                return np.array(found)
    raise ValueError(f"only {len(found)} poses were found")


def mujoco_turn(vector: np.ndarray) -> np.ndarray:
    quat, out = np.zeros(4), np.zeros(9)
    angle = float(np.linalg.norm(vector))
    mujoco.mju_axisAngle2Quat(quat, vector / max(angle, 1e-12), angle)
    mujoco.mju_quat2Mat(out, quat)
    return out.reshape(3, 3)


def quaternion_turn(quat: Any) -> np.ndarray:
    out = np.zeros(9)
    mujoco.mju_quat2Mat(out, np.array(quat, float))
    return out.reshape(3, 3)


def turn_quaternion(turn: np.ndarray) -> np.ndarray:
    out = np.zeros(4)
    mujoco.mju_mat2Quat(out, np.ascontiguousarray(turn).ravel())
    return out
