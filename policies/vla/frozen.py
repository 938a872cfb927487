"""Frozen readers: pictures and sentence through weights that no longer change, one vector for each moment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.nets import vlm
from robot_rl.policies.nets.progress_net import CriticNet
from robot_rl.policies.nets.tiny_backbone import TinyBackbone
from robot_rl.policies.vla.player import Sight, from_folder
from robot_rl.types import Array, IOSpec

_FORM = 2
"""Counts up when the same weights answer otherwise, so that features of before are not taken for those of now."""
_Backbone = TinyBackbone | vlm.TransformersBackbone
KINDS = ("tiny", "transformers", "folder", "policy", "critic")


class FrozenReader:
    """A backbone that is read and never trained; a `robot_rl.data.features.Reader`.

    Args:
        io: of the environment: pictures "image.<camera>" and "instruction".
        source: what it is, by "kind":
            "tiny": `TinyBackbone` with random weights, {"seed": 0, ...its options};
            "transformers": a vision-language model with random weights, {"config": {...}, "seed": 0};
            "folder": such a model from a folder on this machine, {"path": ...};
            "policy": the backbone of a trained policy, {"path": folder "model_<n>" of a run of policy=vla/imitation};
            "critic": the trunk of a trained progress critic, {"path": run folder of robot-rl critic train}: its
            reading, and where its pointers look.
        cameras: names of the pictures; None = all that `io` has.
        device: torch device.

    Attributes:
        keys: observations that it reads.
        width: D.
        digest: SHA-256 of kind, cameras and every weight; saved results name it, since the weights stay where they are.

    Raises:
        ValueError: an unknown kind, pictures that do not fit it, or no sentence.
        FileNotFoundError: nothing at the path.
    """

    def __init__(
        self, io: IOSpec, source: Mapping[str, object], *, cameras: Sequence[str] | None = None, device: str = "cpu"
    ) -> None:
        there = tuple(key.removeprefix("image.") for key in io.obs if key.startswith("image."))
        self.cameras = there if cameras is None else tuple(cameras)
        if not self.cameras:
            raise ValueError("a frozen reader needs a picture, and the environment has none: add env.cameras=[front]")
        self._sight = Sight(io, self.cameras, ())
        sizes = {io.obs[f"image.{name}"][0][:2] for name in self.cameras}
        if len(sizes) > 1:
            raise ValueError(f"the pictures of {list(self.cameras)} have sizes {sorted(sizes)}, expected one")
        height, width = sizes.pop()
        self._device = device
        options = {key: value for key, value in source.items() if key != "kind"}
        kind = str(source.get("kind"))
        if kind not in KINDS:
            raise ValueError(f"reader is of kind '{kind}', expected one of {', '.join(KINDS)}")
        with torch.random.fork_rng(devices=[]):
            try:
                model = _build(kind, options, io, (int(height), int(width)), len(self.cameras))
            except (KeyError, TypeError) as error:
                raise ValueError(f"reader is {dict(source)}: an option of '{kind}' is wrong: {error}") from error
        self._model = model.to(device).eval().requires_grad_(False)
        self._read: _CriticTrunk | _Backbone = _CriticTrunk(model) if isinstance(model, CriticNet) else model
        wanted = tuple(self._read.image_size)
        if wanted != (height, width):
            raise ValueError(
                f"the reader reads pictures of {wanted[0]} x {wanted[1]} pixels, and the cameras give {height} x "
                f"{width}; set env.camera_size=[{wanted[0]},{wanted[1]}]"
            )
        if kind == "critic" and len(self.cameras) > 1:
            raise ValueError(f"the critic looks at one picture, got cameras {list(self.cameras)}; name one of them")
        self.keys = (*(f"image.{name}" for name in self.cameras), "instruction")
        self.digest = _digest(f"{kind} {_FORM}", self.cameras, model)
        self.width = self._read.width

    @torch.no_grad()
    def __call__(self, obs: Mapping[str, Array], /) -> np.ndarray:
        """Observations (n, ...) -> (n, D) float32."""
        return self.tensor(obs).cpu().numpy()

    @torch.no_grad()
    def tensor(self, obs: Mapping[str, Array]) -> Tensor:
        """The same as a tensor on the reader's device."""
        seen, goal = self._sight(dict(obs), self._device)
        return self._read(torch.stack([seen.images[name] for name in self.cameras], dim=1), goal).float()


class _CriticTrunk:
    """What a progress critic reads of one picture and its sentence, and where its pointers look, as a backbone."""

    def __init__(self, net: CriticNet) -> None:
        self.net, self.image_size = net, net.size
        self.width = net.think.out_features + 6 * len(net.query)

    def __call__(self, images: Tensor, goal: Sequence[str]) -> Tensor:
        """(B, 1, H, W, 3) uint8 and B sentences -> (B, width) float32."""
        device = self.net.query.device
        texts = list(dict.fromkeys(goal))
        ids, length = (torch.as_tensor(x, device=device) for x in self.net.tokens(texts))
        rows = torch.tensor([texts.index(text) for text in goal], device=device, dtype=torch.int64)
        sentence = self.net.sentence(ids, length)[rows]
        pictures = images[:, 0]
        # the reading is made for judging; where the pointers look is what a hand needs to know
        return torch.cat([self.net.frames(pictures, sentence), self.net.looks(pictures, sentence)], 1)


def _build(kind: str, options: dict[str, Any], io: IOSpec, size: tuple[int, int], views: int) -> _Backbone | CriticNet:
    if kind == "tiny":
        torch.manual_seed(int(options.pop("seed", 0)))
        return TinyBackbone(size, views=views, **{"places": True, **options})
    if kind == "transformers":
        return vlm.from_config(options["config"], seed=int(options.get("seed", 0)))
    path = Path(str(options.get("path")))
    if not path.exists():
        raise FileNotFoundError(f"there is nothing at {path}; reader.path names what the features come from")
    if kind == "folder":
        return vlm.from_folder(path)
    if kind == "policy":
        backbone = from_folder(str(path), io).planner.model.backbone
        assert isinstance(backbone, TinyBackbone | vlm.TransformersBackbone)  # a recipe makes no others
        return backbone
    return _critic(path, size)


def _critic(folder: Path, size: tuple[int, int]) -> CriticNet:
    """The network of a critic's run, its sizes taken from its weights."""
    files = sorted(folder.glob("checkpoints/step_*/learner.pt"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no checkpoint; expected the run folder of robot-rl critic train")
    weights = torch.load(files[-1], map_location="cpu", weights_only=True).get("net", {})
    if "query" not in weights or "look" in weights:
        raise ValueError(f"{folder} holds no critic of sentences; expected a run of robot-rl critic train critic=tiny")
    always = weights["query"].shape[0]
    pooled = weights["pool.weight"].shape[0] + weights["bag.weight"].shape[0]
    net = CriticNet(
        size,
        width=weights["join.weight"].shape[0],
        words=weights["embed.weight"].shape[0],
        conditioning="maps" if weights["join.weight"].shape[1] > pooled else "pooled",
        pointers=always,
    )
    if net.pool.weight.shape != weights["pool.weight"].shape:
        raise ValueError(
            f"the critic of {folder} was trained on pictures of another size than {size[0]} x {size[1]}; set "
            "env.camera_size to that of its clips"
        )
    net.load_state_dict(weights)
    return net


def _digest(kind: str, cameras: Sequence[str], model: nn.Module) -> str:
    total = hashlib.sha256(f"{kind} {','.join(cameras)}".encode())
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode())
        total.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
