"""Tools: answer questions with two tools, where the second needs what the first returned."""

from __future__ import annotations

import numpy as np

from robot_rl.types.options import Count, NotNegative

ITEMS = ("apple", "bolt", "cable", "drill", "engine", "fuse", "gear", "hinge")


class TextTools:
    """ "find ITEM" tells on which shelf an item is, "open SHELF" tells the number on it, "answer NUMBER" answers.

    A dialogue asks for the numbers of `items` items, one after the other; the answer is judged at once, and with it
    comes the next question. A right answer earns 1, a wrong one 0, and every other turn costs `cost`. Shelves and
    numbers are drawn anew for every question, so that nothing can be known without both tools: what they said
    earlier in the dialogue is out of date.

    Args:
        shelves: how many shelves and numbers there are, 2 to 50.
        cost: price of a tool call.
        max_turns: turns after which the dialogue is cut.
        items: questions of a dialogue.

    Raises:
        ValueError: an option outside its range.
    """

    name = "text_tools"

    def __init__(self, shelves: Count = 10, cost: NotNegative = 0.05, max_turns: Count = 8, items: Count = 1) -> None:
        if not 2 <= shelves <= 50:
            raise ValueError(f"shelves is {shelves}, expected 2 to 50")
        if items < 1:
            raise ValueError(f"items is {items}, expected 1 or more")
        if cost < 0 or max_turns < 3 * items:
            raise ValueError(
                f"cost is {cost} and max_turns {max_turns}, expected at least 0 and {3 * items}, three turns an item"
            )
        self.shelves, self.cost, self.max_turns, self.items = shelves, cost, max_turns, items
        words = ("which", "number", "shelf", "right", "wrong", "what", "find", "open", "answer")
        self.vocabulary = (*words, *ITEMS, *(f"s{i}" for i in range(shelves)), *(f"n{i}" for i in range(shelves)))
        self._draw = np.random.default_rng(0)
        self._item, self._turn, self._right_answers, self._asked = ITEMS[0], 0, 0, 1
        self._shelf: dict[str, int] = dict.fromkeys(ITEMS, 0)
        self._number = [0] * shelves
        self._known: tuple[str, str] = ("", "")

    @property
    def optimum(self) -> float:
        """Both tools and the answer, or a blind answer where that is worth more, for every item.

        There is always time for both tools, and questions are independent of each other.
        """
        return self.items * max(1.0 / self.shelves, 1.0 - 2 * self.cost)

    @property
    def success(self) -> bool:
        """All answers were right."""
        return self._right_answers == self.items

    @property
    def anchor(self) -> str:
        """The item and what is known about it; with several items also which question it is."""
        which = () if self.items == 1 else (str(self._asked),)
        return " ".join((*which, self._item, *self._known))

    def reset(self, seed: int) -> str:
        """Draw shelves, numbers and the item that is asked about first."""
        self._draw = np.random.default_rng(seed)
        self._turn, self._right_answers, self._asked = 0, 0, 1
        return self._ask()

    def step(self, utterance: str) -> tuple[str, float, bool, bool]:
        """Run a tool or judge the answer."""
        self._turn += 1
        cut = self._turn >= self.max_turns
        verb, _, word = utterance.partition(" ")
        shelf, right = self._shelf[self._item], self._right
        if verb == "answer" and self._index(word, "n") is not None:
            self._right_answers += word == right
            said, reward = ("right", 1.0) if word == right else ("wrong", 0.0)
            if self._asked == self.items:
                return said, reward, True, False
            self._asked += 1
            return f"{said} {self._ask()}", reward, False, cut
        if verb == "find" and word in self._shelf:
            if word == self._item:
                self._known = (f"s{shelf}", self._known[1])
            return f"shelf s{self._shelf[word]}", -self.cost, False, cut
        opened = self._index(word, "s")
        if verb == "open" and opened is not None:
            if opened == shelf:
                self._known = (self._known[0], right)
            return f"number n{self._number[opened]}", -self.cost, False, cut
        return "what", -self.cost, False, cut

    def expert(self) -> str:
        """Find, open, answer; a blind answer where that is worth more."""
        if 1.0 / self.shelves >= 1.0 - 2 * self.cost and not any(self._known):
            return "answer n0"
        shelf, number = self._known
        if shelf and number:
            return f"answer {number}"
        return f"open {shelf}" if shelf else f"find {self._item}"

    def _ask(self) -> str:
        """Draw a store and an item; the question about it."""
        self._shelf = {item: int(self._draw.integers(self.shelves)) for item in ITEMS}
        self._number = [int(number) for number in self._draw.permutation(self.shelves)]
        self._item = ITEMS[int(self._draw.integers(len(ITEMS)))]
        self._known = ("", "")
        return f"which number {self._item}"

    @property
    def _right(self) -> str:
        return f"n{self._number[self._shelf[self._item]]}"

    def _index(self, word: str, letter: str) -> int | None:
        known = word[:1] == letter and word[1:].isdigit() and int(word[1:]) < self.shelves
        return int(word[1:]) if known else None
