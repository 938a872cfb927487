"""Words as numbers without a vocabulary file: a hash of each word, the same on every machine."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"\w+|[^\w\s]", re.UNICODE)


class HashedWords:
    """Lower-cased words and signs -> 1 + crc32 mod (size - 1); 0 is padding.

    Any language and any spelling has a number; two words share one with probability 1 / size.

    Args:
        size: numbers, padding included.
        longest: words; longer sentences are refused, never cut.
    """

    def __init__(self, size: int = 509, longest: int = 32) -> None:
        self.size, self.longest = size, longest

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """B sentences -> ids (B, L) int64, padded with 0, and lengths (B,) int64.

        Raises:
            ValueError: a sentence without words, or with more than `longest`.
        """
        rows = [self.words(text) for text in texts]
        for text, row in zip(texts, rows):
            if not 0 < len(row) <= self.longest:
                raise ValueError(f"'{text[:60]}' has {len(row)} words, expected 1 to {self.longest}")
        ids = np.zeros((len(rows), max((len(row) for row in rows), default=1)), np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return ids, np.array([len(row) for row in rows], np.int64)

    def words(self, text: str) -> list[int]:
        """Numbers of one sentence."""
        return [1 + zlib.crc32(word.encode()) % (self.size - 1) for word in _WORD.findall(text.lower())]

    def fingerprint(self) -> dict[str, object]:
        """Name, size and a digest of what a fixed sentence becomes."""
        probe = "Put the RED block, then ünïcode 7, on plate_2!"
        digest = hashlib.sha256(str(self.words(probe)).encode()).hexdigest()[:16]
        return {"name": "hashed_words", "size": self.size, "digest": digest}
