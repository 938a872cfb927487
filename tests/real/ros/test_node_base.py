"""The life of a node's process where a library holds the interpreter for good."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.ros

STUCK = """
import ctypes, sys
from robot_rl.real.ros import node_base

class Node:
    def __init__(self):
        print("making", flush=True)
        {making}
    def wind_down(self):
        print("brakes", flush=True)
    def destroy_node(self):
        {ending}

def stuck():
    ctypes.PyDLL(None).sleep(600)  # with the interpreter locked: no thread of Python runs meanwhile

node_base.END_WITHIN = 2
node_base.TopicExecutor.add_node = lambda self, node: None
sys.exit(node_base.run(Node, []))
"""
LAUNCHER = """
import os, subprocess, sys, time
env = {{**os.environ, "ROBOT_RL_PARENT": str(os.getpid())}}
print(subprocess.Popen([sys.executable, "-c", {code!r}], env=env).pid, flush=True)
time.sleep(600)
"""


def launch(making: str, ending: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A launcher with one node, once that is being made."""
    code = LAUNCHER.format(code=STUCK.format(making=making, ending=ending))
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    node = psutil.Process(int(launcher.stdout.readline()))
    assert launcher.stdout.readline() == "making\n"
    return launcher, node


def test_a_node_that_is_stuck_while_it_is_made_ends_with_its_launcher():
    launcher, node = launch("stuck()", "pass")
    try:
        time.sleep(0.5)
        assert node.is_running()
        launcher.kill()
        launcher.wait(10.0)
        assert not psutil.wait_procs([node], timeout=10.0)[1]
    finally:
        kill(launcher, node)


def test_a_node_whose_launcher_is_gone_brakes_and_ends_however_stuck_its_goodbye_is():
    launcher, node = launch("pass", "stuck()")
    try:
        time.sleep(1.0)
        launcher.kill()
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "brakes\n"
        assert not psutil.wait_procs([node], timeout=20.0)[1]
    finally:
        kill(launcher, node)


def test_a_recorder_may_write_for_as_long_as_its_disk_takes():
    code = """
import os, signal, threading, time
from robot_rl import nodes
from robot_rl.real.ros import node_base, recorder_node

class Slow:
    def wind_down(self):
        time.sleep(3.0)
        print("written", flush=True)
    def destroy_node(self):
        pass

node_base.END_WITHIN = 1
node_base.TopicExecutor.add_node = lambda self, node: None
recorder_node.RecorderNode = Slow
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
nodes.recorder_node()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr


def kill(launcher: subprocess.Popen[str], node: psutil.Process) -> None:
    launcher.kill()
    launcher.wait()
    if node.is_running():
        os.kill(node.pid, signal.SIGKILL)
