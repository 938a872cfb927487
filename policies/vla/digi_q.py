"""Digi-Q: values on frozen features of pictures and sentence, and a policy that imitates the best of its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, chunk_rows, critic_action, critic_width
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.flow import ChunkFlow
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import beyond_the_end, windowed
from robot_rl.policies.vla.frozen import PROPRIO, FrozenReader, Sight
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Obs, Transitions
from robot_rl.types.options import Count, Mixing, Positive, Rate, Share, Whole

AGGREGATES = ("min", "max")
ACTS = ("best", "clone")


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


class DigiQ(Learner):
    """Q and V by temporal differences on frozen features, a policy by best-of-N.

    Twin k of Q regresses on r + discount V'_k(s'), twin k of V on Q'_k(s, a) of the data's chunk: the value of what the
    log does, learned without a single action from outside it. A flow clones the log's chunks. The policy, a second flow
    that begins as that clone, imitates in each state the best of N candidates (N - 1 samples of the clone and the
    data's own chunk) where it is better than V by a threshold.

    Source: Bai et al., Digi-Q (DigiRL-agent/digiq): losses, candidates with the data's action among them, clipped
    advantage. Where we differ: the smaller twin instead of the larger (`aggregate=max` is the release); truncation
    bootstraps; candidates are drawn afresh in each update; chunks instead of text; targets follow in each update.
    """

    consumes = "transitions"
    method = "Digi-Q"
    keys = ("state",)
    """What batches hold of the log beside "features"; pictures are not read again."""

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        reader: Mapping[str, Any] | None = None,
        cameras: Sequence[str] | None = None,
        proprio: Sequence[str] = PROPRIO,
        horizon: Count = 4,
        hidden: Sequence[Count] = (256, 256),
        layer_norm: bool = True,
        candidates: Count = 16,
        aggregate: str = "min",
        threshold: Share = 0.05,
        value_scale: Positive | None = None,
        clone_updates: Whole = 1000,
        acts: str = "best",
        flow_steps: Count = 10,
        lr: Rate = 3e-4,
        decay_updates: Whole = 0,
        tau: Mixing = 0.005,
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: pictures, "state" and "instruction".
            seed: of initial weights, noise and candidates.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: windows per update.
            reader: what the features come from, see `FrozenReader`; None: the small backbone with random weights.
            cameras: names of the pictures; None = all.
            proprio: components of "state" beside the features, see `VlaImitation`.
            horizon: actions of a decision, all executed; 1 is the method on single actions.
            hidden: widths of all networks.
            layer_norm: in Q and V.
            candidates: N.
            aggregate: of the twins of Q and of V: "min", or "max" as in the release.
            threshold: advantage above which the best candidate is imitated; .05 or .1 in the source.
            value_scale: what advantages are divided by; None: the largest return that the log's rewards allow, so that
                the threshold means the same whatever the rewards are.
            clone_updates: updates before the extraction begins.
            acts: "best" (the method), or "clone" (only the clone is trained and acts, for comparison).
            flow_steps: Euler steps.
            lr: step size of everything.
            decay_updates: updates at which a cosine brings it to 0; 0 keeps it.
            tau: rate at which targets follow.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range, or something that `io` lacks.
        """
        if aggregate not in AGGREGATES or acts not in ACTS:
            raise ValueError(f"aggregate, acts are '{aggregate}', '{acts}'; expected one of {AGGREGATES}, of {ACTS}")
        if candidates < 2 or batch_size < 1 or clone_updates < 0:
            raise ValueError(
                f"candidates, batch_size, clone_updates are {candidates}, {batch_size}, {clone_updates}; expected at "
                "least 2 (the data's own and a sample), 1 and 0"
            )
        if value_scale is not None and value_scale <= 0:
            raise ValueError(f"value_scale is {value_scale}, expected a number above 0, or null")
        self.io, self.batch_size, self.window = io, batch_size, horizon
        self.reader = FrozenReader(io, reader or {"kind": "tiny"}, cameras=cameras, device=device)
        self.columns = Sight(io, (), proprio).columns
        self._options = (candidates, aggregate, threshold, clone_updates)
        self._acts, self._rate, self._tau, self._wanted_scale = acts, (lr, decay_updates), tau, value_scale
        self._generator = torch.Generator(device=device).manual_seed(seed)
        size, actions = len(self.columns) + self.reader.width, io.action_dim
        flat = horizon * actions
        self.norm = FixedNorm(size, device=device)
        wide, widths = critic_width(horizon, actions), tuple(hidden)
        shapes = {
            "critic": MlpShape(2, size + wide, widths, 1, layer_norm, "critic."),
            "value": MlpShape(2, size, widths, 1, layer_norm, "value."),
            "clone": MlpShape(1, size + flat + 1, widths, flat, False, "flow."),
            "actor": MlpShape(1, size + flat + 1, widths, flat, False, "flow."),
        }
        self._params = {name: FlatParams(shape.shapes(), device=device) for name, shape in shapes.items()}
        for name, shape in shapes.items():
            shape.initialise(self._params[name], self._generator)
        self._params["actor"].flat.copy_(self._params["clone"].flat)
        self._target_params = {name: self._params[name].twin() for name in ("critic", "value")}
        self._net = {name: build_mlp(shape, self._params[name], matmul="float32") for name, shape in shapes.items()}
        self._target = {
            name: build_mlp(shapes[name], params, matmul="float32") for name, params in self._target_params.items()
        }
        self.clone = ChunkFlow(self._net["clone"], horizon, actions, steps=flow_steps)
        self.actor = ChunkFlow(self._net["actor"], horizon, actions, steps=flow_steps)
        self._scale = torch.ones((), dtype=torch.float64)
        lengths = Horizons(horizon, horizon, horizon)
        self.policy = ChunkedPolicy(io, _Planner(self, seed + 1), Execution(lengths, actions, mode="open"))
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                **self._params,
                **{f"target_{name}": params for name, params in self._target_params.items()},
                "policy": self.policy,
                "generator": self._generator,
            },
            networks=(*self._net.values(), *self._target.values()),
        )

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
        self._state.bound = facts.return_bound
        ends = [abs(x) for x in (facts.return_low, facts.return_high) if np.isfinite(x)]
        self._scale.fill_(self._wanted_scale or max(min([facts.return_bound, max(ends, default=np.inf)]), 1e-6))

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of clone, V, Q, and behind `clone_updates` of the policy, on one batch of windows.

        Returns:
            The latest metrics: train/q, train/value, train/critic_loss, train/value_loss, train/clone_loss,
            train/policy_loss; train/chosen, share of states in which a candidate is imitated; train/advantage, of the
            best candidates; train/data_best, share of states in which the data's own chunk is the best.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
            ValueError: windows of another length, or no features.
        """
        wanted = self._state.tick()
        rows = chunk_rows(windowed(next(batches), self.window))
        state, after = self._rows(rows.obs), self._rows(rows.next_obs)
        clone = self.clone.clone_grad(state, rows.action, rows.mask, self._generator)
        self._params["clone"].adam(self._lr())
        self._net["clone"].refresh()
        if self._acts == "clone":
            return self._state.report({"clone_loss": clone} if wanted else None)
        code = critic_action(*beyond_the_end(rows, self._generator))
        x = torch.cat([state, code], dim=1)
        v_target = self._target["critic"].forward(x)[..., 0]
        q_target = torch.addcmul(rows.reward, rows.discount, self._target["value"].forward(after)[..., 0])
        value, value_loss = self._regress("value", state, v_target)
        q, critic_loss = self._regress("critic", x, q_target)
        found: dict[str, Tensor] = {}
        if self._state.updates > self._options[3]:
            found = self._extract(state, code, rows)
        for name, params in self._target_params.items():
            params.blend(self._params[name], self._tau)
            self._target[name].refresh()
        if not wanted:
            return self._state.report(None)
        return self._state.report(
            {
                "q": q.mean(), "value": value.mean(), "critic_loss": critic_loss, "value_loss": value_loss,
                "clone_loss": clone, **found,
            }
        )  # fmt: skip

    def _lr(self) -> float:
        return self._state.falling(*self._rate)

    def _rows(self, obs: Obs) -> Tensor:
        """(B, P + D) normalised own state and features."""
        if "features" not in obs:
            raise ValueError(f"the batch has {sorted(obs)} and no 'features': train with robot-rl offline")
        state = torch.as_tensor(obs["state"])[:, self.columns].float()
        return self.norm(torch.cat([state, torch.as_tensor(obs["features"]).float()], dim=1))

    def _regress(self, name: str, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """One step of both twins (2, B) on their targets (2, B), mean squared error; returns what they said before."""
        out = self._net[name].forward(x)
        diff = out[..., 0] - target
        self._net[name].backward((diff * (2.0 / diff.shape[1]))[..., None])
        self._params[name].adam(self._lr())
        self._net[name].refresh()
        return out[..., 0], diff.square().mean()

    def _joined(self, twins: Tensor) -> Tensor:
        return twins.amin(0) if self._options[1] == "min" else twins.amax(0)

    def _extract(self, state: Tensor, code: Tensor, rows: Transitions) -> dict[str, Tensor]:
        """One step of the policy towards the best candidates."""
        count, _, threshold, clone_updates = self._options
        if self._state.updates == clone_updates + 1:  # the policy begins as the clone, its optimiser anew
            self._params["actor"].flat.copy_(self._params["clone"].flat)
            self._net["actor"].refresh()
        many = state.repeat_interleave(count - 1, dim=0)
        drawn = self.clone.sample(many, self.clone.noise(len(many), self._generator))
        drawn = drawn.view(len(state), count - 1, self.window, -1)
        codes = torch.cat([critic_action(drawn), code[:, None]], dim=1)
        x = torch.cat([state[:, None].expand(-1, count, -1), codes], dim=2).flatten(0, 1)
        q = self._joined(self._net["critic"].forward(x)[..., 0]).view(-1, count)
        value = self._joined(self._net["value"].forward(state)[..., 0])
        best, chosen, advantage = best_candidate(q, value, scale=float(self._scale), threshold=threshold)
        every = torch.cat([drawn, rows.action[:, None]], dim=1)
        pick = torch.arange(len(best), device=best.device)
        own = best == count - 1
        mask = torch.where(own[:, None], rows.mask, torch.ones_like(rows.mask)) & chosen[:, None]
        action = every[pick, best] * mask[..., None]
        loss = self.actor.clone_grad(state, action, mask, self._generator)
        if bool(chosen.any()):  # Adam would move on by its momentum alone
            self._params["actor"].adam(self._lr())
            self._net["actor"].refresh()
        return {
            "policy_loss": loss, "chosen": chosen.float().mean(), "advantage": advantage.mean(),
            "data_best": own.float().mean(),
        }  # fmt: skip

    def acting(self) -> ChunkFlow:
        """What acts now: the policy once the extraction has begun, else the clone."""
        return self.actor if self._acts == "best" and self._state.updates > self._options[3] else self.clone

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers; not the frozen weights."""
        return {**self._state.state_dict(), "scale": self._scale.clone()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes, or was made on other features.
        """
        self._state.load_state_dict(state)
        self._scale.copy_(torch.as_tensor(state["scale"]))


class _Planner:
    """The acting half; shares the learner's parameters, and reads the pictures itself. The mode starts from zero noise,
    as the flow head of `policies.nets.vla_heads` does: a sample repeats the noise of the log and the roughness of the
    fit at every decision, and a hand that has to close around a block has no room for either."""

    def __init__(self, learner: DigiQ, seed: int) -> None:
        self._own = learner
        self._noise = torch.Generator(device=learner._generator.device).manual_seed(seed)

    @torch.no_grad()
    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """The mode of what acts, or a sample of it."""
        own = self._own
        device = own._generator.device
        state = torch.as_tensor(obs["state"]).to(device, torch.float32)[:, own.columns]
        seen = own.norm(torch.cat([state, own.reader.tensor(obs).to(device)], dim=1))
        flow = own.acting()
        start = flow.noise(len(seen), self._noise) if not deterministic else seen.new_zeros(len(seen), flow.width)
        chunk = flow.sample(seen, start)
        return Plan(chunk.view(len(chunk), own.window, -1))

    def state_dict(self) -> dict[str, Any]:
        """Weights of both flows, which of them acts, moments, noise, and the digest of the frozen reader."""
        own = self._own
        return {
            "clone": own._params["clone"].flat.detach().clone(),
            "actor": own._params["actor"].flat.detach().clone(),
            "updates": torch.tensor(own._state.updates),
            "norm": own.norm.state_dict(),
            "reader": torch.tensor(list(bytes.fromhex(own.reader.digest)), dtype=torch.uint8),
            "noise": self._noise.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: a policy of other sizes, or one on other features.
        """
        own = self._own
        for name in ("clone", "actor"):
            if name not in state or state[name].shape != own._params[name].flat.shape:
                raise ValueError(f"the saved policy lacks a '{name}' of this size; give the options of its training")
        saved = bytes(torch.as_tensor(state["reader"]).cpu().tolist()).hex()
        if saved != own.reader.digest:
            raise ValueError(
                f"the policy was trained on features of another reader (digest {saved[:12]}) than the one at hand "
                f"({own.reader.digest[:12]}): its weights, cameras or kind changed; give policy.reader as in training"
            )
        with torch.no_grad():
            for name in ("clone", "actor"):
                own._params[name].flat.copy_(state[name])
                own._net[name].refresh()
        own._state.updates = int(state["updates"])
        own.norm.load_state_dict(state["norm"])
        self._noise.set_state(state["noise"].cpu())
