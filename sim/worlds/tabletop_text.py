"""Sentences for the goals of the tabletop world: templates to train on, and phrasings that training never uses."""

from __future__ import annotations

import itertools

import numpy as np

BLOCKS = ("red", "green", "blue")
PLATES = ("yellow", "purple")
GOALS = tuple(itertools.product(range(len(BLOCKS)), range(len(PLATES))))
"""(block, plate) of every goal, in the order of the columns of all labels."""

_TRAIN = (
    "put the {block} {noun} on the {plate} plate",
    "place the {block} {noun} on the {plate} plate",
    "move the {block} {noun} to the {plate} plate",
    "take the {block} {noun} and put it on the {plate} plate",
    "the {block} {noun} goes on the {plate} plate",
    "on the {plate} plate, put the {block} {noun}",
)
_HELD_OUT = (
    "could you set the {block} {noun} down upon the {plate} dish",
    "please bring that {block} {noun} over to the {plate} dish",
    "i want the {block} {noun} to end up on the {plate} one",
    "transfer the {noun} that is {block} onto the plate that is {plate}",
    "the {plate} plate should hold the {block} {noun}",
)
_NOUNS = {"train": ("block", "cube"), "held_out": ("block",)}


def phrasings(split: str = "train") -> list[list[str]]:
    """Every sentence for every goal.

    Args:
        split: "train" (12 for each goal) or "held_out" (5 for each goal, 30 in all: other verbs, word orders and
            fillers; the words for colours are the same, since nothing teaches a small model others).

    Returns:
        One list for each row of `GOALS`.

    Raises:
        ValueError: unknown split.
    """
    if split not in _NOUNS:
        raise ValueError(f"split is '{split}', expected 'train' or 'held_out'")
    templates = _TRAIN if split == "train" else _HELD_OUT
    return [
        [text.format(block=BLOCKS[i], plate=PLATES[j], noun=noun) for text in templates for noun in _NOUNS[split]]
        for i, j in GOALS
    ]


def sentence_bytes(split: str) -> np.ndarray:
    """(6, P, L) uint8: UTF-8 of P sentences for each goal, zeros behind.

    Args:
        split: "plain" (the first template alone), or one of `phrasings`.

    Raises:
        ValueError: unknown split.
    """
    if split not in ("plain", *_NOUNS):
        raise ValueError(f"sentences are '{split}', expected 'plain', 'train' or 'held_out'")
    found = [rows[:1] for rows in phrasings()] if split == "plain" else phrasings(split)
    longest = max(len(text.encode()) for rows in [*phrasings(), *phrasings("held_out")] for text in rows)
    out = np.zeros((len(found), len(found[0]), longest), np.uint8)
    for i, rows in enumerate(found):
        for j, text in enumerate(rows):
            out[i, j, : len(text.encode())] = list(text.encode())
    return out
