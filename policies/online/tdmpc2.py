"""Planning in a learnt latent space with values at the horizon's end, in the manner of TD-MPC2."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.nets.latent_model import LatentModel, Prior
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_step import ModuleStep, load_module, module_state
from robot_rl.policies.nets.rows import state_size
from robot_rl.policies.nets.value_heads import CategoricalHead, two_hot_head
from robot_rl.types import Action, IOSpec, Learner, Metrics, Obs, Transitions
from robot_rl.types.options import Bins, Count, Mixing, NotNegative, Positive, Rate, Share, Whole


class Tdmpc2(Learner):
    """A latent model learnt from windows of H steps, and model-predictive path integral control in it.

    Model: z_0 = encoder(s_0), z_{t+1} = dynamics(z_t, a_t). Loss over the window, weights rho^t: consistency
    |z_{t+1} - encoder(s_{t+1})|^2 (no gradient through that encoder), cross-entropies of reward and values. Target:
    r + discount min of two random target critics at (encoder(s'), prior). The prior maximises the mean of two random
    critics in units of their running spread, plus a little entropy, along the same latents.

    Planning: `samples` sequences around the last plan, and some of the prior's, are rolled out in the model; return =
    sum of gamma^t r + gamma^H value. The best `elites`, weighted by softmax of temperature times return, give the next
    mean and spread; after `iterations` an elite is drawn and its first action done, with noise while training.

    Steps behind the end of an episode are masked, and `discount` is 0 at true ends: the planner itself does not know
    ends, only values behind its horizon do.

    Source: Hansen, Su and Wang, TD-MPC2 (2024), as summed up in our specification; the order of details there is
    recalled. Ours: the run's gamma in place of one from the episode's length, no dropout in the critics, gradients
    bounded per part, small defaults for one core (published: latent 512, hidden 512, encoder 256, 5 critics, 6
    iterations of 512 samples with 64 elites and 24 sequences of the prior, batch 256, lr 3e-4).
    """

    consumes = "transitions"
    method = "TD-MPC2"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 64,
        horizon: Count = 3,
        latent: Count = 64,
        hidden: Count = 64,
        group: Count = 8,
        critics: Count = 2,
        bins: Bins = 101,
        support: Positive = 10.0,
        iterations: Count = 4,
        samples: Count = 64,
        elites: Count = 8,
        prior_samples: Whole = 4,
        temperature: Positive = 0.5,
        min_std: Positive = 0.05,
        max_std: Positive = 2.0,
        rho: Share = 0.5,
        consistency_weight: NotNegative = 20.0,
        reward_weight: NotNegative = 0.1,
        value_weight: NotNegative = 0.1,
        entropy_weight: NotNegative = 1e-4,
        lr: Rate = 1e-3,
        encoder_lr_scale: NotNegative = 0.3,
        grad_clip: NotNegative = 20.0,
        tau: Mixing = 0.01,
        metrics_every: Whole = 100,
    ) -> None:
        """Build model, prior and planner for `io`.

        Args:
            io: one vector observation "state".
            seed: of weights and draws.
            device: torch device.
            gamma: discount per step, in the planner; targets use the data's `discount`.
            batch_size: windows per update.
            horizon: H steps of a window and of a plan.
            latent: size of the code, a multiple of `group`.
            hidden: width of all networks.
            group: numbers per simplex of the code.
            critics: members of the ensemble, at least 2.
            bins: of reward and value, on symlog scale.
            support: bins reach from -support to support in symlog.
            iterations: of the planner.
            samples: sequences per iteration, the prior's included.
            elites: of them that count.
            prior_samples: sequences that follow the prior; 0: none.
            temperature: factor of the returns in the elites' softmax.
            min_std: smallest spread of the planner.
            max_std: first and largest spread.
            rho: weight of each further step of the window.
            consistency_weight: of the loss of the dynamics.
            reward_weight: of the loss of the reward.
            value_weight: of the loss of the values.
            entropy_weight: in the prior's loss.
            lr: step size.
            encoder_lr_scale: of the encoder's, relative.
            grad_clip: bound of the gradient's norm of encoder, model and prior each.
            tau: Polyak rate of the target critics.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option out of range.
        """
        if latent % group or min(horizon, iterations, batch_size) < 1 or critics < 2:
            raise ValueError(
                f"latent, group, horizon, iterations, batch_size, critics are {latent}, {group}, {horizon}, "
                f"{iterations}, {batch_size}, {critics}; expected a multiple of group, at least 1, and 2 critics"
            )
        if not 0 < elites <= samples or not 0 <= prior_samples < samples or not 0 < min_std <= max_std:
            raise ValueError(
                f"elites, prior_samples, samples, min_std, max_std are {elites}, {prior_samples}, {samples}, "
                f"{min_std}, {max_std}; expected elites <= samples, fewer of the prior, 0 < min_std <= max_std"
            )
        self.io, self.batch_size, self.window = io, batch_size, horizon
        self._rho, self._tau, self._entropy, self._size = rho, tau, entropy_weight, critics
        self._weights = (consistency_weight, reward_weight, value_weight)
        size, actions = state_size(io, self.method), io.action_dim
        generator = torch.Generator().manual_seed(seed)
        sizes: dict[str, Any] = {"latent": latent, "hidden": hidden, "group": group, "critics": critics, "bins": bins}
        self.model = LatentModel(size, actions, **sizes, generator=generator).to(device)
        self.prior = Prior(latent, actions, hidden, generator).to(device)
        self._generator = generator = torch.Generator(device=device).manual_seed(seed + 1)
        self._old = _Twin(self.model.critics)
        self.head = two_hot_head(-support, support, bins, device=device, symlog=True)
        self._heads = nn.ModuleList([self.model.dynamics, self.model.reward, self.model.critics])
        self._encoder_step = ModuleStep(self.model.encoder, lr=lr * encoder_lr_scale, clip=grad_clip)
        self._model_step = ModuleStep(self._heads, lr=lr, clip=grad_clip)
        self._prior_step = ModuleStep(self.prior, lr=lr, clip=grad_clip)
        self.scale = _Spread(tau, device)
        self.policy = Tdmpc2Policy(
            io, self.model, self.prior, self.head, gamma=gamma, horizon=horizon, iterations=iterations,
            samples=samples, elites=elites, prior_samples=prior_samples, temperature=temperature, min_std=min_std,
            max_std=max_std, seed=seed + 2, device=device,
        )  # fmt: skip
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                "encoder": self._encoder_step, "model": self._model_step, "prior": self._prior_step,
                "target": self._old, "scale": self.scale, "policy": self.policy, "generator": generator,
            },
        )  # fmt: skip

    def _noise(self, z: Tensor) -> Tensor:
        shape = (len(z), self.io.action_dim)
        return torch.randn(shape, generator=self._generator, device=self._generator.device)

    def _two(self) -> Tensor:
        return torch.randperm(self._size, generator=self._generator, device=self._generator.device)[:2]

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of model, critics and prior on a batch of windows.

        Returns:
            The latest metrics: train/consistency, train/reward_loss, train/value_loss, train/prior_loss, train/q,
            train/entropy, train/scale.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        wanted = self._state.tick()
        batch = next(batches)
        state, after, action = batch.obs["state"], batch.next_obs["state"], batch.action
        mask = batch.mask.to(action.dtype)
        with torch.no_grad():
            code = self.model.encoder(after.flatten(0, 1))[0]
            target = self._target(code, batch.reward.flatten(), batch.discount.flatten()).view(mask.shape)
            code = code.view(*mask.shape, -1)
        z, latents = self.model.encoder(state[:, 0])[0], []
        weight = mask * self._rho ** torch.arange(mask.shape[1], device=mask.device)
        total = weight.sum().clamp_min(1.0)
        consistency = reward_loss = value_loss = z.new_zeros(())
        for t in range(mask.shape[1]):
            latents.append(z)
            both = torch.cat([z, action[:, t]], -1)
            reward_loss = reward_loss + (weight[:, t] * self._cross(self.model.reward(both), batch.reward[:, t])).sum()
            value_loss = value_loss + (weight[:, t] * self._cross(self.model.critics(both), target[:, t])).sum()
            z = self.model.next(z, action[:, t])
            consistency = consistency + (weight[:, t] * (z - code[:, t]).square().mean(-1)).sum()
        parts = [consistency / total, reward_loss / total, value_loss / total]
        self.model.zero_grad()
        sum(w * part for w, part in zip(self._weights, parts)).backward()  # type: ignore[union-attr]
        self._encoder_step.apply()
        self._model_step.apply()
        found = self._prior_update(torch.cat(latents).detach(), weight.t().flatten())
        self._old.blend(self._tau)
        names = ("consistency", "reward_loss", "value_loss")
        return self._state.report({**dict(zip(names, parts)), **found} if wanted else None)

    def _cross(self, out: Tensor, target: Tensor) -> Tensor:
        """(B,) cross-entropy towards (B,) numbers, mean over members."""
        return -(self.head.spread(target) * out.log_softmax(-1)).sum(-1).mean(0)

    @torch.no_grad()
    def _target(self, z: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """(B,) r + discount min of two random target critics."""
        chosen, _ = self.prior(z, self._noise(z))
        values = self.head.value(self._old.net(torch.cat([z, chosen], -1))[self._two()])
        return reward + discount * values.amin(0)

    def _prior_update(self, z: Tensor, weight: Tensor) -> dict[str, Tensor]:
        chosen, density = self.prior(z, self._noise(z))
        q = self.head.value(self.model.critics(torch.cat([z, chosen], -1))[self._two()]).mean(0)
        self.scale.observe(q.detach())
        loss = (weight * (self._entropy * density - q / self.scale.value)).sum() / weight.sum().clamp_min(1.0)
        self._prior_step(loss)
        self.model.zero_grad()  # the critics had their step
        mean = (weight * density.detach()).sum() / weight.sum().clamp_min(1.0)
        return {"prior_loss": loss.detach(), "q": q.detach().mean(), "entropy": -mean, "scale": self.scale.value}

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)


class _Twin:
    """A copy of a module that follows it slowly."""

    def __init__(self, source: nn.Module) -> None:
        self._source, self.net = source, copy.deepcopy(source).requires_grad_(False)

    @torch.no_grad()
    def blend(self, tau: float) -> None:
        for mine, theirs in zip(self.net.parameters(), self._source.parameters()):
            mine.lerp_(theirs, tau)

    def state_dict(self) -> dict[str, Tensor]:
        return module_state(self.net)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        load_module(self.net, state)


class _Spread:
    """Running distance of the 5th from the 95th percentile, at least 1."""

    def __init__(self, tau: float, device: str) -> None:
        self._tau, self.value = tau, torch.ones((), device=device)

    def observe(self, x: Tensor) -> None:
        low, high = torch.quantile(x, torch.tensor([0.05, 0.95], device=x.device))
        self.value.lerp_((high - low).clamp_min(1.0), self._tau)

    def state_dict(self) -> dict[str, Tensor]:
        return {"value": self.value.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.value.copy_(state["value"])


class Tdmpc2Policy(ModulePolicy):
    """Plans anew at every step, from where the last plan left off; shares the learner's networks."""

    def __init__(
        self, io: IOSpec, model: LatentModel, prior: Prior, head: CategoricalHead, *, gamma: float, horizon: int,
        iterations: int, samples: int, elites: int, prior_samples: int, temperature: float, min_std: float,
        max_std: float, seed: int, device: str,
    ) -> None:  # fmt: skip
        """Options as in `Tdmpc2`."""
        self.io, self._model, self._prior, self._head, self._gamma = io, model, prior, head, gamma
        self._horizon, self._iterations, self._device = horizon, iterations, torch.device(device)
        self._samples, self._elites, self._own, self._temperature = samples, elites, prior_samples, temperature
        self._std, self._plan = (min_std, max_std), torch.zeros(0, horizon, io.action_dim, device=device)
        super().__init__("net", nn.ModuleList([model, prior]), torch.Generator(device=device).manual_seed(seed))

    def reset(self, rows: Any = None) -> None:
        """Forget the plans of these rows; None: of all."""
        if rows is None:
            self._plan = self._plan[:0]
        elif len(self._plan):
            self._plan[torch.as_tensor(rows, device=self._device)] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Weights, generator and the plans under way."""
        return {**super().state_dict(), "plan": self._plan.clone()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        super().load_state_dict(state)
        self._plan = state["plan"].to(self._device).clone()

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device)

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, A) in [-1, 1]: first action of the plan, with its noise unless deterministic."""
        given = obs["state"]
        action = self._choose(torch.as_tensor(given).to(self._device, torch.float32), deterministic)
        return Action(action.cpu().numpy() if isinstance(given, np.ndarray) else action)

    def _choose(self, state: Tensor, deterministic: bool) -> Tensor:
        count, steps, size = len(state), self._horizon, self.io.action_dim
        begin = self._model.encoder(state)[0]
        if len(self._plan) != count:
            self._plan = torch.zeros(count, steps, size, device=self._device)
        mean = torch.cat([self._plan[:, 1:], torch.zeros_like(self._plan[:, :1])], 1)
        std = torch.full_like(mean, self._std[1])
        own = self._follow(begin)
        z = begin.repeat_interleave(self._samples, 0)
        actions = score = torch.zeros(0)
        for _ in range(self._iterations):
            drawn = mean[:, None] + std[:, None] * self._noise(count, self._samples - self._own, steps, size)
            drawn = torch.cat([own, drawn.clamp(-1.0, 1.0)], 1)
            value = self.returns(z, drawn.flatten(0, 1)).view(count, self._samples)
            best, index = value.topk(self._elites, 1)
            actions = drawn.gather(1, index[..., None, None].expand(-1, -1, steps, size))
            score = (self._temperature * (best - best[:, :1])).softmax(1)
            share = score[..., None, None]
            mean = (share * actions).sum(1)
            spread = (share * (actions - mean[:, None]).square()).sum(1).sqrt()
            std = spread.clamp(*self._std)
        # an elite by its weight: u in (0, 1) against the cumulated weights
        draw = torch.rand(count, 1, generator=self._generator, device=self._device)
        pick = (score.cumsum(1) < draw).sum(1).clamp_max(self._elites - 1)
        action = actions[torch.arange(count), pick, 0]
        self._plan = mean
        if not deterministic:
            action = action + std[:, 0] * self._noise(count, size)
        return action.clamp(-1.0, 1.0)

    def _follow(self, begin: Tensor) -> Tensor:
        """(B, prior_samples, H, A) sequences of the prior."""
        z, chosen = begin.repeat_interleave(self._own, 0), []
        for _ in range(self._horizon):
            action, _ = self._prior(z, self._noise(len(z), self.io.action_dim))
            chosen.append(action)
            z = self._model.next(z, action)
        return torch.stack(chosen, 1).view(len(begin), self._own, self._horizon, -1)

    def returns(self, z: Tensor, actions: Tensor) -> Tensor:
        """(M,) sum of gamma^t r and gamma^H value, the members' mean, of sequences (M, H, A) from latents (M, Z)."""
        total, factor = torch.zeros(len(z), device=z.device), 1.0
        for t in range(actions.shape[1]):
            both = torch.cat([z, actions[:, t]], -1)
            total = total + factor * self._head.value(self._model.reward(both))[0]
            z, factor = self._model.next(z, actions[:, t]), factor * self._gamma
        last, _ = self._prior(z, self._noise(len(z), self.io.action_dim))
        return total + factor * self._head.value(self._model.critics(torch.cat([z, last], -1))).mean(0)
