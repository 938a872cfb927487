"""Build episodes from steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from robot_rl.types import Episode, IOSpec, Step


class EpisodeBuilder:
    """Temporary."""

    def __init__(self, num_envs: int, *, io: IOSpec) -> None:
        self.rows: list[list[Any]] = [[] for _ in range(num_envs)]
        self.io = io

    def add(self, step: Step) -> list[Episode]:
        out = []
        for i, rows in enumerate(self.rows):
            if not step.valid[i]:
                continue
            rows.append((
                {k: np.asarray(v[i]).copy() for k, v in step.obs.items()}, np.array(step.action[i]), np.array(step.proposed[i]),
                float(step.reward[i]), bool(step.intervened[i]),
            ))
            if step.terminated[i] or step.truncated[i]:
                last = {k: np.asarray(v[i]).copy() for k, v in step.next_obs.items()}
                obs = {k: np.stack([r[0][k] for r in rows] + [last[k]]) for k in last}
                n = len(rows)
                meta = {"success": bool(step.info["success"][i])} if "success" in step.info else {}
                out.append(Episode(obs, np.stack([r[1] for r in rows]), np.stack([r[2] for r in rows]),
                    np.array([r[3] for r in rows], np.float32), bool(step.terminated[i]), bool(step.truncated[i] and not step.terminated[i]),
                    np.array([r[4] for r in rows]), np.arange(n + 1) / self.io.control_hz, meta))
                rows.clear()
        return out
