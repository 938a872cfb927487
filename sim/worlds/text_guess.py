"""Guess: find a secret number with questions that are answered by yes or no."""

from __future__ import annotations

from functools import cache

import numpy as np

from robot_rl.types.options import Count, NotNegative


class TextGuess:
    """A secret number below `numbers`; "ask K" answers whether it is less than K, "guess K" ends the dialogue.

    A right guess earns 1, a wrong one 0, and every other turn costs `cost`, one that the world does not understand too.

    Args:
        numbers: how many numbers there are, 2 to 100.
        cost: price of a question.
        max_turns: turns after which the dialogue is cut.

    Raises:
        ValueError: an option outside its range.
    """

    name = "text_guess"

    def __init__(self, numbers: Count = 16, cost: NotNegative = 0.05, max_turns: Count = 10) -> None:
        if not 2 <= numbers <= 100:
            raise ValueError(f"numbers is {numbers}, expected 2 to 100")
        if cost < 0 or max_turns < 1:
            raise ValueError(f"cost is {cost} and max_turns {max_turns}, expected at least 0 and 1")
        self.numbers, self.cost, self.max_turns = numbers, cost, max_turns
        digits = tuple(str(i) for i in range(numbers + 1))
        self.vocabulary = ("numbers", "yes", "no", "right", "wrong", "what", "ask", "guess", *digits)
        self._secret, self._low, self._high, self._turn, self.success = 0, 0, numbers, 0, False

    @property
    def optimum(self) -> float:
        """Expected return of optimal play, by dynamic programming over (numbers left, turns left)."""
        return best(self.numbers, self.max_turns, self.cost)[0]

    @property
    def anchor(self) -> str:
        """The numbers that the answers have left."""
        return f"{self._low} {self._high}"

    def reset(self, seed: int) -> str:
        """Draw the secret; the prompt says how many numbers there are."""
        self._secret = int(np.random.default_rng(seed).integers(self.numbers))
        self._low, self._high, self._turn, self.success = 0, self.numbers, 0, False
        return f"numbers {self.numbers}"

    def step(self, utterance: str) -> tuple[str, float, bool, bool]:
        """Answer a question or judge a guess."""
        self._turn += 1
        cut = self._turn >= self.max_turns
        verb, number = _read(utterance)
        if verb == "guess" and 0 <= number < self.numbers:
            self.success = number == self._secret
            return ("right", 1.0, True, False) if self.success else ("wrong", 0.0, True, False)
        if verb == "ask" and 0 <= number <= self.numbers:
            if self._secret < number:
                self._high = min(self._high, number)
                return "yes", -self.cost, False, cut
            self._low = max(self._low, number)
            return "no", -self.cost, False, cut
        return "what", -self.cost, False, cut

    def expert(self) -> str:
        """Halve what is left while a question is worth its price, then guess."""
        left = self._high - self._low
        part = best(left, self.max_turns - self._turn, self.cost)[1]
        return f"ask {self._low + part}" if part else f"guess {self._low}"


@cache
def best(left: int, turns: int, cost: float) -> tuple[float, int]:
    """Optimal expected return with `left` equally likely numbers, and how many of them to ask about.

    Args:
        left: candidates.
        turns: turns left.
        cost: price of a question.

    Returns:
        (value, size of the first part; 0 = guess).
    """
    if turns < 1:
        return 0.0, 0
    value, choice = 1.0 / left, 0
    # From the middle outwards, so that the even split wins ties.
    for part in sorted(range(1, left), key=lambda size: abs(2 * size - left)):
        share = part / left
        asked = -cost + share * best(part, turns - 1, cost)[0] + (1 - share) * best(left - part, turns - 1, cost)[0]
        if asked > value + 1e-12:
            value, choice = asked, part
    return value, choice


def _read(utterance: str) -> tuple[str, int]:
    words = utterance.split()
    return (words[0], int(words[1])) if len(words) == 2 and words[1].isdigit() else ("", -1)
