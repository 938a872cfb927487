"""Goals shown as pictures, by hindsight: what a camera saw later in the same episode is what the episode was for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.chains import draw_between
from robot_rl.data.goals import GoalStream
from robot_rl.data.log_dataset import LogDataset
from robot_rl.types import Transitions

SENTENCE = "do what the picture shows"
"""Stands in place of every sentence, so that the picture alone says what is asked."""


def blank_sentences(like: np.ndarray) -> np.ndarray:
    """`SENTENCE` in the place of every sentence (..., L) uint8: UTF-8 bytes, zeros behind.

    Raises:
        ValueError: sentences of the environment are shorter than this one.
    """
    raw = SENTENCE.encode()
    if like.shape[-1] < len(raw):
        raise ValueError(f"sentences have {like.shape[-1]} bytes, and '{SENTENCE}' needs {len(raw)}")
    out = np.zeros_like(like)
    out[..., : len(raw)] = np.frombuffer(raw, np.uint8)
    return out


class GoalPictures(GoalStream):
    """A `LogDataset` in whose batches the pictures of one camera are a goal, and the sentence says nothing.

    "image.<camera>" of step t, in `obs` and in `next_obs`, is what that camera saw at a later time of the same episode:
    with probability `last` at its end, else at a time drawn uniformly behind t. No reward and no sentence is read: an
    episode that did something else than it was asked shows how to do what it did.

    Args:
        data: with extras "episode" and "step".
        camera: whose pictures become goals.
        last: share of goals that are the last picture of the episode.
        seed: of the goals.

    Raises:
        ValueError: no such pictures, no extras, or a share outside [0, 1].

    Source: Andrychowicz et al., Hindsight Experience Replay (strategies "final" and "future"); Lynch et al., Learning
    Latent Plans from Play (imitation under goals of hindsight). That the goal is seen by another camera is ours here.
    """

    def __init__(self, data: LogDataset, *, camera: str, last: float = 0.8, seed: int = 0) -> None:
        self.key = f"image.{camera}"
        if self.key not in data.keys:
            raise ValueError(f"the log holds no '{self.key}' to take goals from; it holds {', '.join(data.keys)}")
        if not 0.0 <= last <= 1.0:
            raise ValueError(f"last is {last}, expected a share from 0 to 1")
        super().__init__(data, seed=seed)
        self.last = last

    def _with_goals(self, batch: Transitions) -> Transitions:
        try:
            episode, step = (batch.extras[name].cpu().numpy() for name in ("episode", "step"))
        except KeyError as error:
            raise ValueError("goals of hindsight need the extras 'episode' and 'step' of the data") from error
        if step.ndim > 1:  # windows: one goal for all steps of a window
            episode, step = episode[:, 0], step[:, 0]
        draw = torch.rand((2, len(step)), generator=self._generator, dtype=torch.float64).numpy()
        end = self._last[episode]
        row = self._start[episode] + np.where(draw[1] < self.last, end, draw_between(step + 1, end, draw[0]))
        shown = torch.from_numpy(np.asarray(self.data.store.column(f"obs/{self.key}")[row])).to(batch.reward.device)

        def put(obs: dict[str, Tensor]) -> dict[str, Tensor]:
            picture = shown if batch.reward.dim() == 1 else shown[:, None].expand_as(obs[self.key])
            out = {**obs, self.key: picture}
            if "instruction" in obs:
                words = obs["instruction"]
                out["instruction"] = torch.from_numpy(blank_sentences(words.cpu().numpy())).to(words.device)
            return out

        return replace(batch, obs=put(batch.obs), next_obs=put(batch.next_obs))
