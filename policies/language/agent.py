"""A causal language model that learns text worlds: imitation of the expert, then any estimator of the core."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.advantage import (
    FusedOptions,
    Pipeline,
    RowIds,
    Stage,
    fused_policy_loss,
    policy_loss,
    value_loss_rows,
)
from robot_rl.advantage.pipeline import loss_arguments
from robot_rl.advantage.presets import PRESETS
from robot_rl.advantage.registry import entry
from robot_rl.policies.language.agent_model import LanguageModel, Tokenizer, local_model, tiny_model
from robot_rl.policies.language.agent_policy import LanguagePolicy
from robot_rl.policies.language.agent_rollout import Dialogue, expert_dialogues, play, to_batch, token_logp
from robot_rl.policies.language.agent_words import ModelTokenizer, WordTokenizer
from robot_rl.state import set_generator
from robot_rl.types import IOSpec, Metrics, Options, OwnLoop, StateDict
from robot_rl.types.options import Count, NotNegative, Positive, Rate, Whole

BETAS = (0.9, 0.95)
"""Of Adam in the policy updates. A nearly certain policy has tiny gradients until a rare failure brings a large one;
with the usual memory of 1000 steps (0.999) that step is up to 32 times the learning rate, with 20 steps at most 4.5."""
EPS = 3e-5
"""Of Adam in the policy updates, a tenth of a typical gradient entry: near the optimum, where almost all groups have
equal outcomes, the usual 1e-8 would blow the little that is left up to whole steps."""
DRIFT = 0.02
"""Largest difference of a log-probability between rollout and update that counts as the same, as in `vla/grpo.py`."""
WARMUP_NORM = 1.0
"""Gradient clip of the imitation."""
PER_TURN = ("turn_gae", "bilevel", "gigpo", "trloo", "mapo")
"""Stages whose `gamma` counts turns; they receive the learner's."""


class TalkOptions(Options):
    """Of the model that talks."""

    model: str | None = None
    """Folder of a local transformers model; null: a tiny one from scratch over the words of the world."""
    hidden: Count = 64
    """Width of the tiny model."""
    layers: Count = 2
    """Its blocks."""
    heads: Count = 4
    """Of its attention."""
    context: Count = 320
    """Tokens of a dialogue at most."""
    longest: Count = 4
    """Tokens of an utterance at most, the stop included."""


class ImitationOptions(Options):
    """Of the imitation of the expert before anything else."""

    warmup_dialogues: Whole = 32
    """Dialogues of the expert to imitate."""
    warmup_steps: Whole = 100
    """Optimiser steps of imitation."""
    warmup_lr: Rate = 2e-3
    """Their learning rate."""
    warmup_stop: NotNegative = 0.0
    """End the imitation early when its loss (nats per token, running mean of 10 steps) falls below this. A certain
    policy explores nothing: stop before it repeats the expert word for word."""


class LanguageAgentOptions(TalkOptions, ImitationOptions):
    """Of a language agent."""

    advantage: str | Pipeline = "gigpo"
    """Name of a preset ("gigpo", "grpo", "trloo", ...) or of a registered estimator ("turn_gae", "rloo", "gae", ...),
    or a pipeline. Estimators that need values train the value head."""
    advantage_options: Mapping[str, object] = {}
    """Options of the estimator or preset."""
    groups: Count = 8
    """Tasks per round."""
    group_size: Count = 8
    """Dialogues per task and round."""
    group_by: Literal["task", "prompt"] = "task"
    """Which dialogues of a round are compared: task: those of one task seed; prompt: those with the same prompt, for
    worlds that hide what differs (among dialogues with one secret, a lucky guess is the best turn there is; only the
    average over secrets says otherwise)."""
    minibatch: Count = 32
    """Dialogues per optimiser step."""
    epochs: Count = 2
    """Passes over a round."""
    lr: Rate = 3e-4
    """Learning rate of the policy updates."""
    lr_warmup: Whole = 30
    """Optimiser steps over which the learning rate rises to `lr`. Adam's first steps move every weight by the whole
    learning rate whatever its gradient; without a slow start they undo part of the imitation."""
    anneal: bool = False
    """Let the learning rate fall linearly to 0 over the turns of `run`."""
    clip_low: Positive = 0.2
    """Lower width of the ratio clip, for estimators that are no preset."""
    clip_high: Positive = 0.28
    """Upper width."""
    value_coef: NotNegative = 0.5
    """Weight of the value loss."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy of the next token."""
    max_grad_norm: Positive = 0.2
    """Gradient clip of the policy updates; typical norms are 0.1 to 0.3, those of rare failures 5."""


class LanguageAgent(OwnLoop[LanguageAgentOptions, None]):
    """Learner of dialogues; it brings its own loop.

    `attach` a text environment, then `run`: first the imitation of the scripted expert, then rounds of dialogues and
    policy updates. One environment step is one turn of the policy; turns of the expert are not counted.

    Args:
        options: of model, imitation and updates.
        io: interface of the environment: one observation "text", one action "utterance".
        seed: of weights, tasks and samples.
        device: torch device.
        gamma: discount per turn, used by turn-level estimators; estimators of whole outcomes have none by definition,
            and "gae", which counts tokens, takes its own from `advantage_options`.

    Raises:
        ValueError: an unknown advantage.
        ImportError: transformers is not installed (when an environment is attached).
    """

    def __init__(
        self, options: LanguageAgentOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        super().__init__(options, io, seed=seed, device=device)
        o = options
        loss = {"clip": (o.clip_low, o.clip_high), "aggregation": "token_mean"}
        self.pipeline = pipeline_of(o.advantage, dict(o.advantage_options), gamma=gamma, loss=loss)
        self.critic = any("value" in found.needs for _, found in self.pipeline.estimators)
        self._device, self._seed, self._updates, self._progress = device, seed, 0, 0.0
        self._draw = np.random.default_rng([seed, 1])
        self._samples = torch.Generator().manual_seed(seed)
        self._saved: dict[str, object] | None = None
        self._env: Any = None
        self._optimiser: torch.optim.Optimizer
        self.model: LanguageModel
        self.tokenizer: Tokenizer
        self.env_steps = 0
        self.warmed = False
        self.policy = LanguagePolicy(io, longest=o.longest, context=o.context, build=self._make)

    def attach(self, env: Any) -> None:
        """Set the text environment that `run` trains on, and make the model over its words.

        Raises:
            ValueError: the environment has another interface, or is no text environment.
        """
        self.io.check(env.io)
        if not env.parts.dialogues:
            raise ValueError(f"{type(env).__name__} is no text environment, expected env=text/guess, maze or tools")
        self._env = env
        self._build(tuple(env.vocabulary))
        if self._saved is not None:
            self.load_state_dict(self._saved)

    def _build(self, vocabulary: tuple[str, ...]) -> None:
        self.model, self.tokenizer = self._make(vocabulary)
        self._optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=self.o.lr, betas=BETAS, eps=EPS, weight_decay=0.0
        )
        self.policy.follow(self.model, self.tokenizer, vocabulary)

    def _make(self, vocabulary: tuple[str, ...]) -> tuple[LanguageModel, Tokenizer]:
        if self.o.model is not None:
            model, inner = local_model(self.o.model)
            return model.to(self._device), ModelTokenizer(inner)
        words = WordTokenizer(vocabulary)
        return self._tiny(words.size), words

    def _tiny(self, size: int) -> LanguageModel:
        o = self.o
        return tiny_model(size, seed=self._seed, hidden=o.hidden, layers=o.layers, heads=o.heads, context=o.context).to(
            self._device
        )

    def run(
        self,
        total_steps: int,
        tick: Callable[[int, Metrics], bool] | None = None,
        *,
        due: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Imitate once, then train until `env_steps` reaches `total_steps`.

        Args:
            total_steps: turns of the policy in all.
            tick: called after every round with the turns so far and the metrics; True stops.
            due: as loops have it; not asked, since a round is long and each one is told.

        Raises:
            ValueError: no environment is attached.
        """
        if self._env is None:
            raise ValueError("LanguageAgent has no environment to train on; call attach(env) first")
        if not self.warmed:
            self.warm_up()
        while self.env_steps < total_steps:
            begin, self._progress = time.perf_counter(), self.env_steps / total_steps
            seeds = np.repeat(self._draw.integers(2**31, size=self.o.groups), self.o.group_size)
            dialogues = self.collect(seeds)
            turns = sum(len(one.spans) for one in dialogues)
            self.env_steps += turns
            metrics = {**summary(dialogues), **self.learn(dialogues)}
            metrics["time/sps"] = turns / (time.perf_counter() - begin)
            if tick is not None and tick(self.env_steps, metrics):
                return

    def warm_up(self) -> Metrics:
        """Imitate the scripted expert on the tokens that it wrote.

        Returns:
            The last loss, and the expert's turns.
        """
        o, self.warmed = self.o, True
        count, steps = o.warmup_dialogues, o.warmup_steps
        if not count or not steps:
            return {}
        seeds = self._draw.integers(2**31, size=count)
        data = expert_dialogues(self._env, self.tokenizer, [int(seed) for seed in seeds])
        optimiser = torch.optim.AdamW(self.model.parameters(), lr=o.warmup_lr, weight_decay=0.0)
        loss, recent = torch.zeros(()), deque[float](maxlen=10)
        for _ in range(steps):
            chosen = [data[int(i)] for i in self._draw.integers(count, size=min(o.minibatch, count))]
            logp, _, _ = token_logp(self.model, chosen)
            written = torch.tensor([flag for one in chosen for flag in one.written], device=logp.device)
            loss = -logp[written].mean()
            self._step(optimiser, loss, WARMUP_NORM)
            recent.append(float(loss.detach()))
            if len(recent) == 10 and sum(recent) / 10 < o.warmup_stop:
                break
        return {"warmup/loss": float(loss.detach()), "warmup/turns": float(sum(len(one.spans) for one in data))}

    def collect(self, seeds: Sequence[int] | np.ndarray, *, deterministic: bool = False) -> list[Dialogue]:
        """Play one dialogue per task seed with the present policy."""
        return play(
            self._env,
            self.model,
            self.tokenizer,
            [int(seed) for seed in seeds],
            longest=self.o.longest,
            context=self.o.context,
            generator=None if deterministic else self._samples,
        )

    def learn(self, dialogues: list[Dialogue]) -> Metrics:
        """One round of updates on fresh dialogues.

        Raises:
            ValueError: the model says something else of the dialogues than it said when it played them.
        """
        batch = to_batch(dialogues, critic=self.critic, group_by=self.o.group_by)
        credit = self.pipeline(batch)
        columns = {
            "advantage": credit.advantage,
            "mask": credit.mask,
            "old": batch.steps.logp_behaviour,
            "turn": batch.steps.turn_id,
            "episode": batch.steps.episode_id,
        }
        if self.critic:
            columns |= {"value": batch.steps.value, "target": credit.returns}
            columns |= {"weight": credit.value_weight * batch.steps.clock}
        rows = {name: torch.as_tensor(np.asarray(x)).to(self._device) for name, x in columns.items()}
        start, end = batch.episodes.start, batch.episodes.end
        metrics: list[dict[str, float]] = []
        for _ in range(self.o.epochs):
            order = self._draw.permutation(len(dialogues))
            for first in range(0, len(order), self.o.minibatch):
                part = order[first : first + self.o.minibatch]
                index = torch.from_numpy(np.concatenate([np.arange(start[i], end[i] + 1) for i in part]))
                chosen = {name: x[index] for name, x in rows.items()}
                metrics.append(self._update([dialogues[i] for i in part], chosen, fresh=not metrics))
        out = {f"train/{name}": float(np.mean([row[name] for row in metrics])) for name in metrics[0]}
        return out | {f"train/{name}": float(credit.metrics[name]) for name in ("advantage_std", "advantage_max")}

    def _update(self, dialogues: list[Dialogue], rows: dict[str, Tensor], *, fresh: bool) -> dict[str, float]:
        """One optimiser step; `fresh`: the weights are still those that played."""
        logp, value, entropy = token_logp(self.model, dialogues)
        mask = rows["mask"]
        if fresh:
            _check_drift((logp.detach() - rows["old"])[mask])
        if not bool(mask.any()):
            nothing = dict.fromkeys(("policy_loss", "entropy", "kl", "gradient_norm"), 0.0)
            return {**nothing, **({"value_loss": 0.0} if self.critic else {})}
        found, policy = policy_term(logp, rows, self.pipeline.loss_options)
        uncertainty = entropy[mask].mean()
        total = policy - self.o.entropy_coef * uncertainty
        out = {"policy_loss": found, "entropy": float(uncertainty.detach())}
        out["kl"] = float((rows["old"] - logp.detach())[mask].mean())
        if self.critic:
            weight = rows["weight"].to(value.dtype)
            row_loss = value_loss_rows(value, rows["target"], clip=None, weight=weight)
            value_loss = row_loss.sum() / weight.sum().clamp_min(1.0)
            total = total + self.o.value_coef * value_loss
            out["value_loss"] = float(value_loss.detach())
        self._updates += 1
        for group in self._optimiser.param_groups:
            group["lr"] = self.o.lr * min(1.0, self._updates / max(1, self.o.lr_warmup))
            group["lr"] *= 1.0 - self._progress if self.o.anneal else 1.0
        out["gradient_norm"] = self._step(self._optimiser, total, self.o.max_grad_norm)
        return out

    def _step(self, optimiser: torch.optim.Optimizer, loss: Tensor, norm: float) -> float:
        """One step; returns the norm of the gradient before clipping."""
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        found = nn.utils.clip_grad_norm_(self.model.parameters(), norm)
        optimiser.step()
        return float(found)

    def state_dict(self) -> StateDict:
        """Weights, optimiser, generators, counters and the state of stateful estimators."""
        if self._env is None:
            return dict(self._saved or {})
        return {
            "model": self.model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "pipeline": self.pipeline.state_dict(),
            "samples": self._samples.get_state(),
            "draw": [hex(x) for x in _words_of(self._draw)],
            "env_steps": self.env_steps,
            "updates": self._updates,
            "warmed": self.warmed,
        }

    def load_state_dict(self, state: StateDict, /) -> None:
        """Inverse of `state_dict`; before `attach` it is kept until then."""
        self.env_steps, self.warmed = int(state["env_steps"]), bool(state["warmed"])
        self._updates = int(state.get("updates", self.o.lr_warmup))
        if self._env is None:
            self._saved = state
            return
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.pipeline.load_state_dict(state["pipeline"])
        set_generator(self._samples, state["samples"])
        _set_words(self._draw, [int(x, 16) for x in state["draw"]])
        self._saved = None


def policy_term(logp: Tensor, rows: Mapping[str, Tensor], options: Mapping[str, Any]) -> tuple[float, Tensor]:
    """The policy loss of a minibatch, and a () term whose gradient is the loss's.

    A clipped ratio per token, averaged over tokens, is computed in one pass with its gradient, as robots' PPO does;
    every other kind of loss by `policy_loss`.

    Args:
        logp: (N,) of the tokens, with gradient.
        rows: (N,) "old", "advantage", "mask", "turn" and "episode".
        options: of the loss, as a pipeline states them.
    """
    # Dialogues are fresh: the proximal policy is the one that acted, and weighs 1.
    given = {name: x for name, x in options.items() if name not in ("decoupled", "w_mode", "cap", "floor")}
    if given.keys() <= {"clip", "dual_clip", "aggregation"} and given.get("aggregation", "token_mean") == "token_mean":
        fused = FusedOptions(given.get("clip", 0.2), given.get("dual_clip"))
        batch = {"logp": rows["old"], "advantage": rows["advantage"], "mask": rows["mask"]}
        found = fused_policy_loss({"logp": logp}, batch, fused)
        return float(found.loss), (logp * found.gradients["logp"]).sum()
    given = loss_arguments(given, rows["mask"], RowIds(rows["turn"], rows["episode"]))
    loss = policy_loss(logp, rows["old"], rows["advantage"], **given)
    return float(loss.detach()), loss


def pipeline_of(
    advantage: str | Pipeline, options: Mapping[str, object], *, gamma: float, loss: Mapping[str, object]
) -> Pipeline:
    """The pipeline of a preset, of a registered estimator, or the given one.

    Args:
        advantage: its name, or the pipeline.
        options: of the preset or estimator.
        gamma: discount per turn, for stages that count turns and are not given one.
        loss: loss options of an estimator that is no preset.

    Raises:
        ValueError: an unknown name, or options beside a ready pipeline.
    """
    if isinstance(advantage, Pipeline):
        if options:
            raise ValueError("advantage_options with a ready pipeline: give them to the pipeline instead")
        return advantage
    if advantage in PER_TURN:
        options = {"gamma": gamma, **options}
    if advantage in PRESETS:
        return PRESETS[advantage](**options)
    found = entry(advantage, "temporal", "group")
    whiten = found.kind == "temporal"
    return Pipeline([Stage(advantage, options=options)], whiten=whiten, loss=loss)


def summary(dialogues: Sequence[Dialogue]) -> Metrics:
    """Mean return, success, turns and share of the known optimum of some dialogues."""
    outcome = float(np.mean([one.outcome for one in dialogues]))
    return {
        "rollout/return": outcome,
        "rollout/success": float(np.mean([one.success for one in dialogues])),
        "rollout/length": float(np.mean([len(one.spans) for one in dialogues])),
        "rollout/optimum_share": outcome / float(np.mean([one.optimum for one in dialogues])),
    }


def _check_drift(gap: Tensor) -> None:
    """Before the first step of a round, rollout and update must agree about what was drawn."""
    worst = float(gap.abs().max()) if len(gap) else 0.0
    if not worst <= DRIFT:
        raise ValueError(
            f"log-probabilities differ by up to {worst:.3g} between the rollout's cache and the full pass that learns "
            f"(allowed {DRIFT}), so the update would be off-policy; switch dropout off, or take a model that attends "
            "by the positions of tokens alone"
        )


def _words_of(draw: np.random.Generator) -> list[int]:
    state = draw.bit_generator.state
    return [state["state"]["state"], state["state"]["inc"], state["has_uint32"], state["uinteger"]]


def _set_words(draw: np.random.Generator, words: list[int]) -> None:
    state: Any = draw.bit_generator.state
    state["state"] = {"state": words[0], "inc": words[1]}
    state["has_uint32"], state["uinteger"] = words[2], words[3]
    draw.bit_generator.state = state
