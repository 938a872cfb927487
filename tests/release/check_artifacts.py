"""make wheel: sdist, wheel and editable install proved in empty environments; colcon builds, plain and symlinked.

Run as a script: python tests/release/check_artifacts.py [wheel|sdist|editable|colcon ...]. Everything happens on a
fresh clone of HEAD in a temporary folder.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ["train", "env=reach", "total_steps=200", "learning_starts=100", "eval_episodes=1", "final_episodes=1"]
TRAIN += ["video_episodes=0", "checkpoint_every=0", "track.tensorboard=false"]


def run(*command: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command; on failure show all it printed and stop."""
    words = [str(item) for item in command]
    out = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"FAILED {' '.join(words)}\n{out.stdout[-3000:]}\n{out.stderr[-3000:]}")
    return out.stdout


def environment(folder: Path) -> Path:
    """An environment with nothing but pip; returns its interpreter."""
    run(sys.executable, "-m", "venv", folder, cwd=ROOT)
    return folder / "bin" / "python"


def prove(python: Path, work: Path, what: str) -> None:
    """Doctor and a short training run, started outside the checkout."""
    work.mkdir()
    command = python.parent / "robot-rl"
    run(command, "doctor", cwd=work)
    run(command, *TRAIN, cwd=work)
    found = run(python, "-c", "import robot_rl.sim; print(robot_rl.sim.__file__)", cwd=work).strip()
    place = "site-packages" if "site-packages" in found else "the checkout"
    print(f"ok  {what}: doctor and a 200-step train; robot_rl.sim from {place}")


def install(python: Path, clone: Path, target: object, *, editable: bool = False) -> None:
    """Install with the pinned dependencies."""
    locked = [python, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
    cpu = [*locked, "--no-index", "-r", "requirements-cpu.lock"]
    run(*locked, "-r", "requirements.lock", cwd=clone)
    if subprocess.run([str(item) for item in cpu], cwd=clone, capture_output=True).returncode:
        run(*locked, "-r", "requirements-torch.lock", cwd=clone)
    options = ["-e"] if editable else []
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", *options, target, cwd=clone)


def colcon(clone: Path, work: Path) -> None:
    """Build as a ROS workspace, plain and symlinked, and run what `ros2 run` would."""
    python = environment(work / "colcon-env")
    run(python, "-m", "pip", "install", "-q", "colcon-common-extensions", "setuptools<80", "pytest", cwd=work)
    site = run(sys.executable, "-c", "import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])", cwd=work)
    for name, options in (("plain", []), ("symlinked", ["--symlink-install"])):
        space = work / name
        (space / "src").mkdir(parents=True)
        shutil.copytree(clone, space / "src" / "robot_rl", symlinks=True)
        env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
        run(python.parent / "colcon", "build", *options, cwd=space, env=env)
        prefix = space / "install" / "robot_rl"
        assert (prefix / "share/robot_rl/package.xml").exists(), "package.xml was not installed"
        assert (prefix / "share/ament_index/resource_index/packages/robot_rl").exists(), "no ament marker"
        start = f"PYTHONPATH=$PYTHONPATH:{site.strip()} {prefix}/lib/robot_rl/robot-rl --version"
        shown = run(
            "bash",
            "-c",
            f". install/setup.bash; {start}",
            cwd=space,
            env=env,
        )
        assert "robot_rl" in shown, shown
        print(f"ok  colcon build {name}: {shown.strip()}")


def main(wanted: list[str]) -> None:
    """Prove each artifact named, or all."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        clone = work / "clone"
        run("git", "clone", "-q", ROOT, clone, cwd=work)
        run(sys.executable, "-m", "build", "--no-isolation", "-o", work / "dist", clone, cwd=work)
        wheel, sdist = next((work / "dist").glob("*.whl")), next((work / "dist").glob("*.tar.gz"))
        for what, target, editable in (("wheel", wheel, False), ("sdist", sdist, False), ("editable", clone, True)):
            if what in wanted:
                python = environment(work / f"env-{what}")
                install(python, clone, target, editable=editable)
                prove(python, work / f"run-{what}", what)
        if "colcon" in wanted:
            colcon(clone, work)


if __name__ == "__main__":
    main(sys.argv[1:] or ["wheel", "sdist", "editable", "colcon"])
