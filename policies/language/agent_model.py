"""A causal language model of transformers with a value head, and conversations that it holds with a key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from robot_rl.extras import require
from robot_rl.policies.nets.vlm import DATA


class Tokenizer(Protocol):
    """What rollouts need of a tokenizer.

    Attributes:
        size: number of token ids.
        stop: id that ends an utterance; the policy writes it.
    """

    size: int
    stop: int

    def observation(self, text: str) -> list[int]:
        """Ids of an observation, up to the point where the policy begins to write."""
        ...

    def utterance(self, text: str) -> list[int]:
        """Ids of an utterance, the stop id included."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Utterance of written ids; the stop id and what follows are left out."""
        ...


_ATTENTION = ("full_attention", "sliding_attention")
"""Kinds of layers, as transformers calls them, whose masks `LanguageModel` makes where some look at a window only."""


class LanguageModel(nn.Module):
    """Next-token logits and a value for every position.

    Layers that look at the last W tokens only get masks by token position: rollouts hold rows of different length in
    one cache, and a window of columns would reach less far than in the full pass that learns.

    Args:
        core: causal model of transformers.
    """

    def __init__(self, core: Any) -> None:
        super().__init__()
        self.core = core
        config = core.config.get_text_config(decoder=True).to_dict()
        self._window: int | None = config.get("sliding_window")
        self._kinds = set(config.get("layer_types") or ["sliding_attention"])
        if not self._window or "sliding_attention" not in self._kinds or self._kinds - {*_ATTENTION}:
            self._window = None
        self.value = nn.Linear(core.config.hidden_size, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, ids: Tensor, mask: Tensor, *, cache: Any = None) -> Any:
        """Run the model on the columns `ids`, behind those that the cache holds.

        Args:
            ids: (B, T) token ids.
            mask: (B, earlier + T) 1 on real tokens, the cached columns included.
            cache: key-value cache of transformers, extended in place; None = no earlier columns.

        Returns:
            ((B, T, vocabulary) logits, (B, T) values), both about what follows the column.
        """
        place = (mask.cumsum(1) - 1).clamp_min(0)
        position = place[:, -ids.shape[1] :]
        out = self.core(
            input_ids=ids,
            attention_mask=mask if self._window is None else self._masks(mask.bool(), place, position),
            position_ids=position,
            past_key_values=cache,
            use_cache=cache is not None,
            output_hidden_states=True,
        )
        return out.logits, self.value(out.hidden_states[-1].to(self.value.weight.dtype)).squeeze(-1)

    def cache(self) -> Any:
        """An empty key-value cache that keeps every column.

        The library's own cache of a model with windows keeps the newest columns of the window's width; among rows of
        different length some of these are holes, and it would forget tokens that the row may still look at.
        """
        cache = require("transformers").DynamicCache
        return cache() if self._window is not None else cache(config=self.core.config)

    def _masks(self, real: Tensor, place: Tensor, position: Tensor) -> Any:
        """What each token may look at, counted in tokens of its row; the library counts columns, holes among them.

        Args:
            real: (B, earlier + T) bool.
            place: (B, earlier + T) position of each column's token.
            position: (B, T) position of each query.

        Returns:
            (B, 1, T, earlier + T) of 0 and the lowest number, or that for each kind of layer where a model has two.
        """
        assert self._window is not None
        ahead = position[:, :, None] - place[:, None]
        full = real[:, None] & (ahead >= 0)
        kind = self.core.get_input_embeddings().weight.dtype
        made = {
            name: torch.zeros(seen.shape, dtype=kind, device=real.device).masked_fill(~seen, torch.finfo(kind).min)[
                :, None
            ]
            for name, seen in zip(_ATTENTION, (full, full & (ahead < self._window)))
            if name in self._kinds
        }
        return made if len(made) > 1 else next(iter(made.values()))


def tiny_model(vocabulary: int, *, hidden: int, layers: int, heads: int, context: int, seed: int) -> LanguageModel:
    """A Llama of a few layers with random weights; nothing is downloaded.

    Args:
        vocabulary: number of token ids.
        hidden: width; the feed-forward layer has twice as much.
        layers: transformer blocks.
        heads: attention heads.
        context: longest dialogue in tokens.
        seed: of the weights.

    Raises:
        ImportError: transformers is not installed.
    """
    transformers = require("transformers")
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel(transformers.LlamaForCausalLM(config))


def local_model(path: str) -> tuple[LanguageModel, Any]:
    """A causal model and its tokenizer from a local folder; never from the network.

    Args:
        path: folder in the layout of transformers.

    Returns:
        (model, transformers tokenizer).

    Raises:
        ImportError: transformers is not installed.
        OSError: the folder holds no model with weights in safetensors.
        ValueError: it needs code of its own.
    """
    transformers = require("transformers")
    if not (Path(path) / "config.json").is_file():
        raise FileNotFoundError(f"{path} holds no config.json; give the folder of a model that is on this machine")
    # Whatever the file holds: Adam's steps vanish in half precision, and so does the agreement of rollout and update.
    read = transformers.AutoModelForCausalLM.from_pretrained
    core = read(path, use_safetensors=True, dtype=torch.float32, **DATA)
    return LanguageModel(core), transformers.AutoTokenizer.from_pretrained(path, **DATA)


class Written(NamedTuple):
    """One utterance of every row of a conversation.

    Attributes:
        ids: (B) lists of the written ids, the stop included where the row wrote it.
        logp: (B) lists, log-probability of each id.
        value: (B) lists, V before each id.
        stopped: (B) the row wrote the stop; False where the length limit cut it.
    """

    ids: list[list[int]]
    logp: list[list[float]]
    value: list[list[float]]
    stopped: list[bool]


class Conversation:
    """B dialogues side by side in one key-value cache.

    All rows share the columns of the cache: a row that adds fewer tokens than the longest one leaves holes, which the
    attention mask hides and the positions skip, so that the numbers are those of the row alone.

    Args:
        model: the model.
        rows: B.
    """

    def __init__(self, model: LanguageModel, rows: int) -> None:
        self._model = model
        self._device = model.value.weight.device
        self._cache: Any = model.cache()
        self._mask = torch.zeros((rows, 0), dtype=torch.long, device=self._device)
        self.logits = torch.zeros((rows, model.core.config.vocab_size), device=self._device)
        self.value = torch.zeros(rows, device=self._device)
        # Last tokens of utterances: nothing follows them before the next observation, which takes them along.
        self._pending: list[list[int]] = [[] for _ in range(rows)]

    @property
    def columns(self) -> int:
        """Columns in the cache, holes included."""
        return self._mask.shape[1]

    @torch.no_grad()
    def feed(self, ids: Sequence[Sequence[int]]) -> None:
        """Add tokens to every row; `logits` (B, V) and `value` (B,) then speak about what follows them.

        Args:
            ids: (B) lists; a row with an empty list keeps its logits and value.
        """
        self.append(ids)
        ids, self._pending = self._pending, [[] for _ in ids]
        self._feed(ids)

    def append(self, ids: Sequence[Sequence[int]]) -> None:
        """Add tokens to every row that the model reads only with the next `feed`."""
        self._pending = [[*old, *new] for old, new in zip(self._pending, ids)]

    def _feed(self, ids: Sequence[Sequence[int]]) -> None:
        width = max(map(len, ids))
        if not width:
            return
        block = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids], device=self._device)
        length = torch.tensor([len(row) for row in ids], device=self._device)
        real = (torch.arange(width, device=self._device) < length[:, None]).long()
        self._mask = torch.cat((self._mask, real), 1)
        logits, value = self._model(block, self._mask, cache=self._cache)
        last = (length - 1).clamp_min(0)
        row = torch.arange(len(ids), device=self._device)
        new = length > 0
        self.logits = torch.where(new[:, None], logits[row, last].float(), self.logits)
        self.value = torch.where(new, value[row, last], self.value)

    @torch.no_grad()
    def write(self, stop: int, longest: int, generator: torch.Generator | None) -> Written:
        """Let every row write until the stop or for `longest` tokens; the written tokens enter the cache.

        The last one of each row enters with the next `feed`; until then `logits` and `value` do not know of it.

        Args:
            stop: id that ends an utterance.
            longest: tokens at most, the stop included.
            generator: source of the samples; None takes the likeliest token.
        """
        rows = len(self.value)
        out = Written([[] for _ in range(rows)], [[] for _ in range(rows)], [[] for _ in range(rows)], [False] * rows)
        for count in range(longest):
            logp = self.logits.log_softmax(-1)
            if generator is None:
                chosen = logp.argmax(-1)
            else:
                chosen = torch.multinomial(logp.exp().cpu(), 1, generator=generator)[:, 0].to(self._device)
            taken = logp.gather(1, chosen[:, None])[:, 0].tolist()
            value, token = self.value.tolist(), chosen.tolist()
            new: list[list[int]] = [[] for _ in range(rows)]
            for i in range(rows):
                if out.stopped[i]:
                    continue
                last = token[i] == stop or count == longest - 1
                (self._pending if last else new)[i] = [token[i]]
                out.ids[i].append(token[i])
                out.logp[i].append(taken[i])
                out.value[i].append(value[i])
                out.stopped[i] = token[i] == stop
            if not any(new):
                break
            self._feed(new)
        return out

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        index = torch.tensor(rows, device=self._device)
        self._cache.batch_select_indices(index)
        self._mask, self.logits, self.value = self._mask[index], self.logits[index], self.value[index]
        self._pending = [self._pending[row] for row in rows]
