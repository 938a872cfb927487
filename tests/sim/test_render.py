import os
import subprocess
import sys

import numpy as np
import pytest

from robot_rl.sim import render
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.look import Look, dress
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.pick import Pick


@pytest.fixture(autouse=True)
def _renderer():
    try:
        context = render.open_context(8, 8)
    except RuntimeError as error:
        pytest.skip(f"no renderer here: {error}")
    context.free()


def column(picture, channel):
    """Mean column of the pixels where one colour dominates."""
    others = [c for c in range(3) if c != channel]
    mask = picture[..., channel] > 1.5 * picture[..., others].max(axis=-1) + 10
    return np.argwhere(mask)[:, 1].mean()


def test_pictures_show_the_state_of_each_environment(slider):
    env = make(3, 0, world=slider(), options=EngineOptions(cameras=("front",), camera_size=(60, 80)))
    obs, _ = env.reset()
    picture = obs["image.front"]
    assert picture.shape == (3, 60, 80, 3)
    assert picture.dtype == np.uint8
    assert env.io.obs["image.front"] == ((60, 80, 3), "uint8")
    # the car's face is 2.9 m from the camera, whose vertical view of 45 degrees spans 60 pixels: 2.9 * 0.828 m
    expected = 39.5 + obs["state"][:, 0] * 60 / (2.9 * 2 * np.tan(np.pi / 8))
    assert [column(p, 0) for p in picture] == pytest.approx(expected, abs=1.0)


def test_final_picture_is_the_true_successor(slider):
    env = make(
        2, 0, world=slider(spread=0.0, limit=0.5), options=EngineOptions(cameras=("front",), camera_size=(60, 80))
    )
    env.reset()
    obs, _, terminated, _, info = [env.step([[1.0], [0.0]]) for _ in range(12)][-1]
    assert terminated.tolist() == [True, False]
    final, fresh = info["final_obs"]["image.front"], obs["image.front"]
    assert column(final[0], 0) > 47  # beyond 0.5 m
    assert column(fresh[0], 0) == pytest.approx(39.5, abs=1.0)
    assert np.array_equal(final[1], fresh[1])


def test_markers_show_the_goal(slider):
    env = make(3, 1, world=slider(spread=0.0), options=EngineOptions(cameras=("front",), camera_size=(60, 80)))
    obs, _ = env.reset()
    goal = obs["state"][:, 3]
    for picture, position in zip(obs["image.front"], goal):
        if abs(position) > 0.3:  # not behind the car
            assert np.sign(column(picture, 1) - 39.5) == np.sign(position)


def test_pictures_alone_are_enough_and_the_expert_still_sees_the_state(slider):
    env = make(2, 0, world=slider(), options=EngineOptions(cameras=("front",), state=False))
    obs, _ = env.reset()
    assert set(obs) == {"image.front"}
    assert env.io.obs_names == ()
    full = make(2, 0, world=slider())
    assert np.array_equal(env.expert(obs), full.expert(full.reset()[0]))


def test_render_gives_one_frame_per_environment(slider):
    env = make(2, 0, world=slider(), render_mode="rgb_array", options=EngineOptions(render_size=(48, 64)))
    env.reset()
    frames = env.render()
    assert isinstance(frames, tuple)
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 2
    assert not np.array_equal(frames[0], frames[1])
    assert make(1, 0, world=slider()).render() is None
    env.close()


def test_another_model_in_the_same_context_looks_as_in_its_own():
    def cameras(model):
        return render.Cameras(model, 32, 32, {"goal": "goal"}, quality="fast")

    first, other = (
        render.mujoco.MjModel.from_xml_string(dress(Pick().mjcf(), Look.model_validate({"seed": seed, "range": kind})))
        for seed, kind in ((1, "known"), (2, "unknown"))
    )
    scene = other.qpos0[None], ["front"], {"goal": np.array([[0.4, 0.0, 0.2]])}
    kept, own = cameras(first), cameras(other)
    before = kept.render(*scene)["front"]
    kept.show(other)
    after, expected = kept.render(*scene)["front"], own.render(*scene)["front"]
    kept.close()
    own.close()
    assert np.array_equal(after, expected)
    assert np.abs(after.astype(int) - before).mean() > 5.0


def test_marker_that_is_no_mocap_body_is_refused(slider):
    world = slider()
    world.markers = {"car": "goal"}
    with pytest.raises(ValueError, match="marker 'car' is not a mocap body"):
        make(1, 0, world=world)


def test_no_renderer_says_what_to_install(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "")
    for module in ("mujoco.egl", "mujoco.osmesa"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it could not be imported
    with pytest.raises(RuntimeError, match="libegl1") as caught:
        render.open_context(8, 8)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:3]] == ["egl", "osmesa"]
    assert all("ImportError" in line for line in lines[1:3])


def test_unknown_choice_of_renderer_is_refused(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    with pytest.raises(RuntimeError, match="expected egl, osmesa, glfw"):
        render.open_context(8, 8)
    assert os.environ["MUJOCO_GL"] == "vulkan"


def test_cameras_left_open_say_nothing_when_the_process_ends():
    """Contexts that outlive EGL complain from their finalisers."""
    code = (
        "import mujoco; from robot_rl.sim.render import Cameras; "
        "m = mujoco.MjModel.from_xml_string('<mujoco><worldbody><geom size=\".1\"/></worldbody></mujoco>'); "
        "kept = [Cameras(m, 32, 32), Cameras(m, 16, 16)]; print(kept[0].render(m.qpos0[None], [None])[None].shape)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "(1, 32, 32, 3)" in ended.stdout
    assert ended.stderr == ""
