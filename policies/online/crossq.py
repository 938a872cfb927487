"""CrossQ: soft actor-critic without target networks; batch normalisation sees both halves of the update at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.renorm import RenormCritic
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.policies.nets.soft_actor import SoftActor
from robot_rl.types import IOSpec, Learner, Metrics, Transitions


class CrossQ(Learner):
    """Soft actor-critic whose critics bootstrap from themselves.

    One pass over [(s, a); (s', a')] normalises both halves by the moments of both, which is what makes learning without
    target networks stable: y = r + discount (min Q(s', a') - alpha log pi), from the second half without gradient; the
    first half learns. The actor climbs min Q with running moments.

    Source: Bhatt et al., CrossQ: Batch Normalization in Deep RL for Greater Sample Efficiency and Simplicity
    (adityab/CrossQ). Where we differ: no normalisation in the actor; the actor's Adam keeps beta1 0.9.
    """

    consumes = "transitions"
    method = "CrossQ"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 256,
        hidden: tuple[int, ...] = (512, 512),
        actor_hidden: tuple[int, ...] = (256, 256),
        critics: int = 2,
        lr: float = 1e-3,
        beta1: float = 0.5,
        actor_delay: int = 3,
        momentum: float = 0.99,
        warm: int = 100_000,
        init_alpha: float = 1.0,
        metrics_every: int = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and samples.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update.
            hidden: widths of the critics; 2 x 2048 in the source.
            actor_hidden: widths of the actor.
            critics: E.
            lr: step size of everything.
            beta1: of the critics' Adam.
            actor_delay: actor and temperature learn in every n-th update.
            momentum: of the running moments.
            warm: updates of plain batch normalisation before batch renormalisation.
            init_alpha: temperature at the start.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if min(batch_size, critics, actor_delay) < 1 or not 0.0 <= momentum < 1.0:
            raise ValueError(
                f"batch_size, critics, actor_delay, momentum are {batch_size}, {critics}, {actor_delay}, {momentum}; "
                "expected at least 1, and a momentum in [0, 1)"
            )
        size = state_size(io, self.method)
        self.io, self.batch_size = io, batch_size
        self._size, self._lr, self._beta1, self._delay = size, lr, beta1, actor_delay
        generator = torch.Generator(device=device).manual_seed(seed)
        self._actor = SoftActor(
            io, size, actor_hidden, generator=generator, seed=seed + 1, lr=lr, alpha_lr=lr, init_alpha=init_alpha
        )
        self.critic = RenormCritic(
            critics, size + io.action_dim, tuple(hidden), momentum=momentum, warm=warm, generator=generator
        )
        self.policy = self._actor.policy
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                **self._actor.parts(), "critic": self.critic.params, "moments": self.critic, "generator": generator,
            },
            networks=(self._actor.network,),
        )  # fmt: skip

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of critics and, every `actor_delay`-th time, of actor and temperature on one batch.

        Returns:
            The latest metrics: train/q, train/target, train/critic_loss, train/alpha, and train/entropy of the last
            actor step's batch.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        wanted = self._state.tick()
        rows = split(next(batches), 1, None)
        state, action, after = rows.state[0], rows.action[0], rows.next_state[0]
        following = self._actor.draw(self._actor.raw(after))
        alpha = self._actor.alpha
        both = torch.cat([torch.cat([state, action], 1), torch.cat([after, following.action], 1)])
        q, ahead = self.critic.forward(both, train=True).chunk(2, dim=1)
        best = ahead.detach().amin(0)
        target = rows.reward[0] + rows.discount[0] * (best - alpha * following.logp)
        loss = (q - target).square().mean(1).sum()
        self._descend(loss)
        found = {"q": q.detach().mean(), "target": target.mean(), "critic_loss": loss.detach(), "alpha": alpha}
        if self._state.updates % self._delay == 0 or wanted:
            found["entropy"] = self._actor_step(state, learn=self._state.updates % self._delay == 0)
        return self._state.report(found if wanted else None)

    def _descend(self, loss: Tensor) -> None:
        params = self.critic.params
        for name, grad in zip(params.view, torch.autograd.grad(loss, list(params.view.values()))):
            params.grad_view[name].copy_(grad)
        params.adam(self._lr, beta1=self._beta1)

    def _actor_step(self, state: Tensor, *, learn: bool) -> Tensor:
        """One step of actor and temperature; () entropy of the sampled actions."""
        sample = self._actor.draw(self._actor.raw(state))
        if learn:
            action = sample.action.detach().clone().requires_grad_(True)
            q = self.critic.forward(torch.cat([state, action], 1), train=False).amin(0)
            (d_action,) = torch.autograd.grad(-q.mean(), action)
            self._actor.step(sample, d_action, self._actor.alpha)
            self._actor.temper(sample.logp)
        return -sample.logp.mean()

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        with torch.no_grad():
            self._state.load_state_dict(state)
