"""Sequence reinforcement learning: a recurrent actor learns sequences of actions, valued step by step along a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.initial import draw_uniform
from robot_rl.policies.nets.learner import RowLearner
from robot_rl.policies.nets.mlp import AutogradMlp, MlpShape
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rows import state_size, valid_rows
from robot_rl.policies.sequence.srl_actor import RecurrentActor
from robot_rl.policies.sequence.srl_model import RecallModel, RecallModelOptions
from robot_rl.state import Saved
from robot_rl.types import IOSpec, Metrics, Needs, Obs, PolicyParts, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Number, Positive, Whole


class SrlOptions(RecallModelOptions):
    """Of SRL; without a word of ours the defaults are the source's."""

    sequence: Count = 8
    """J actions that a decision is trained on."""
    hidden: Count = 256
    """Width of actor (both layers and recurrence) and critics."""
    actor_delay: Count = 1
    """The actor learns in every n-th update."""
    tau: Mixing = 0.005
    """Polyak rate of target critics and target model."""
    init_alpha: Positive = 1.0
    """Temperature at the start."""
    target_entropy: Number | Literal["auto"] = "auto"
    """A number, or auto (-A), per step of the sequence."""
    collect_steps: Count = 1
    """Actions of a decision that are played while collecting and in plain evaluation."""
    random_sequence: bool = False
    """J uniform in 1 ... sequence per update (ours)."""
    average: bool = False
    """Divide the actor's loss by the weights of its steps; without, its step is J times larger (ours)."""
    drop_previous: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of zero in place of the previous action in the actor's update (ours)."""
    clamp_states: bool = False
    """Keep predicted states inside the batch's smallest and largest components (ours)."""
    normalize: bool = False
    """Actor and critics read states in units of their running deviations (ours)."""
    recall: Literal["sample", "mean"] = "sample"
    """sample: a sequence goes on from its own noisy actions; mean (ours): from its mean actions, as it is played at
    test time; at each of its states an action is drawn and valued beside it."""
    disagreement: NotNegative = 0.0
    """A step weighs exp(-u / disagreement) times what the one before it weighs, u the members' deviation in units of
    what a step changes (wants `model_normalize` and two members); 0: not at all (ours)."""
    plan: Literal["recurrence", "model"] = "recurrence"
    """How more than one step of a decision is played. recurrence: from the newest observation alone. model (ours): each
    action by the actor's first step at the state that the model's slow copy says comes next."""
    decay: Whole = 0
    """Updates over which all step sizes fall to 0 as a cosine, so that the last iterate is a settled one; 0 keeps them
    (ours)."""

    @field_validator("disagreement")
    @classmethod
    def check_disagreement(cls, value: float, info: ValidationInfo) -> float:
        """Refuse a disagreement without a unit, or of one member."""
        if value and (info.data.get("members", 2) < 2 or not info.data.get("model_normalize", True)):
            raise ValueError("expected 0, or members of at least 2 and model_normalize=true, which gives the unit")
        return value


class Srl(RowLearner[SrlOptions]):
    """Sequence reinforcement learning.

    The critic is that of soft actor-critic on single steps: y = r + discount (min Q'(s', a') - alpha log pi), a' the
    first action of a decision at s' whose previous action is a. The model learns s' from (s, a). The actor emits
    a_0 ... a_{J-1} from s_0 alone. Its loss is the sum over i of mean(alpha log pi_i - min Q(x_i, a_i)) with x_0 = s_0
    and x_{i+1} = target model (x_i, a_i) without gradient: through each action's own value and through the recurrence.
    At test time a decision may be played for any number of steps, J or not.

    Source: Patel and Siegelmann, Overcoming Slow Decision Frequencies in Continuous Control: Model-Based Sequence
    Reinforcement Learning (dee0512/Sequence-Reinforcement-Learning). How many actions of a decision are played while
    collecting is our choice (`collect_steps`, 1).
    """

    method = "SRL"

    def __init__(self, options: SrlOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights and noise.
            device: torch device.

        Raises:
            ValueError: images, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        o, size, actions, draw = options, state_size(io, self.method), io.action_dim, self.generator
        self._entropy = -float(actions) if isinstance(o.target_entropy, str) else o.target_entropy
        self._lr = o.lr
        self.actor = RecurrentActor(size, actions, o.hidden, device, draw, normalize=o.normalize)
        critic = MlpShape(2, size + actions, (o.hidden, o.hidden), 1, False, "critic.")
        self._critic_params = FlatParams(critic.shapes(), device=device)
        self.model = model = RecallModel(o, size, actions, device)
        _xavier(self._critic_params, draw)
        _xavier(model.params, draw)
        model.freeze()
        self._critic_target = self._critic_params.twin()
        self._critic = AutogradMlp(critic, self._critic_params)
        self._critic_old = AutogradMlp(critic, self._critic_target)
        self._alpha_params = FlatParams({"log_alpha": (1,)}, device=device)
        self._alpha_params.flat[0] = math.log(o.init_alpha)
        self._alpha_params.require_grad()
        planner = SrlPlanner(self.actor, o.collect_steps, seed + 1, model=model if o.plan == "model" else None)
        self.policy = SrlPolicy(io, planner)
        self.state.include(
            {
                "actor": self.actor.params,
                "critic": self._critic_params,
                "critic_target": self._critic_target,
                "model": model.params,
                "model_target": model.target,
                "alpha": self._alpha_params,
                "policy": self.policy,
                "norm": self.actor.norm,
                **({} if model.norms is None else {"model_in": model.norms[0], "model_out": model.norms[1]}),
            }
        )

    @classmethod
    def needs(cls, options: SrlOptions, io: IOSpec) -> Needs:
        """Rows with the action executed before."""
        return Needs(rows=options.batch_size, columns={"previous_action": (io.action_dim,)})

    @property
    def alpha(self) -> float:
        """The temperature."""
        return math.exp(self._alpha_params.flat[0].item())

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of critics, model and (every `actor_delay`-th update) actor and temperature on one batch.

        Args:
            batches: batches with extras["previous_action"] (B, A): the action executed before, zeros after a reset.

        Returns:
            The latest metrics: train/q, train/target, train/critic_loss, train/model_loss, train/actor_loss,
            train/entropy, train/recalled (steps of the sequence by their weights), train/alpha.

        Raises:
            ValueError: the batch lacks the previous action.
            FloatingPointError: a metric is not finite.
        """
        o, batch = self.o, valid_rows(next(batches))
        self._lr = self.state.falling(o.lr, o.decay, first=0)
        if "previous_action" not in batch.extras:
            raise ValueError(
                f"SRL reads extras['previous_action'], the batch has {sorted(batch.extras)}; train it with robot-rl "
                "train without log= or demos=, or build the buffer with extras={'previous_action': (A,)}"
            )
        state, after, action = batch.obs["state"], batch.next_obs["state"], batch.action
        if self.actor.norm is not None:
            self.actor.norm.observe(state)
        found = self._critic_step(batch, state, after, action)
        found["model_loss"] = self._model_step(state, after, action, batch.terminated)
        if self.next_update % o.actor_delay == 0:
            found |= self._actor_step(state, batch.extras["previous_action"])
        self._critic_target.blend(self._critic_params, o.tau)
        self.model.target.blend(self.model.params, o.tau)
        return self.metrics(**found, alpha=self._alpha_params.view["log_alpha"].exp())

    def _critic_step(self, batch: Transitions, state: Tensor, after: Tensor, action: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            chosen, density, _ = self.actor.unroll(after, action, self.noise((len(after), 1, self.actions)), 1)
            value = self._critic_old.compute(torch.cat([self.actor.see(after), chosen[:, 0]], 1))[..., 0].amin(0)
            target = batch.reward + batch.discount * (value - self.alpha * density[:, 0])
        q = self._critic.compute(torch.cat([self.actor.see(state), action], 1))[..., 0]
        loss = (q - target).square().mean(1).sum()
        _step(self._critic_params, loss, self._lr)
        return {"q": q.detach(), "target": target, "critic_loss": loss.detach()}

    def _model_step(self, state: Tensor, after: Tensor, action: Tensor, ended: Tensor) -> Tensor:
        loss = self.model.loss(state, action, after, ended)
        _step(self.model.params, loss, self._lr)
        return loss.detach()

    def _actor_step(self, state: Tensor, previous: Tensor) -> dict[str, Tensor]:
        o, steps = self.o, self.o.sequence
        if o.random_sequence:
            steps = int(torch.randint(1, steps + 1, (1,), generator=self.generator, device=state.device))
        if o.drop_previous:
            keep = torch.rand(len(state), 1, generator=self.generator, device=state.device) >= o.drop_previous
            previous = previous * keep
        loss, density, weight = self.actor_loss(state, previous, self.noise((len(state), steps, self.actions)))
        total = weight.mean(0).sum()
        _step(self.actor.params, loss / total if o.average else loss, self._lr)
        mean = (weight * density.detach()).mean(0).sum() / total
        _step(self._alpha_params, -(self._alpha_params.view["log_alpha"] * (mean + self._entropy)).sum(), self._lr)
        return {"actor_loss": loss.detach() / total, "entropy": -mean, "recalled": total}

    def actor_loss(self, state: Tensor, previous: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum over the sequence of mean(w (alpha log pi - min Q)), the log-densities (B, J), the weights w (B, J).

        The actions do not depend on predicted states, so the sequence is drawn first, then the model runs without
        gradient, then one pass of the critics values all steps.
        """
        steps = noise.shape[1]
        actions, density, played = self.actor.unroll(state, previous, noise, steps, along=self.o.recall)
        seen, weights = [state], [state.new_ones(len(state))]
        with torch.no_grad():
            low, high = state.amin(0), state.amax(0)
            for i in range(steps - 1):
                ahead, kept = self.model.ahead(seen[-1], played[:, i].detach(), self.o.disagreement)
                seen.append(ahead.clamp(low, high) if self.o.clamp_states else ahead)
                weights.append(weights[-1] if kept is None else weights[-1] * kept)
        weight = torch.stack(weights, 1)
        x = torch.cat([self.actor.see(torch.stack(seen, 1)), actions], -1).flatten(0, 1)
        q = self._critic.compute(x)[..., 0].amin(0).view(len(state), steps)
        return (weight * (self.alpha * density - q)).mean(0).sum(), density, weight


class SrlPlanner(Saved):
    """Plans any number of steps from the newest observation and the action executed last.

    Args:
        actor: what acts.
        steps: of a plan.
        seed: of its noise.
        model: the plan goes along its states, at each the actor's first step; None: along the actor's recurrence.
    """

    def __init__(self, actor: RecurrentActor, steps: int, seed: int, *, model: RecallModel | None = None) -> None:
        self.actor, self.steps, self.model = actor, steps, model
        device = actor.params.flat.device
        self._generator = torch.Generator(device=device).manual_seed(seed)

    @torch.no_grad()
    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """A sequence; the mean actions feed the recurrence, or the model, when deterministic."""
        device = self.actor.params.flat.device
        state = torch.as_tensor(obs["state"]).to(device, torch.float32)
        noise = None
        if not deterministic:
            shape = (len(state), self.steps, self.actor.actions)
            noise = torch.randn(shape, generator=self._generator, device=device)
        last = torch.as_tensor(context["last"]).to(device, torch.float32)
        return Plan(self._chunk(state, last, noise))

    def mean(self, obs: Obs, last: Tensor) -> Tensor:
        """The chunk (B, H, A) without noise, in torch."""
        return self._chunk(torch.as_tensor(obs["state"]), last, None)

    def _chunk(self, state: Tensor, last: Tensor, noise: Tensor | None) -> Tensor:
        if self.model is None:
            return self.actor.unroll(state, last, noise, self.steps)[0]
        chunk = []
        for i in range(self.steps):
            last = self.actor.unroll(state, last, None if noise is None else noise[:, i : i + 1], 1)[0][:, 0]
            chunk.append(last)
            if i + 1 < self.steps:
                state = self.model.ahead(state, last, 0.0)[0]
        return torch.stack(chunk, 1)

    def _norms(self) -> dict[str, RunningNorm]:
        norms = {} if self.actor.norm is None else {"norm": self.actor.norm}
        if self.model is not None and self.model.norms is not None:
            norms |= {"model_in": self.model.norms[0], "model_out": self.model.norms[1]}
        return norms

    def saved_parts(self) -> dict[str, object]:
        """Weights, noise, and what the options add."""
        model = None if self.model is None else self.model.target.flat
        return {"actor": self.actor.params.flat, "generator": self._generator, "model": model, **self._norms()}


class SrlPolicy(ChunkedPolicy):
    """Plays SRL's sequences; `at_interval(k)` plays k steps per decision."""

    def __init__(self, io: IOSpec, planner: SrlPlanner) -> None:
        steps = planner.steps
        super().__init__(io, planner, Execution(Horizons(steps, steps, steps), io.action_dim), mean=planner.mean)
        self._srl = planner

    @property
    def parts(self) -> PolicyParts:
        """As of every chunk policy, and any interval."""
        return replace(super().parts, at_interval=self.at_interval)

    def at_interval(self, steps: int) -> SrlPolicy:
        """The same actor, asked every `steps` ticks."""
        return SrlPolicy(self.io, SrlPlanner(self._srl.actor, steps, 0, model=self._srl.model))


def _xavier(params: FlatParams, generator: torch.Generator) -> None:
    for name, shape in params.shapes.items():
        if "weight" in name:
            draw_uniform(params.view[name], math.sqrt(6.0 / (shape[1] + shape[2])), generator)


def _step(params: FlatParams, loss: Tensor, lr: float) -> None:
    """One step of Adam down `loss`, on these parameters alone."""
    leaves = list(params.view.values())
    for name, grad in zip(params.view, torch.autograd.grad(loss, leaves, allow_unused=True)):
        params.grad_view[name].zero_() if grad is None else params.grad_view[name].copy_(grad)
    params.adam(lr)
