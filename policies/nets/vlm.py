"""Vision-language models of `transformers` as backbones: from a configuration (random weights) or a local folder.

Pictures are prepared here with NumPy and torch alone; the processors of `transformers` want torchvision, which breaks
every vision import when its build does not match torch. Nothing is downloaded: folders are read with
`local_files_only`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robot_rl.extras import require

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Forms in which weights are held."""
DATA: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""A folder is data: nothing is downloaded, and its code is neither run nor asked about, which transformers would do."""
FAMILIES = ("smolvlm", "paligemma", "internvl")
_BYTES = 4  # numbers before the bytes: padding, start, picture, end


class ByteTokens:
    """UTF-8 bytes as numbers 4 to 259; for models without a tokenizer of their own."""

    pad, start, picture, end = range(_BYTES)
    size = 256 + _BYTES

    def __call__(self, text: str) -> list[int]:
        """Numbers of one sentence."""
        return [byte + _BYTES for byte in text.encode()]

    def text(self, numbers: Sequence[int]) -> str:
        """The sentence of numbers; what is no byte is left out."""
        return bytes(n - _BYTES for n in numbers if _BYTES <= n < self.size).decode(errors="replace")

    def chat(self) -> tuple[list[int], list[int]]:
        """Numbers before and after what a user says."""
        return [self.start], []

    def fingerprint(self) -> dict[str, object]:
        """Name, size and a digest of what a fixed sentence becomes."""
        digest = hashlib.sha256(str(self("Put the RED block, ünïcode 7")).encode()).hexdigest()[:16]
        return {"name": "bytes", "size": self.size, "digest": digest}


class FolderTokens:
    """The tokenizer in a model's folder."""

    def __init__(self, folder: Path, picture: int) -> None:
        auto = require("transformers").AutoTokenizer
        self._own = auto.from_pretrained(str(folder), **DATA)
        self.size, self.picture = len(self._own), picture
        self.pad = int(self._own.pad_token_id or 0)
        self.start, self.end = self._own.bos_token_id, self._own.eos_token_id

    def __call__(self, text: str) -> list[int]:
        """Numbers of one sentence."""
        return list(self._own(text, add_special_tokens=False)["input_ids"])

    def text(self, numbers: Sequence[int]) -> str:
        """The sentence of numbers, without marks."""
        return self._own.decode(list(numbers), skip_special_tokens=True)

    def chat(self) -> tuple[list[int], list[int]]:
        """Numbers before and after what a user says: the model's own chat form, or its start alone."""
        if not self._own.chat_template:
            return ([] if self.start is None else [self.start]), []
        mark = "\u2063here\u2063"
        whole = str(
            self._own.apply_chat_template(
                [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
            )
        )
        before, found, after = whole.partition(mark)
        if not found:  # a template that wants parts in place of text
            parts = [{"role": "user", "content": [{"type": "text", "text": mark}]}]
            whole = str(self._own.apply_chat_template(parts, tokenize=False, add_generation_prompt=True))
            before, _, after = whole.partition(mark)
        return self(before), self(after)

    def fingerprint(self) -> dict[str, object]:
        """Name, size and a digest of what a fixed sentence becomes."""
        digest = hashlib.sha256(str(self("Put the RED block, ünïcode 7")).encode()).hexdigest()[:16]
        return {"name": type(self._own).__name__, "size": self.size, "digest": digest}


class TransformersBackbone(nn.Module):
    """Pictures, then the sentence, through a vision-language model; the last hidden state is the answer.

    Args:
        model: the base model without a language head.
        family: "smolvlm", "paligemma" or "internvl".
        tokens: tokenizer.
        longest: tokens of a sentence; longer ones are refused, never cut.
    """

    def __init__(self, model: Any, family: str, tokens: Any, *, longest: int = 128) -> None:
        super().__init__()
        if family not in FAMILIES:
            raise ValueError(f"family is '{family}', expected one of {', '.join(FAMILIES)}")
        self.model, self.family, self.tokens, self.longest = model, family, tokens, longest
        config = model.config
        side = config.vision_config.image_size
        size = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
        patch = config.vision_config.patch_size
        patch = patch if isinstance(patch, int) else int(patch[0])
        self.image_size: tuple[int, int] = size
        self.width: int = int(config.text_config.hidden_size)
        self.vocabulary = int(config.text_config.vocab_size)
        squares = (size[0] // patch) * (size[1] // patch)
        if family == "smolvlm":
            squares //= int(config.scale_factor) ** 2
        elif family == "internvl":
            squares = int(squares * float(config.downsample_ratio) ** 2)
        self.per_picture = squares

    def forward(self, images: Tensor, goal: Sequence[str]) -> Tensor:
        """(B, V, H, W, 3) uint8 and B sentences -> (B, width) float32.

        Raises:
            ValueError: a sentence with more tokens than `longest`.
        """
        count, views = images.shape[:2]
        ids, mask, last = self._prompt(goal, views)
        device = next(self.model.parameters()).device
        dtype = next(self.model.parameters()).dtype
        pixels = (images.to(device).to(torch.float32) / 127.5 - 1.0).permute(0, 1, 4, 2, 3).to(dtype)
        inputs: dict[str, Tensor] = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
        inputs["pixel_values"] = pixels if self.family == "smolvlm" else pixels.flatten(0, 1)
        if self.family == "paligemma":
            inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        out = self.model(**inputs, use_cache=False)
        return out.last_hidden_state[torch.arange(count, device=device), last.to(device)].to(torch.float32)

    def fingerprint(self) -> dict[str, object]:
        """Of the tokenizer."""
        return self.tokens.fingerprint()

    def roles(self) -> dict[str, list[nn.Parameter]]:
        """Parameters of "vision" (encoder and projection to the language model) and "language" (the rest)."""
        names = ("vision", "multi_modal_projector", "connector")
        vision = [p for name, p in self.named_parameters() if any(part in name for part in names)]
        known = {id(p) for p in vision}
        return {"vision": vision, "language": [p for p in self.parameters() if id(p) not in known]}

    def _prompt(self, goal: Sequence[str], views: int) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers (B, L), mask (B, L), place of the last token (B,); padding at the end, where nothing sees it."""
        rows = []
        for text in goal:
            words = self.tokens(text)
            if len(words) > self.longest:
                raise ValueError(f"'{text[:40]}…' has {len(words)} tokens, expected at most {self.longest}")
            front = [] if self.tokens.start is None else [self.tokens.start]
            back = [] if self.tokens.end is None else [self.tokens.end]
            rows.append([*front, *[self.tokens.picture] * (self.per_picture * views), *words, *back])
        longest = max(len(row) for row in rows)
        ids = torch.full((len(rows), longest), self.tokens.pad, dtype=torch.int64)
        mask = torch.zeros((len(rows), longest), dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        return ids, mask, torch.tensor([len(row) - 1 for row in rows])


def from_config(config: Mapping[str, object], *, seed: int = 0) -> TransformersBackbone:
    """A backbone with random weights from a plain configuration with "model_type"; reads bytes.

    Raises:
        ValueError: a model type that is not among `FAMILIES`.
    """
    hub = require("transformers")
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise ValueError(f"model_type is '{family}', expected one of {', '.join(FAMILIES)}")
    plain = {key: value for key, value in config.items() if key != "model_type"}
    torch.manual_seed(seed)
    model = hub.AutoModel.from_config(hub.AutoConfig.for_model(family, **plain), attn_implementation="eager")
    return TransformersBackbone(model, family, ByteTokens())


def from_folder(folder: Path, *, tokenizer: str = "folder", dtype: str = "float32") -> TransformersBackbone:
    """A pretrained backbone from a local folder in the layout of `transformers`; nothing is downloaded.

    Args:
        folder: with config.json and weights in safetensors.
        tokenizer: "folder" (the model's own) or "bytes".
        dtype: of the weights, such as "bfloat16".

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a family that is not known here; weights that the model lacks or the file lacks.
    """
    hub = require("transformers")
    model = read_folder(folder, hub.AutoModel, dtype=dtype_of(dtype), attn_implementation="eager")
    return TransformersBackbone(model, model.config.model_type, tokens_of(folder, model, tokenizer))


def dtype_of(name: str) -> torch.dtype:
    """A form of weights by its name.

    Raises:
        ValueError: it is none of `DTYPES`.
    """
    if name not in DTYPES:
        raise ValueError(f"dtype is '{name}', expected {', '.join(DTYPES)}")
    return DTYPES[name]


def tokens_of(folder: Path, model: Any, tokenizer: str) -> ByteTokens | FolderTokens:
    """The tokenizer of a model: its own ("folder"), or "bytes".

    Raises:
        ValueError: another one.
    """
    if tokenizer not in ("folder", "bytes"):
        raise ValueError(f"tokenizer is '{tokenizer}', expected folder or bytes")
    return ByteTokens() if tokenizer == "bytes" else FolderTokens(folder, int(model.config.image_token_id))


def read_folder(folder: Path, kind: Any, families: Sequence[str] = FAMILIES, **how: Any) -> Any:
    """A model of `transformers` from a local folder; nothing is downloaded.

    Args:
        folder: with config.json and weights in safetensors.
        kind: class of `transformers`.
        families: model types that are wanted.
        how: arguments of `from_pretrained`.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: another model type; weights that the model lacks or the file lacks.
    """
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no config.json; give the folder of a model that is on this machine")
    config = require("transformers").AutoConfig.from_pretrained(str(folder), **DATA)
    if config.model_type not in families:
        raise ValueError(f"{folder} holds a '{config.model_type}', expected one of {', '.join(families)}")
    model, info = kind.from_pretrained(
        str(folder), config=config, use_safetensors=True, output_loading_info=True, **DATA, **how
    )
    lost = [*info["missing_keys"], *info["mismatched_keys"]]
    if lost:
        raise ValueError(f"{folder}: {len(lost)} weights of the model are not in its file, first {lost[0]}")
    return model
