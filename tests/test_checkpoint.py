"""Checkpoints appear whole or not at all, and hold nothing that executes."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from robot_rl import checkpoint
from robot_rl.atomic import write_bytes
from robot_rl.checkpoint import CheckpointError
from robot_rl.types import IOSpec

ROOT = Path(__file__).resolve().parents[1]
IO = IOSpec(
    obs={"state": ((3,), "float32")},
    action_names=("x",),
    action_low=(-0.1,),
    action_high=(0.1,),
    action_units=("m",),
    control_hz=10.0,
)


def save(root: Path, step: int, **extra):
    return checkpoint.save(
        root, step, states={"policy": {"w": torch.ones(3)}}, io=IO, config="a: 1\n", meta={"seed": 0}, **extra
    )


def test_state_round_trip_keeps_kinds_and_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    state = {
        "tensor": torch.arange(4.0),
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "counter": np.array([2**63 + 5, 7], np.uint64),
        "bools": np.array([True, False]),
        "scalar0": np.array(3.5),
        "names": np.array(["a", "bcd"]),
        "big": rng.bit_generator.state["state"]["state"],  # a 128-bit integer
        "nested": [1, (2.5, "x", None), {"flag": True}],
        "np_scalar": np.float32(1.5),
    }
    checkpoint.save_state(tmp_path / "s.pt", state)
    back = checkpoint.load_state(tmp_path / "s.pt")
    assert torch.equal(back["tensor"], state["tensor"])
    for key in ("array", "counter", "bools", "scalar0", "names"):
        assert back[key].dtype == state[key].dtype
        np.testing.assert_array_equal(back[key], state[key])
    assert back["big"] == state["big"]
    assert back["nested"] == state["nested"]
    assert back["np_scalar"] == 1.5


def test_load_state_malicious_pickle_is_not_executed(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'boom'}",)

    torch.save({"x": Bomb()}, tmp_path / "bad.pt", pickle_module=pickle)
    with pytest.raises(CheckpointError, match=r"bad\.pt cannot be read"):
        checkpoint.load_state(tmp_path / "bad.pt")
    assert not (tmp_path / "boom").exists()


def test_load_state_object_array_is_refused_when_saving(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="object array"):
        checkpoint.save_state(tmp_path / "s.pt", {"x": np.array([{}, []], dtype=object)})


def test_load_state_truncated_file_says_so(tmp_path: Path) -> None:
    checkpoint.save_state(tmp_path / "s.pt", {"x": torch.zeros(1000)})
    content = (tmp_path / "s.pt").read_bytes()
    (tmp_path / "s.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="use another checkpoint"):
        checkpoint.load_state(tmp_path / "s.pt")


def test_save_keeps_the_newest_and_find_resolves_them(tmp_path: Path) -> None:
    root = tmp_path / "run" / "checkpoints"
    for step in (10, 20, 30):
        save(root, step, keep=2)
    assert [p.name for p in checkpoint.complete(root)] == ["step_000000020", "step_000000030"]
    for start in (tmp_path / "run", root, root / "step_000000030"):
        assert checkpoint.find(start).name == "step_000000030"
    assert checkpoint.read_io(root / "step_000000030") == IO
    assert checkpoint.read_meta(root / "step_000000030")["step"] == 30


def test_save_same_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 10)
    path = checkpoint.save(tmp_path, 10, states={"policy": {"w": torch.zeros(3)}}, io=IO, config="", meta={})
    assert checkpoint.load_state(path / "policy.pt")["w"].sum() == 0
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux trades two names in one step here")
def test_kill_while_a_checkpoint_is_replaced_leaves_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    """Best and same-step checkpoints are replaced; each moment at which a kill can fall is one system call."""
    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[2]);"
        "from tests_io import IO; from robot_rl import checkpoint; from pathlib import Path; step = 0\n"
        "while True:\n"
        "    step += 1\n"
        "    states = {'policy': {'w': torch.full((1000,), float(step))}}\n"
        "    checkpoint.save(Path(sys.argv[1]), step, states=states, io=IO, config='', meta={}, name='best')\n"
        "    print(step, flush=True)\n"
    )
    (tmp_path / "tests_io.py").write_text(f"from robot_rl.types import IOSpec\nIO = {IO!r}\n")
    root = tmp_path / "checkpoints"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(root), str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        until = time.monotonic() + 1.0
        absent = 0
        while time.monotonic() < until:
            absent += not (root / "best" / "meta.json").exists()
        process.kill()
    assert absent == 0
    step = checkpoint.read_meta(root / "best")["step"]
    assert (checkpoint.load_state(root / "best" / "policy.pt")["w"] == step).all()


def test_find_without_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.find(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        checkpoint.find(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(CheckpointError, match=r"the run ended before its first one .*; start it again"):
        checkpoint.find(tmp_path)


def test_folders_without_meta_are_no_checkpoints(tmp_path: Path) -> None:
    """`meta.json` is written last: a folder without one is a copy that broke off, and must neither be resumed from nor
    push a good checkpoint out of the newest that stay."""
    root = tmp_path / "checkpoints"
    good = save(root, 10)
    for step in (20, 30):
        shutil.copytree(good, root / f"step_{step:09d}", ignore=shutil.ignore_patterns("meta.json"))
    (root / "step_notes.txt").write_text("no folder")
    assert checkpoint.complete(root) == [good]
    assert checkpoint.find(tmp_path) == good
    newest = save(root, 40, keep=2)
    assert checkpoint.complete(root) == [good, newest]


def test_save_ignores_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / ".partial-step_000000005-1").mkdir()
    (tmp_path / ".partial-step_000000005-1" / "policy.pt").write_bytes(b"half")
    save(tmp_path, 10)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000000010"]


def test_save_killed_at_any_moment_leaves_only_readable_checkpoints(tmp_path: Path) -> None:
    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[2]);"
        "from tests_io import IO; from robot_rl import checkpoint; from pathlib import Path; step = 0\n"
        "while True:\n"
        "    step += 1\n"
        "    big = {'w': torch.full((200_000,), float(step))}\n"
        "    both = {'policy': big, 'learner': big}\n"
        "    checkpoint.save(Path(sys.argv[1]), step, states=both, io=IO, config='', meta={})\n"
        "    print(step, flush=True)\n"
    )
    (tmp_path / "tests_io.py").write_text(f"from robot_rl.types import IOSpec\nIO = {IO!r}\n")
    root = tmp_path / "checkpoints"
    rng = np.random.default_rng(0)
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(root), str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(float(rng.uniform(0.0, 0.05)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in checkpoint.complete(root):
            step = checkpoint.read_meta(path)["step"]
            for name in ("policy.pt", "learner.pt"):
                assert (checkpoint.load_state(path / name)["w"] == step).all()


def test_kill_while_an_old_checkpoint_is_removed_leaves_no_half_of_it(tmp_path: Path, monkeypatch) -> None:
    def half(folder: Path, ignore_errors: bool = False) -> None:
        (folder / "policy.pt").unlink()
        raise KeyboardInterrupt

    def save(step: int) -> None:
        checkpoint.save(tmp_path, step, states={"policy": {}}, io=IO, config="", meta={}, keep=1)

    save(1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", half)
        with pytest.raises(KeyboardInterrupt):
            save(2)
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["step_000000002"]
    save(3)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000003"]


@pytest.fixture
def small_disk(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_save_disk_full_keeps_the_earlier_checkpoint(small_disk: Path) -> None:
    save(small_disk, 10)
    with pytest.raises(CheckpointError, match=r"could not be written .*free space there"):
        checkpoint.save(small_disk, 20, states={"policy": {"w": torch.zeros(2_000_000)}}, io=IO, config="", meta={})
    assert [p.name for p in small_disk.iterdir()] == ["step_000000010"]
    assert checkpoint.load_state(checkpoint.find(small_disk) / "policy.pt")["w"].sum() == 3


def test_save_unwritable_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="choose another folder"):
        save(tmp_path / "file" / "checkpoints", 10)


def test_write_bytes_failure_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk gone")))
    with pytest.raises(OSError, match="disk gone"):
        write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_checkpoints_beyond_a_billion_steps_are_the_newest(tmp_path: Path) -> None:
    made = [save(tmp_path, step, keep=2) for step in (999_000_000, 999_900_000, 1_000_100_000)]
    assert checkpoint.complete(tmp_path) == made[1:]
    assert checkpoint.find(tmp_path) == made[2]
