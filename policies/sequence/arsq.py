"""Auto-regressive soft Q-learning: actions chosen digit by digit, each digit seeing those before it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.action_codes import ActionCodes
from robot_rl.policies.nets.imitation import demonstration_mask
from robot_rl.policies.nets.initial import orthogonal
from robot_rl.policies.nets.learner import NetLearner, NetOptions, Standardised
from robot_rl.policies.nets.net import mean_rows, step
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, Metrics, Needs, Obs, PolicyParts, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Number, Positive, Whole

_INF = math.inf


class ArsqOptions(NetOptions):
    """Of ARSQ."""

    batch_size: Count = 512
    """Rows per update."""
    levels: Count = 2
    """L."""
    bins: Annotated[int, Field(ge=2)] = 7
    """B."""
    alpha: Positive = 0.01
    """Temperature, in units of return."""
    hidden: tuple[Count, ...] = (512, 512, 512)
    """Widths of the networks of V and of u."""
    layer_norm: bool = False
    """In both."""
    decay: Whole = 0
    """Updates over which the step size falls to 0 as a cosine (ours; the last iterate is a settled one); 0 keeps it."""
    tau: Mixing = 0.005
    """Polyak rate of the target of V."""
    bellman_weight: NotNegative = 1.0
    """Of the squared error of Q."""
    demo_kind: Literal["cql", "margin", "none"] = "cql"
    """Which term pulls demonstrated digits above the others."""
    demo_weight: NotNegative = 2.0
    """Of that term."""
    demo_low: Number | None = None
    """A digit's term is not pushed below this: -1 pushes until the demonstrated bin leads by 1, 0 until it ties; null:
    without end, which lets values drift on noisy logs."""
    demo_high: Number | None = None
    """No gradient where the term is above this; null for no limit."""
    demo_temperature: Positive = 1.0
    """Of the logsumexp of "cql"."""
    normalize: bool = True
    """Standardise states by the data's moments."""


class Arsq(Standardised, NetLearner[ArsqOptions]):
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

    method = "ARSQ"

    def __init__(self, options: ArsqOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights and of actions.
            device: torch device.

        Raises:
            ValueError: images, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        o, size = options, state_size(io, self.method)
        self.codes, self.digits = ActionCodes(o.levels, o.bins), o.levels * self.actions
        self.norm = FixedNorm(size, device=device) if o.normalize else None
        wide = {"members": 2, "layer_norm": o.layer_norm, "decay": o.decay, "draw": orthogonal}
        self.value = self.net("value", size, **wide)
        self.advantage = self.net("advantage", size + self.actions, o.bins * self.digits, **wide)
        self.target = self.target_copy("target", self.value)
        self.policy = ArsqPolicy(self, seed + 1)
        self.state.include({"policy": self.policy, "norm": self.norm})

    @classmethod
    def needs(cls, options: ArsqOptions, io: IOSpec) -> Needs:
        """Rows, and a column that only logs have: all their rows are demonstrations."""
        return Needs(rows=options.batch_size, extras=("step",))

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of V and u on one batch.

        Returns:
            The latest metrics: train/q, train/target, train/bellman_loss, train/demo_loss, train/demo_rows (share),
            train/entropy (of a digit, nats).

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        o, batch = self.o, next(batches)
        rows = split(batch, 1, self.norm)  # other rows stand in for those that are masked out
        demo = demonstration_mask(batch) * batch.mask
        state = rows.state[0]
        with torch.no_grad():
            target = rows.reward[0] + rows.discount[0] * self.target(rows.next_state[0]).amin(0)
        code = self.codes.encode(rows.action[0])
        digit = code.flatten(1)
        gain = normalise(self.raw(state, self.codes.contexts(code)), o.alpha)  # (2, B, N, bins)
        q = self.value(state) + gain.gather(-1, digit[None, ..., None].expand(2, -1, -1, 1))[..., 0].sum(-1)
        bellman_loss = o.bellman_weight * mean_rows((q - target).square())
        demo_loss = gain.new_zeros(())
        if o.demo_kind != "none" and bool(demo.any()):
            low, high = (edge if limit is None else limit for limit, edge in ((o.demo_low, -_INF), (o.demo_high, _INF)))
            per_row = demo_term(gain, digit, o.demo_kind, low, high, o.demo_temperature)
            demo_loss = o.demo_weight * ((per_row * demo).sum(1) / demo.sum()).sum()
        step(bellman_loss + demo_loss, self.advantage, self.value)
        self.target.soft_update(self.value, o.tau)
        log_policy = gain.detach() / o.alpha
        return self.metrics(
            q=q,
            target=target,
            bellman_loss=bellman_loss,
            demo_loss=demo_loss,
            demo_rows=demo,
            entropy=-(log_policy.exp() * log_policy).sum(-1),
        )

    def raw(self, state: Tensor, contexts: Tensor) -> Tensor:
        """(2, B, N, bins): u_n of every digit, state (B, S), contexts (B, N, D)."""
        rows, digits = contexts.shape[:2]
        x = torch.cat([state[:, None].expand(-1, digits, -1), contexts], -1).flatten(0, 1)
        out = self.advantage(x).view(2, rows, digits, digits, self.codes.bins)
        return out.diagonal(dim1=2, dim2=3).transpose(-1, -2)  # only slot n of the pass with context n is read

    @torch.no_grad()
    def choose(self, state: Tensor, generator: torch.Generator | None) -> Tensor:
        """(B, A): digit by digit, from the smaller of the two advantages; the largest without a generator."""
        rows, dims = len(state), self.io.action_dim
        code = torch.zeros(rows, self.codes.levels, dims, dtype=torch.int64, device=state.device)
        for n in range(self.digits):
            level, dim = divmod(n, dims)
            fine, coarse = self.codes.decode(code[:, : level + 1]), self.codes.decode(code[:, :level])
            known = torch.arange(dims, device=state.device) < dim
            x = torch.cat([state, torch.where(known, fine, coarse)], 1)
            slot = self.advantage(x).view(2, rows, self.digits, -1)[:, :, n]
            gain = normalise(slot, self.o.alpha).amin(0)
            if generator is None:
                code[:, level, dim] = gain.argmax(-1)
            else:
                p = (gain / self.o.alpha).softmax(-1)
                code[:, level, dim] = torch.multinomial(p, 1, generator=generator)[:, 0]
        return self.codes.decode(code)


class ArsqPolicy(Saved):
    """Chooses digit by digit; shares the learner's parameters."""

    parts = PolicyParts()

    def __init__(self, learner: Arsq, seed: int) -> None:
        self.io, self._learner = learner.io, learner
        self._generator = torch.Generator(device=learner.generator.device).manual_seed(seed)

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget: the policy has no memory."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, S) -> (B, A) in [-1, 1], samples of the soft policy or its digits' largest."""
        own, given = self._learner, obs["state"]
        state = own.see(torch.as_tensor(given).to(self._generator.device, torch.float32))
        action = own.choose(state, None if deterministic else self._generator)
        return Action(action.cpu().numpy() if isinstance(given, np.ndarray) else action)

    def saved_parts(self) -> dict[str, object]:
        """Weights, generator, and moments, where there are some."""
        own = self._learner
        return {"advantage": own.advantage.params.flat, "generator": self._generator, "norm": own.norm}

    def after_load(self) -> None:
        """Take over the new weights."""
        self._learner.advantage.kernel.refresh()


def normalise(raw: Tensor, alpha: float) -> Tensor:
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
