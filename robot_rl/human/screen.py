"""What a screen shows of a running session."""

from __future__ import annotations

import math

import numpy as np

from robot_rl.human.pilot import Driven
from robot_rl.human.session import Session
from robot_rl.types import Obs


def telemetry(session: Session, demo: bool, driven: Driven | None, problem: str = "") -> dict[str, object]:
    """Plain values for the console.

    Args:
        session: that runs.
        demo: a demonstration is being driven.
        driven: of the last tick, or None.
        problem: what stands in the way now, before what the session itself has to say.
    """
    rolling, options = session.stats.metrics(), session.options
    begun, fault = session.episode_began_ns, ""
    if driven is not None and (driven.lost or driven.level >= 3):
        fault = driven.warning or driven.stopped_by or "fault"
    return {
        "phase": "demonstration" if demo else "training",
        "demos": session.demos,
        "elicit": "" if session.elicitor is None else session.elicitor.message,
        "help": "" if session.adviser is None else session.adviser.why,
        "driver": session.pilot.driver if driven is None else driven.driver,
        "level": 2 if driven is None else driven.level,
        "reasons": [] if driven is None else list(driven.reasons),
        "busy": False,  # a go would do nothing now
        "problem": problem or session.problem or ("" if driven is None else driven.warning),
        "steps": session.env_steps,
        "updates": session.updates,
        "episodes": session.stats.episodes,
        "intervention_rate": rolling.get("rollout/intervention_rate"),
        "success": rolling.get("rollout/success"),
        "human_seconds": session.stats.human_seconds,
        "buffers": {name: len(view) for name, view in session.memory.views.items()},
        "late": session.pilot.late,
        "alone": session.stats.alone(),
        "clock": None if driven is None or begun is None else (session.pilot.now_ns() - begun) * 1e-9,
        "next_eval": options.eval_every - session.env_steps % options.eval_every if options.eval_every else None,
        "age_s": (session.pilot.now_ns() - session.updated_ns) * 1e-9,
        "probability": round(session.probability, 3) if math.isfinite(session.probability) else None,
        "fault": fault,
        "mode": session.pilot.mode,
        "pausing": session.pilot.pausing,
        "scene": session.scene.told if session.scene.asks else None,
        "label": session.labels.said,
        "list": session.labels.list(),
    }


def views(obs: Obs) -> dict[str, np.ndarray]:
    """Name -> (H, W, 3), the pictures among the observations (1, ...) of a policy."""
    start = "image."
    return {name.removeprefix(start): value[0] for name, value in obs.items() if name.startswith(start)}
