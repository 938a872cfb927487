"""Two processes with gloo: the same parameters everywhere, and those of one process with the joint batch."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.point_world import PointWorld
from robot_rl import parallel
from robot_rl.policies.online.fast_sac import FastSac, FastSacOptions

sys.path.insert(0, str(Path(__file__).parent))
import parallel_job

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(parallel_job.__file__)), str(folder)]
    started = [
        subprocess.Popen(command, env={**shared, "RANK": str(r), "LOCAL_RANK": str(r)}, stderr=subprocess.PIPE)
        for r in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors.decode()[-3000:]
    return [torch.load(folder / f"rank{r}.pt", weights_only=True) for r in range(2)]


@pytest.mark.parametrize("name", ["sac", "td3", "ppo"])
def test_two_processes_equal_one_with_the_joint_batch(ranks, name):
    alone = parallel_job.everything()[name]
    for key, value in alone.items():
        assert torch.equal(ranks[0][name][key], ranks[1][name][key]), key
        torch.testing.assert_close(ranks[0][name][key], value.detach(), atol=2e-5, rtol=1e-4)


def test_processes_have_environments_of_their_own_and_one_policy(ranks):
    first, second = (rank["loop"] for rank in ranks)
    assert torch.equal(first["actor"], second["actor"])
    assert not torch.equal(first["seen"], second["seen"])
    assert first["steps"] == second["steps"] == 80  # all environments are counted
    assert len(first["seen"]) == 4


def test_without_torchrun_there_is_one_process_and_nothing_to_do():
    assert (parallel.rank(), parallel.size(), parallel.start("cpu")) == (0, 1, "cpu")
    x = torch.ones(3)
    assert parallel.mean_(x) is x
    assert parallel.rows(x) is x
    assert parallel.agree("a") == "a"
    assert parallel.shard(7) == 7


def test_environments_that_cannot_be_shared_out_are_refused(monkeypatch):
    monkeypatch.setattr(parallel, "size", lambda: 2)
    with pytest.raises(ValueError, match="num_envs is 7, expected a multiple of the 2 processes"):
        parallel.shard(7)
    with pytest.raises(ValueError, match="batch_size is 15, expected a multiple"):
        FastSac(FastSacOptions(batch_size=15), PointWorld(2, 3).io)
