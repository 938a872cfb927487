"""Files of nets that find points in pictures: tensors, and a head that says what they are."""

from __future__ import annotations

from pathlib import Path

import torch

from robot_rl.extras import require
from robot_rl.policies.nets.heat_maps import HeatMaps

WEIGHTS = Path(__file__).parent.parent / "encoders" / "weights" / "robot.safetensors"
"""Of the package."""
FORMAT = "robot_rl points 1"
"""In the head of a file of weights, beside the size of its pictures and each net's points."""
_REMEDY = (
    "take the file of the package (encoder=robot without encoder.path, encoder=selftrained with encoder.start=robot), "
    "or one that python -m benchmarks.robot_encoder wrote"
)


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
