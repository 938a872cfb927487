import ctypes.util
import os

import pytest

from robot_rl.sim import headless


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    monkeypatch.setattr(headless, "_chosen", [])
    monkeypatch.setattr(headless.sys, "platform", "linux")
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.delenv("DISPLAY", raising=False)


@pytest.mark.parametrize(("libraries", "kind"), [(["EGL", "OSMesa"], "egl"), (["OSMesa"], "osmesa"), ([], "")])
def test_library_that_is_there_decides(monkeypatch, libraries, kind):
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: name if name in libraries else None)
    headless.prefer_headless()
    assert os.environ["MUJOCO_GL"] == kind
    assert headless.wanted_renderer() == ""  # our own choice does not bind the renderer's search


def test_choice_of_the_user_and_a_display_stay(monkeypatch):
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: name)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    headless.prefer_headless()
    assert headless.wanted_renderer() == "osmesa"
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setenv("DISPLAY", ":0")
    headless.prefer_headless()
    assert os.environ["MUJOCO_GL"] == ""
