"""What steps: N copies of a world behind one interface; a robot is one with N = 1."""

from __future__ import annotations

from typing import Any, Protocol

from robot_rl.types.io import IOSpec


class VecEnv(Protocol):
    """Gymnasium's `VectorEnv` with a passport: what our engines, robots and their wrappers are."""

    @property
    def io(self) -> IOSpec:
        """Names, shapes, bounds and units of what goes in and out."""
        ...

    @property
    def num_envs(self) -> int:
        """N."""
        ...

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """First observation of (N, ...) arrays, and info."""
        ...

    def step(self, actions: Any, /) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Execute (N, A) actions in [-1, 1]: observation, reward, terminated, truncated (N,) each, info."""
        ...

    def render(self) -> Any:
        """(H, W, 3) uint8 pictures, one a copy."""
        ...

    def close(self) -> None:
        """Let go of simulators and windows."""
        ...
