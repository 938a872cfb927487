"""Pictures of simulated worlds: MuJoCo's renderer without a screen, through EGL or else OSMesa."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl.extras import require_foreign
from robot_rl.sim import headless
from robot_rl.sim.headless import load_mujoco
from robot_rl.sim.scene import mocap

if TYPE_CHECKING:
    from mujoco import MjModel

    from robot_rl.types import Array

mujoco = load_mujoco()

QUALITIES = ("full", "fast")
_REMEDY = (
    "Rendering without a screen needs EGL (Debian or Ubuntu: apt-get install libegl1 libgl1-mesa-dri; NVIDIA drivers "
    "bring their own) or OSMesa (apt-get install libosmesa6), and pip install pyopengl. Without either, train from "
    "state: cameras=[]."
)


def open_context(width: int, height: int) -> Any:
    """A current OpenGL context of the first kind that works: MUJOCO_GL if set, else EGL, else OSMesa.

    The choice is written to MUJOCO_GL, so that other renderers of the process agree.

    Raises:
        RuntimeError: none works; says why and what to install.
    """
    wanted = headless.wanted_renderer()
    if wanted and wanted not in ("egl", "osmesa", "glfw"):
        raise RuntimeError(f"MUJOCO_GL is '{wanted}', expected egl, osmesa, glfw or nothing. {_REMEDY}")
    reasons = []
    for kind in (wanted,) if wanted else ("egl", "osmesa"):
        try:
            # importing it binds PyOpenGL to that kind
            context = require_foreign(f"mujoco.{kind}", "pip install pyopengl").GLContext(width, height)
            context.make_current()
        except Exception as error:  # PyOpenGL raises anything from AttributeError to its own GLError
            reasons.append(f"{kind}: {type(error).__name__}: {error}")
            _forget(kind)
        else:
            os.environ["MUJOCO_GL"] = kind
            return context
    raise RuntimeError("no OpenGL context could be opened.\n  " + "\n  ".join(reasons) + f"\n{_REMEDY}")


def _forget(kind: str) -> None:
    """PyOpenGL binds to one platform at import; drop it so that the next kind can be tried."""
    if kind != "glfw":
        os.environ.pop("PYOPENGL_PLATFORM", None)
    for name in [n for n in sys.modules if n == "OpenGL" or n.startswith(("OpenGL.", f"mujoco.{kind}"))]:
        del sys.modules[name]


_left_open: weakref.WeakSet[Cameras] = weakref.WeakSet()


def _close_all() -> None:
    for cameras in list(_left_open):
        with contextlib.suppress(Exception):  # the process ends; what cannot be freed goes with it
            cameras.close()


class Cameras:
    """Renders many copies of one model, one after another, with one scene and one context.

    Args:
        model: the MuJoCo model.
        width: picture width in pixels.
        height: picture height in pixels.
        markers: mocap body name -> name of the variable that holds its position, for drawn goals.
        quality: "full", or "fast": no shadows, reflections and multisampling, which take most of the time where a
            processor draws.

    Raises:
        RuntimeError: no renderer works.
        ValueError: a marker is not a mocap body of the model, or an unknown quality.
    """

    def __init__(
        self,
        model: MjModel,
        width: int,
        height: int,
        markers: Mapping[str, str] | None = None,
        *,
        quality: str = "full",
    ) -> None:
        if quality not in QUALITIES:
            raise ValueError(f"the quality of pictures is '{quality}', expected one of {', '.join(QUALITIES)}")
        self._model = model
        self._data = mujoco.MjData(model)
        self.width, self.height = width, height
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        self._markers = {key: mocap(model, body) for body, key in (markers or {}).items()}
        self._context = open_context(width, height)
        if not _left_open:
            # After mujoco's own hook, which ends EGL and whose module was imported just now: hooks run backwards, and
            # contexts that are left when EGL has ended complain from their finalisers.
            atexit.unregister(_close_all)
            atexit.register(_close_all)
        _left_open.add(self)
        self._scene = mujoco.MjvScene(model, maxgeom=max(1000, 2 * model.ngeom + 100))
        self._option = mujoco.MjvOption()
        # A shadow map much finer than the picture shows no more; on a software renderer it takes most of the time.
        wanted = model.vis.quality
        finest, samples = wanted.shadowsize, wanted.offsamples
        wanted.shadowsize = min(finest, 2 ** (4 * max(width, height) - 1).bit_length())
        if quality == "fast":
            wanted.offsamples = 0
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._scene.flags[flag.value] = 0
        self._mjr = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        wanted.shadowsize, wanted.offsamples = finest, samples
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._mjr)
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._pixels = np.empty((height, width, 3), np.uint8)

    def render(
        self, qpos: np.ndarray, cameras: Sequence[str | None], variables: Mapping[str, Array] | None = None
    ) -> dict[str | None, np.ndarray]:
        """Pictures of n copies.

        Args:
            qpos: (n, nq) joint positions.
            cameras: camera names; None is a free camera that sees the whole model.
            variables: name -> (n, 3) positions of the markers [m].

        Returns:
            Camera -> (n, height, width, 3) uint8.
        """
        if self._context is None:
            raise RuntimeError("the renderer is closed")
        self._context.make_current()
        views = [(name, self._camera(name)) for name in cameras]
        out = {name: np.empty((len(qpos), self.height, self.width, 3), np.uint8) for name in cameras}
        model, data = self._model, self._data
        for i in range(len(qpos)):
            data.qpos[:] = qpos[i]
            for key, index in self._markers.items():
                data.mocap_pos[index] = (variables or {})[key][i]
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_camlight(model, data)
            mujoco.mj_tendon(model, data)
            for name, camera in views:
                mujoco.mjv_updateScene(
                    model, data, self._option, None, camera, mujoco.mjtCatBit.mjCAT_ALL.value, self._scene
                )
                mujoco.mjr_render(self._rect, self._scene, self._mjr)
                mujoco.mjr_readPixels(self._pixels, None, self._rect, self._mjr)
                out[name][i] = self._pixels[::-1]
        return out

    def take(self, scene: tuple[np.ndarray, Mapping[str, Array]], cameras: Sequence[str]) -> dict[str, np.ndarray]:
        """Camera -> (height, width, 3) uint8 of a plant's `scene()`: (1, nq) positions, and the markers' variables."""
        qpos, variables = scene
        return {str(name): shots[0] for name, shots in self.render(qpos, cameras, variables).items()}

    def show(self, model: MjModel) -> None:
        """Draw another model from now on, in the context that is there, which takes most of the time to open.

        Args:
            model: with the same meshes and as many textures, of the same sizes; all else may differ.
        """
        if self._context is None:
            raise RuntimeError("the renderer is closed")
        self._model, self._data = model, mujoco.MjData(model)
        self._context.make_current()
        for texture in range(model.ntex):
            mujoco.mjr_uploadTexture(model, self._mjr, texture)

    def _camera(self, name: str | None) -> Any:
        camera = mujoco.MjvCamera()
        if name is None:
            mujoco.mjv_defaultFreeCamera(self._model, camera)
        else:
            camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            camera.fixedcamid = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, name)
        return camera

    def close(self) -> None:
        """Free the OpenGL objects."""
        if self._context is not None:
            self._context.make_current()
            self._mjr.free()
            self._context.free()
            self._context = None
