"""robot-rl doctor: versions, devices, renderers, what is missing and the command that mends it."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil
import torch

from robot_rl import build, child
from robot_rl.checkpoint import git_commit, read_config
from robot_rl.diagnosis import RunFigures
from robot_rl.diagnosis import diagnose as diagnose_run
from robot_rl.extras import PACKAGES, find_fault, remedy
from robot_rl.track import METRICS_FILE, read_metrics
from robot_rl.types import Options
from robot_rl.types.options import Count, Device, Positive
from robot_rl.verbs import answer
from robot_rl.verbs.option_rows import rows
from robot_rl.verbs.reading import read_named, read_words, robot_file
from robot_rl.version import VERSION
from robot_rl.words import Refused

_RENDER = (
    "import mujoco; m = mujoco.MjModel.from_xml_string("
    '\'<mujoco><worldbody><light pos="0 0 3"/><geom size=".1" rgba="1 0 0 1"/></worldbody></mujoco>\');'
    "d = mujoco.MjData(m); mujoco.mj_forward(m, d); r = mujoco.Renderer(m, 32, 32); r.update_scene(d);"
    "assert r.render().any()"
)


def diagnose() -> tuple[str, bool]:
    """Look at this machine.

    Returns:
        The text to print, and whether all that the base install needs is there.
    """
    lines = [
        f"robot_rl {VERSION}  commit {git_commit() or '- (not a checkout)'}",
        f"python {platform.python_version()}  {sys.executable}",
        f"system {platform.platform()}",
        f"memory {psutil.virtual_memory().total / 2**30:.1f} GiB  cores {os.cpu_count()}"
        f"  disk free {shutil.disk_usage(Path.cwd()).free / 2**30:.1f} GiB",
        "",
        "devices",
        f"  torch {torch.__version__}  threads {torch.get_num_threads()}"
        f"  cpu capability {torch.backends.cpu.get_cpu_capability()}  fast bf16 {'yes' if fast_bf16() else 'no'}",
    ]
    if torch.cuda.is_available():
        lines += [f"  cuda {i}: {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    else:
        lines.append("  cuda: none (training runs on the CPU)")
    lines += ["", "renderers (MuJoCo, off screen)"]
    rendering = {name: _renders(name) for name in ("egl", "osmesa")}
    for name, problem in rendering.items():
        lines.append(f"  {name}: {problem or 'works'}")
    if all(rendering.values()):
        lines.append("  mend with: apt-get install libegl1 libgl1 libosmesa6   (videos and camera worlds need one)")
    lines += ["", "packages"]
    healthy = True
    for module, package in PACKAGES.items():
        fault = find_fault(module)
        if fault:
            healthy = healthy and bool(package.extra)
            lines.append(f"  {package.name}: {fault}; for {package.purpose}; mend with: {remedy(module)}")
        else:
            lines.append(f"  {package.name} {_version(package.name)}")
    links = [
        name for name in ("sim", "real", "policies", "configs") if importlib.util.find_spec(f"robot_rl.{name}") is None
    ]
    if links:
        healthy = False
        lines.append(
            f"  rooms not found: {', '.join(links)}; the checkout's links are broken: clone with "
            "`git -c core.symlinks=true clone …` or use `pip install .`"
        )
    lines += ["", "all that the base install needs is there" if healthy else "something is missing, see above"]
    return "\n".join(lines), healthy


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # rclpy of a ROS that is sourced
        return "(not from pip)"


def fast_bf16() -> bool:
    """Whether this processor multiplies bf16 matrices natively (avx512_bf16 or amx)."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _renders(backend: str) -> str:
    """Empty when an off-screen image can be made with this backend, else the reason."""
    library = {"egl": "EGL", "osmesa": "OSMesa"}[backend]
    if ctypes.util.find_library(library) is None:
        return f"lib{library} not found"
    try:
        out = subprocess.run(
            child.program(_RENDER),
            env={**os.environ, "MUJOCO_GL": backend},
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return "no image within 60 s"
    return "" if out.returncode == 0 else (out.stderr.strip().splitlines() or ["failed"])[-1][:120]


class RosDoctorOptions(Options):
    """robot-rl doctor ros."""

    namespace: str = ""
    """Of the robot's topics, such as /left."""
    listen: Positive = 3.0
    """Seconds to listen."""
    wiggle: bool = False
    """Move each joint by 0.01 rad and see it on the right one."""


class IsaacDoctorOptions(Options):
    """robot-rl doctor isaac."""

    world: str = "quadruped"
    """World to check Isaac Gym with."""
    num_envs: Count = 16
    """Copies of it."""
    device: Device | None = None
    """Where; null takes a GPU where there is one."""
    id: str | None = None
    """Task of Isaac Lab."""


@answer.code_of
def doctor_ros(arguments: list[str]) -> int:
    """What is on the wire of a robot: robot-rl doctor ros <spec> [namespace=…] [listen=3] [wiggle=true]."""
    say = "robot: robot-rl doctor ros <path of its YAML, or a name such as desk_arm>"
    name, options = read_named(RosDoctorOptions, arguments, "doctor ros", say)
    examine = build.tool("real.ros.doctor:examine")
    found = examine(robot_file(name), namespace=options.namespace, listen=options.listen, wiggle=options.wiggle)
    answer.note(problems=list(found.problems), report=found.text())
    print(found.text())
    return 1 if found.problems else 0


@answer.code_of
def doctor_run(arguments: list[str]) -> int:
    """Why a run does not learn, from what its folder holds by now: robot-rl doctor run <folder>."""
    if len(arguments) != 1 or "=" in arguments[0]:
        raise Refused("say which run: robot-rl doctor run runs/train/<run>")
    folder = Path(arguments[0])
    if not (folder / METRICS_FILE).is_file():
        raise Refused(
            f"{folder} holds no {METRICS_FILE}: it is no run folder, or nothing was recorded yet; give the folder that "
            "robot-rl train names at its start, such as runs/train/<run>"
        )
    record = RunFigures(read_metrics(folder / METRICS_FILE), read_config(folder))
    found = diagnose_run(record.rows, record.config)
    answer.note(folder=str(folder))
    print(f"{len(record.rows)} rows of {folder}: {record.story or 'no episode has ended yet'}")
    answer.findings(found)
    if not found:
        print("nothing that keeps it from learning is seen in these figures")
    return 1 if found else 0


@answer.code_of
def doctor_isaac(arguments: list[str]) -> int:
    """Check Isaac Gym and Isaac Lab: robot-rl doctor isaac [world=quadruped] [num_envs=16] [device=cuda] [id=…]."""
    options = read_words(IsaacDoctorOptions, arguments, "doctor isaac")
    make_world = build.prepare("world", {"name": options.world})
    text, healthy = build.tool("sim.isaac_check:diagnose")(**{**options.model_dump(), "world": make_world})
    answer.note(healthy=healthy, report=text)
    print(text)
    return 0 if healthy else 1


def doctor_page(what: str) -> str:
    """What a doctor looks at, and its options.

    Args:
        what: "ros", "run", "isaac", or anything else for that of this machine.
    """
    if what == "ros":
        head = "robot-rl doctor ros <robot> [key=value ...]    a robot's topics, QoS, clocks and state, by its YAML"
        return "\n".join([head, "", "Options:", *rows(RosDoctorOptions, "")])
    if what == "run":
        return "robot-rl doctor run <run folder>    why a training run does not learn, from what it has recorded so far"
    if what == "isaac":
        head = "robot-rl doctor isaac [key=value ...]    Isaac Gym and Isaac Lab, checked"
        return "\n".join([head, "", "Options:", *rows(IsaacDoctorOptions, "")])
    return "robot-rl doctor    versions, devices, what is missing; robot-rl doctor ros, run and isaac have own pages"


@answer.code_of
def doctor(arguments: list[str]) -> int:
    """What is asked of a doctor."""
    others = {"ros": doctor_ros, "run": doctor_run, "isaac": doctor_isaac}
    what = arguments[0] if arguments else ""
    if {"-h", "--help"} & set(arguments):
        print(doctor_page(what))
        return 0
    if what in others:
        return others[what](arguments[1:])
    if what:
        raise Refused(f"robot-rl doctor takes no options, and got '{what}'; robot-rl doctor ros, run and isaac do")
    text, healthy = diagnose()
    answer.note(healthy=healthy, report=text)
    print(text)
    return 0 if healthy else 1
