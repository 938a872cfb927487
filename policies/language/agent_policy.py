"""What speaks in a text environment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.language.agent_model import Conversation, LanguageModel, Tokenizer
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts, StateDict

Build = Callable[[tuple[str, ...]], tuple[LanguageModel, Tokenizer]]


class LanguagePolicy:
    """Acts in a text environment: one dialogue per row, remembered in a key-value cache.

    Args:
        io: interface.
        longest: tokens of an utterance at most.
        context: tokens of a dialogue at most; a longer one goes on from its last observation alone, as far as its end
            fits.
        build: (words) -> (model, tokenizer), for a state that is loaded before there is a model.
    """

    parts = PolicyParts()

    def __init__(self, io: IOSpec, *, longest: int, context: int, build: Build) -> None:
        self.io, self._longest, self._context, self._make = io, longest, context, build
        self._model: LanguageModel | None = None
        self._tokenizer: Tokenizer | None = None
        self._words: tuple[str, ...] = ()
        self._history: list[list[int]] = []
        self._talk: Conversation | None = None
        self._samples = torch.Generator().manual_seed(0)

    def follow(self, model: LanguageModel, tokenizer: Tokenizer, words: tuple[str, ...]) -> None:
        """Speak with this model from now on."""
        self._model, self._tokenizer, self._words = model, tokenizer, words
        self.reset()

    def reset(self, rows: Array | None = None) -> None:
        """Forget the dialogues of these rows ((N,) bool), or all."""
        self._talk = None  # the next act feeds the remembered dialogues anew, with the weights of that moment
        if rows is None:
            self._history = []
        else:
            for row in np.flatnonzero(np.asarray(rows)):
                if row < len(self._history):
                    self._history[row] = []

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """One utterance per row.

        Args:
            obs: {"text": (N,) array of str}.
            deterministic: likeliest tokens instead of samples.

        Returns:
            (N, 1) array of str, with the log-probability of each utterance.

        Raises:
            ValueError: there is no model yet; attach an environment or load a state.
        """
        if self._model is None or self._tokenizer is None:
            raise ValueError("the policy has no model yet; attach an environment to its learner first")
        heard = [self._tokenizer.observation(str(text)) for text in np.asarray(obs["text"])]
        if len(self._history) != len(heard):
            self._history, self._talk = [[] for _ in heard], None
        for row, ids in enumerate(heard):
            if len(self._history[row]) + len(ids) + self._longest > self._context:
                self._history[row], self._talk = [], None
                ids = ids[-max(self._context - self._longest, 1) :]
            self._history[row] += ids
        if self._talk is None:
            self._talk = Conversation(self._model, len(heard))
            heard = self._history
        self._talk.feed(heard)
        said = self._talk.write(self._tokenizer.stop, self._longest, None if deterministic else self._samples)
        missing = [[] if stopped else [self._tokenizer.stop] for stopped in said.stopped]
        self._talk.append(missing)
        value = np.empty((len(heard), 1), object)
        for row, ids in enumerate(said.ids):
            self._history[row] += [*ids, *missing[row]]
            value[row, 0] = self._tokenizer.text(ids)
        return Action(value, logp=np.array([sum(logp) for logp in said.logp], np.float32))

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, and the words as their bytes."""
        if self._model is None:
            return {}
        words = torch.tensor(list("\n".join(self._words).encode()), dtype=torch.uint8)
        return {"words": words, **{f"model.{name}": x for name, x in self._model.state_dict().items()}}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Inverse of `state_dict`; a policy without a model makes one over the saved words."""
        if self._model is None:
            words = tuple(bytes(torch.as_tensor(state["words"]).tolist()).decode().split("\n"))
            self.follow(*self._make(words), words)
        assert self._model is not None
        weights = {name.removeprefix("model."): x for name, x in state.items() if name.startswith("model.")}
        self._model.load_state_dict(weights)
        self.reset()
