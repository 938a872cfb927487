"""Auto-regressive soft Q-learning: actions chosen digit by digit, each digit seeing those before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.action_codes import ActionCodes
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.imitation import demonstrated
from robot_rl.policies.nets.initial import orthogonal
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.types import Action, IOSpec, Learner, LogFacts, Metrics, Obs, Transitions
from robot_rl.types.options import Bins, Count, Mixing, NotNegative, Number, Positive, Rate, Whole

KINDS = ("cql", "margin", "none")


class Arsq(Learner):
    """Soft Q-learning over codes from coarse to fine.

    An action is L levels of D digits. Digit n has raw advantages u_n (B bins) given the state and the digits before it,
    A_n = u_n - alpha logsumexp(u_n / alpha), Q(s, a) = V(s) + sum_n A_n[digit]. exp(A_n / alpha) is the policy of digit
    n, so that V is exactly the soft value of Q and no next action has to be drawn. Dimensions are not chosen apart from
    each other: of two ways of acting, each is kept whole.

    Demonstrations (all rows of a log; else the second part of a mix and what a person drove) also pull their digits
    above the others, "cql" or "margin".

    Source: Liu et al., Learning from Suboptimal Data in Continuous Control via Auto-Regressive Soft Q-Network (code as
    vendored in mihir-chauhan/CQN-AS-Franka). Where we differ: ReLU for tanh; integer intervals; no relabelling of
    successful online episodes as demonstrations.
    """

    consumes = "transitions"
    reads = ("step",)  # a column that only logs have: all their rows are demonstrations
    method = "ARSQ"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 512,
        levels: Count = 2,
        bins: Bins = 7,
        alpha: NotNegative = 0.01,
        hidden: tuple[Count, ...] = (512, 512, 512),
        layer_norm: bool = False,
        lr: Rate = 3e-4,
        decay: Whole = 0,
        tau: Mixing = 0.005,
        bellman_weight: NotNegative = 1.0,
        demo_kind: str = "cql",
        demo_weight: NotNegative = 2.0,
        demo_low: Number | None = None,
        demo_high: Number | None = None,
        demo_temperature: Positive = 1.0,
        normalize: bool = True,
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and of actions.
            device: torch device.
            gamma: discount per control step; the data's `discount` is what is used.
            batch_size: rows per update.
            levels: L.
            bins: B.
            alpha: temperature, in units of return.
            hidden: widths of the networks of V and of u.
            layer_norm: in both.
            lr: step size.
            decay: updates over which it falls to 0 as a cosine (ours; the last iterate is a settled one); 0 keeps it.
            tau: Polyak rate of the target of V.
            bellman_weight: of the squared error of Q.
            demo_kind: "cql", "margin" or "none".
            demo_weight: of that term.
            demo_low: a digit's term is not pushed below this: -1 pushes until the demonstrated bin leads by 1, 0 until
                it ties; None = without end, which lets values drift on noisy logs.
            demo_high: no gradient where the term is above this; None = no limit.
            demo_temperature: of the logsumexp of "cql".
            normalize: standardise states by the data's moments.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if demo_kind not in KINDS:
            raise ValueError(f"demo_kind is '{demo_kind}', expected one of {', '.join(KINDS)}")
        if decay < 0:
            raise ValueError(f"decay is {decay}, expected a number of updates, or 0 for none")
        if alpha <= 0 or demo_temperature <= 0:
            raise ValueError(f"alpha, demo_temperature are {alpha}, {demo_temperature}; expected above 0")
        size, actions = state_size(io, self.method), io.action_dim
        self.io, self.batch_size, self.alpha = io, batch_size, alpha
        self.codes, self._digits = ActionCodes(levels, bins), levels * actions
        self._lr, self._decay, self._tau, self._bellman = lr, decay, tau, bellman_weight
        self._kind, self._weight, self._temperature = demo_kind, demo_weight, demo_temperature
        self._low = -float("inf") if demo_low is None else demo_low
        self._high = float("inf") if demo_high is None else demo_high
        generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        value = MlpShape(2, size, tuple(hidden), 1, layer_norm, "value.")
        advantage = MlpShape(2, size + actions, tuple(hidden), bins * self._digits, layer_norm, "advantage.")
        self._value_params, self._params = (FlatParams(x.shapes(), device=device) for x in (value, advantage))
        orthogonal(value, self._value_params, generator)
        orthogonal(advantage, self._params, generator)
        self._target_params = self._value_params.twin()
        self._value = build_mlp(value, self._value_params, matmul="float32")
        self._target = build_mlp(value, self._target_params, matmul="float32")
        self._advantage = build_mlp(advantage, self._params, matmul="float32")
        self.policy = ArsqPolicy(self, seed + 1)
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                "value": self._value_params,
                "target": self._target_params,
                "advantage": self._params,
                "policy": self.policy,
                **({} if self.norm is None else {"norm": self.norm}),
            },
            networks=(self._value, self._target, self._advantage),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update on a log."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self._state.bound = facts.return_bound

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of V and u on one batch.

        Returns:
            The latest metrics: train/q, train/target, train/bellman_loss, train/demo_loss, train/demo_rows (share),
            train/entropy (of a digit, nats).

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        wanted = self._state.tick()
        batch = next(batches)
        demo = demonstrated(batch)
        rows = split(batch, 1, self.norm)
        state, after = rows.state[0], rows.next_state[0]
        with torch.no_grad():
            ahead = self._target.forward(after)[..., 0].amin(0)
            target = rows.reward[0] + rows.discount[0] * ahead
            code = self.codes.encode(rows.action[0])
            value = self._value.forward(state)[..., 0]
            raw = self.raw(state, self.codes.contexts(code))
        raw.requires_grad_(True)
        digit = code.flatten(1)
        gain = normalised(raw, self.alpha)  # (2, B, N, bins)
        chosen = gain.gather(-1, digit[None, ..., None].expand(2, -1, -1, 1))[..., 0]
        error = value + chosen.sum(-1) - target
        bellman = self._bellman * error.square().mean(1).sum()
        imitation = raw.new_zeros(())
        if self._kind != "none" and bool(demo.any()):
            per_row = demo_term(gain, digit, self._kind, self._low, self._high, self._temperature)
            imitation = self._weight * ((per_row * demo).sum(1) / demo.sum()).sum()
        (d_raw,) = torch.autograd.grad(bellman + imitation, raw)
        self._step(d_raw, 2.0 * self._bellman * error.detach() / len(state))
        if not wanted:
            return self._state.report(None)
        log_policy = gain.detach() / self.alpha
        return self._state.report(
            {
                "q": (value + chosen.detach().sum(-1)).mean(),
                "target": target.mean(),
                "bellman_loss": bellman.detach(),
                "demo_loss": imitation.detach(),
                "demo_rows": demo.mean(),
                "entropy": -(log_policy.exp() * log_policy).sum(-1).mean(),
            }
        )

    @torch.no_grad()
    def _step(self, d_raw: Tensor, d_value: Tensor) -> None:
        bins, digits = self.codes.bins, self._digits
        d = d_raw.new_zeros(2, d_raw.shape[1], digits, digits, bins)
        d.diagonal(dim1=2, dim2=3).copy_(d_raw.transpose(-1, -2))  # only slot n of the pass with context n is read
        self._advantage.backward(d.view(2, -1, digits * bins))
        rate = self._state.falling(self._lr, self._decay)
        self._params.adam(rate)
        self._advantage.refresh()
        self._value.backward(d_value[..., None])
        self._value_params.adam(rate)
        self._value.refresh()
        self._target_params.blend(self._value_params, self._tau)
        self._target.refresh()

    @torch.no_grad()
    def raw(self, state: Tensor, contexts: Tensor) -> Tensor:
        """(2, B, N, bins): u_n of every digit, state (B, S), contexts (B, N, D)."""
        rows, digits = contexts.shape[:2]
        x = torch.cat([state[:, None].expand(-1, digits, -1), contexts], -1).flatten(0, 1)
        out = self._advantage.forward(x).view(2, rows, digits, digits, self.codes.bins)
        return out.diagonal(dim1=2, dim2=3).transpose(-1, -2).contiguous()

    @torch.no_grad()
    def choose(self, state: Tensor, generator: torch.Generator | None) -> Tensor:
        """(B, A): digit by digit, from the smaller of the two advantages; the largest without a generator."""
        rows, dims = len(state), self.io.action_dim
        code = torch.zeros(rows, self.codes.levels, dims, dtype=torch.int64, device=state.device)
        for n in range(self._digits):
            level, dim = divmod(n, dims)
            fine, coarse = self.codes.decode(code[:, : level + 1]), self.codes.decode(code[:, :level])
            known = torch.arange(dims, device=state.device) < dim
            x = torch.cat([state, torch.where(known, fine, coarse)], 1)
            slot = self._advantage.forward(x).view(2, rows, self._digits, -1)[:, :, n]
            gain = normalised(slot, self.alpha).amin(0)
            if generator is None:
                code[:, level, dim] = gain.argmax(-1)
            else:
                p = (gain / self.alpha).softmax(-1)
                code[:, level, dim] = torch.multinomial(p, 1, generator=generator)[:, 0]
        return self.codes.decode(code)

    def seen(self, state: Tensor) -> Tensor:
        """Normalised state."""
        return state if self.norm is None else self.norm(state)

    def state_dict(self) -> dict[str, Any]:
        """Weights, target, optimisers, generator and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)


class ArsqPolicy:
    """Chooses digit by digit; shares the learner's parameters."""

    def __init__(self, learner: Arsq, seed: int) -> None:
        self.io, self._learner = learner.io, learner
        self._generator = torch.Generator(device=learner._params.flat.device).manual_seed(seed)

    def reset(self, rows: Any = None) -> None:
        """Nothing to forget: the policy has no memory."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, S) -> (B, A) in [-1, 1], samples of the soft policy or its digits' largest."""
        own, given = self._learner, obs["state"]
        state = own.seen(torch.as_tensor(given).to(self._generator.device, torch.float32))
        action = own.choose(state, None if deterministic else self._generator)
        return Action(action.cpu().numpy() if isinstance(given, np.ndarray) else action)

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments and generator."""
        own = self._learner
        state: dict[str, Any] = {
            "advantage": own._params.flat.detach().clone(),
            "generator": self._generator.get_state(),
        }
        return state if own.norm is None else {**state, "norm": own.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a policy of other sizes.
        """
        own = self._learner
        if "advantage" not in state or state["advantage"].shape != own._params.flat.shape:
            raise ValueError(f"the saved policy is not one of {own._params.flat.numel()} parameters; build it alike")
        with torch.no_grad():
            own._params.flat.copy_(state["advantage"])
        self._generator.set_state(state["generator"].cpu())
        if own.norm is not None:
            own.norm.load_state_dict(state["norm"])
        own._advantage.refresh()


def normalised(raw: Tensor, alpha: float) -> Tensor:
    """A = u - alpha logsumexp(u / alpha) over the last axis: sum exp(A / alpha) = 1, whatever the size of u / alpha.

    The largest u is taken off first: at u = 300, alpha = 0.01 float32 would leave the sum off by 0.2 %.
    """
    below = raw - raw.detach().amax(-1, keepdim=True)
    return below - alpha * torch.logsumexp(below / alpha, dim=-1, keepdim=True)


def demo_term(gain: Tensor, digit: Tensor, kind: str, low: float, high: float, temperature: float) -> Tensor:
    """(E, B): by how much other bins lead the demonstrated ones, clamped per digit, summed over digits.

    "cql": T logsumexp_{b != b*}(A_b / T) - A_{b*}; "margin": mean over the other bins of A_b - A_{b*}, each clamped.

    Args:
        gain: (E, B, N, bins) advantages.
        digit: (B, N) demonstrated bins b*.
        kind: "cql" or "margin".
        low: lower clamp: no gradient once the demonstrated bin leads by -low.
        high: upper clamp.
        temperature: T.
    """
    index = digit[None, ..., None].expand(len(gain), -1, -1, 1)
    shown = gain.gather(-1, index)
    if kind == "cql":
        others = gain.scatter(-1, index, -float("inf")) / temperature
        lead = temperature * torch.logsumexp(others, -1) - shown[..., 0]
        return lead.clamp(low, high).sum(-1)
    lead = (gain - shown).clamp(low, high).scatter(-1, index, 0.0)
    return (lead.sum(-1) / (gain.shape[-1] - 1)).sum(-1)
