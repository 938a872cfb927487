"""Text out of a local vision-language model of `transformers`: pictures and a question in, greedy decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from robot_rl.extras import require
from robot_rl.policies.nets import vlm
from robot_rl.policies.nets.picture_labels import check_picture


class LocalModel:
    """A `VisionModel` from a folder with a whole model (with its language head); nothing is downloaded or executed.

    The prompt is the pictures, then the text, in the model's chat form where its tokenizer has one. Pictures are
    scaled to the model's size.

    Args:
        folder: in the layout of `transformers`: config.json, weights in safetensors, tokenizer.
        tokenizer: "folder" (the model's own) or "bytes".
        tokens: longest answer.
        device, dtype: where and how it computes.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a family that is not known (see `vlm.FAMILIES`), or weights that are missing.
    """

    def __init__(
        self, folder: Path, *, tokenizer: str = "folder", tokens: int = 200, device: str = "cpu", dtype: str = "float32"
    ) -> None:
        how = {"dtype": vlm.dtype_of(dtype), "attn_implementation": "eager"}
        kind = require("transformers").AutoModelForImageTextToText
        self._model = vlm.read_folder(Path(folder), kind, **how)
        self._model.to(device).eval()
        self._words = vlm.tokens_of(Path(folder), self._model, tokenizer)
        # the backbone knows how this family wants its pictures; the language head stays with the whole model
        family = self._model.config.model_type
        self._parts = vlm.TransformersBackbone(self._model.model, family, self._words, longest=4096)
        self._longest, self._device, self._dtype = tokens, device, vlm.dtype_of(dtype)

    @torch.no_grad()
    def answer(self, pictures: Sequence[np.ndarray], text: str) -> str:
        """See `VisionModel`."""
        marks = [self._words.picture] * (self._parts.per_picture * len(pictures))
        before, after = self._words.chat()
        numbers = torch.tensor([[*before, *marks, *self._words(text), *after]], device=self._device)
        inputs: dict[str, object] = {"input_ids": numbers, "attention_mask": torch.ones_like(numbers)}
        if pictures:
            for picture in pictures:
                check_picture(picture)
            raw = [torch.from_numpy(np.ascontiguousarray(p)).permute(2, 0, 1)[None].float() for p in pictures]
            sized = [
                interpolate(p, self._parts.image_size, mode="bilinear", antialias=True, align_corners=False)
                for p in raw
            ]
            pixels = (torch.cat(sized) / 127.5 - 1.0).to(self._device, self._dtype)
            inputs["pixel_values"] = pixels[None] if self._parts.family == "smolvlm" else pixels
        if self._parts.family == "paligemma":
            inputs["token_type_ids"] = torch.zeros_like(numbers)
        made = self._model.generate(
            **inputs, max_new_tokens=self._longest, do_sample=False, pad_token_id=self._words.pad
        )
        return self._words.text(made[0, numbers.shape[1] :].tolist())
