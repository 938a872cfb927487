"""A causal language model that learns text worlds: imitation of the expert, then any estimator of the core."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.advantage import Pipeline, Stage, policy_loss, presets, value_loss_rows
from robot_rl.advantage.registry import entry
from robot_rl.policies.language.agent_model import Conversation, LanguageModel, Tokenizer, local_model, tiny_model
from robot_rl.policies.language.agent_rollout import Dialogue, expert_dialogues, play, to_batch, token_logp
from robot_rl.policies.language.agent_words import ModelTokenizer, WordTokenizer
from robot_rl.types import Action, Array, IOSpec, Learner, Metrics, Obs
from robot_rl.types.options import Count, NotNegative, Rate, Share, Whole

Build = Callable[[tuple[str, ...]], tuple[LanguageModel, Tokenizer]]
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


class LanguageAgent(Learner):
    """Learner of dialogues; it brings its own loop.

    `attach` a text environment, then `run`: first the imitation of the scripted expert, then rounds of dialogues and
    policy updates. One environment step is one turn of the policy; turns of the expert are not counted.

    Args:
        io: interface of the environment: one observation "text", one action "utterance".
        advantage: name of a preset ("gigpo", "grpo", "trloo", ...) or of a registered estimator ("turn_gae", "rloo",
            "gae", ...), or a pipeline. Estimators that need values train the value head.
        advantage_options: options of the estimator or preset.
        model: folder of a local transformers model; None = a tiny one from scratch over the words of the world.
        hidden, layers, heads: size of the tiny model.
        context: tokens of a dialogue at most.
        longest: tokens of an utterance at most, the stop included.
        groups: tasks per round.
        group_size: dialogues per task and round.
        group_by: which dialogues of a round are compared: "task" = those of one task seed; "prompt" = those with the
            same prompt, for worlds that hide what differs (among dialogues with one secret, a lucky guess is the best
            turn there is; only the average over secrets says otherwise).
        minibatch: dialogues per optimiser step.
        epochs: passes over a round.
        lr: learning rate of the policy updates.
        lr_warmup: optimiser steps over which the learning rate rises to `lr`. Adam's first steps move every weight by
            the whole learning rate whatever its gradient; without a slow start they undo part of the imitation.
        anneal: let the learning rate fall linearly to 0 over the turns of `run`.
        clip_low, clip_high: widths of the ratio clip, for estimators that are no preset.
        value_coef: weight of the value loss.
        entropy_coef: weight of the entropy of the next token.
        max_grad_norm: gradient clip of the policy updates; typical norms are 0.1 to 0.3, those of rare failures 5.
        warmup_dialogues: dialogues of the expert to imitate.
        warmup_steps: optimiser steps of imitation.
        warmup_lr: their learning rate.
        warmup_stop: end the imitation early when its loss (nats per token, running mean of 10 steps) falls below
            this. A certain policy explores nothing: stop before it repeats the expert word for word.
        seed: of weights, tasks and samples.
        device: torch device.
        gamma: discount per turn, used by turn-level estimators; estimators of whole outcomes have none by definition,
            and "gae", which counts tokens, takes its own from `advantage_options`.

    Raises:
        ValueError: an unknown advantage, or a size below 1.
        ImportError: transformers is not installed (when an environment is attached).
    """

    consumes = "environment"

    def __init__(
        self,
        io: IOSpec,
        *,
        advantage: str | Pipeline = "gigpo",
        advantage_options: Mapping[str, Any] | None = None,
        model: str | None = None,
        hidden: Count = 64,
        layers: Count = 2,
        heads: Count = 4,
        context: Count = 320,
        longest: Count = 4,
        groups: Count = 8,
        group_size: Count = 8,
        group_by: str = "task",
        minibatch: Count = 32,
        epochs: Count = 2,
        lr: Rate = 3e-4,
        lr_warmup: Whole = 30,
        anneal: bool = False,
        clip_low: Share = 0.2,
        clip_high: NotNegative = 0.28,
        value_coef: NotNegative = 0.5,
        entropy_coef: NotNegative = 0.0,
        max_grad_norm: NotNegative = 0.2,
        warmup_dialogues: Whole = 32,
        warmup_steps: Whole = 100,
        warmup_lr: Rate = 2e-3,
        warmup_stop: NotNegative = 0.0,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
    ) -> None:
        sizes = {"longest": longest, "groups": groups, "group_size": group_size, "minibatch": minibatch}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}, expected 1 or more")
        if group_by not in ("task", "prompt"):
            raise ValueError(f"group_by is {group_by!r}, expected 'task' or 'prompt'")
        self._group_by = group_by
        options = {"clip": (clip_low, clip_high), "aggregation": "token_mean"}
        self.pipeline = pipeline_of(advantage, dict(advantage_options or {}), gamma=gamma, loss=options)
        self.critic = any("value" in found.needs for _, found in self.pipeline.estimators)
        self._io, self._device, self._seed = io, device, seed
        self._path, self._tiny = model, {"hidden": hidden, "layers": layers, "heads": heads, "context": context}
        self._context, self._longest = context, longest
        self._groups, self._group_size, self._minibatch, self._epochs = groups, group_size, minibatch, epochs
        self._lr, self._lr_warmup, self._updates = lr, lr_warmup, 0
        self._anneal, self._progress = anneal, 0.0
        self._value_coef, self._entropy_coef, self._norm = value_coef, entropy_coef, max_grad_norm
        self._warm, self._warm_stop = (warmup_dialogues, warmup_steps, warmup_lr), warmup_stop
        self._draw = np.random.default_rng([seed, 1])
        self._samples = torch.Generator().manual_seed(seed)
        self._saved: dict[str, Any] | None = None
        self._env: Any = None
        self._optimiser: torch.optim.Optimizer
        self.model: LanguageModel
        self.tokenizer: Tokenizer
        self.env_steps = 0
        self.warmed = False
        self.policy = LanguagePolicy(io, longest=longest, context=context, build=self._make)

    def attach(self, env: Any) -> None:
        """Set the text environment that `run` trains on, and make the model over its words.

        Raises:
            ValueError: the environment has another interface, or is no text environment.
        """
        self._io.check(env.io)
        if not hasattr(env, "begin"):
            raise ValueError(f"{type(env).__name__} is no text environment, expected env=text/guess, maze or tools")
        self._env = env
        self._build(tuple(env.vocabulary))
        if self._saved is not None:
            self.load_state_dict(self._saved)

    def _build(self, vocabulary: tuple[str, ...]) -> None:
        self.model, self.tokenizer = self._make(vocabulary)
        self._optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=self._lr, betas=BETAS, eps=EPS, weight_decay=0.0
        )
        self.policy.follow(self.model, self.tokenizer, vocabulary)

    def _make(self, vocabulary: tuple[str, ...]) -> tuple[LanguageModel, Tokenizer]:
        if self._path is not None:
            model, inner = local_model(self._path)
            return model.to(self._device), ModelTokenizer(inner)
        words = WordTokenizer(vocabulary)
        return tiny_model(words.size, seed=self._seed, **self._tiny).to(self._device), words

    def run(
        self,
        total_steps: int,
        hook: Callable[[int, Metrics], bool] | None = None,
        *,
        due: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Imitate once, then train until `env_steps` reaches `total_steps`.

        Args:
            total_steps: turns of the policy in all.
            hook: called after every round with the turns so far and the metrics; True stops.
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
            seeds = np.repeat(self._draw.integers(2**31, size=self._groups), self._group_size)
            dialogues = self.collect(seeds)
            turns = sum(len(one.spans) for one in dialogues)
            self.env_steps += turns
            metrics = {**summary(dialogues), **self.learn(dialogues)}
            metrics["time/sps"] = turns / (time.perf_counter() - begin)
            if hook is not None and hook(self.env_steps, metrics):
                return

    def warm_up(self) -> Metrics:
        """Imitate the scripted expert on the tokens that it wrote.

        Returns:
            The last loss, and the expert's turns.
        """
        count, steps, lr = self._warm
        self.warmed = True
        if not count or not steps:
            return {}
        seeds = self._draw.integers(2**31, size=count)
        data = expert_dialogues(self._env, self.tokenizer, [int(seed) for seed in seeds])
        optimiser = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.0)
        loss, recent = torch.zeros(()), deque[float](maxlen=10)
        for _ in range(steps):
            chosen = [data[int(i)] for i in self._draw.integers(count, size=min(self._minibatch, count))]
            logp, _, _ = token_logp(self.model, chosen)
            written = torch.tensor([flag for one in chosen for flag in one.written], device=logp.device)
            loss = -logp[written].mean()
            self._step(optimiser, loss, WARMUP_NORM)
            recent.append(float(loss.detach()))
            if len(recent) == 10 and sum(recent) / 10 < self._warm_stop:
                break
        return {"warmup/loss": float(loss.detach()), "warmup/turns": float(sum(len(one.spans) for one in data))}

    def collect(self, seeds: Sequence[int] | np.ndarray, *, deterministic: bool = False) -> list[Dialogue]:
        """Play one dialogue per task seed with the present policy."""
        return play(
            self._env,
            self.model,
            self.tokenizer,
            [int(seed) for seed in seeds],
            longest=self._longest,
            context=self._context,
            generator=None if deterministic else self._samples,
        )

    def learn(self, dialogues: list[Dialogue]) -> Metrics:
        """One round of updates on fresh dialogues.

        Raises:
            ValueError: the model says something else of the dialogues than it said when it played them.
        """
        batch = to_batch(dialogues, critic=self.critic, group_by=self._group_by)
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
        for _ in range(self._epochs):
            order = self._draw.permutation(len(dialogues))
            for first in range(0, len(order), self._minibatch):
                part = order[first : first + self._minibatch]
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
        options = dict(self.pipeline.loss_options)
        options.pop("decoupled", None)  # dialogues are fresh: the proximal policy is the one that acted
        policy = policy_loss(
            logp, rows["old"], rows["advantage"], mask=mask, turn=rows["turn"], episode=rows["episode"], **options
        )
        uncertainty = entropy[mask].mean()
        total = policy - self._entropy_coef * uncertainty
        out = {"policy_loss": float(policy.detach()), "entropy": float(uncertainty.detach())}
        out["kl"] = float((rows["old"] - logp.detach())[mask].mean())
        if self.critic:
            weight = rows["weight"].to(value.dtype)
            row_loss = value_loss_rows(value, rows["target"], clip=None, weight=weight)
            value_loss = row_loss.sum() / weight.sum().clamp_min(1.0)
            total = total + self._value_coef * value_loss
            out["value_loss"] = float(value_loss.detach())
        self._updates += 1
        for group in self._optimiser.param_groups:
            group["lr"] = self._lr * min(1.0, self._updates / max(1, self._lr_warmup))
            group["lr"] *= 1.0 - self._progress if self._anneal else 1.0
        out["gradient_norm"] = self._step(self._optimiser, total, self._norm)
        return out

    def _step(self, optimiser: torch.optim.Optimizer, loss: Tensor, norm: float) -> float:
        """One step; returns the norm of the gradient before clipping."""
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        found = nn.utils.clip_grad_norm_(self.model.parameters(), norm)
        optimiser.step()
        return float(found)

    def update(self, batches: Iterator[Any], /) -> Metrics:
        """Refused: the agent plays its own dialogues inside `run`."""
        raise TypeError("LanguageAgent brings its own loop; call attach(env) and run(total_steps) instead of update")

    def state_dict(self) -> dict[str, Any]:
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

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Inverse of `state_dict`; before `attach` it is kept until then."""
        self.env_steps, self.warmed = int(state["env_steps"]), bool(state["warmed"])
        self._updates = int(state.get("updates", self._lr_warmup))
        if self._env is None:
            self._saved = state
            return
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.pipeline.load_state_dict(state["pipeline"])
        self._samples.set_state(state["samples"])
        _set_words(self._draw, [int(x, 16) for x in state["draw"]])
        self._saved = None


class LanguagePolicy:
    """Acts in a text environment: one dialogue per row, remembered in a key-value cache.

    Args:
        io: interface.
        longest: tokens of an utterance at most.
        context: tokens of a dialogue at most; a longer one goes on from its last observation alone.
        build: (words) -> (model, tokenizer), for a state that is loaded before there is a model.
    """

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

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Inverse of `state_dict`; a policy without a model makes one over the saved words."""
        if self._model is None:
            words = tuple(bytes(torch.as_tensor(state["words"]).tolist()).decode().split("\n"))
            self.follow(*self._make(words), words)
        assert self._model is not None
        weights = {name.removeprefix("model."): x for name, x in state.items() if name.startswith("model.")}
        self._model.load_state_dict(weights)
        self.reset()


def pipeline_of(
    advantage: str | Pipeline, options: dict[str, Any], *, gamma: float, loss: Mapping[str, Any]
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
    preset: Any = vars(presets).get(advantage)
    if callable(preset) and getattr(preset, "__module__", "") == presets.__name__:
        made: Any = preset(**options)
        return made
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
    state: Any = draw.bit_generator.state
    return [state["state"]["state"], state["state"]["inc"], state["has_uint32"], state["uinteger"]]


def _set_words(draw: np.random.Generator, words: list[int]) -> None:
    state: Any = draw.bit_generator.state
    state["state"] = {"state": words[0], "inc": words[1]}
    state["has_uint32"], state["uinteger"] = words[2], words[3]
    draw.bit_generator.state = state
