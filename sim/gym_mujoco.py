"""What other people's environments expect of MuJoCo and its newer releases no longer do."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any, SupportsInt

import numpy as np

from robot_rl.extras import require
from robot_rl.sim.headless import load_mujoco

META_WORLD = (3, 1, 1)  # the newest release that was tried
_WELD = (*(0.0,) * 6, -1.0, *(0.0,) * 3, 5.0)  # what its welds are set to: at the anchor, turned as Meta-World has it


def mend_enumerations() -> None:
    """Let MuJoCo's enumerations equal NumPy's integers again, which arrays of the model hold.

    Since MuJoCo 3.12 `mjtJoint.mjJNT_HINGE == model.jnt_type[i]` is False while the reverse is True, so that gymnasium
    robotics 1.4.2 fails at `assert joint_type in (mjJNT_HINGE, mjJNT_SLIDE)`: Fetch, the hands and the kitchen. Nothing
    is changed where a release compares as before.
    """
    mujoco = load_mujoco()

    for kind in vars(mujoco).values():
        if isinstance(kind, type) and hasattr(kind, "__members__"):
            member = next(iter(kind.__members__.values()))
            if member != np.int32(int(member)):
                _compare_with_numpy(kind)


def _compare_with_numpy(kind: Any) -> None:
    before: Callable[[object, object], bool] = kind.__eq__

    def equal(one: SupportsInt, other: object) -> bool:
        return int(one) == int(other) if isinstance(other, np.integer) else before(one, other)

    def differ(one: SupportsInt, other: object) -> bool:
        return not equal(one, other)

    kind.__eq__, kind.__ne__ = equal, differ


def mend_meta_world() -> None:
    """Let Meta-World choose its goal by the seed of a reset, which it ignores, and set its welds again.

    It writes 11 numbers per constraint, and MuJoCo keeps 12 since 3.17.
    """
    mujoco = require("mujoco")
    from metaworld.sawyer_xyz_env import SawyerMocapBase  # pyright: ignore[reportMissingImports]
    from metaworld.wrappers import RandomTaskSelectWrapper  # pyright: ignore[reportMissingImports]

    choose = vars(RandomTaskSelectWrapper)["reset"]
    if choose.__module__ != __name__:

        def reset_from_seed(env: Any, *, seed: int | None = None, options: dict[str, object] | None = None) -> Any:
            if seed is not None:
                env.unwrapped.seed(seed)
            return choose(env, seed=seed, options=options)

        RandomTaskSelectWrapper.reset = reset_from_seed

    installed = tuple(int(part) for part in metadata.version("metaworld").split(".")[:3])
    if installed > META_WORLD or mujoco.mjNEQDATA == len(_WELD):
        return
    weld = int(mujoco.mjtEq.mjEQ_WELD)

    def reset(env: Any) -> None:
        env.model.eq_data[env.model.eq_type == weld, : len(_WELD)] = _WELD

    SawyerMocapBase.reset_mocap_welds = reset


def refuse_new_mujoco(package: str) -> None:
    """Say which MuJoCo gym_hil and robosuite need.

    Args:
        package: whose controllers read the array of masses.

    Raises:
        ImportError: the installed MuJoCo no longer has it.
    """
    mujoco = require("mujoco")
    if not hasattr(mujoco.MjData, "qM"):
        raise ImportError(
            f"{package} {metadata.version(package)} reads MjData.qM, which MuJoCo {mujoco.__version__} no longer has; "
            f'in an environment of its own: pip install robot_rl {package.replace("_", "-")} "mujoco<3.9"'
        )
