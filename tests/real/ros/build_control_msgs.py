"""Build the action FollowJointTrajectory of control_msgs, which has no wheel, from a checkout of its sources.

    git clone https://github.com/ros-controls/control_msgs && git -C control_msgs checkout 13dacdd
    python tests/real/ros/build_control_msgs.py control_msgs/control_msgs .venv-control   # wants gcc, catkin_pkg
    LD_LIBRARY_PATH=.venv-control/lib PYTHONPATH=.venv-control pytest tests/real/ros/test_follow_trajectory_live.py

The generators of the ROS wheels write its C and Python; what they write is compiled as their own packages are.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import rosidl_cli.entry_points
import rosidl_cli.extensions

FILES = ("msg/JointTolerance.msg", "msg/JointComponentTolerance.msg", "action/FollowJointTrajectory.action")
NEEDS = ("trajectory_msgs", "std_msgs", "builtin_interfaces", "action_msgs", "unique_identifier_msgs", "service_msgs")
NEEDS = (*NEEDS, "geometry_msgs")
RUNTIME = ("rosidl_runtime_c", "rcutils")
NAME = "control_msgs"
ROOT = Path(sys.prefix)


def entry_points(group: str, *, specs=None, strict=False):
    """Those of wheels are doubled, which rosidl_cli does not bear."""
    found = importlib.metadata.entry_points(group=group)
    return {entry.name: entry.load() for entry in found if not specs or entry.name in specs}


def generate(source: Path, out: Path) -> None:
    """Write C and Python of the messages into `out`."""
    os.environ["AMENT_PREFIX_PATH"] = str(ROOT)
    rosidl_cli.entry_points.load_entry_points = rosidl_cli.extensions.load_entry_points = entry_points
    from rosidl_cli.command.generate.api import generate as write

    os.chdir(source)
    write(
        package_name=NAME,
        interface_files=list(FILES),
        include_paths=[str(ROOT / "share")],
        output_path=out,
        types=["c", "cpp", "py"],
        typesupports=["c", "fastrtps_c", "introspection_c"],
    )


def build(made: Path, prefix: Path) -> None:
    """Compile what was generated in `made`: libraries into lib/, the package beside it."""
    headers, lib, package = prefix / "include" / NAME, prefix / "lib", prefix / NAME
    lib.mkdir(parents=True)
    for part in ("c", "cpp", "fastrtps_c", "introspection_c"):
        shutil.copytree(made / part, headers, dirs_exist_ok=True)
    shutil.copytree(made / "py", package)
    (package / "__init__.py").touch()
    shared = [headers.parent, *(path for path in (ROOT / "include", *(ROOT / "include").iterdir()) if path.is_dir())]
    shared += [np.get_include(), sysconfig.get_paths()["include"]]
    flags = ["-O1", "-fPIC", "-shared", "-w", *(f"-I{path}" for path in shared)]
    places = [f"{word}{folder}" for folder in (lib, ROOT / "lib") for word in ("-L", "-Wl,-rpath,")]

    def compile(files, out, *links):
        sources = sorted(map(str, files))
        tool = ["g++", "-std=c++17"] if sources[0].endswith("pp") else ["gcc"]
        words = [f"-l{link}" for link in (*links, *RUNTIME)]
        subprocess.run([*tool, *flags, *sources, "-o", str(out), *places, *words], check=True)

    def library(kind, files, own=(), more=()):
        """Of one kind; `own` kinds of this package, and the same kind of those that it needs."""
        links = (*(f"{NAME}__{one}" for one in own), *(f"{need}__{kind}" for need in NEEDS), *more)
        compile(files, lib / f"lib{NAME}__{kind}.so", *links)

    support, generator = "rosidl_typesupport", "rosidl_generator_c"
    plain = {*(made / "c").rglob("*__functions.c"), *(made / "c").rglob("*__description.c")}
    library(generator, plain | set((made / "c").rglob("*__type_support.c")))
    library(
        f"{support}_introspection_c",
        (made / "introspection_c").rglob("*.c"),
        (generator,),
        (f"{support}_introspection_c",),
    )
    fast = (f"{support}_fastrtps_c", f"{support}_fastrtps_cpp", "rmw", "fastcdr")
    library(fast[0], (made / "fastrtps_c").rglob("*.cpp"), (generator,), fast)
    both = (generator, fast[0], f"{support}_introspection_c")
    library(f"{support}_c", (made / "c").rglob("*__type_support.cpp"), both, (f"{support}_c",))
    python = [path for path in (made / "py").rglob("_*_s.c") if ".ep." not in path.name]
    library("rosidl_generator_py", python, (generator, f"{support}_c"))
    for kind in (f"{support}_c", *both[1:]):
        own = ("rosidl_generator_py", generator, kind, f"{support}_c")
        links = (*dict.fromkeys(f"{NAME}__{one}" for one in own), f"{support}_c", "rmw")
        compile([package / f"_{NAME}_s.ep.{kind}.c"], package / f"{NAME}_s__{kind}.so", *links)


if __name__ == "__main__":
    source, prefix = (Path(word).resolve() for word in sys.argv[1:])
    if prefix.exists():
        raise SystemExit(f"{prefix} is there already; remove it first")
    generate(source, prefix / "made")
    build(prefix / "made", prefix)
