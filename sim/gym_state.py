"""Exact state of one Gymnasium environment as plain arrays.

MuJoCo environments: the integration state with the solver's warm start, the derived arrays that observations may be
read from before the next step, whatever the environment changed in its model, the generators and the plain Python
attributes of the environment and its wrappers. Objects of other kinds (renderers, helpers) are taken to hold no state.
Other environments are saved when all their attributes are plain (classic control, most grid worlds); where an attribute
is not, for example a Box2D world, `save` returns None.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

from robot_rl.extras import require
from robot_rl.sim.crash import model_bytes
from robot_rl.types import StateDict

if TYPE_CHECKING:
    from mujoco import MjData, MjModel

_NO_STATE = ("spec", "metadata", "env", "np_random")
_CONTACT = ("efc_", "iefc_", "island_", "map_", "contact", "efm_", "plugin_data", "plugin")
"""Arrays of MjData whose size changes with the contacts; every step computes them anew before use."""


def mujoco_parts(env: gymnasium.Env) -> tuple[MjModel, MjData] | None:
    """(model, data) of an environment that simulates with MuJoCo, else None."""
    model = data = None
    for value in vars(env.unwrapped).values():
        if type(value).__name__ == "MjModel":
            model = value
        elif type(value).__name__ == "MjData":
            data = value
    return None if model is None or data is None else (model, data)


class Before:
    """The state of a MuJoCo environment before its last step, kept so that a diverging step can be repeated.

    Attributes:
        state: (nstate,) `mjSTATE_INTEGRATION` when `keep` was called last.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        mujoco = require("mujoco")

        parts = mujoco_parts(env)
        if parts is None:
            raise ValueError(f"{env} does not simulate with MuJoCo")
        self._model, self._data = parts
        self._signature = int(mujoco.mjtState.mjSTATE_INTEGRATION)
        self.state = np.zeros(mujoco.mj_stateSize(self._model, self._signature))
        self._get = mujoco.mj_getState
        self._substeps = int(getattr(env.unwrapped, "frame_skip", 0) or getattr(env.unwrapped, "n_substeps", 1))

    def keep(self) -> None:
        """Remember the present state."""
        self._get(self._model, self._data, self.state, self._signature)

    def content(self) -> dict[str, np.ndarray]:
        """Model, state and controls as `crash.repeat` reads them."""
        control = np.repeat(self._data.ctrl[None], self._substeps, 0)
        return {"model": model_bytes(self._model), "state": self.state.copy(), "control": control}


def nominal_model(env: gymnasium.Env) -> MjModel | None:
    """A copy of the environment's model as it is now, for `save` and `load` to tell what was changed; or None."""
    parts = mujoco_parts(env)
    return None if parts is None else copy.copy(parts[0])


def save(env: gymnasium.Env, nominal: object) -> StateDict | None:
    """Arrays and texts from which `load` restores the environment, or None where that cannot be exact.

    Args:
        env: the environment with its wrappers.
        nominal: what `nominal_model` gave right after it was made.
    """
    out: StateDict = {}
    parts = mujoco_parts(env)
    for depth, level in enumerate(_levels(env)):
        plain: dict[str, object] = {}
        for name, value in vars(level).items():
            if name in _NO_STATE or isinstance(value, (gymnasium.Space, gymnasium.Env)):
                continue
            if isinstance(value, np.random.Generator):
                words = _generator_words(value)
                if words is None:
                    return None
                out[f"{depth}.random.{name}"] = words
            elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                out[f"{depth}.array.{name}"] = value.copy()
            else:
                try:
                    plain[name] = _encode(value)
                except TypeError:
                    if parts is None and not callable(value):
                        return None
        out[f"{depth}.plain"] = json.dumps(plain)
    if parts is not None:
        model, data = parts
        now = Before(env)
        now.keep()
        out["mujoco.state"] = now.state
        out |= {f"mujoco.data.{name}": value.copy() for name, value in _arrays(data)}
        before = dict(_arrays(nominal))
        for name, value in _arrays(model):
            if not np.array_equal(value, before[name]):
                out[f"mujoco.model.{name}"] = value.copy()
    return out


def load(env: gymnasium.Env, nominal: object, state: StateDict) -> None:
    """Restore what `save` returned into an environment made with the same arguments."""
    parts = mujoco_parts(env)
    if parts is not None:
        mujoco = require("mujoco")

        model, data = parts
        before = dict(_arrays(nominal))
        for name, value in _arrays(model):
            wanted = np.asarray(state.get(f"mujoco.model.{name}", before[name]))
            if not np.array_equal(value, wanted):
                value[...] = wanted
        mujoco.mj_resetData(model, data)
        mujoco.mj_setState(model, data, np.asarray(state["mujoco.state"]), int(mujoco.mjtState.mjSTATE_INTEGRATION))
        mujoco.mj_forward(model, data)
        for name, value in _arrays(data):
            wanted = np.asarray(state.get(f"mujoco.data.{name}", ()))
            if wanted.shape == value.shape:  # some are there only where bodies touch
                value[...] = wanted
    for depth, level in enumerate(_levels(env)):
        attributes = vars(level)
        for name in list(attributes):
            if isinstance(inspect.getattr_static(type(level), name, None), cached_property):
                del attributes[name]  # made of the state before: Meta-World keeps bounds of its goal so
        for name, value in json.loads(state[f"{depth}.plain"]).items():
            attributes[name] = _decode(value)
        for key, value in state.items():
            if key.startswith(f"{depth}.array."):
                _restore(attributes, key.split(".", 2)[2], np.asarray(value))
            elif key.startswith(f"{depth}.random."):
                attributes[key.split(".", 2)[2]] = _generator(np.asarray(value))


def _restore(attributes: dict[str, object], name: str, value: np.ndarray) -> None:
    """In place where possible: the array may be a view into the simulator."""
    found = attributes.get(name)
    if isinstance(found, np.ndarray) and found.shape == value.shape and found.dtype == value.dtype:
        if found.flags.writeable:
            found[...] = value
    else:
        attributes[name] = value.copy()


def _levels(env: gymnasium.Env) -> list[object]:
    """The environment under all its wrappers, and environments that one of them is built around (FrankaKitchen)."""
    levels: list[object] = [env]
    for level in levels:
        inner = [value for value in vars(level).values() if isinstance(value, gymnasium.Env)]
        levels += [value for value in inner if all(value is not known for known in levels)]
    return levels


def _arrays(source: object) -> list[tuple[str, np.ndarray]]:
    found = []
    for name in dir(source):
        if not name.startswith(("_", *_CONTACT)):
            value = getattr(source, name)
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.flags.writeable and value.size:
                found.append((name, value))
    return found


def _generator_words(generator: np.random.Generator) -> np.ndarray | None:
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        return None
    words = [state["state"]["state"], state["state"]["inc"]]
    parts = [half for word in words for half in (word >> 64, word & (2**64 - 1))]
    return np.array([*parts, state["has_uint32"], state["uinteger"]], np.uint64)


def _generator(words: np.ndarray) -> np.random.Generator:
    numbers = [int(word) for word in words]
    generator = np.random.Generator(np.random.PCG64(0))
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": numbers[0] << 64 | numbers[1], "inc": numbers[2] << 64 | numbers[3]},
        "has_uint32": numbers[4],
        "uinteger": numbers[5],
    }
    return generator


def _encode(value: object) -> object:
    """JSON form that keeps tuples, NumPy scalars and small arrays apart.

    Raises:
        TypeError: the value is no plain data.
    """
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": value.dtype.str, "value": value.item()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": value.dtype.str, "value": value.tolist(), "shape": list(value.shape)}
    if type(value) is list:
        return [_encode(item) for item in value]
    if type(value) is tuple:
        return {"tuple": [_encode(item) for item in value]}
    if type(value) is deque:
        return {"deque": [_encode(item) for item in value], "most": value.maxlen}
    if type(value) is set:
        return {"set": [_encode(item) for item in sorted(value, key=repr)]}
    if type(value) is dict:
        return {"dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
    raise TypeError(type(value).__name__)


def _decode(value: object) -> object:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_decode(item) for item in value["tuple"])
    if "deque" in value:
        return deque((_decode(item) for item in value["deque"]), value["most"])
    if "set" in value:
        return {_decode(item) for item in value["set"]}
    if "dict" in value:
        return {_decode(key): _decode(item) for key, item in value["dict"]}
    if "scalar" in value:
        return np.dtype(value["scalar"]).type(value["value"])
    return np.array(value["value"], value["array"]).reshape(value["shape"])
