"""Offline preference-guided policy optimisation: a code for every segment, and the code that the teacher would like."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.nets.attention import Transformer, draw_weights
from robot_rl.policies.nets.history import Memory
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.preferences import Pairs
from robot_rl.policies.nets.rows import state_size
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, LogFacts, Obs, Options, PolicyParts
from robot_rl.types.options import Count, NotNegative, Positive, Rate


def triplet_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """(P,) max(|anchor - positive| - |anchor - negative| + margin, 0), Euclidean.

    Args:
        anchor: (D,) or (P, D).
        positive: (P, D).
        negative: (P, D).
        margin: how much nearer the positive has to be.
    """
    return ((anchor - positive).norm(dim=-1) - (anchor - negative).norm(dim=-1) + margin).clamp_min(0.0)


class _Encoder(nn.Module):
    """A segment's states and actions -> its code (B, D): the mean over a transformer that sees both ways."""

    def __init__(self, state: int, actions: int, length: int, width: int, layers: int, code: int) -> None:
        super().__init__()
        self.state, self.action = nn.Linear(state, width), nn.Linear(actions, width)
        self.place = nn.Embedding(length, width)
        self.body = Transformer(width, layers, 2, causal=False)
        self.code = nn.Linear(width, code)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        place = self.place.weight[: state.shape[1]]
        tokens = torch.cat([self.state(state) + place, self.action(action) + place], 1)
        return self.code(self.body(tokens).mean(1))


class _Decoder(nn.Module):
    """Codes, states and the actions so far -> actions (B, L, A): a decision transformer whose goal is the code."""

    def __init__(self, state: int, actions: int, length: int, width: int, layers: int, code: int) -> None:
        super().__init__()
        self.code, self.state, self.action = (nn.Linear(n, width) for n in (code, state, actions))
        self.place = nn.Embedding(length, width)
        self.body = Transformer(width, layers, 1, causal=True)
        self.head = nn.Linear(width, actions)

    def forward(self, code: Tensor, state: Tensor, action: Tensor) -> Tensor:
        length = state.shape[1]
        place = self.place.weight[:length]
        parts = [self.code(code)[:, None] + place, self.state(state) + place, self.action(action) + place]
        tokens = torch.stack(parts, 2).flatten(1, 2)
        return self.head(self.body(tokens)[:, 1::3]).tanh()  # what follows a state is its action


class CodePolicy(Saved):
    """Acts as segments with the wanted code do; remembers as many steps as a segment has."""

    parts = PolicyParts(remembers=True)

    def __init__(self, io: IOSpec, decoder: _Decoder, wanted: Tensor, length: int, norm: FixedNorm | None) -> None:
        """Share the learner's networks."""
        self.io, self._decoder, self._wanted, self._norm = io, decoder, wanted, norm
        self.memory = Memory(length, io.obs["state"][0][0], io.action_dim, device=wanted.device)

    def reset(self, rows: Array | None = None) -> None:
        """Forget what these rows saw; None: all."""
        self.memory.forget(rows)

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, n) -> (B, A) in [-1, 1], in the kind of the observation."""
        state = torch.as_tensor(obs["state"]).to(self._wanted.device, torch.float32)
        place = self.memory.see(state if self._norm is None else self._norm(state))
        rows, longest = torch.arange(len(state)), int(place.max()) + 1
        taken = self.memory.previous[:, :longest].roll(-1, 1)  # the action after each state; the newest is not read
        taken[rows, place] = 0.0
        code = self._wanted.expand(len(state), -1)
        action = self._decoder(code, self.memory.state[:, :longest], taken)[rows, place]
        self.memory.took(action)
        return Action(action.cpu().numpy() if isinstance(obs["state"], np.ndarray) else action)

    def saved_parts(self) -> dict[str, object]:
        """Weights, wanted code, and normaliser, where there is one."""
        return {"decoder": self._decoder, "wanted": self._wanted, "normalizer": self._norm}


class OppoOptions(Options):
    """Of offline preference-guided policy optimisation."""

    length: Count
    """Steps of the segments, and of the policy's memory."""
    batch_size: Count = 64
    """Pairs per update."""
    code: Count = 8
    """Width of z."""
    width: Count = 128
    """Of the transformers."""
    layers: Count = 3
    """Of each."""
    triplet_weight: NotNegative = 0.1
    """Of the preference term."""
    norm_weight: NotNegative = 0.1
    """Of the term that keeps codes near the unit sphere."""
    margin: NotNegative = 1.0
    """Of the triplets."""
    lr: Rate = 1e-4
    """Step size of the networks (AdamW, weight decay 1e-4)."""
    wanted_lr: Rate = 1e-3
    """Step size of w."""
    clip: Positive = 0.25
    """Bound of the gradient's norm."""
    normalize: bool = True
    """Standardise states by the data's moments."""


class Oppo(Saved):
    """Preferences without a reward: segments are encoded so that the preferred lie near one wanted code.

    Loss: mean squared error of both segments' actions, decoded from their codes, + triplet_weight max(|w - z+| -
    |w - z-| + margin, 0) + norm_weight (|z| - 1)^2; then w takes a step on the same triplets. Ties take part in the
    reconstruction only. The policy decodes w.

    Source: Kang et al., Beyond Reward: Offline Preference-guided Policy Optimization, equations 6 to 9; sizes and rates
    of bkkgbkjb/OPPO. Where we differ: steps are counted inside a segment, not from the episode's start, which pairs do
    not tell; the code is a mean over tokens.
    """

    saved = ("_encoder", "policy", "_optimiser", "_wanted_optimiser", "_generator", "updates")

    def __init__(self, options: OppoOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build encoder, decoder and the wanted code.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of weights and batches.
            device: torch device.
        """
        o = options
        self.o, self.io, self.updates, size = o, io, 0, state_size(io, "OPPO")
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if o.normalize else None
        sizes = (size, io.action_dim, o.length, o.width, o.layers, o.code)
        self._encoder, self._decoder = _Encoder(*sizes).to(device), _Decoder(*sizes).to(device)
        draw_weights(self._encoder, self._generator)
        draw_weights(self._decoder, self._generator)
        wanted = 2.0 * torch.randn(o.code, generator=self._generator, device=device)
        self._wanted = nn.Parameter(wanted)
        self._weights = [*self._encoder.parameters(), *self._decoder.parameters()]
        self._optimiser = torch.optim.AdamW(self._weights, lr=o.lr, weight_decay=1e-4)
        self._wanted_optimiser = torch.optim.AdamW([self._wanted], lr=o.wanted_lr)
        self.policy = CodePolicy(io, self._decoder, self._wanted.data, o.length, self.norm)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)

    def update(self, pairs: Pairs) -> dict[str, float]:
        """One step of the networks and one of w on `batch_size` pairs.

        Returns:
            "loss" of the reconstruction, "triplet", and "accuracy": how often w lies nearer to the preferred segment.
        """
        self.updates += 1
        drawn = pairs.draw(self.o.batch_size, self._generator)
        state, action = drawn.state.flatten(0, 1), drawn.action.flatten(0, 1)
        state = state if self.norm is None else self.norm(state)
        z = self._encoder(state, action)
        error = (self._decoder(z, state, action) - action).square().mean()
        codes = z.view(-1, 2, z.shape[-1])
        second = drawn.preferred > 0.5
        better = torch.where(second[:, None], codes[:, 1], codes[:, 0])
        worse = torch.where(second[:, None], codes[:, 0], codes[:, 1])
        decided = (drawn.preferred != 0.5).to(error)
        share = decided / decided.sum().clamp_min(1.0)
        triplet = (triplet_loss(self._wanted.detach(), better, worse, self.o.margin) * share).sum()
        sphere = (z.norm(dim=-1) - 1.0).square().mean()
        self._optimiser.zero_grad()
        (error + self.o.triplet_weight * triplet + self.o.norm_weight * sphere).backward()
        nn.utils.clip_grad_norm_(self._weights, self.o.clip)
        self._optimiser.step()
        self._wanted_optimiser.zero_grad()
        (triplet_loss(self._wanted, better.detach(), worse.detach(), self.o.margin) * share).sum().backward()
        self._wanted_optimiser.step()
        with torch.no_grad():
            near = (self._wanted - better).norm(dim=-1) < (self._wanted - worse).norm(dim=-1)
        accuracy = (near.to(share) * share).sum()
        return {"loss": float(error.detach()), "triplet": float(triplet.detach()), "accuracy": float(accuracy)}
