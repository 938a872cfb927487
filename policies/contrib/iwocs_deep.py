"""Incremental worst-case search with networks: experts of single dynamics, and the policy that picks among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.policies.nets.net import Net, NetShape
from robot_rl.policies.online.sac import SoftActorCritic, SoftOptions
from robot_rl.types import Action, Array, IOSpec, Metrics, Obs, Options, PolicyParts, StateDict, Transitions
from robot_rl.types.options import Count, Mixing, Part

RETEST = ("step", "episode")


def choose(value: Tensor, valid: Tensor) -> Tensor:
    """The valid expert that promises least.

    Args:
        value: (J, B) what each of J experts' values say of its own action.
        valid: (J, B) bool; the value of an invalid expert counts as +infinity.

    Returns:
        (B,) int64 index j* of the least, or -1 where no expert is valid.

    Raises:
        ValueError: shapes that differ.
    """
    if value.dim() != 2 or value.shape != valid.shape:
        raise ValueError(
            f"value and valid have shapes {tuple(value.shape)} and {tuple(valid.shape)}, expected (experts, rows) both"
        )
    if not len(value):
        return torch.full((value.shape[1],), -1, device=value.device)
    pessimistic = torch.where(valid, value, torch.inf)
    return torch.where(valid.any(0), pessimistic.argmin(0), -1)


def validity_radius(residual: Tensor, quantile: float = 0.99) -> float:
    """Radius rho that this share of held-out residuals (B,) does not exceed.

    Args:
        residual: (B,) L1 distances of predicted from true successors that the model was not trained on.
        quantile: in (0, 1].

    Raises:
        ValueError: no residual, one that is not finite, or a quantile outside its range.
    """
    if not 0.0 < quantile <= 1.0:
        raise ValueError(f"quantile is {quantile}, expected a share in (0, 1]")
    if residual.dim() != 1 or not len(residual) or not bool(residual.isfinite().all()):
        raise ValueError(f"residual has shape {tuple(residual.shape)}, expected (rows,) of at least one finite number")
    return float(residual.double().quantile(quantile, interpolation="higher"))


class ExpertOptions(SoftOptions):
    """Of an expert for one dynamics."""

    hidden: tuple[Count, ...] = (64, 64)
    """Widths of actor, critics and plain values."""
    model_hidden: tuple[Count, ...] = (64, 64)
    """Widths of the dynamics model."""


class ModelFit(Options):
    """How an expert's model is fitted."""

    steps: Count = 3000
    """Gradient steps; those weights are kept that predict the held-out rows best, looked at every 100."""
    batch_size: Count = 256
    """Rows per step."""
    held_out: Part = 0.1
    """Share of the rows for the choice of weights and the radius."""
    quantile: Mixing = 0.99
    """Of the held-out residuals that is the radius."""


class Expert(SoftActorCritic[ExpertOptions]):
    """SAC for one dynamics, with what the search needs besides: values without entropy and a model with a radius.

    Beside SAC's own step, every `update` moves an unregularised twin Q of the acting policy:
    y = r + discount * min over two targets of Q(s', mode of pi(s')). `fit_model`, after training, learns
    f(s, a) = s' from the same steps and measures the radius on held-out ones.

    Raises:
        ValueError: observations other than one "state".

    Source: Zouitine et al., Incremental Worst-Case Search, deep form. Where we differ: the plain Q follows the mode of
    the policy, which is what acts.
    """

    def __init__(self, options: ExpertOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        if set(io.obs) != {"state"}:
            raise ValueError(f"IWOCS predicts successors of 'state' alone, got observations {sorted(io.obs)}")
        super().__init__(options, io, seed=seed, device=device)
        state = io.obs["state"][0][0]
        # A generator of its own: SAC's draws stay as they are.
        draw = torch.Generator(device=device).manual_seed(seed + 2)
        sizes = NetShape(state + io.action_dim, None, options.hidden, members=2)
        self.plain = Net("plain", sizes, lr=options.lr, generator=draw, kernel=options.kernel, matmul=options.matmul)
        self.plain_target = self.plain.target_copy("plain_target")
        self.model = Dynamics(state, io.action_dim, generator=draw, members=1, elites=1, hidden=options.model_hidden)
        self.radius = 0.0

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """SAC's update, then one step of the plain values on its last batch; train/plain_q beside SAC's metrics."""
        last: list[Transitions] = []

        def tap() -> Iterator[Transitions]:
            for batch in batches:
                last[:] = [batch]
                yield batch

        metrics = super().update(tap())
        q = self._plain_step(last[0])
        return {**metrics, "train/plain_q": float(q)} if metrics else metrics

    def _plain_step(self, batch: Transitions) -> Tensor:
        state, following, mask = batch.obs["state"], batch.next_obs["state"], batch.mask
        action = self.policy.act({"state": following}, deterministic=True).value
        with torch.no_grad():
            best = self.plain_target(following, torch.as_tensor(action)).amin(0)
        target = batch.reward + batch.discount * best
        q = self.plain(state, batch.action)
        # half the squared error, mean over admitted rows; each member has a gradient of its own
        self.plain.step((0.5 * (q - target).square() * mask).sum() / mask.sum())
        self.plain_target.soft_update(self.plain, self.o.tau)
        return q.detach().mean()

    @torch.no_grad()
    def value(self, state: Tensor, action: Tensor) -> Tensor:
        """(B,) unregularised Q(s, a), the lower of the twins, for states (B, S) and actions (B, A)."""
        return self.plain(state, action).amin(0)

    @torch.no_grad()
    def residual(self, state: Tensor, action: Tensor, following: Tensor) -> Tensor:
        """(B,) L1 distance ||f(s, a) - s'||_1 in the units of the observation."""
        delta = self.model.predict(state, action)[0][0, :, :-1]
        return (state + delta - following).abs().sum(1)

    def fit_model(
        self,
        state: Tensor,
        action: Tensor,
        following: Tensor,
        reward: Tensor,
        how: ModelFit | None = None,
        *,
        seed: int = 0,
    ) -> float:
        """Learn f on a random part of the steps and set the radius on the rest.

        Args:
            state: (B, S).
            action: (B, A) executed.
            following: (B, S) true successors.
            reward: (B,), predicted too; the validity does not read it.
            how: steps, rows and shares.
            seed: of the split and the batches.

        Returns:
            The radius rho.

        Raises:
            ValueError: too few rows to hold any out.
        """
        how, device = how or ModelFit(), self.generator.device
        generator = torch.Generator(device=device).manual_seed(seed)
        order = torch.randperm(len(state), generator=generator, device=device)
        kept = round(len(state) * how.held_out)
        if kept < 1 or kept == len(state):
            raise ValueError(
                f"held_out is {how.held_out} for {len(state)} rows; expected a share that leaves rows on both sides"
            )
        rows = [tensor.to(device, torch.float32) for tensor in (state, action, following, reward)]
        test, train = ([tensor[part] for tensor in rows] for part in (order[:kept], order[kept:]))
        self.model.observe(*train)
        for i in range(how.steps):
            pick = torch.randint(len(train[0]), (how.batch_size,), generator=generator, device=device)
            self.model.fit(*(tensor[pick][None] for tensor in train))
            if (i + 1) % 100 == 0 or i + 1 == how.steps:
                self.model.validate(*test)
        self.model.settle()
        self.radius = validity_radius(self.residual(*test[:3]), how.quantile)
        return self.radius

    def acting_state(self) -> dict[str, object]:
        """What acting needs: actor, plain values, model, radius; about a third of `state_dict`."""
        return {
            "policy": self.policy.state_dict(),
            "plain": self.plain.state_dict(),
            "model": self.model.state_dict(),
            "radius": self.radius,
        }

    def take(self, state: StateDict) -> None:
        """Copy in place what `acting_state` gave.

        Raises:
            ValueError: of networks of other sizes.
        """
        self.policy.load_state_dict(state["policy"])
        self.plain.load_state_dict(state["plain"])
        self.model.load_state_dict(state["model"])
        self.radius = float(state["radius"])

    def state_dict(self) -> StateDict:
        """SAC's, and the parts of the search."""
        return {**super().state_dict(), **self.acting_state(), "plain_target": self.plain_target.state_dict()}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place."""
        super().load_state_dict(state)
        self.take(state)
        self.plain_target.load_state_dict(state["plain_target"])


class IwocsPolicy:
    """Acts by the expert j* = argmin of Q_j(s, pi_j(s)) among those whose dynamics explain what was just seen.

    Expert j is valid while ||f_j(s, a) - s'||_1 <= rho_j for the last step; at an episode's first step all are. Where
    none is, the default policy acts. `Action.extras["expert"]` (B,) is j*, -1 for the default.

    Args:
        io: of experts and default policy.
        default: acts where no expert is valid: trained on all dynamics at once.
        retest: "step": the last step alone decides, "episode": an expert once refuted stays so until the reset. With a
            radius that a share of true steps exceeds, "episode" loses the right expert, too, after a few dozen steps.

    Attributes:
        experts: in the order in which they were added.

    Raises:
        ValueError: an unknown `retest`.
    """

    def __init__(self, io: IOSpec, default: Any, *, retest: str = "step") -> None:
        if retest not in RETEST:
            raise ValueError(f"retest is '{retest}', expected one of {', '.join(RETEST)}")
        io.check(default.io)
        self.io, self.default, self._retest = io, default, retest
        self.experts: list[Expert] = []
        self.reset()

    @property
    def parts(self) -> PolicyParts:
        """It hears what was done."""
        return PolicyParts(executed=self.executed)

    def add(self, expert: Expert) -> None:
        """One more expert; memory of the present episodes is lost.

        Raises:
            ValueError: it was trained for another interface.
        """
        self.io.check(expert.io)
        self.experts.append(expert)
        self.reset()

    def reset(self, rows: Array | None = None) -> None:
        """Forget the last step of these rows (B,) bool; None is all."""
        if rows is None or self._last is None:
            self._last: tuple[Tensor, Tensor] | None = None
            self._fresh = self._valid = torch.zeros(0, dtype=torch.bool)
        else:
            self._fresh = self._fresh | torch.as_tensor(rows, device=self._fresh.device)

    def valid(self, state: Tensor) -> Tensor:
        """(J, B) which experts' models explain the step that led to these states (B, S).

        Raises:
            ValueError: another number of rows than in the last call, without a reset.
        """
        every = torch.ones(len(self.experts), len(state), dtype=torch.bool, device=state.device)
        if self._last is None or not self.experts:
            return every
        if len(self._last[0]) != len(state):
            raise ValueError(
                f"state has {len(state)} rows, expected {len(self._last[0])} as before; call reset() first"
            )
        seen = torch.stack([expert.residual(*self._last, state) <= expert.radius for expert in self.experts])
        if self._retest == "episode":
            seen &= self._valid
        return seen | self._fresh

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions (B, A) in [-1, 1] for "state" (B, S), in the kind of the observation."""
        default = self.default.act(obs, deterministic=deterministic).value
        state = torch.as_tensor(obs["state"]).to(torch.float32)
        valid, expert = self.valid(state), torch.full((len(state),), -1, device=state.device)
        action = torch.as_tensor(default)
        if self.experts:
            mode = [e.policy.act({"state": state}, deterministic=True).value for e in self.experts]
            value = torch.stack([e.value(state, torch.as_tensor(a)) for e, a in zip(self.experts, mode)])
            expert = choose(value, valid)
            if not deterministic:
                mode = [e.policy.act({"state": state}).value for e in self.experts]
            options = torch.stack([*(torch.as_tensor(a) for a in mode), action])  # index -1 is the default
            action = options[expert, torch.arange(len(state), device=state.device)]
        self._last, self._valid = (state.clone(), action.clone()), valid
        self._fresh = torch.zeros(len(state), dtype=torch.bool, device=state.device)
        if isinstance(obs["state"], torch.Tensor):
            return Action(action, extras={"expert": expert})
        return Action(action.numpy(), extras={"expert": expert.numpy()})

    def executed(self, action: object) -> None:
        """The loop tells what was really done (B, A); the models are asked about that."""
        if self._last is not None:
            self._last = (self._last[0], torch.as_tensor(action, dtype=torch.float32, device=self._last[0].device))

    def promise(self, state: Tensor) -> Tensor:
        """(B,) pessimistic value of states (B, S) with all experts valid: min over j of Q_j(s, pi_j(s)).

        Raises:
            ValueError: there is no expert.
        """
        if not self.experts:
            raise ValueError("there is no expert to promise anything; add() one first")
        action = [torch.as_tensor(e.policy.act({"state": state}, deterministic=True).value) for e in self.experts]
        return torch.stack([e.value(state, a) for e, a in zip(self.experts, action)]).amin(0)

    def state_dict(self) -> StateDict:
        """Experts and default policy; tensors and plain values only."""
        return {"default": self.default.state_dict(), "experts": [expert.acting_state() for expert in self.experts]}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: another number of experts, or networks of other sizes.
        """
        if len(state["experts"]) != len(self.experts):
            raise ValueError(
                f"saved policy has {len(state['experts'])} experts, this one {len(self.experts)}; add() as many first"
            )
        self.default.load_state_dict(state["default"])
        for expert, saved in zip(self.experts, state["experts"]):
            expert.take(saved)
        self.reset()


def restore(io: IOSpec, state: StateDict, options: ExpertOptions | None = None, *, retest: str = "step") -> IwocsPolicy:
    """The policy that a saved state came from, ready to act.

    Args:
        io: interface that it was trained for.
        state: of `IwocsPolicy.state_dict`, the default policy being SAC's.
        options: of the experts, where their sizes are not the defaults.
        retest: see `IwocsPolicy`.

    Raises:
        ValueError: networks of other sizes.
    """
    options = options or ExpertOptions()
    policy = IwocsPolicy(io, Expert(options, io).policy, retest=retest)
    for _ in state["experts"]:
        policy.add(Expert(options, io))
    policy.load_state_dict(state)
    return policy
