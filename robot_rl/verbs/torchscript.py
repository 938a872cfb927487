"""TorchScript policies of others: a card beside the weights says what they mean, and the weights are a program."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robot_rl import build, policy_card
from robot_rl.types import Action, IOSpec, Loaded, Obs, PolicyParts
from robot_rl.types.data import Array
from robot_rl.words import Refused


def load_torchscript(card_path: Path, *, device: str, trust: bool) -> Loaded:
    """A TorchScript policy as the policy node takes it.

    Args:
        card_path: its card.
        device: where it computes.
        trust: run it; it is a program.

    Raises:
        Refused: it is not trusted, has changed since its card was written, or is no TorchScript.
    """
    card = policy_card.read(card_path)
    file = card_path.parent / card.weights
    if not trust:
        raise Refused(f"{file} is TorchScript, a program that runs with your rights; if you trust it, add trust=true")
    if not file.is_file():
        raise Refused(f"{card_path} names the weights {card.weights}, and there is no such file beside it")
    if hashlib.sha256(file.read_bytes()).hexdigest() != card.sha256:
        raise Refused(f"{file} is not the file that {card_path} was written for (another SHA-256); write the card anew")
    try:
        module = torch.jit.load(str(file), map_location=device)
    except RuntimeError as error:
        raise Refused(f"{file} is no TorchScript that can be read: {str(error).splitlines()[0]}") from error
    kind = build.tool("legged_port")

    def make_port(joints: tuple[str, ...]) -> Any:
        return kind(card, joints)

    policy = TorchScriptPolicy(module, kind(card, card.joints).io, card.action_clip, device)
    return Loaded(policy, policy.io, make_port, f"{file.parent.name}@{card.sha256[:8]}".replace("/", "_"))


class TorchScriptPolicy:
    """A module of others; what it remembers is in its buffers, which begin as they were in the file.

    Args:
        module: (1, S) float32 -> (1, A), its own actions.
        io: of the policy; -1 and +1 are -clip and +clip of the module's actions.
        clip: largest action.
        device: where it computes.
    """

    def __init__(self, module: Any, io: IOSpec, clip: float, device: str) -> None:
        self.io, self._module, self._clip, self._device = io, module.eval(), clip, device
        self._begin = [(buffer, buffer.detach().clone()) for _, buffer in module.named_buffers()]
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
