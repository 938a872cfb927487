"""What continues a human-in-the-loop loop exactly, besides learner, sampler and log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robot_rl.loops.hil import HumanInTheLoop


def save(loop: HumanInTheLoop) -> dict[str, Any]:
    """Plain values; between episodes."""
    rng, stepper = loop.rng.bit_generator.state, loop.stepper
    return {
        "kind": "hil",
        "env_steps": loop.env_steps,
        "updates": loop.updates,
        "demos": loop.demos,
        "version": loop.version,
        "credit": loop.improver.credit,
        "updated_ns": loop.updated_ns,
        "rng": {**rng, "state": {key: int(value) for key, value in rng["state"].items()}},
        "stats": loop.stats.state_dict(),
        "pilot": loop.pilot.state_dict(),
        "episodes": len(loop.log.manifest),
        "rows": loop.memory.count,
        "memory": loop.memory.state_dict(),
        "recovery": None if loop.recovery is None else loop.recovery.state_dict(),
        "stepper": stepper.state_dict() if hasattr(loop.env, "state_dict") and stepper.obs else None,
    }


def load(loop: HumanInTheLoop, state: dict[str, Any]) -> None:
    """Continue. Episodes that were recorded after the checkpoint are kept and count as own steps.

    Raises:
        ValueError: a state of another loop.
    """
    if state.get("kind") != "hil":
        raise ValueError(f"this state is of a '{state.get('kind')}' loop, expected hil")
    for name in ("env_steps", "demos", "version"):
        setattr(loop, name, int(state[name]))
    loop.improver.updates, loop.improver.credit = int(state["updates"]), float(state["credit"])
    loop.updated_ns = int(state["updated_ns"])
    loop.rng.bit_generator.state = state["rng"]
    loop.stats.load_state_dict(state["stats"])
    loop.pilot.load_state_dict(state["pilot"])
    loop.memory.load_state_dict(state["memory"])
    if loop.recovery is not None and state.get("recovery"):
        loop.recovery.load_state_dict(state["recovery"])
    later = loop.log.manifest[int(state["episodes"]) :]
    loop.env_steps += sum(line["steps"] for line in later if not line["demo"])
    if state["stepper"] is not None:
        loop.stepper.reset(seed=loop.seed)
        loop.stepper.load_state_dict(state["stepper"])
    if later:  # what was driven after the checkpoint must not be driven again from the same starts
        loop.stepper.reset(seed=loop.seed + 1 + len(loop.log.manifest))
