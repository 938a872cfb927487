"""Whole dialogues as flat token rows: played by a model or by the scripted expert, and as a batch of the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from robot_rl.advantage import TurnBatch, dense_ids, from_tokens, text_anchor
from robot_rl.policies.language.agent_model import Conversation, LanguageModel, Tokenizer


@dataclass
class Dialogue:
    """One dialogue, token by token.

    Attributes:
        seed: task seed.
        tokens: ids of prompt, utterances and answers in order.
        written: per token, True where the player wrote it (its stop included).
        logp, value, reward: per token; 0 where not written. A turn's reward lies on the last token of its utterance.
        spans: first and last token of each utterance.
        anchor: state of the world before each utterance, as text.
        terminated, truncated: how it ended.
        next_value: V after a truncated dialogue.
        success: the world says that the task was solved.
        optimum: largest expected return of the task.
    """

    seed: int
    tokens: list[int] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    anchor: list[str] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    next_value: float = 0.0
    success: bool = False
    optimum: float = 0.0

    def hear(self, ids: Sequence[int]) -> None:
        """Append tokens that the player did not write."""
        self._append(ids, False, [0.0] * len(ids), [0.0] * len(ids))

    def say(self, ids: Sequence[int], logp: Sequence[float], value: Sequence[float], anchor: str) -> None:
        """Append an utterance said in the state `anchor`."""
        self.spans.append((len(self.tokens), len(self.tokens) + len(ids) - 1))
        self.anchor.append(anchor)
        self._append(ids, True, logp, value)

    def earn(self, reward: float) -> None:
        """Put the reward of the last utterance on its last token."""
        self.reward[self.spans[-1][1]] += reward

    @property
    def prompt(self) -> str:
        """Ids of the tokens before the first utterance, as text."""
        return " ".join(map(str, self.tokens[: self.spans[0][0]]))

    @property
    def outcome(self) -> float:
        """Sum of the rewards."""
        return sum(self.reward)

    def _append(self, ids: Sequence[int], written: bool, logp: Sequence[float], value: Sequence[float]) -> None:
        self.tokens += ids
        self.written += [written] * len(ids)
        self.logp += logp
        self.value += value
        self.reward += [0.0] * len(ids)


def play(
    env: Any,
    model: LanguageModel,
    tokenizer: Tokenizer,
    seeds: Sequence[int],
    *,
    longest: int,
    context: int,
    generator: torch.Generator | None,
) -> list[Dialogue]:
    """Play one dialogue per seed with the model.

    Args:
        env: text environment with `begin`, `say` and `facts`.
        model: what writes.
        tokenizer: of the model.
        seeds: task seeds; equal ones are the same task.
        longest: tokens of an utterance at most, the stop included. An utterance that is cut goes to the world as it
            is, and the missing stop enters the dialogue as a token that the player did not write.
        context: tokens of a dialogue at most; one that might pass it with its next utterance is truncated, and its
            last observation is heard as far as it fits.
        generator: source of the samples; None takes the likeliest tokens.

    Returns:
        The dialogues in the order of the seeds.

    Raises:
        ValueError: a dialogue that begins with more tokens than leave room for an utterance.
    """
    news = [tokenizer.observation(text) for text in env.begin(seeds)]
    most = max(map(len, news), default=0)
    if most + longest > context:
        raise ValueError(
            f"a dialogue begins with {most} tokens, and an utterance has up to {longest}: context is {context}, "
            f"expected {most + longest} or more"
        )
    dialogues = [Dialogue(int(seed), optimum=float(env.facts(i).optimum)) for i, seed in enumerate(seeds)]
    for dialogue, ids in zip(dialogues, news):
        dialogue.hear(ids)
    talk, active = Conversation(model, len(seeds)), list(range(len(seeds)))
    while active:
        talk.feed(news)
        value = talk.value.tolist()
        for row, i in enumerate(active):
            if dialogues[i].truncated:
                dialogues[i].next_value = value[row]
        rows = [row for row, i in enumerate(active) if not (dialogues[i].truncated or dialogues[i].terminated)]
        if len(rows) < len(active):
            active = [active[row] for row in rows]
            if not active:
                break
            talk.keep(rows)
        anchors = [env.facts(i).anchor for i in active]
        said = talk.write(tokenizer.stop, longest, generator)
        result = env.say(active, [tokenizer.text(ids) for ids in said.ids])
        news = []
        for row, i in enumerate(active):
            one = dialogues[i]
            one.say(said.ids[row], said.logp[row], said.value[row], anchors[row])
            one.earn(float(result.reward[row]))
            one.terminated, one.truncated = bool(result.terminated[row]), bool(result.truncated[row])
            new = [] if said.stopped[row] else [tokenizer.stop]
            new += tokenizer.observation(result.text[row])
            if not one.terminated:
                one.truncated = one.truncated or len(one.tokens) + len(new) + longest > context
                new = new[: context - len(one.tokens)]
                one.hear(new)
            one.success = bool(env.facts(i).success)
            news.append([] if one.terminated else new)
    return dialogues


def expert_dialogues(env: Any, tokenizer: Tokenizer, seeds: Sequence[int]) -> list[Dialogue]:
    """Dialogues of the scripted expert, in the same form; their log-probabilities and values are 0."""
    out = []
    for seed in seeds:
        one = Dialogue(int(seed))
        one.hear(tokenizer.observation(env.begin([seed])[0]))
        world = env.facts(0)
        one.optimum = world.optimum
        while not (one.terminated or one.truncated):
            text = world.expert()
            ids = tokenizer.utterance(text)
            one.say(ids, [0.0] * len(ids), [0.0] * len(ids), world.anchor)
            result = env.say([0], [text])
            one.earn(float(result.reward[0]))
            one.terminated, one.truncated = bool(result.terminated[0]), bool(result.truncated[0])
            if not one.terminated:
                one.hear(tokenizer.observation(result.text[0]))
        one.success = bool(world.success)
        out.append(one)
    return out


def to_batch(dialogues: Sequence[Dialogue], *, critic: bool, group_by: str = "task") -> TurnBatch:
    """The dialogues as tables of the core.

    Args:
        dialogues: at least one, each with at least one utterance.
        critic: take the values along.
        group_by: "task": dialogues of one seed form a group; "prompt": those that began with the same tokens.
    """
    length = np.array([len(one.tokens) for one in dialogues])
    start = np.cumsum(length) - length
    spans = np.concatenate([np.array(one.spans) + first for one, first in zip(dialogues, start)])
    truncated = np.array([one.truncated and not one.terminated for one in dialogues])
    values: dict[str, object] = {}
    if critic:
        values["value"] = flat([one.value for one in dialogues])
        values["next_value"] = np.array([one.next_value for one in dialogues], np.float32)
    return from_tokens(
        flat([one.reward for one in dialogues]),
        flat([one.written for one in dialogues]),
        spans,
        length,
        tokens=flat([one.tokens for one in dialogues]),
        truncated=truncated,
        logp_behaviour=flat([one.logp for one in dialogues]),
        turn={"anchor_key": text_anchor([text for one in dialogues for text in one.anchor])},
        episode={
            "group_id": dense_ids([one.prompt if group_by == "prompt" else one.seed for one in dialogues]),
            "seed": np.array([one.seed for one in dialogues]),
            "success": np.array([one.success for one in dialogues], np.float32),
        },
        **values,
    )


def flat(columns: Sequence[ArrayLike]) -> np.ndarray:
    """A per-token column of each dialogue -> of all of them, one behind the other; floats as float32."""
    column = np.concatenate([np.asarray(one) for one in columns])
    return column.astype(np.float32) if column.dtype == np.float64 else column


def padded_tokens(dialogues: Sequence[Dialogue], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """(B, T) ids and (B, T) mask of real tokens, padded on the right."""
    length = torch.tensor([len(one.tokens) for one in dialogues])
    width = int(length.max())
    ids = torch.tensor([[*one.tokens, *[0] * (width - len(one.tokens))] for one in dialogues])
    return ids.to(device), (torch.arange(width) < length[:, None]).to(device)


def token_logp(model: LanguageModel, dialogues: Sequence[Dialogue]) -> tuple[Tensor, Tensor, Tensor]:
    """What the model says of every token given the ones before it, by one full forward pass.

    Args:
        model: the model.
        dialogues: D dialogues of N tokens in all.

    Returns:
        Log-probability of the token, value before it, and entropy of the distribution that it was drawn from: (N,)
        each with gradient, dialogues one behind the other, 0 at the first token of each.
    """
    ids, real = padded_tokens(dialogues, model.value.weight.device)
    logits, value = model(ids, real.long())
    logp = logits[:, :-1].float().log_softmax(-1)
    taken = logp.gather(2, ids[:, 1:, None])[..., 0]
    entropy = -(logp.exp() * logp).sum(-1)
    nothing = torch.zeros_like(value[:, :1])
    taken, value, entropy = (torch.cat((nothing, x), 1)[real] for x in (taken, value[:, :-1], entropy))
    return taken, value, entropy
