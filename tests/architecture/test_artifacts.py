"""The wheel and the sdist hold every room, configuration and asset (installing them is `make wheel`)."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="the package `build` is not installed")
    work = tmp_path_factory.mktemp("dist")
    clone = work / "clone"
    made = subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip("not a git checkout")
    command = [sys.executable, "-m", "build", "--no-isolation", "-o", str(work / "dist"), str(clone)]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout[-2000:] + out.stderr[-2000:]
    return work / "dist"


def committed(pattern: str) -> set[str]:
    out = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", *pattern.split()], cwd=ROOT, capture_output=True
    )
    return set(out.stdout.decode().split())


def test_wheel_holds_every_module_configuration_and_asset(dist: Path) -> None:
    names = set(zipfile.ZipFile(next(dist.glob("*.whl"))).namelist())
    for path in committed("robot_rl sim real policies configs"):
        if path in {f"robot_rl/{room}" for room in ("sim", "real", "policies", "configs")}:
            continue  # the links
        inside = path if path.startswith("robot_rl/") else f"robot_rl/{path}"
        assert inside in names, f"{path} is not in the wheel"
    assert any(name.endswith("share/robot_rl/package.xml") for name in names)
    ours = ("robot_rl/", "robot_rl-")  # benchmarks, tests and docs stay in the checkout
    assert not [name for name in names if not name.startswith(ours)]


def test_sdist_holds_what_a_build_needs(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for needed in ("setup.py", "README.md", "package.xml", "sim/mujoco_env.py", "configs/train.yaml", "LICENSE"):
        assert needed in names, f"{needed} is not in the sdist"
