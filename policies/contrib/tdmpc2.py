"""Planning in a learnt latent space with values at the horizon's end, in the manner of TD-MPC2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from robot_rl.policies.contrib.tdmpc2_model import LatentModel, Prior
from robot_rl.policies.nets.learner import RowLearner, RowOptions
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_step import ModuleStep, SlowCopy
from robot_rl.policies.nets.rows import as_windows, state_size
from robot_rl.policies.nets.value_heads import CategoricalHead, two_hot_head
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, Metrics, Needs, Obs, Options, StateDict, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Positive, Rate, Share


class PlannerOptions(Options):
    """Of model-predictive path integral control in a latent model."""

    horizon: Count = 3
    """H steps of a window and of a plan."""
    iterations: Count = 4
    """Of the planner."""
    samples: Count = 64
    """Sequences per iteration, the prior's included."""
    elites: Annotated[int, Field(ge=1, validate_default=True)] = 8
    """Of them that count."""
    prior_samples: Annotated[int, Field(ge=0, validate_default=True)] = 4
    """Sequences that follow the prior; 0: none."""
    temperature: Positive = 0.5
    """Factor of the returns in the elites' softmax."""
    min_std: Positive = 0.05
    """Smallest spread of the planner."""
    max_std: Annotated[float, Field(gt=0, validate_default=True)] = 2.0
    """First and largest spread."""

    @field_validator("elites", "prior_samples")
    @classmethod
    def check_samples(cls, value: int, info: ValidationInfo) -> int:
        """Refuse more than there are."""
        if value + (info.field_name == "prior_samples") > info.data.get("samples", value + 1):
            raise ValueError(f"expected elites <= samples ({info.data['samples']}), and fewer of the prior")
        return value

    @field_validator("max_std")
    @classmethod
    def check_spread(cls, value: float, info: ValidationInfo) -> float:
        """Refuse an empty range."""
        if info.data.get("min_std", value) > value:
            raise ValueError(f"expected at least min_std ({info.data['min_std']})")
        return value


class Tdmpc2Options(PlannerOptions, RowOptions):
    """Of TD-MPC2; sizes for one core."""

    batch_size: Count = 64
    """Windows per update."""
    latent: Count = 64
    """Size of the code, a multiple of `group`."""
    hidden: Count = 64
    """Width of all networks."""
    group: Annotated[int, Field(ge=1, validate_default=True)] = 8
    """Numbers per simplex of the code."""
    critics: Annotated[int, Field(ge=2)] = 2
    """Members of the ensemble."""
    bins: Annotated[int, Field(ge=2)] = 101
    """Of reward and value, on symlog scale."""
    support: Positive = 10.0
    """Bins reach from -support to support in symlog."""
    rho: Share = 0.5
    """Weight of each further step of the window."""
    consistency_weight: NotNegative = 20.0
    """Of the loss of the dynamics."""
    reward_weight: NotNegative = 0.1
    """Of the loss of the reward."""
    value_weight: NotNegative = 0.1
    """Of the loss of the values."""
    entropy_weight: NotNegative = 1e-4
    """In the prior's loss."""
    lr: Rate = 1e-3
    """Step size."""
    encoder_lr_scale: NotNegative = 0.3
    """Of the encoder's, relative."""
    grad_clip: NotNegative = 20.0
    """Bound of the gradient's norm of encoder, model and prior each; 0 for none."""
    tau: Mixing = 0.01
    """Polyak rate of the target critics."""

    @field_validator("group")
    @classmethod
    def check_group(cls, value: int, info: ValidationInfo) -> int:
        """Refuse a code that does not consist of whole simplices."""
        if info.data.get("latent", value) % value:
            raise ValueError(f"expected a divisor of latent ({info.data['latent']})")
        return value


class Tdmpc2(RowLearner[Tdmpc2Options]):
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

    method = "TD-MPC2"

    def __init__(
        self, options: Tdmpc2Options, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        """Build model, prior and planner for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of weights and draws.
            device: torch device.
            gamma: discount per step, in the planner; targets use the data's `discount`.

        Raises:
            ValueError: images, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        o, size, actions = options, state_size(io, self.method), io.action_dim
        draw = torch.Generator().manual_seed(seed)
        self.model = LatentModel(
            size,
            actions,
            latent=o.latent,
            hidden=o.hidden,
            group=o.group,
            critics=o.critics,
            bins=o.bins,
            generator=draw,
        ).to(device)
        self.prior = Prior(o.latent, actions, o.hidden, draw).to(device)
        self.target = SlowCopy(self.model.critics)
        self.head = two_hot_head(-o.support, o.support, o.bins, device=device, symlog=True)
        heads = nn.ModuleList([self.model.dynamics, self.model.reward, self.model.critics])
        self._encoder_step = ModuleStep(self.model.encoder, lr=o.lr * o.encoder_lr_scale, clip=o.grad_clip)
        self._model_step = ModuleStep(heads, lr=o.lr, clip=o.grad_clip)
        self._prior_step = ModuleStep(self.prior, lr=o.lr, clip=o.grad_clip)
        self.scale = _Spread(o.tau, device)
        self.policy = Tdmpc2Policy(o, io, self.model, self.prior, self.head, gamma=gamma, seed=seed + 2)
        self.state.include(
            {
                "encoder": self._encoder_step, "model": self._model_step, "prior": self._prior_step,
                "target": self.target, "scale": self.scale, "policy": self.policy,
            }
        )  # fmt: skip

    @classmethod
    def needs(cls, options: Tdmpc2Options, io: IOSpec) -> Needs:
        """Windows as long as a plan."""
        return Needs(rows=options.batch_size, window=options.horizon)

    def _two(self) -> Tensor:
        return torch.randperm(self.o.critics, generator=self.generator, device=self.generator.device)[:2]

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of model, critics and prior on a batch of windows.

        Returns:
            The latest metrics: train/consistency, train/reward_loss, train/value_loss, train/prior_loss, train/q,
            train/entropy, train/scale.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        o, batch = self.o, as_windows(next(batches), self.o.horizon)
        state, after, action = batch.obs["state"], batch.next_obs["state"], batch.action
        mask = batch.mask.to(action.dtype)
        with torch.no_grad():
            code = self.model.encoder(after.flatten(0, 1))[0]
            target = self._target(code, batch.reward.flatten(), batch.discount.flatten()).view(mask.shape)
            code = code.view(*mask.shape, -1)
        z, latents = self.model.encoder(state[:, 0])[0], []
        weight = mask * o.rho ** torch.arange(mask.shape[1], device=mask.device)
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
        (o.consistency_weight * parts[0] + o.reward_weight * parts[1] + o.value_weight * parts[2]).backward()
        self._encoder_step.apply()
        self._model_step.apply()
        found = self._prior_update(torch.cat(latents).detach(), weight.t().flatten())
        self.target.soft_update(o.tau)
        return self.metrics(**dict(zip(("consistency", "reward_loss", "value_loss"), parts)), **found)

    def _cross(self, out: Tensor, target: Tensor) -> Tensor:
        """(B,) cross-entropy towards (B,) numbers, mean over members."""
        return -(self.head.spread(target) * out.log_softmax(-1)).sum(-1).mean(0)

    @torch.no_grad()
    def _target(self, z: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """(B,) r + discount min of two random target critics."""
        chosen, _ = self.prior(z, self.noise((len(z), self.actions)))
        values = self.head.value(self.target(torch.cat([z, chosen], -1))[self._two()])
        return reward + discount * values.amin(0)

    def _prior_update(self, z: Tensor, weight: Tensor) -> dict[str, Tensor]:
        chosen, density = self.prior(z, self.noise((len(z), self.actions)))
        q = self.head.value(self.model.critics(torch.cat([z, chosen], -1))[self._two()]).mean(0)
        self.scale.observe(q.detach())
        loss = (weight * (self.o.entropy_weight * density - q / self.scale.value)).sum() / weight.sum().clamp_min(1.0)
        self._prior_step(loss)
        self.model.zero_grad()  # the critics had their step
        mean = (weight * density.detach()).sum() / weight.sum().clamp_min(1.0)
        return {"prior_loss": loss.detach(), "q": q.detach().mean(), "entropy": -mean, "scale": self.scale.value}


class _Spread(Saved):
    """Running distance of the 5th from the 95th percentile, at least 1."""

    saved = ("value",)

    def __init__(self, tau: float, device: str) -> None:
        self._tau, self.value = tau, torch.ones((), device=device)

    def observe(self, x: Tensor) -> None:
        low, high = torch.quantile(x, torch.tensor([0.05, 0.95], device=x.device))
        self.value.lerp_((high - low).clamp_min(1.0), self._tau)


class Tdmpc2Policy(ModulePolicy[nn.ModuleList]):
    """Plans anew at every step, from where the last plan left off; shares the learner's networks."""

    def __init__(
        self,
        options: PlannerOptions,
        io: IOSpec,
        model: LatentModel,
        prior: Prior,
        head: CategoricalHead,
        *,
        gamma: float,
        seed: int,
    ) -> None:
        """Share the networks; `seed` is of the planner's draws."""
        super().__init__(io, nn.ModuleList([model, prior]), seed)
        self.o, self._model, self._prior, self._head, self._gamma = options, model, prior, head, gamma
        self._plan = torch.zeros(0, options.horizon, io.action_dim, device=self._device)

    def reset(self, rows: Array | None = None) -> None:
        """Forget the plans of these rows; None: of all."""
        if rows is None:
            self._plan = self._plan[:0]
        elif len(rows) == len(self._plan):
            self._plan[torch.as_tensor(rows, device=self._device)] = 0.0

    def state_dict(self) -> StateDict:
        """Weights, generator and the plans under way."""
        return {**super().state_dict(), "plan": self._plan.clone()}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place."""
        super().load_state_dict({key: value for key, value in state.items() if key != "plan"})
        self._plan = state["plan"].to(self._device).clone()

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device)

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, A) in [-1, 1]: first action of the plan, with its noise unless deterministic."""
        return self.answer(obs, self._choose(self.see(obs), deterministic))

    def _choose(self, state: Tensor, deterministic: bool) -> Tensor:
        o, count, size = self.o, len(state), self.io.action_dim
        steps = o.horizon
        begin = self._model.encoder(state)[0]
        if len(self._plan) != count:
            self._plan = torch.zeros(count, steps, size, device=self._device)
        mean = torch.cat([self._plan[:, 1:], torch.zeros_like(self._plan[:, :1])], 1)
        std = torch.full_like(mean, o.max_std)
        own = self._follow(begin)
        z = begin.repeat_interleave(o.samples, 0)
        actions = score = torch.zeros(0)
        for _ in range(o.iterations):
            drawn = mean[:, None] + std[:, None] * self._noise(count, o.samples - o.prior_samples, steps, size)
            drawn = torch.cat([own, drawn.clamp(-1.0, 1.0)], 1)
            value = self.returns(z, drawn.flatten(0, 1)).view(count, o.samples)
            best, index = value.topk(o.elites, 1)
            actions = drawn.gather(1, index[..., None, None].expand(-1, -1, steps, size))
            score = (o.temperature * (best - best[:, :1])).softmax(1)
            share = score[..., None, None]
            mean = (share * actions).sum(1)
            spread = (share * (actions - mean[:, None]).square()).sum(1).sqrt()
            std = spread.clamp(o.min_std, o.max_std)
        # an elite by its weight: u in (0, 1) against the cumulated weights
        draw = torch.rand(count, 1, generator=self._generator, device=self._device)
        pick = (score.cumsum(1) < draw).sum(1).clamp_max(o.elites - 1)
        action = actions[torch.arange(count), pick, 0]
        self._plan = mean
        if not deterministic:
            action = action + std[:, 0] * self._noise(count, size)
        return action.clamp(-1.0, 1.0)

    def _follow(self, begin: Tensor) -> Tensor:
        """(B, prior_samples, H, A) sequences of the prior."""
        z, chosen = begin.repeat_interleave(self.o.prior_samples, 0), []
        for _ in range(self.o.horizon):
            action, _ = self._prior(z, self._noise(len(z), self.io.action_dim))
            chosen.append(action)
            z = self._model.next(z, action)
        return torch.stack(chosen, 1).unflatten(0, (len(begin), self.o.prior_samples))

    def returns(self, z: Tensor, actions: Tensor) -> Tensor:
        """(M,) sum of gamma^t r and gamma^H value, the members' mean, of sequences (M, H, A) from latents (M, Z)."""
        total, factor = torch.zeros(len(z), device=z.device), 1.0
        for t in range(actions.shape[1]):
            both = torch.cat([z, actions[:, t]], -1)
            total = total + factor * self._head.value(self._model.reward(both))[0]
            z, factor = self._model.next(z, actions[:, t]), factor * self._gamma
        last, _ = self._prior(z, self._noise(len(z), self.io.action_dim))
        return total + factor * self._head.value(self._model.critics(torch.cat([z, last], -1))).mean(0)
