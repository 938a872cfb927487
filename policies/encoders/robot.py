"""An encoder that comes with the package: it has seen our worlds in many looks, and learns nothing in a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from robot_rl.extras import require
from robot_rl.policies.encoders.points import PointEncoder, PointOptions, check_interface, picture_keys, places_of
from robot_rl.policies.encoders.points_labels import Places
from robot_rl.policies.nets.heat_maps import HeatMaps
from robot_rl.policies.nets.pinhole import project
from robot_rl.types import IOSpec

WEIGHTS = Path(__file__).parent / "weights" / "robot.safetensors"
FORMAT = "robot_rl points 1"
"""In the head of a file of weights, beside the size of its pictures and each net's points."""
_MEET, _SAME = 1.5, 0.015  # pixels by which rays miss each other, and m from an object, at which a point is doubted
_REMEDY = (
    "take the file of the package (encoder=robot without encoder.path, encoder=selftrained with encoder.start=robot), "
    "or one that python -m benchmarks.robot_encoder wrote"
)


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


def starting_nets(path: Path, io: IOSpec, places: Places) -> list[HeatMaps]:
    """Nets of a file, one for each camera of an interface, in its order.

    Raises:
        ValueError: none for such a camera or size of picture, or a file that is none of weights; says what to do.
    """
    weights, kind = Weights(path), kind_of(places.turns)
    for key in picture_keys(io):
        weights.check_size(key, io.obs[key][0])
    return [weights.net(f"{kind}.{io.calibration[key].mount}", places.names) for key in picture_keys(io)]


def kind_of(turns: bool) -> str:
    """What a net looks for: "hole" where the tool turns, "ball" elsewhere."""
    return "hole" if turns else "ball"


class Weights:
    """A file of nets: tensors, and a head that says what they are.

    Args:
        path: of the file.

    Raises:
        ValueError: it is not there, is no safetensors, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise ValueError(f"{path} is no file of an encoder's weights; {_REMEDY}")
        try:
            with require("safetensors").safe_open(str(path), framework="pt") as file:
                self._head = dict(file.metadata() or {})
                names = file.keys()
                self._tensors = {name: file.get_tensor(name) for name in names}
        except ImportError:
            raise
        except Exception as error:  # safetensors raises its own kinds for what is none
            raise ValueError(f"{path} cannot be read as safetensors ({error}); {_REMEDY}") from error
        if self._head.get("format") != FORMAT:
            raise ValueError(f"{path} holds no nets that find points in pictures; {_REMEDY}")

    @property
    def nets(self) -> list[str]:
        """What is in it: "<ball or hole>.<world or tool>", by what carries the camera."""
        return sorted(key for key in self._head if "." in key)

    def check_size(self, key: str, shape: tuple[int, ...]) -> None:
        """Refuse pictures of another size than the nets have seen.

        Raises:
            ValueError: says which they were.
        """
        size = int(self._head["size"])
        if tuple(shape[:2]) != (size, size):
            raise ValueError(
                f"encoder=robot was trained on pictures of {size} x {size} pixels, and {key.removeprefix('image.')} "
                f"gives {shape[0]} x {shape[1]}: use image_size={size}, or encoder=selftrained, which takes any size"
            )

    def net(self, name: str, points: tuple[str, ...]) -> HeatMaps:
        """A net that finds these points.

        Raises:
            ValueError: there is none, or its tensors do not fit.
        """
        known = tuple(self._head.get(name, "").split(","))
        if not set(points) <= set(known):
            raise ValueError(
                f"{self._path.name} finds no {', '.join(points)} in pictures of a camera on the {name.split('.')[1]}; "
                f"it has {', '.join(f'{net} ({self._head[net]})' for net in self.nets)}. Use cameras=own, or "
                "encoder=selftrained"
            )
        own = {
            key[len(name) + 1 :]: value.float() for key, value in self._tensors.items() if key.startswith(f"{name}.")
        }
        rows = torch.tensor([known.index(point) for point in points])
        try:
            further = sum(key.startswith("further.") and key.endswith(".bias") for key in own)
            net = HeatMaps(len(points), torch.Generator(), len(own["first.bias"]), further)
            net.load_state_dict({key: value[rows] if key.startswith("out.") else value for key, value in own.items()})
        except (KeyError, IndexError, RuntimeError) as error:
            raise ValueError(f"the tensors of {name} in {self._path} do not fit its net; {_REMEDY}") from error
        return net
