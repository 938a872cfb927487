"""What a screen shows of a running loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from robot_rl.types import Obs

if TYPE_CHECKING:
    from robot_rl.loops.hil import HumanInTheLoop


def telemetry(loop: HumanInTheLoop, demo: bool, driven: Any, problem: str = "") -> dict[str, Any]:
    """Plain values for the console.

    Args:
        loop: that runs.
        demo: a demonstration is being driven.
        driven: of the last tick, or None.
        problem: what stands in the way now, before what the loop itself has to say.
    """
    rolling, options = loop.stats.metrics(), loop.options
    begun = loop.episode_began_ns
    return {
        "phase": "demonstration" if demo else "training",
        "demos": loop.demos,
        "elicit": "" if loop.elicitor is None else loop.elicitor.message,
        "help": "" if loop.adviser is None else loop.adviser.why,
        "driver": loop.pilot.driver if driven is None else driven.driver,
        "level": 2 if driven is None else driven.level,
        "reasons": [] if driven is None else list(driven.reasons),
        "problem": problem or loop.problem or ("" if driven is None else driven.warning),
        "steps": loop.env_steps,
        "updates": loop.updates,
        "episodes": loop.stats.episodes,
        "intervention_rate": rolling.get("rollout/intervention_rate"),
        "success": rolling.get("rollout/success"),
        "human_seconds": loop.stats.human_seconds,
        "buffers": {name: len(view) for name, view in loop.memory.views.items()},
        "late": getattr(loop.pilot, "late", 0),
        "alone": loop.stats.alone(),
        "clock": None if driven is None or begun is None else (loop.pilot.now_ns() - begun) * 1e-9,
        "next_eval": options.eval_every - loop.env_steps % options.eval_every if options.eval_every else None,
        "age_s": (loop.pilot.now_ns() - loop.updated_ns) * 1e-9,
        "probability": round(loop.probability, 3) if math.isfinite(loop.probability) else None,
        "fault": "" if driven is None or not (driven.lost or driven.level >= 3) else driven.warning or "fault",
        "mode": loop.pilot.mode,
        "label": loop.labels.said,
        "list": loop.labels.list(),
    }


def views(obs: Obs) -> dict[str, Any]:
    """Name -> (H, W, 3), the pictures among the observations (1, ...) of a policy."""
    start = "image."
    return {name.removeprefix(start): value[0] for name, value in obs.items() if name.startswith(start)}
