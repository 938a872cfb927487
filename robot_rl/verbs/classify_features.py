"""What the policy of a run sees behind its encoder, for who judges success on the same features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from robot_rl.types import Episode, IOSpec, Obs
from robot_rl.verbs.build import load_trained
from robot_rl.words import Refused


class Features:
    """The features of a run's policy; the encoder stays as it was at the end of that run.

    Args:
        run: folder of robot-rl hil.
        device: where it computes.

    Attributes:
        io: of the robot that it looks at.

    Raises:
        CheckpointError: there is no run.
        Refused: its policy has no encoder.
    """

    def __init__(self, run: str, device: str) -> None:
        policy = load_trained(run, device=device)
        see = policy.parts.features
        if see is None:
            raise Refused(
                f"features={run}: the policy of this run has no encoder; give a run of robot-rl hil with encoder="
                "selftrained, robot or frozen, or leave features out to judge by the observations themselves"
            )
        self._see: Callable[[Obs], np.ndarray] = see
        self.io, self.begin = policy.io, policy.reset

    def __call__(self, obs: Obs) -> Obs:
        """What follows in an episode (1, ...), as a state (1, F)."""
        return {"state": np.asarray(self._see({key: np.array(obs[key]) for key in self.io.obs}), np.float32)}

    def check(self, io: IOSpec) -> None:
        """Refuse another robot.

        Raises:
            ValueError: listing every difference.
        """
        self.io.check(io.acting)

    def episodes(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Recorded episodes as they would be seen while they are driven: each observation once, after its step."""
        return [self._episode(episode) for episode in episodes]

    def _episode(self, episode: Episode) -> Episode:
        self.begin()
        steps = range(1, len(episode) + 1)
        seen = [self({key: episode.obs[key][t : t + 1] for key in self.io.obs})["state"][0] for t in steps]
        state = np.stack([seen[0], *seen])  # nobody judges what an episode begins with
        io = replace(
            self.io,
            obs={"state": (state.shape[1:], "float32")},
            obs_names=(),
            obs_units={},
            calibration={},
            seen=None,
        )
        return replace(episode, obs={"state": state}, meta={**episode.meta, "io": io})
