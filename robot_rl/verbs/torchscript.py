"""TorchScript policies of others: a card beside the weights says what they mean, and the weights are a program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from robot_rl.types import Action, IOSpec, Obs, PolicyParts
from robot_rl.types.data import Array
from robot_rl.words import Refused


class TorchScriptPolicy:
    """A module of others; what it remembers is in its buffers, which begin as they were in the file.

    Args:
        file: of the module, (1, S) float32 -> (1, A), its own actions.
        io: of the policy; -1 and +1 are -clip and +clip of the module's actions.
        clip: largest action.
        device: where it computes.
        trust: run it; it is a program.

    Raises:
        Refused: it is not trusted, or is no TorchScript.
    """

    def __init__(self, file: Path, io: IOSpec, clip: float, *, device: str, trust: bool) -> None:
        if not trust:
            raise Refused(
                f"{file} is TorchScript, a program that runs with your rights; if you trust it, add trust=true"
            )
        try:
            self._module = torch.jit.load(str(file), map_location=device).eval()
        except RuntimeError as error:
            raise Refused(f"{file} is no TorchScript that can be read: {str(error).splitlines()[0]}") from error
        self.io, self._clip, self._device = io, clip, device
        self._begin = [(buffer, buffer.detach().clone()) for _, buffer in self._module.named_buffers()]
        self.parts = PolicyParts(remembers=bool(self._begin))

    def reset(self, rows: Array | None = None) -> None:
        """Forget."""
        for buffer, start in self._begin:
            buffer.copy_(start)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """One decision; it has no noise."""
        with torch.inference_mode():
            answer = self._module(torch.from_numpy(np.asarray(obs["state"], np.float32)).to(self._device))
        value = answer.cpu().numpy().astype(np.float64)
        return Action(np.clip(value / self._clip, -1.0, 1.0))
