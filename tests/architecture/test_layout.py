"""Links, manifest, file sizes and names of the house."""

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("sim", "real", "policies", "configs")
FORBIDDEN = {"utils", "common", "helpers", "misc", "manager", "base"}


def tracked(pattern: str) -> list[Path]:
    try:
        out = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True)
        return [ROOT / line for line in out.stdout.splitlines()]
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")


@pytest.mark.parametrize("room", ROOMS)
def test_links_point_to_the_rooms(room: str) -> None:
    link = ROOT / "robot_rl" / room
    message = "clone with `git -c core.symlinks=true clone …`, or use `pip install .`, which works without links"
    assert link.is_symlink(), f"robot_rl/{room} is no link; {message}"
    assert link.readlink() == Path("..") / room


def test_launch_has_no_init_file() -> None:
    assert not (ROOT / "launch" / "__init__.py").exists(), "it would shadow the ROS package `launch`"


def test_configs_is_a_package() -> None:
    assert (ROOT / "configs" / "__init__.py").exists()


def test_tests_hold_no_init_files() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_manifest_versions_agree() -> None:
    manifest = ElementTree.parse(ROOT / "package.xml").getroot()
    version = re.search(r'VERSION = "(.+?)"', (ROOT / "robot_rl/version.py").read_text())
    assert version is not None
    assert manifest.findtext("version") == version.group(1)
    assert manifest.get("format") == "3"
    assert manifest.findtext("export/build_type") == "ament_python"


def test_manifest_parses_with_catkin_pkg() -> None:
    catkin = pytest.importorskip("catkin_pkg.package", reason="catkin_pkg is not installed")
    package = catkin.parse_package(str(ROOT))
    package.validate()
    assert package.name == "robot_rl"


def test_files_stay_under_500_lines() -> None:
    long = {p.name: n for p in tracked("*.py") if (n := len(p.read_text().splitlines())) > 500}
    assert not long


def test_names_avoid_the_forbidden_words() -> None:
    bad = [p for p in tracked("*.py") if p.stem in FORBIDDEN or set(p.relative_to(ROOT).parts[:-1]) & FORBIDDEN]
    assert not bad


def test_repository_holds_no_large_or_generated_files() -> None:
    # the nets of encoder=robot are shipped, and bounded in tests/policies/encoders/test_robot.py
    shipped = ROOT / "policies/encoders/weights/robot.safetensors"
    large = [p for p in tracked("*") if p.is_file() and p != shipped and p.stat().st_size > 500_000]
    generated = [p for p in tracked("*") if p.suffix in {".mp4", ".pt", ".hdf5", ".pkl"}]
    # the agents of the zoo are small and meant to be shipped (tests/jobs/test_zoo.py)
    assert not large + [p for p in generated if ROOT / "policies/zoo" not in p.parents]


def test_docs_links_lead_somewhere() -> None:
    for page in [*tracked("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}, which is absent"
