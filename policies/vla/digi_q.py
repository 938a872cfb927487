"""Digi-Q: values on frozen features of pictures and sentence, and a policy that imitates the best of its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, chunk_rows, critic_action, critic_width
from robot_rl.policies.nets.flow import ChunkFlow
from robot_rl.policies.nets.learner import NetLearner, NetOptions
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import as_windows, beyond_the_end
from robot_rl.policies.vla.frozen import FrozenReader, Sight
from robot_rl.policies.vla.interface import PROPRIO
from robot_rl.state import set_generator
from robot_rl.types import IOSpec, LogFacts, Metrics, Needs, Obs, StateDict, Transitions
from robot_rl.types.options import Count, Mixing, Positive, Share, Whole


def best_candidate(
    q: Tensor, value: Tensor, *, scale: float = 1.0, threshold: float = 0.05
) -> tuple[Tensor, Tensor, Tensor]:
    """Which candidate is imitated in each state, and whether.

    A = clip((Q - V) / scale, 0, 1); the candidate with the largest Q is imitated with weight 1 where its A exceeds the
    threshold. A candidate whose Q is NaN (it could not be read) has advantage 0.

    Args:
        q: (B, N) values of N candidates.
        value: (B,).
        scale: of the values; 1 where returns lie in [0, 1].
        threshold: of the advantage.

    Returns:
        (B,) index of the candidate; (B,) bool, imitated or not; (B,) its advantage.

    Source: Bai et al., Digi-Q: Learning VLM Q-Value Functions for Training Device-Control Agents (policy extraction).
    """
    readable = torch.where(torch.isnan(q), torch.full_like(q, -torch.inf), q)
    best = readable.argmax(dim=1)
    top = readable.gather(1, best[:, None])[:, 0]
    advantage = ((top - value) / scale).clamp(0.0, 1.0)
    return best, advantage > threshold, advantage


class DigiQOptions(NetOptions):
    """Of Digi-Q."""

    reader: Mapping[str, object] | None = None
    """What the features come from, see `FrozenReader`; null: the small backbone with random weights."""
    cameras: tuple[str, ...] | None = None
    """Names of the pictures; null = all."""
    proprio: tuple[str, ...] = PROPRIO
    """Components of "state" beside the features, see `VlaImitation`."""
    horizon: Count = 4
    """Actions of a decision, all executed; 1 is the method on single actions."""
    layer_norm: bool = True
    """In Q and V."""
    candidates: Annotated[int, Field(ge=2)] = 16
    """N: the data's own chunk, and samples of the clone."""
    aggregate: Literal["min", "max"] = "min"
    """Of the twins of Q and of V; max as in the release."""
    threshold: Share = 0.05
    """Advantage above which the best candidate is imitated; .05 or .1 in the source."""
    value_scale: Positive | None = None
    """What advantages are divided by; null: the largest return that the log's rewards allow, so that the threshold
    means the same whatever the rewards are."""
    clone_updates: Whole = 1000
    """Updates before the extraction begins."""
    acts: Literal["best", "clone"] = "best"
    """best (the method), or clone (only the clone is trained and acts, for comparison)."""
    flow_steps: Count = 10
    """Euler steps."""
    decay_updates: Whole = 0
    """Updates at which a cosine brings the step size to 0; 0 keeps it."""
    tau: Mixing = 0.005
    """Rate at which targets follow."""


class DigiQ(NetLearner[DigiQOptions]):
    """Q and V by temporal differences on frozen features, a policy by best-of-N.

    Twin k of Q regresses on r + discount V'_k(s'), twin k of V on Q'_k(s, a) of the data's chunk: the value of what the
    log does, learned without a single action from outside it. A flow clones the log's chunks. The policy, a second flow
    that begins as that clone, imitates in each state the best of N candidates (N - 1 samples of the clone and the
    data's own chunk) where it is better than V by a threshold.

    Metrics: train/q, train/value, train/critic_loss, train/value_loss, train/clone_loss, train/policy_loss;
    train/chosen, share of states in which a candidate is imitated; train/advantage, of the best candidates;
    train/data_best, share of states in which the data's own chunk is the best.

    Source: Bai et al., Digi-Q (DigiRL-agent/digiq): losses, candidates with the data's action among them, clipped
    advantage. Where we differ: the smaller twin instead of the larger (`aggregate=max` is the release); truncation
    bootstraps; candidates are drawn afresh in each update; chunks instead of text; targets follow in each update.

    Attributes:
        clone, actor: the two flows.
    """

    method = "Digi-Q"

    def __init__(self, options: DigiQOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: pictures, "state" and "instruction".
            seed: of initial weights, noise and candidates.
            device: torch device.

        Raises:
            ValueError: something that `io` lacks.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.reader = FrozenReader(io, options.reader or {"kind": "tiny"}, cameras=options.cameras, device=device)
        self.columns = Sight(io, (), options.proprio).columns
        self.build()
        lengths = Horizons(options.horizon, options.horizon, options.horizon)
        self.policy = ChunkedPolicy(io, _Planner(self, seed + 1), Execution(lengths, self.actions, mode="open"))
        self.state.include({"policy": self.policy})

    @classmethod
    def needs(cls, options: DigiQOptions, io: IOSpec) -> Needs:
        """Windows with "state" beside "features"; pictures are not read again."""
        return Needs(rows=options.batch_size, window=options.horizon, keys=("state",))

    def build(self) -> None:
        """Twins of Q and V with targets, the clone and the policy."""
        o, actions = self.o, self.actions
        size, flat, decay = len(self.columns) + self.reader.width, o.horizon * actions, o.decay_updates
        self.norm = FixedNorm(size, device=self.generator.device)
        twins: dict[str, Any] = {"members": 2, "layer_norm": o.layer_norm, "decay": decay}
        self.critic = self.net("critic", size + critic_width(o.horizon, actions), **twins)
        self.value = self.net("value", size, **twins)
        self.flows = {name: self.net(name, size + flat + 1, flat, decay=decay) for name in ("clone", "actor")}
        self.flows["actor"].soft_update(self.flows["clone"], 1.0)
        self.critic_target = self.target_copy("target_critic", self.critic)
        self.value_target = self.target_copy("target_value", self.value)
        self.clone, self.actor = (ChunkFlow(net, o.horizon, actions, steps=o.flow_steps) for net in self.flows.values())
        self._scale = torch.ones((), dtype=torch.float64)
        self.state.include({"scale": self._scale})

    def prepare(self, facts: LogFacts) -> None:
        """Take over the moments of state and features, and the size of returns; before the first update.

        Raises:
            ValueError: the log was read without the features.
        """
        if "features" not in facts.derived:
            raise ValueError("this learner reads features of a log: train it with robot-rl offline")
        mean, std = facts.derived["features"]
        self.norm.set(
            np.concatenate([facts.state_mean[self.columns], mean]), np.concatenate([facts.state_std[self.columns], std])
        )
        self.state.bound = facts.return_bound
        ends = [abs(x) for x in (facts.return_low, facts.return_high) if np.isfinite(x)]
        self._scale.fill_(self.o.value_scale or max(min([facts.return_bound, max(ends, default=np.inf)]), 1e-6))

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of clone, V, Q, and behind `clone_updates` of the policy, on one batch of windows.

        Raises:
            ValueError: windows of another length, or no features.
        """
        rows = chunk_rows(as_windows(next(batches), self.o.horizon))
        state, after = self._rows(rows.obs), self._rows(rows.next_obs)
        clone_loss = self.clone.clone_loss(state, rows.action, rows.mask, self.generator)
        self.flows["clone"].step(clone_loss)
        if self.o.acts == "clone":
            return self.metrics(clone_loss=clone_loss)
        code = critic_action(*beyond_the_end(rows, self.generator))
        with torch.no_grad():
            v_target = self.critic_target(state, code)
            q_target = rows.reward + rows.discount * self.value_target(after)
        value, q = self.value(state), self.critic(state, code)
        value_loss, critic_loss = (value - v_target).square(), (q - q_target).square()
        self.value.step(mean_rows(value_loss))
        self.critic.step(mean_rows(critic_loss))
        found = self._extract(state, code, rows) if self.next_update > self.o.clone_updates else {}
        self.critic_target.soft_update(self.critic, self.o.tau)
        self.value_target.soft_update(self.value, self.o.tau)
        losses = {"critic_loss": critic_loss, "value_loss": value_loss, "clone_loss": clone_loss}
        return self.metrics(q=q, value=value, **losses, **found)

    def _rows(self, obs: Obs) -> Tensor:
        """(B, P + D) normalised own state and features."""
        if "features" not in obs:
            raise ValueError(f"the batch has {sorted(obs)} and no 'features': train with robot-rl offline")
        state = torch.as_tensor(obs["state"])[:, self.columns].float()
        return self.norm(torch.cat([state, torch.as_tensor(obs["features"]).float()], dim=1))

    def _extract(self, state: Tensor, code: Tensor, rows: Transitions) -> dict[str, Tensor]:
        """One step of the policy towards the best candidates."""
        o, count = self.o, self.o.candidates
        if self.next_update == o.clone_updates + 1:  # the policy begins as the clone
            self.flows["actor"].soft_update(self.flows["clone"], 1.0)
        many = state.repeat_interleave(count - 1, dim=0)
        drawn = self.clone.sample(many, self.clone.noise(len(many), self.generator))
        drawn = drawn.view(len(state), count - 1, o.horizon, -1)
        codes = torch.cat([critic_action(drawn), code[:, None]], dim=1)
        with torch.no_grad():
            q = self.critic(state.repeat_interleave(count, dim=0), codes.flatten(0, 1)).view(2, -1, count)
            q, value = (x.amin(0) if o.aggregate == "min" else x.amax(0) for x in (q, self.value(state)))
        best, chosen, advantage = best_candidate(q, value, scale=float(self._scale), threshold=o.threshold)
        every = torch.cat([drawn, rows.action[:, None]], dim=1)
        pick = torch.arange(len(best), device=best.device)
        own = best == count - 1
        mask = torch.where(own[:, None], rows.mask, torch.ones_like(rows.mask)) & chosen[:, None]
        loss = self.actor.clone_loss(state, every[pick, best] * mask[..., None], mask, self.generator)
        if bool(chosen.any()):  # Adam would move on by its momentum alone
            self.flows["actor"].step(loss)
        return {"policy_loss": loss, "chosen": chosen, "advantage": advantage, "data_best": own}

    def acting(self) -> ChunkFlow:
        """What acts now: the policy once the extraction has begun, else the clone."""
        return self.actor if self.o.acts == "best" and self.state.updates > self.o.clone_updates else self.clone


class _Planner:
    """The acting half; shares the learner's parameters, and reads the pictures itself. The mode starts from zero noise,
    as the flow head of `policies.nets.vla_heads` does: a sample repeats the noise of the log and the roughness of the
    fit at every decision, and a hand that has to close around a block has no room for either."""

    def __init__(self, learner: DigiQ, seed: int) -> None:
        self._own = learner
        self._noise = torch.Generator(device=learner.generator.device).manual_seed(seed)

    @torch.no_grad()
    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """The mode of what acts, or a sample of it."""
        own = self._own
        device = own.generator.device
        state = torch.as_tensor(obs["state"]).to(device, torch.float32)[:, own.columns]
        seen = own.norm(torch.cat([state, own.reader.tensor(obs).to(device)], dim=1))
        flow = own.acting()
        start = flow.noise(len(seen), self._noise) if not deterministic else seen.new_zeros(len(seen), flow.width)
        chunk = flow.sample(seen, start)
        return Plan(chunk.view(len(chunk), own.o.horizon, -1))

    def state_dict(self) -> StateDict:
        """Weights of both flows, which of them acts, moments, noise, and the digest of the frozen reader."""
        own = self._own
        return {
            **{name: net.params.flat.detach().clone() for name, net in own.flows.items()},
            "updates": torch.tensor(own.state.updates),
            "norm": own.norm.state_dict(),
            "reader": torch.tensor(list(bytes.fromhex(own.reader.digest)), dtype=torch.uint8),
            "noise": self._noise.get_state(),
        }

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: a policy of other sizes, or one on other features.
        """
        own = self._own
        for name, net in own.flows.items():
            if name not in state or state[name].shape != net.params.flat.shape:
                raise ValueError(f"the saved policy lacks a '{name}' of this size; give the options of its training")
        saved = bytes(torch.as_tensor(state["reader"]).cpu().tolist()).hex()
        if saved != own.reader.digest:
            raise ValueError(
                f"the policy was trained on features of another reader (digest {saved[:12]}) than the one at hand "
                f"({own.reader.digest[:12]}): its weights, cameras or kind changed; give policy.reader as in training"
            )
        with torch.no_grad():
            for name, net in own.flows.items():
                net.params.flat.copy_(state[name])
                net.kernel.refresh()
        own.state.updates = int(state["updates"])
        own.norm.load_state_dict(state["norm"])
        set_generator(self._noise, state["noise"])
