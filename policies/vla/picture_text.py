"""Pictures and sentences in one space: a CLIP-class model from a local folder, or a small one trained on captions."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, normalize

from robot_rl.extras import require
from robot_rl.policies.nets.vlm import DATA, read_folder


class PictureTextEncoder(Protocol):
    """Both answers are (N, D) float32 of length 1, on the CPU."""

    image_size: tuple[int, int] | None
    """(height, width) of the pictures that it is best shown; None: any."""

    def pictures(self, pictures: np.ndarray) -> Tensor:
        """Of (N, H, W, 3) uint8."""
        ...

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Of N sentences."""
        ...


def _check_pictures(pictures: np.ndarray) -> Tensor:
    """(N, 3, H, W) float32 in [0, 1].

    Raises:
        TypeError: not uint8.
        ValueError: not (N, H, W, 3).
    """
    if pictures.dtype != np.uint8:
        raise TypeError(f"pictures have dtype {pictures.dtype}, expected uint8 from 0 to 255")
    if pictures.ndim != 4 or pictures.shape[3] != 3:
        raise ValueError(f"pictures have shape {pictures.shape}, expected (N, height, width, 3)")
    return torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 255.0


class ClipEncoder:
    """A CLIP-class model of `transformers` from a local folder; nothing is downloaded.

    Pictures: the shorter side to the model's size, the middle cut out, the mean and deviation of CLIP.

    Args:
        folder: with config.json, weights in safetensors and the tokenizer.
        device: where it computes.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a model that is not of this class, or weights that are missing.
    """

    MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        hub = require("transformers")
        self._model = read_folder(Path(folder), hub.CLIPModel, ("clip",), dtype=torch.float32).to(device).eval()
        config = self._model.config
        self._words = hub.AutoTokenizer.from_pretrained(str(folder), **DATA)
        self._side, self._device = int(config.vision_config.image_size), device
        self._longest = int(config.text_config.max_position_embeddings)
        self.image_size: tuple[int, int] | None = (self._side, self._side)

    @torch.no_grad()
    def pictures(self, pictures: np.ndarray) -> Tensor:
        """See `PictureTextEncoder`."""
        x = _check_pictures(pictures)
        height, width = x.shape[2:]
        scale = self._side / min(height, width)
        size = (max(self._side, round(height * scale)), max(self._side, round(width * scale)))
        x = interpolate(x, size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
        top, left = (size[0] - self._side) // 2, (size[1] - self._side) // 2
        x = x[:, :, top : top + self._side, left : left + self._side]
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.MEAN, self.STD))
        out = self._model.vision_model(pixel_values=((x - mean) / std).to(self._device))
        return normalize(self._model.visual_projection(out.pooler_output), dim=1).float().cpu()

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """See `PictureTextEncoder`.

        Raises:
            ValueError: a sentence that is empty or too long.
        """
        if not all(text.strip() for text in texts):
            raise ValueError("a sentence is empty")
        given = self._words(list(texts), return_tensors="pt", padding=True)
        if given["input_ids"].shape[1] > self._longest:
            raise ValueError(f"a sentence has {given['input_ids'].shape[1]} tokens, expected at most {self._longest}")
        kept = {key: given[key].to(self._device) for key in ("input_ids", "attention_mask")}
        out = self._model.text_model(**kept)
        return normalize(self._model.text_projection(out.pooler_output), dim=1).float().cpu()


class TinyEncoder(nn.Module):
    """A small encoder trained on pictures and captions: convolutions, and a bag of hashed words and word pairs.

    Trained with the symmetric contrastive loss of CLIP; the same caption elsewhere in a batch counts as a match too.

    Args:
        width: D.
        words: places of the hash.
        seed: of weights and batches.

    Source: Radford et al., Learning Transferable Visual Models From Natural Language Supervision (loss, learnt
    temperature); the sizes and the shared captions are ours.
    """

    def __init__(self, width: int = 64, words: int = 4096, *, seed: int = 0) -> None:
        super().__init__()
        self._seed, self._words, self.image_size = seed, words, None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten(),
                nn.Linear(64 * 36, 128), nn.ReLU(), nn.Linear(128, width),
            )  # fmt: skip
            self.bag = nn.EmbeddingBag(words, 64, mode="mean")
            self.read = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, width))
        self.scale = nn.Parameter(torch.tensor(np.log(1 / 0.07), dtype=torch.float32))

    def _see(self, x: Tensor) -> Tensor:
        return normalize(self.body(x - 0.5), dim=1)

    def _say(self, texts: Sequence[str]) -> Tensor:
        rows = []
        for text in texts:
            words = re.findall(r"\w+", text.lower())
            if not words:
                raise ValueError("a sentence is empty")
            parts = [*words, *(f"{a} {b}" for a, b in pairwise(words))]
            rows.append([zlib.crc32(part.encode()) % self._words for part in parts])
        start = np.cumsum([0, *(len(row) for row in rows[:-1])])
        return normalize(
            self.read(self.bag(torch.tensor([number for row in rows for number in row]), torch.from_numpy(start))),
            dim=1,
        )

    @torch.no_grad()
    def pictures(self, pictures: np.ndarray) -> Tensor:
        """See `PictureTextEncoder`."""
        parts = [self._see(_check_pictures(pictures[i : i + 256])) for i in range(0, len(pictures), 256)]
        return torch.cat(parts) if parts else torch.zeros(0, 1)

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """See `PictureTextEncoder`."""
        return self._say(texts)

    def fit(
        self, pictures: np.ndarray, captions: list[str], *, steps: int = 500, batch: int = 64, lr: float = 1e-3
    ) -> Iterator[float]:
        """Train on (N, H, W, 3) uint8 and N captions; yields the loss of every step.

        Raises:
            ValueError: as many captions as pictures were expected, and two different ones at least.
        """
        if len(pictures) != len(captions) or len(set(captions)) < 2:
            raise ValueError(
                f"{len(pictures)} pictures and {len(set(captions))} different captions; expected N and >= 2"
            )
        marks = {text: i for i, text in enumerate(dict.fromkeys(captions))}
        label = torch.tensor([marks[text] for text in captions])
        generator = torch.Generator().manual_seed(self._seed)
        step = torch.optim.AdamW(self.parameters(), lr, weight_decay=1e-4)
        for _ in range(steps):
            rows = torch.randint(len(pictures), (batch,), generator=generator)
            x, y = self._see(_check_pictures(pictures[rows.numpy()])), self._say([captions[int(i)] for i in rows])
            logit = self.scale.exp().clamp(max=100.0) * x @ y.T
            same = (label[rows][:, None] == label[rows][None, :]).float()
            target = same / same.sum(1, keepdim=True)
            loss = (cross_entropy(logit, target) + cross_entropy(logit.T, target)) / 2
            step.zero_grad()
            loss.backward()
            step.step()
            yield float(loss.detach())

    def save(self, path: Path) -> None:
        """Write the weights."""
        sizes = {"width": self.read[-1].out_features, "words": self._words}
        torch.save({**sizes, "weights": self.state_dict()}, path)

    @classmethod
    def load(cls, path: Path) -> TinyEncoder:
        """Read what `save` wrote; nothing in the file is executed.

        Raises:
            ValueError: another file.
        """
        try:
            saved = torch.load(path, weights_only=True)
            made = cls(int(saved["width"]), int(saved["words"]))
            made.load_state_dict(saved["weights"])
        except (EOFError, KeyError, RuntimeError, TypeError, UnpicklingError) as error:
            raise ValueError(f"{path} is no encoder of TinyEncoder.save: {error}") from error
        return made


def open_encoder(path: str) -> Any:
    """`ClipEncoder` of a folder, or `TinyEncoder` of a file.

    Raises:
        FileNotFoundError: neither is there.
    """
    place = Path(path)
    if place.is_dir():
        return ClipEncoder(place)
    if not place.is_file():
        raise FileNotFoundError(f"encoder is '{path}', expected a CLIP model's folder or a file of TinyEncoder.save")
    return TinyEncoder.load(place)
