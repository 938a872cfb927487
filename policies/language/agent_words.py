"""Text to token ids and back: a closed vocabulary of whole words, or the tokenizer of a local model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class WordTokenizer:
    """One id per word: 0 unknown, 1 stop, 2 "now the policy writes", then the vocabulary in its order.

    Args:
        vocabulary: distinct words.

    Raises:
        ValueError: a word twice, or with white space.
    """

    UNKNOWN, STOP, SAY = 0, 1, 2

    def __init__(self, vocabulary: Sequence[str]) -> None:
        bad = [word for i, word in enumerate(vocabulary) if word in vocabulary[:i] or len(word.split()) != 1]
        if bad:
            raise ValueError(f"vocabulary has {bad[0]!r} twice or with white space, expected distinct words")
        self.words = ("<unknown>", "<stop>", "<say>", *vocabulary)
        self._ids = {word: i for i, word in enumerate(self.words)}
        self.size, self.stop = len(self.words), self.STOP

    def observation(self, text: str) -> list[int]:
        """Words of the text and the sign that the policy writes next."""
        return [*self._encode(text), self.SAY]

    def utterance(self, text: str) -> list[int]:
        """Words of the text and the stop."""
        return [*self._encode(text), self.STOP]

    def text(self, ids: Sequence[int]) -> str:
        """Words of the ids before the stop."""
        ids = list(ids)
        if self.STOP in ids:
            ids = ids[: ids.index(self.STOP)]
        return " ".join(self.words[i] for i in ids)

    def _encode(self, text: str) -> list[int]:
        return [self._ids.get(word, self.UNKNOWN) for word in text.split()]


class ModelTokenizer:
    """A transformers tokenizer; observations end in a line break and "> ", utterances in its end-of-sequence token.

    Args:
        tokenizer: transformers tokenizer with an end-of-sequence token.

    Raises:
        ValueError: there is no such token.
    """

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no eos_token, expected one: it is the stop sign of an utterance")
        self._inner = tokenizer
        self.size, self.stop = len(tokenizer), int(tokenizer.eos_token_id)

    def observation(self, text: str) -> list[int]:
        """The text on a line of its own and a prompt sign."""
        return self._encode(f"\n{text}\n> ")

    def utterance(self, text: str) -> list[int]:
        """The text and the stop."""
        return [*self._encode(text), self.stop]

    def text(self, ids: Sequence[int]) -> str:
        """Text of the ids before the stop."""
        ids = list(ids)
        if self.stop in ids:
            ids = ids[: ids.index(self.stop)]
        return self._inner.decode(ids, skip_special_tokens=True).strip()

    def _encode(self, text: str) -> list[int]:
        return list(self._inner(text, add_special_tokens=False)["input_ids"])
