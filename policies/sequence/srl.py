"""Sequence reinforcement learning: a recurrent actor learns sequences of actions, valued step by step along a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import AutogradMlp, MlpShape
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.recall_model import LOSSES, RecallModel
from robot_rl.policies.nets.recurrent_actor import RecurrentActor
from robot_rl.policies.nets.rows import state_size
from robot_rl.types import IOSpec, Learner, Metrics, Obs, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Number, Positive, Rate, Share, Whole

PLANS = ("recurrence", "model")
"""How a decision of more than one step is played."""


class Srl(Learner):
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

    consumes = "transitions"
    method = "SRL"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        sequence: Count = 8,
        hidden: Count = 256,
        model_hidden: tuple[Count, ...] = (400, 300),
        actor_delay: Count = 1,
        lr: Rate = 3e-4,
        tau: Mixing = 0.005,
        init_alpha: Positive = 1.0,
        target_entropy: Number | Literal["auto"] = "auto",
        collect_steps: Count = 1,
        model_delta: bool = False,
        random_sequence: bool = False,
        average: bool = False,
        drop_previous: Share = 0.0,
        clamp_states: bool = False,
        normalize: bool = False,
        recall: str = "sample",
        model_normalize: bool = False,
        members: Count = 1,
        disagreement: NotNegative = 0.0,
        end_head: bool = False,
        model_smooth: bool = False,
        model_loss: str = "mse",
        plan: str = "recurrence",
        decay: Whole = 0,
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`. The first defaults are the source's; from `model_delta` on, options are ours.

        Args:
            io: one vector observation "state".
            seed: of initial weights and noise.
            device: torch device.
            gamma: discount per step; the data's `discount` is what is used.
            batch_size: rows per update.
            sequence: J actions that a decision is trained on.
            hidden: width of actor (both layers and recurrence) and critics.
            model_hidden: widths of the model.
            actor_delay: the actor learns in every n-th update.
            lr: step size of everything.
            tau: Polyak rate of target critics and target model.
            init_alpha: temperature at the start.
            target_entropy: a number, or "auto" (-A), per step of the sequence.
            collect_steps: actions of a decision that are played while collecting and in plain evaluation.
            model_delta: the model predicts s' - s.
            random_sequence: J uniform in 1 ... sequence per update.
            average: divide the actor's loss by the weights of its steps (J without any); its step is J times larger
                without.
            drop_previous: probability of zero in place of the previous action in the actor's update.
            clamp_states: keep predicted states inside the batch's smallest and largest components.
            normalize: actor and critics read states in units of their running deviations.
            recall: "sample": a sequence goes on from its own noisy actions. "mean": from its mean actions, as it is
                played at test time; at each of its states an action is drawn and valued beside it.
            model_normalize: the model reads and predicts in units of running deviations; implies `model_delta`.
            members: of an ensemble of models, whose mean goes on.
            disagreement: a step weighs exp(-u / disagreement) times what the one before it weighs, u the members'
                deviation in units of what a step changes (wants `model_normalize`); 0: not at all.
            end_head: the model predicts true ends too, and a step weighs as much as the episode is likely to get there.
            model_smooth: SiLU in place of ReLU and a linear path beside it in the model: most of what a short step of
                physics changes is linear in state and action, the rest is smooth.
            model_loss: of the model's errors: "mse", or "l1", which fits the many plain steps closely where the few
                rough ones (a fall, a stop) would take up the squares.
            plan: how more than one step of a decision is played. "recurrence": by the recurrence, from the newest
                observation alone. "model": each action by the actor's first step at the state that the model (its
                slowly following copy) says comes next; the model goes with the policy then.
            decay: updates over which all step sizes fall to 0 as a cosine, so that the last iterate is a settled one;
                0 keeps them.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if min(sequence, collect_steps, batch_size, actor_delay) < 1:
            raise ValueError(
                f"sequence, collect_steps, batch_size, actor_delay are {sequence}, {collect_steps}, {batch_size}, "
                f"{actor_delay}; expected at least 1"
            )
        if members < 1 or disagreement < 0 or (disagreement > 0 and (members < 2 or not model_normalize)):
            raise ValueError(
                f"members is {members}, disagreement {disagreement}, model_normalize {model_normalize}; expected "
                "at least 1 member, and where they shall disagree at least 2 and model_normalize=true, which gives the "
                "unit"
            )
        if decay < 0:
            raise ValueError(f"decay is {decay}, expected a number of updates, or 0 for none")
        if recall not in ("sample", "mean"):
            raise ValueError(f"recall is '{recall}', expected sample or mean")
        if plan not in PLANS or model_loss not in LOSSES:
            raise ValueError(
                f"plan is '{plan}', model_loss '{model_loss}'; expected one of {', '.join(PLANS)} and one of "
                f"{', '.join(LOSSES)}"
            )
        if not 0.0 <= drop_previous < 1.0:
            raise ValueError(f"drop_previous is {drop_previous}, expected a probability below 1")
        if isinstance(target_entropy, str) and target_entropy != "auto":
            raise ValueError(f"target_entropy is '{target_entropy}', expected a number or 'auto'")
        size, actions = state_size(io, self.method), io.action_dim
        self.io, self.batch_size, self.keeps = io, batch_size, {"previous_action": (actions,)}
        self._sequence, self._random, self._average = sequence, random_sequence, average
        self._delay, self._full, self._lr, self._tau, self._decay = actor_delay, lr, lr, tau, decay
        self._entropy = -float(actions) if isinstance(target_entropy, str) else float(target_entropy)
        self._drop, self._clamp, self._reference = drop_previous, clamp_states, disagreement
        self._recall = recall
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self.actor = RecurrentActor(size, actions, hidden, device, generator, normalize=normalize)
        critic = MlpShape(2, size + actions, (hidden, hidden), 1, False, "critic.")
        self._critic_params = FlatParams(critic.shapes(), device=device)
        self.model = model = RecallModel(
            *(size, actions, tuple(model_hidden), device),
            members=members,
            delta=model_delta,
            normalize=model_normalize,
            ends=end_head,
            smooth=model_smooth,
            loss=model_loss,
        )
        _xavier(self._critic_params, generator)
        _xavier(model.params, generator)
        model.freeze()
        self._critic_target = self._critic_params.twin()
        self._critic = AutogradMlp(critic, self._critic_params)
        self._critic_old = AutogradMlp(critic, self._critic_target)
        self._alpha_params = FlatParams({"log_alpha": (1,)}, device=device)
        self._alpha_params.flat[0] = math.log(init_alpha)
        planner = SrlPlanner(self.actor, collect_steps, seed + 1, model=model if plan == "model" else None)
        self.policy = SrlPolicy(io, planner)
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                "actor": self.actor.params,
                "critic": self._critic_params,
                "critic_target": self._critic_target,
                "model": model.params,
                "model_target": model.target,
                "alpha": self._alpha_params,
                "policy": self.policy,
                "generator": generator,
                **({} if self.actor.norm is None else {"norm": self.actor.norm}),
                **({} if model.norms is None else {"model_in": model.norms[0], "model_out": model.norms[1]}),
            },
        )

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
        wanted = self._state.tick()
        self._lr = self._state.falling(self._full, self._decay)
        batch = next(batches)
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
        if self._state.updates % self._delay == 0:
            found |= self._actor_step(state, batch.extras["previous_action"])
        self._critic_target.blend(self._critic_params, self._tau)
        self.model.target.blend(self.model.params, self._tau)
        return self._state.report({**found, "alpha": self._alpha_params.view["log_alpha"].exp()} if wanted else None)

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, device=self._generator.device)

    def _critic_step(self, batch: Transitions, state: Tensor, after: Tensor, action: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            chosen, density, _ = self.actor.unroll(after, action, self._noise(len(after), 1, action.shape[1]), 1)
            value = self._critic_old.compute(torch.cat([self.actor.seen(after), chosen[:, 0]], 1))[..., 0].amin(0)
            target = batch.reward + batch.discount * (value - self.alpha * density[:, 0])
        q = self._critic.compute(torch.cat([self.actor.seen(state), action], 1))[..., 0]
        loss = (q - target).square().mean(1).sum()
        _step(self._critic_params, loss, self._lr)
        return {"q": q.detach().mean(), "target": target.mean(), "critic_loss": loss.detach()}

    def _model_step(self, state: Tensor, after: Tensor, action: Tensor, ended: Tensor) -> Tensor:
        loss = self.model.loss(state, action, after, ended)
        _step(self.model.params, loss, self._lr)
        return loss.detach()

    def _actor_step(self, state: Tensor, previous: Tensor) -> dict[str, Tensor]:
        steps = self._sequence
        if self._random:
            steps = int(torch.randint(1, steps + 1, (1,), generator=self._generator, device=state.device))
        if self._drop:
            keep = torch.rand(len(state), 1, generator=self._generator, device=state.device) >= self._drop
            previous = previous * keep
        loss, density, weight = self.actor_loss(state, previous, self._noise(len(state), steps, previous.shape[1]))
        total = weight.mean(0).sum()
        _step(self.actor.params, loss / total if self._average else loss, self._lr)
        mean = (weight * density.detach()).mean(0).sum() / total
        self._alpha_params.grad[0] = -(mean + self._entropy)
        self._alpha_params.adam(self._lr)
        return {"actor_loss": loss.detach() / total, "entropy": -mean, "recalled": total}

    def actor_loss(self, state: Tensor, previous: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum over the sequence of mean(w (alpha log pi - min Q)), the log-densities (B, J), the weights w (B, J).

        The actions do not depend on predicted states, so the sequence is drawn first, then the model runs without
        gradient, then one pass of the critics values all steps.
        """
        steps = noise.shape[1]
        actions, density, played = self.actor.unroll(state, previous, noise, steps, along=self._recall)
        seen, weights = [state], [state.new_ones(len(state))]
        with torch.no_grad():
            low, high = state.amin(0), state.amax(0)
            for i in range(steps - 1):
                ahead, kept = self.model.ahead(seen[-1], played[:, i].detach(), self._reference)
                seen.append(ahead.clamp(low, high) if self._clamp else ahead)
                weights.append(weights[-1] if kept is None else weights[-1] * kept)
        weight = torch.stack(weights, 1)
        x = torch.cat([self.actor.seen(torch.stack(seen, 1)), actions], -1).flatten(0, 1)
        q = self._critic.compute(x)[..., 0].amin(0).view(len(state), steps)
        return (weight * (self.alpha * density - q)).mean(0).sum(), density, weight

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        with torch.no_grad():
            self._state.load_state_dict(state)


class SrlPlanner:
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
        if self.model is None:
            return Plan(self.actor.unroll(state, last, noise, self.steps)[0])
        chunk = []
        for i in range(self.steps):
            last = self.actor.unroll(state, last, None if noise is None else noise[:, i : i + 1], 1)[0][:, 0]
            chunk.append(last)
            if i + 1 < self.steps:
                state = self.model.ahead(state, last, 0.0)[0]
        return Plan(torch.stack(chunk, 1))

    def _norms(self) -> dict[str, RunningNorm]:
        norms = {} if self.actor.norm is None else {"norm": self.actor.norm}
        if self.model is not None and self.model.norms is not None:
            norms |= {"model_in": self.model.norms[0], "model_out": self.model.norms[1]}
        return norms

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments and noise."""
        return {
            "actor": self.actor.params.flat.detach().clone(),
            "generator": self._generator.get_state(),
            **({} if self.model is None else {"model": self.model.target.flat.detach().clone()}),
            **{name: norm.state_dict() for name, norm in self._norms().items()},
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: other sizes, or saved with other `normalize`, `plan` or `model_normalize`.
        """
        norms = self._norms()
        for name, option, here in (
            ("norm", "normalize", "norm" in norms),
            ("model", "plan=model", self.model is not None),
            ("model_in", "model_normalize", "model_in" in norms),
        ):
            if (name in state) != here:
                have, lack = ("with", "without") if name in state else ("without", "with")
                raise ValueError(
                    f"the policy was saved {have} {option}, this one was built {lack} it; set {option.split('=')[0]} "
                    "alike"
                )
        weights = {"actor": self.actor.params.flat, **({} if self.model is None else {"model": self.model.target.flat})}
        for name, flat in weights.items():
            if state[name].shape != flat.shape:
                raise ValueError(
                    f"the saved {name} has {state[name].numel()} parameters, this one {flat.numel()}; build it with "
                    "the run's own sizes"
                )
        with torch.no_grad():
            for name, flat in weights.items():
                flat.copy_(state[name])
        for name, norm in norms.items():
            norm.load_state_dict(state[name])
        self._generator.set_state(state["generator"].cpu())


class SrlPolicy(ChunkedPolicy):
    """Plays SRL's sequences; `at_interval(k)` plays k steps per decision."""

    any_interval: ClassVar[bool] = True

    def __init__(self, io: IOSpec, planner: SrlPlanner) -> None:
        steps = planner.steps
        super().__init__(io, planner, Execution(Horizons(steps, steps, steps), io.action_dim))
        self._srl = planner

    def at_interval(self, steps: int) -> SrlPolicy:
        """The same actor, asked every `steps` ticks."""
        return SrlPolicy(self.io, SrlPlanner(self._srl.actor, steps, 0, model=self._srl.model))


def _xavier(params: FlatParams, generator: torch.Generator) -> None:
    with torch.no_grad():
        for name, shape in params.shapes.items():
            if "weight" in name:
                bound = math.sqrt(6.0 / (shape[1] + shape[2]))
                draw = torch.rand(shape, generator=generator, device=generator.device)
                params.view[name].copy_(draw * (2 * bound) - bound)


def _step(params: FlatParams, loss: Tensor, lr: float) -> None:
    """One step of Adam down `loss`, on these parameters alone."""
    leaves = list(params.view.values())
    for name, grad in zip(params.view, torch.autograd.grad(loss, leaves, allow_unused=True)):
        params.grad_view[name].zero_() if grad is None else params.grad_view[name].copy_(grad)
    params.adam(lr)
