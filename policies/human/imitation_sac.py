"""RLPD with imitation: behaviour-cloned start, imitation beside the RL loss, and a leash to the demonstrations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field, StrictBool, ValidationInfo, field_validator
from torch import Tensor

from robot_rl.policies.nets.imitation import CLONE_EDGE, SWITCH_WEIGHT, human_rows, imitation_loss, log_density
from robot_rl.policies.nets.learner import TdRows
from robot_rl.policies.nets.net import step
from robot_rl.policies.nets.rows import valid_rows
from robot_rl.policies.online.sac import SoftActorCritic, SoftOptions
from robot_rl.types import Metrics, Obs, StateDict, Transitions
from robot_rl.types.options import Count, NotNegative, Number, Positive, Share

Updates = Annotated[int, Field(ge=0)]
LEASH = 20.0
"""log pi_BC is cut below at minus this times A: far from the clone the leash pulls no harder."""


class ImitationSacOptions(SoftOptions):
    """Of soft actor-critic with imitation; those of SAC with other defaults, and how people's steps are used."""

    critics: Count = 4
    """Ensemble size E."""
    subset: Count | None = 2
    """How many random target critics the minimum runs over; null means all."""
    layer_norm: bool = True
    """LayerNorm in the critics."""
    utd: Count = 2
    """Critic steps per update, each on a batch of its own."""
    actor_reduce: Literal["min", "mean"] = "mean"
    """Over the critics in the actor's loss."""
    init_alpha: Positive = 0.01
    """Temperature at the start."""
    target_entropy: Number | Literal["auto", "half"] = "half"
    """A number, auto (-A) or half (-A / 2)."""
    backup_entropy: bool = False
    """Whether the target contains the entropy term."""
    normalize_obs: StrictBool | Literal["auto"] = True
    """Standardise "state" with running moments."""
    bc_steps: Updates = 1000
    """Updates of behaviour cloning before the first own step."""
    warmup_steps: Updates = 0
    """Critic steps after that with the actor fixed."""
    il_weight: NotNegative = 0.3
    """Of the imitation term beside the RL loss."""
    il_fade: Updates = 20_000
    """Updates over which it falls linearly to 0; 0 for never."""
    il_std: tuple[Positive, Positive] = (0.1, 0.3)
    """Standard deviation in imitation losses: its floor, and the largest by which what people did pulls at the mean."""
    il_edge: Annotated[float, Field(gt=0, lt=1)] = CLONE_EDGE
    """Cloned actions are clipped to 1 - il_edge."""
    il_switch_weight: NotNegative = SWITCH_WEIGHT
    """Of rows that open or close a gripper in imitation losses; all others weigh at most 1."""
    q_filter: bool = False
    """Imitate only where the critics prefer the human's action to the policy's."""
    kl_weight: NotNegative = 0.0
    """lambda of the leash to pi_BC."""
    acting_rate: Annotated[float, Field(gt=0, le=1)] = 0.002
    """The policy that acts is a running mean of the actor's weights, which takes in the newest at this rate per update,
    and is the plain mean of all while these are few; 1 acts with the newest."""
    dither: Share = 0.5
    """Share of its noise that the policy keeps where it acts alone (trials, eval, deploy). It learned with noise: its
    mean may stand still at a place that noise would have left, and search a hole worse. 0 acts by the mean."""

    @field_validator("il_std")
    @classmethod
    def check_range(cls, ends: tuple[float, float]) -> tuple[float, float]:
        """Refuse a floor above the ceiling."""
        if ends[0] > ends[1]:
            raise ValueError("the least first, such as [0.1, 0.3]")
        return ends

    @field_validator("kl_weight")
    @classmethod
    def check_leash(cls, weight: float, info: ValidationInfo) -> float:
        """Refuse a leash to a clone that is never made."""
        if weight > 0.0 and not info.data.get("bc_steps", 1):
            raise ValueError("0, or bc_steps above 0: kl_weight needs a cloned policy to stay near")
        return weight


OptionsT = TypeVar("OptionsT", bound=ImitationSacOptions)


class ImitatingActorCritic(SoftActorCritic[OptionsT]):
    """What `ImitationSac` shares with RLIF, which makes its rewards from the same record."""

    def build(self) -> None:
        """SAC's networks, the clone, and the mean weights that act."""
        super().build()
        self.clone = self.target_copy("clone", self.actor)
        self.cloned = False
        self.acting = self.actor.params.twin()
        self.policy = self.gaussian_policy(self.acting, self.actor, self.o.dither)
        self._taken = 0  # updates since the mean began
        self._extra: Metrics = {}

    def pretrain(self, batches: Iterator[Transitions], /) -> Metrics:
        """Behaviour cloning on demonstrations, of the image encoder too, then critic steps with the actor fixed.

        Args:
            batches: demonstrations and human steps.

        Returns:
            pretrain/nll of the last batch before and after.
        """
        first = last = math.nan
        for _ in range(self.o.bc_steps):
            batch = valid_rows(next(batches))
            loss = self.imitation(self.actor(self.look(batch.obs)), batch)
            step(loss, self.actor, *self.encoders)  # what pictures show is learned here first: rewards come late
            last = float(loss.detach())
            first = last if math.isnan(first) else first
        self.settle_encoders()
        if self.o.bc_steps:
            self.clone.soft_update(self.actor, 1.0)
            self.acting.blend(self.actor.params, 1.0)
            self.cloned = True
        for _ in range(self.o.warmup_steps):
            self.step_critics(self.rows(next(batches)))
        self.follow_encoders()
        return {"pretrain/nll_first": first, "pretrain/nll": last} if self.o.bc_steps else {}

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """As SAC's; then the mean of the weights takes in the newest."""
        metrics = super().update(batches)
        self._taken += 1
        # all updates count alike at first, so that what was before counts for nothing
        self.acting.blend(self.actor.params, max(self.o.acting_rate, 1.0 / self._taken))
        return {**metrics, **self._extra}

    def features_changed(self) -> None:
        """The mean of the weights begins anew: those of before read other features."""
        self._taken = 0

    @torch.no_grad()
    def values(self, obs: Obs, action: np.ndarray) -> np.ndarray:
        """(E, B) values of the target critics at observations (B, ...) and actions (B, A); for advice, not learning."""
        device = self.generator.device
        tensors = {key: torch.as_tensor(np.asarray(value)).to(device) for key, value in obs.items()}
        acted = torch.as_tensor(action).to(device, torch.float32)
        return self.head.value(self.target(self.judge(self.see(tensors, self.encoders), tensors), acted)).cpu().numpy()

    @property
    def il_weight(self) -> float:
        """Weight of the imitation term in the next update, or in the one that is being made."""
        fade = self.o.il_fade
        return self.o.il_weight * (1.0 if not fade else max(0.0, 1.0 - self.state.updates / fade))

    def entropy_cost(self, b: TdRows, action: Tensor, logp: Tensor) -> Tensor:
        """alpha log pi, and lambda (log pi - log pi_BC)."""
        cost = super().entropy_cost(b, action, logp)
        return cost + self.o.kl_weight * self.distance(b.next_state, action, logp) if self.leashed else cost

    def actor_loss(self, b: TdRows, raw: Tensor, action: Tensor, logp: Tensor, loss: Tensor) -> Tensor:
        """SAC's own, lambda (log pi - log pi_BC), and the likelihood of what people did."""
        state = b.state.detach()
        self._extra = {}  # what has faded is not told any more
        if self.leashed:
            distance = self.distance(state, action, logp)
            loss = loss + self.o.kl_weight * distance
            self._extra["train/kl"] = float(distance.detach().mean())
        weight = self.il_weight
        if weight > 0.0:
            preferred = self.prefers_recorded(b.judged.detach(), b.action, action.detach()) if self.o.q_filter else None
            imitation = self.imitation(raw, b.batch, preferred)
            loss = loss + weight * imitation
            self._extra |= {"train/il_loss": float(imitation.detach()), "train/il_weight": weight}
        return loss

    @property
    def leashed(self) -> bool:
        """Whether the leash to the clone pulls."""
        return self.o.kl_weight > 0.0 and self.cloned

    def distance(self, state: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        """(B,) log pi(a|s) - log pi_BC(a|s), whose mean over the policy's actions is KL(pi || pi_BC)."""
        with torch.no_grad():
            raw = self.clone(state)
        return logp - log_density(raw, action, min_std=0.1).clamp_min(-LEASH * self.actions)

    def imitation(self, raw: Tensor, batch: Transitions, preferred: Tensor | None = None) -> Tensor:
        """() negative log-likelihood of people's actions; with `preferred` (B,) of these rows only."""
        rows = human_rows(batch, switch_weight=self.o.il_switch_weight)
        if preferred is not None:
            rows = rows * preferred
        least, widest = self.o.il_std
        return imitation_loss(raw, batch.action, rows, min_std=least, max_std=widest, edge=self.o.il_edge)

    @torch.no_grad()
    def prefers_recorded(self, judged: Tensor, human: Tensor, own: Tensor) -> Tensor:
        """(B,) 1 where the mean critic prefers the recorded action."""
        theirs, ours = (self.head.value(self.target(judged, action)).mean(0) for action in (human, own))
        return (theirs > ours).to(judged.dtype)

    def state_dict(self) -> StateDict:
        """As SAC's, whether there is a clone, and how many updates ago the mean began."""
        return {**super().state_dict(), "cloned": self.cloned, "taken": self._taken}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place."""
        super().load_state_dict(state)
        self.cloned, self._taken = bool(state["cloned"]), state["taken"]


class ImitationSac(ImitatingActorCritic[ImitationSacOptions]):
    """Soft actor-critic on half demonstrations, with three uses of them in the loss; each can be switched off.

    - `bc_steps` of behaviour cloning before the first own step, then `warmup_steps` critic steps with a fixed actor;
    - `il_weight` times the negative log-likelihood of human actions beside the RL loss, fading over `il_fade` updates;
      the policy's own steps never count, a span's first two steps count less (`Transitions.extras["imitate"]`), steps
      that open or close a gripper count more;
    - `kl_weight` lambda: maximise the return minus lambda KL(pi || pi_BC), where pi_BC is the frozen result of the
      cloning.

    With bc_steps, il_weight and kl_weight all 0 every update equals `Sac` bit for bit. What acts is a running mean of
    the actor's weights: the newest ones shake, and one block of trials may catch them at their worst.

    Metrics: those of SAC, train/il_loss, train/il_weight, train/kl.

    Source: Ball et al., Efficient Online RL with Offline Data (RLPD); Tiapkin et al., Demonstration-Regularized RL (the
    KL term); Rajeswaran et al., DAPG (fading imitation term; where we differ: the log-likelihood is weighted per row,
    not by the advantage); Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging (the mean of the
    weights).
    """
