"""The import table of the house, enforced on syntax trees (no module is executed)."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("robot_rl", "sim", "real", "policies", "configs")

# room -> rooms of ours that it may import (itself always)
OURS = {
    "types": set(),
    "version": set(),
    "words": {"types"},
    "zoo": {"words"},
    "tables": set(),
    "expression": set(),
    "card": {"types", "words", "tables"},
    "policy_card": {"types", "words", "tables"},
    "legs": {"types"},
    "build": {"types", "extras", "words"},
    "atomic": set(),
    "stats": set(),
    "stopwatch": set(),
    "interrupt": set(),
    "live_bar": set(),
    "claim": {"parallel"},
    "lineage": {"checkpoint"},
    "schedule": {"types"},
    "parts": {"types", "atomic", "checkpoint", "parallel"},
    "run": {
        *("atomic", "types", "loops", "checkpoint", "track", "report", "stopwatch", "parallel"),
        *("interrupt", "live_bar", "claim", "lineage", "schedule", "parts", "diagnosis"),
    },
    "link": {"types", "extras"},
    "arbiter": set(),
    "human": {
        "atomic",
        "types",
        "stats",
        "extras",
        "data",
        "link",
        "loops",
        "arbiter",
        "real.core",
        "real.action_safety",
    },
    "extras": set(),
    "child": set(),
    "parallel": set(),
    "plain_pickle": set(),
    "state": {"types"},
    "advantage": set(),
    "chunks": {"types"},
    "gaps": {"types"},
    "data": {"atomic", "types", "state", "stats", "extras", "plain_pickle", "tables", "figure", "expression"},
    "ope": {"types"},
    "checkpoint": {"atomic", "types", "tables"},
    "onnx_policy": {"types", "extras", "tables"},
    "leapp_bundle": {"types", "extras", "tables", "onnx_policy"},
    "leapp_policy": {"types", "leapp_bundle", "onnx_policy"},
    "track": {"atomic", "types", "extras"},
    "report": {"atomic", "checkpoint", "extras", "figure"},
    "curves": {"figure", "stats"},
    "diagnosis": set(),
    "figure": {"atomic", "extras"},
    "policies": {
        "types",
        "state",
        "stats",
        "advantage",
        "expression",
        "data.normalize",
        "data.seen",
        "extras",
        "parallel",
        "chunks",
        "plain_pickle",
    },
    "sim": {"types", "extras", "child", "legs"},
    "real": {
        *("types", "data.recorder", "data.session", "data.bag", "data.units"),
        *("data.exact", "data.flight", "data.flight_read"),
        *("extras", "child", "chunks", "card", "gaps", "legs", "leapp_bundle", "tables"),
    },
    "loops": {"types", "state", "stats", "data", "advantage", "extras", "parallel", "chunks"},
    "verbs": {
        "atomic",
        "stats",
        "card",
        "policy_card",
        "claim",
        "build",
        "words",
        "extras",
        "types",
        "link",
        "data",
        "loops",
        "human",
        "checkpoint",
        "track",
        "report",
        "curves",
        "figure",
        *("onnx_policy", "leapp_bundle", "leapp_policy"),
        "ope",
        "parallel",
        "chunks",
        *("child", "expression", "interrupt", "lineage", "parts", "run", "schedule", "stopwatch", "zoo"),
        "diagnosis",
    },
    "api": {"build", "checkpoint", "extras", "loops", "types", "verbs", "words"},
    "envs": {"api", "types"},
    "cli": {"verbs", "child", "version"},
    "nodes": {"build", "onnx_policy", "policy_card", "real", "sim", "types", "verbs"},
    "__main__": {"cli"},
    "configs": set(),
}
# third-party package -> files or rooms that may import it
THIRD = {
    "mujoco": ("sim/mujoco_env.py", "sim/"),
    "isaacgym": ("sim/isaac_worker.py",),
    "isaaclab": ("sim/isaac_lab_env.py",),
    "isaaclab_tasks": ("sim/isaac_lab_env.py",),
    "mujoco_warp": ("sim/warp_physics.py",),
    "warp": ("sim/warp_physics.py",),
    "rclpy": ("real/ros/",),
    "cv2": ("real/cameras.py",),
    "wandb": ("robot_rl/track.py",),
    "onnxruntime": ("robot_rl/onnx_policy.py",),
    "onnx": ("robot_rl/verbs/export.py",),
    "zenoh": ("robot_rl/link/",),
    "safetensors": ("robot_rl/link/", "robot_rl/leapp_bundle.py"),
    "leapp": ("robot_rl/verbs/export_files.py",),
    "hydra": ("robot_rl/verbs/",),
    "omegaconf": (
        "robot_rl/api.py",
        "robot_rl/verbs/",
    ),
    "h5py": ("robot_rl/data/", "robot_rl/atomic.py"),
    "pyarrow": ("robot_rl/data/lerobot.py", "robot_rl/data/lerobot_write.py"),
    "rosbags": ("robot_rl/data/rosbag.py", "robot_rl/data/bag.py"),
    "av": ("robot_rl/data/video.py", "robot_rl/report.py", "robot_rl/verbs/", "sim/", "real/"),
    "stable_baselines3": ("policies/online/sb3.py",),
    "numba": ("robot_rl/advantage/backends/", "policies/online/"),
    "triton": ("robot_rl/advantage/backends/",),
    "ray": ("robot_rl/loops/cluster.py", "robot_rl/verbs/sweep.py"),
    "optuna": ("robot_rl/verbs/tune.py",),
    "gymnasium": ("robot_rl/envs.py", "sim/", "real/", "robot_rl/loops/", "policies/online/sb3.py"),
}


def sources() -> list[Path]:
    files = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT).parts
            if inside[0] == "robot_rl" and len(inside) > 1 and inside[1] in FOLDERS[1:]:
                continue  # the same file seen through the link
            files.append(path)
    return sorted(files)


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "robot_rl":
        return parts[0]
    return parts[1]


def imports(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.name == "__init__.py" or node.level == 1, f"{path}: deep relative import"
            module = node.module or ""
            if node.level:
                continue
            found += [
                (f"{module}.{alias.name}" if module in ("robot_rl", "robot_rl.data") else module, node.lineno)
                for alias in node.names
            ]
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_file_keeps_the_table(path: Path) -> None:
    room, own = room_of(path), str(path.relative_to(ROOT))
    if room in ("__init__", "py"):
        return
    for name, line in imports(path):
        top = name.split(".")[0]
        assert top not in FOLDERS[1:], f"{own}:{line} imports bare '{top}'; write robot_rl.{top}"
        if top == "robot_rl":
            target = name.split(".")[1] if "." in name else ""
            if target in ("", room, "version"):
                continue
            allowed = OURS[room]
            fine = target in allowed or any(name.startswith(f"robot_rl.{item}") for item in allowed if "." in item)
            assert fine, f"{own}:{line} imports {name}; {room} may import {sorted(allowed)}"
        elif top in THIRD:
            assert any(own.startswith(place) for place in THIRD[top]), f"{own}:{line} imports {top}"


def test_policies_files_import_only_the_method_that_they_extend() -> None:
    for path in (ROOT / "policies").rglob("*.py"):
        siblings = {n for n, _ in imports(path) if n.startswith("robot_rl.policies.") and ".nets" not in n}
        inside = path.relative_to(ROOT / "policies").with_suffix("").parts
        own = ".".join(
            ("robot_rl.policies", *inside[:2])
        )  # parts lie beside their method, in files or a folder of its name
        # the family's contracts are no method
        others = {name for name in siblings if not name.startswith((own, "robot_rl.policies.vla.interface"))}
        assert len(others) <= 1, f"{path.name} imports several methods: {sorted(others)}"


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith("robot_rl") else f"robot_rl.{name}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions count."""
    modules = {module_of(path): path for path in sources()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        targets = graph.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = f"{package}.{node.module}" if node.level and node.module else node.module or package
                targets |= {f"{base}.{x.name}" if f"{base}.{x.name}" in modules else base for x in node.names}
    TopologicalSorter({name: (targets & set(modules)) - {name} for name, targets in graph.items()}).prepare()


def test_what_verbs_take_from_other_rooms_is_there() -> None:
    """`build.tool("sim.check:check")` is no import that a reader of syntax trees sees: its place is checked here."""
    places = {
        place
        for path in sources()
        if room_of(path) in ("build", "verbs")
        for place in re.findall(r'"((?:sim|real|policies)\.[\w.]+(?::\w+)?)"', path.read_text())
    }
    assert len(places) > 40
    for place in places:
        module, _, name = place.partition(":")
        body = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text()).body
        targets = [x for item in body if isinstance(item, ast.Assign) for x in item.targets]
        targets += [item.target for item in body if isinstance(item, ast.AnnAssign)]
        made = {x.id for x in targets if isinstance(x, ast.Name)}
        made |= {item.name for item in body if isinstance(item, (ast.ClassDef, ast.FunctionDef))}
        assert not name or name in made, f"{place} is named in robot_rl/verbs or build.py, and is not there"


def test_advantage_alone_loads_no_simulator_and_no_hydra() -> None:
    code = (
        "import sys; import robot_rl.advantage; "
        "bad = {'gymnasium','mujoco','rclpy','hydra','omegaconf','cv2','wandb','stable_baselines3'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr


def test_import_rule_refuses_a_bare_room(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("import sim.mujoco_env\n")
    assert imports(path) == [("sim.mujoco_env", 1)]
