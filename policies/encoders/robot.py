"""An encoder that comes with the package: it has seen our worlds in many looks, and learns nothing in a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from robot_rl.policies.encoders.points import PointEncoder, PointOptions, check_interface, places_of, starting_nets
from robot_rl.policies.nets.pinhole import project
from robot_rl.policies.nets.point_weights import WEIGHTS
from robot_rl.types import IOSpec

_MEET, _SAME = 1.5, 0.015  # pixels by which rays miss each other, and m from an object, at which a point is doubted


class RobotEncoderOptions(PointOptions):
    """Of the encoder."""

    path: str = ""
    """File of weights, as `python -m benchmarks.robot_encoder` writes them; left out = the one of the package."""


class RobotEncoder(PointEncoder):
    """Sees named points as `selftrained` does, from the first step on, with nets that stay as they are.

    One net serves all cameras that stand, another one those that the hand carries; which points they know, and the size
    of the pictures, the file says.

    Args:
        options: of the encoder.
        io: interface with calibrated cameras, "tool" and "state".
        seed: not used; nothing is drawn.
        device: of the nets.

    Raises:
        ValueError: no cameras, no calibration, no pose of the tool, pictures of another size, or a file that is none
            of weights; says what to do.
        ImportError: safetensors is absent; says how to get it.

    Source: our design; pictures of many looks as in Tobin et al., Domain Randomization for Transferring Deep Neural
    Networks from Simulation to the Real World.
    """

    power = 6.0  # its nets say where they see nothing

    def __init__(self, options: RobotEncoderOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        check_interface(io, "robot")
        places = places_of(io)
        nets = starting_nets(Path(options.path) if options.path else WEIGHTS, io, places)
        super().__init__(io, places, options.near, nets, device=device)

    def believe(self, sure: Tensor, places: Tensor, pixels: Sequence[Tensor], tool: Tensor) -> Tensor:
        """Less where rays of the cameras do not meet, and for a goal that is seen where the object is."""
        apart = [
            (project(camera, tool, places)[0] - pixel).square().sum(-1) for camera, pixel in zip(self._cameras, pixels)
        ]
        sure = sure * (-0.5 * torch.stack(apart).sum(0) / _MEET**2).exp().clamp_min(1e-3)
        if self.places.grips:
            near = (-0.5 * (places[:, 1] - places[:, 0]).square().sum(-1) / _SAME**2).exp()
            sure[:, 1] = sure[:, 1] * (1.0 - near).clamp_min(0.03)
        return sure
