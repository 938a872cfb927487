"""Group-relative learning of a vision-language-action policy: several tries from one start, the better ones win."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from robot_rl.advantage import RowIds, gae, group_advantage, policy_loss, row_weight, value_loss_rows
from robot_rl.advantage.weights import drop_zero_variance
from robot_rl.data.seen import StepSample
from robot_rl.policies.vla.grpo_progress import SuccessMemory, embed
from robot_rl.policies.vla.grpo_waves import Wave, moments, play
from robot_rl.policies.vla.player import ChunkPolicy, Recipe, VlaPlanner, VlaPlayer, save_folder
from robot_rl.state import set_generator
from robot_rl.types import IOSpec, Metrics, Options, OwnLoop, StateDict, StepEnv
from robot_rl.types.options import Count, Discount, NotNegative, Part, Positive, Rate, Share, Whole

DRIFT = 0.02
"""Largest difference of a log-probability between acting and learning that counts as the same."""


class VlaGrpoOptions(Options):
    """Of group-relative learning of a vision-language-action policy."""

    groups: Count = 8
    """With different outcomes, wanted in a round."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Episodes from one start; must divide num_envs."""
    refills: Whole = 3
    """Further waves in a round while groups are missing."""
    advantage: Literal["grpo", "gae"] = "grpo"
    """gae: over turns with the policy's value head (no groups are dropped then)."""
    gae_lambda: Discount = 0.95
    """Of gae, per turn."""
    progress: Literal["none", "srpo"] = "none"
    """Whether failures score by how near they came to successes."""
    progress_scale: Part = 0.8
    """Largest score of a failure, which never counts as much as a success."""
    demos: Whole = 0
    """Of the scripted expert, for each sentence, that the memory of srpo begins with."""
    minibatch: Count = 256
    """Decisions per optimiser step."""
    epochs: Count = 2
    """Passes over a round, at most; see `target_kl`."""
    lr: Rate = 3e-4
    """Of trunk, head and value."""
    backbone_lr: NotNegative = 1e-4
    """Of the backbone; 0 leaves it as it is."""
    lr_warmup: Whole = 5
    """Optimiser steps over which both rise."""
    clip: tuple[Share, NotNegative] = (0.2, 0.28)
    """Widths of the ratio clip below and above 1, per logp entry (action of a chunk, or token)."""
    target_kl: NotNegative = 0.1
    """The round's updates stop once the estimated KL per entry is above this; 0 = never."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy (heads that know it)."""
    value_coef: NotNegative = 0.5
    """Weight of the value loss, for gae."""
    explore: Share = 0.0
    """Smallest deviation of a gaussian head at the start; imitation leaves too little to try."""
    grad_norm: Positive = 1.0
    """Gradients are cut at this norm."""
    scratch: dict[str, object] | None = None
    """Recipe of a fresh policy (see `Recipe`), to begin without init=."""


@dataclass(frozen=True)
class _Decisions:
    """R decisions of the episodes that teach; all but `obs` and `trace`, whose names are those of `Wave`, (R, ...)."""

    obs: dict[str, Tensor]
    goal: list[str]
    trace: dict[str, Tensor]
    logp: Tensor
    mask: Tensor
    advantage: Tensor
    target: Tensor
    episode: Tensor

    @classmethod
    def join(cls, parts: Sequence[_Decisions]) -> _Decisions:
        """One behind another."""

        def cat(name: str) -> Tensor:
            return torch.cat([vars(part)[name] for part in parts])

        def each(name: str) -> dict[str, Tensor]:
            return {key: torch.cat([vars(part)[name][key] for part in parts]) for key in vars(parts[0])[name]}

        tensors = {name: cat(name) for name in ("logp", "mask", "advantage", "target", "episode")}
        return cls(each("obs"), [text for part in parts for text in part.goal], each("trace"), **tensors)

    @cached_property
    def weight(self) -> Tensor:
        """(R, L) of each entry of `logp` in the loss: every episode counts alike, and every entry of it."""
        if not self.goal:
            return self.logp
        whole = self.episode[:, None].expand_as(self.mask)
        weight = row_weight(self.mask.flatten(), "seq_mean_token_mean", RowIds(episode=whole.flatten()))
        return torch.as_tensor(weight).view_as(self.mask).to(self.logp.dtype)


class VlaGrpo(OwnLoop[VlaGrpoOptions, None]):
    """Learner of whole episodes; it brings its own loop. One decision (chunk) is one turn.

    Each round plays waves of episodes, `group_size` from each start (the same state and sentence), until `groups`
    groups with different outcomes are there or `refills` more waves were played; groups without spread teach nothing
    and are dropped. The advantage of an episode, (score - group mean) / group deviation, goes to all its decisions, and
    their executed actions (or tokens) enter a clipped ratio loss.

    With `progress` "srpo" a failed episode scores up to `progress_scale` by how near it came to remembered successes
    (`SuccessMemory`), so that groups in which all fail teach as well.

    Source: SimpleVLA-RL (groups, dynamic sampling, clip .2 / .28, no KL term); Fei et al., SRPO; RLinf, piRL (flow).
    """

    from_policy = True
    """`robot-rl train init=<run>` begins with that run's policy, and keeps the learner that policy= names."""

    def __init__(
        self, options: VlaGrpoOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        """Wait for a policy to begin with.

        Args:
            options: of the method.
            io: with the observation "instruction".
            seed: of starts and draws.
            device: torch device.
            gamma: discount per control step, for advantage "gae"; outcomes of groups have none.
        """
        super().__init__(options, io, seed=seed, device=device)
        self._device, self._seed, self._gamma = device, seed, gamma
        self._starts, self._samples = np.random.default_rng([seed, 5]), torch.Generator(device=device).manual_seed(seed)
        recipe = Recipe.from_dict(options.scratch) if options.scratch else Recipe((), (8, 8), (), 1, 1, "gaussian")
        self.policy = VlaPlayer(io, VlaPlanner(io, recipe, seed=seed, device=device))
        self.memory = SuccessMemory()
        self._env: StepEnv | None = None
        self._ready, self._steps = options.scratch is not None, 0
        self._first: ChunkPolicy | None = None  # as it began: its readings are what clips are compared by
        self.env_steps, self.seen_rows = 0, StepSample()
        if self._ready:
            self._begin(options.explore)

    @property
    def planner(self) -> VlaPlanner:
        """Of the policy."""
        return self.policy.planner

    def _begin(self, explore: float) -> None:
        model = self.planner.model
        if explore and self.planner.recipe.head == "gaussian":
            with torch.no_grad():
                model.head.log_std.clamp_min_(float(np.log(explore)))
        self._first = copy.deepcopy(model)
        roles, lr, slow = model.parameters_by_role(), self.o.lr, self.o.backbone_lr
        trained = [{"params": [*roles["action"], *roles["value"]], "rate": lr}]
        backbone = [*roles["vision"], *roles["language"]]
        if slow:
            trained.append({"params": backbone, "rate": slow})
        for weight in backbone:
            weight.requires_grad_(bool(slow))  # gradients that nobody takes would add up, and cut those of the rest
        self._optimiser = torch.optim.Adam(trained, lr=lr, betas=(0.9, 0.95), eps=1e-5)
        self._checked = False

    def attach(self, env: StepEnv) -> None:
        """Set the environment that `run` learns in.

        Raises:
            ValueError: its copies are no multiple of the group size.
        """
        self.io.check(env.io)
        if env.num_envs % self.o.group_size:
            raise ValueError(f"num_envs is {env.num_envs}, expected a multiple of group_size = {self.o.group_size}")
        self._env = env

    def run(
        self,
        total_steps: int,
        tick: Callable[[int, Metrics], bool] | None = None,
        *,
        due: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Rounds until `env_steps` reaches `total_steps`, or the tick, called after each whatever is `due`, says stop.

        Raises:
            ValueError: no environment, or no policy to begin with.
        """
        self._require_env()
        if not self._ready:
            raise ValueError("this learner improves a policy: add init=<run of policy=vla/imitation>")
        if self.o.progress == "srpo" and self.o.demos and not self.env_steps:
            self._remember_expert()
        while self.env_steps < total_steps:
            begun = time.perf_counter()
            waves, metrics = self.collect()
            steps = sum(wave.steps for wave in waves)
            self.env_steps += steps
            metrics |= self.learn(waves)
            metrics["time/sps"] = steps / (time.perf_counter() - begun)
            if tick is not None and tick(self.env_steps, metrics):
                return

    def _require_env(self) -> StepEnv:
        if self._env is None:
            raise ValueError("VlaGrpo has no environment to learn in; call attach(env) first")
        return self._env

    def collect(self) -> tuple[list[Wave], Metrics]:
        """Waves of one round: as many as it takes for `groups` groups with spread, `refills` + the least at most."""
        env = self._require_env()
        per_wave = env.num_envs // self.o.group_size
        least = -(-self.o.groups // per_wave)
        waves: list[Wave] = []
        useful = 0
        while len(waves) < least or (len(waves) < least + self.o.refills and useful < self.o.groups):
            seeds = np.repeat(self._starts.integers(2**31, size=per_wave), self.o.group_size)
            wave = play(env, self.planner, seeds, generator=self._samples, rows=self.seen_rows)
            waves.append(wave)
            if self.o.advantage == "gae":
                useful += per_wave
            else:
                kept = np.asarray(drop_zero_variance(self.scores(wave, new=True), wave.group))
                useful += int(kept.sum()) // self.o.group_size
        won = np.concatenate([wave.success for wave in waves])
        failed = np.concatenate([wave.success.reshape(-1, self.o.group_size).sum(1) == 0 for wave in waves])
        return waves, {
            "rollout/success": float(won.mean()),
            "rollout/return": float(np.mean([wave.reward.sum(0).mean() for wave in waves])),
            "rollout/useful_groups": useful / (len(waves) * per_wave),
            "rollout/failed_groups": float(failed.mean()),
            "rollout/waves": float(len(waves)),
        }

    def scores(self, wave: Wave, *, new: bool = False) -> np.ndarray:
        """(N,) outcomes: 1 for success, else 0 or the progress of `srpo`, which remembers of a `new` wave how it is
        when nothing happens."""
        score = wave.success.astype(np.float64)
        if self.o.progress == "none":
            return score
        clips, still = self.clips(wave)
        goals = np.array(wave.goal)
        for text in np.unique(goals):
            rows = np.flatnonzero(goals == text)
            for i in rows[:4] if new else ():
                self.memory.add_idle(text, still[i])
            lost = rows[~wave.success[rows]]
            if len(lost):
                score[lost] = self.o.progress_scale * np.nan_to_num(self.memory.progress(text, clips[lost]))
        return score

    def clips(self, wave: Wave) -> tuple[np.ndarray, np.ndarray]:
        """(N, D) embeddings of the episodes, and of their first moments held still."""
        assert self._first is not None
        count, episodes = wave.executed.shape[:2]
        found = []
        with torch.no_grad():
            for i in range(count):
                look = moments({key: x[i] for key, x in wave.obs.items()}, torch.arange(episodes))
                parts = [] if look.state is None else [look.state]
                if look.images:
                    views = torch.stack(list(look.images.values()), 1)
                    parts.append(self._first.backbone(views, wave.goal))
                found.append(torch.cat(parts, 1).cpu().numpy())
        features = np.stack(found)
        still = np.repeat(features[:1], count, axis=0)
        length = wave.decisions
        return embed(features, length), embed(still, length)

    def learn(self, waves: Sequence[Wave]) -> Metrics:
        """Updates on the waves of one round."""
        rows = self._rows(waves)
        if self.o.progress == "srpo":
            for wave in waves:  # only now: an episode is not compared with itself
                clips, _ = self.clips(wave)
                for i in np.flatnonzero(wave.success):
                    self.memory.add(wave.goal[i], clips[i])
        count = len(rows.goal)
        if not count:
            return {"train/decisions": 0.0}
        found: list[dict[str, float]] = []
        generator = np.random.default_rng([self._seed, 9, self._steps])
        for _ in range(self.o.epochs):
            order = torch.as_tensor(generator.permutation(count), device=self._device)
            for part in order.split(self.o.minibatch):
                found.append(self._update(rows, part))
            if self.o.target_kl and found[-1]["kl"] > self.o.target_kl:
                break
        out = {f"train/{name}": float(np.mean([x[name] for x in found])) for name in found[0]}
        return {**out, "train/decisions": float(count), "train/updates": float(len(found))}

    def _rows(self, waves: Sequence[Wave]) -> _Decisions:
        """Decisions of all kept episodes, one behind another."""
        parts: list[_Decisions] = []
        episodes = 0
        for wave in waves:
            score = self.scores(wave, new=self.o.advantage == "gae")  # others were scored when they were collected
            advantage, target, kept = self._credit(wave, score)
            alive = wave.executed.any(-1).cpu().numpy() & kept[None]
            step, row = (torch.as_tensor(x, device=self._device) for x in np.nonzero(alive))
            mask = wave.executed[step, row]
            per_action = wave.logp.shape[-1] // mask.shape[-1]
            parts.append(
                _Decisions(
                    obs={key: x[step, row] for key, x in wave.obs.items()},
                    goal=[wave.goal[int(i)] for i in row],
                    trace={key: x[step, row] for key, x in wave.trace.items()},
                    logp=wave.logp[step, row],
                    mask=mask.repeat_interleave(per_action, dim=1),
                    advantage=advantage[step, row],
                    target=target[step, row],
                    episode=row + episodes,
                )
            )
            episodes += wave.executed.shape[1]
        return _Decisions.join(parts)

    def _credit(self, wave: Wave, score: np.ndarray) -> tuple[Tensor, Tensor, np.ndarray]:
        """(K, N) advantages and value targets, and (N,) bool episodes that teach."""
        count, episodes = wave.executed.shape[:2]
        if self.o.advantage == "grpo":
            kept = np.asarray(drop_zero_variance(score, wave.group))
            flat = np.asarray(group_advantage(score, wave.group))
            advantage = torch.as_tensor(flat, dtype=torch.float32, device=self._device).expand(count, episodes)
            return advantage, torch.zeros_like(advantage), kept
        alive = wave.executed.any(-1).T.cpu()
        last = alive & ~torch.cat([alive[:, 1:], torch.zeros(episodes, 1, dtype=torch.bool)], 1)
        reward = last * torch.as_tensor(score, dtype=torch.float32)[:, None]
        value = wave.value.T.cpu()
        following = torch.cat([value[:, 1:], torch.zeros(episodes, 1)], 1)
        discount = (self._gamma ** wave.executed.sum(-1).T.cpu().float()) * (alive & ~last)  # the outcome ends it all
        found, target = gae(reward, discount, value, following, discount * self.o.gae_lambda)
        inside = found[alive]
        found = (found - inside.mean()) / (inside.std() + 1e-8)
        return found.T.to(self._device), target.T.to(self._device), np.ones(episodes, bool)

    def _update(self, rows: _Decisions, part: Tensor) -> dict[str, float]:
        trace = {key: x[part] for key, x in rows.trace.items()}
        goal = [rows.goal[int(i)] for i in part]
        logp, entropy, value = self.planner.model.evaluate(moments(rows.obs, part), goal, trace)
        old, mask = rows.logp[part], rows.mask[part]
        if not self._checked:
            self._check(logp.detach(), old, mask)
        weight = rows.weight[part] * (len(rows.goal) / len(part))
        advantage = rows.advantage[part][:, None].expand_as(logp)
        loss = policy_loss(logp, old, advantage, mask=mask, clip=self.o.clip, aggregation=weight)
        total = loss
        if self.o.entropy_coef and not bool(torch.isnan(entropy).any()):
            total = total - self.o.entropy_coef * (entropy * mask).sum() / mask.sum().clamp_min(1)
        if self.o.advantage == "gae":
            total = total + self.o.value_coef * value_loss_rows(value, rows.target[part], clip=None).mean()
        self._steps += 1
        for group in self._optimiser.param_groups:
            group["lr"] = group["rate"] * min(1.0, self._steps / max(1, self.o.lr_warmup))
        self._optimiser.zero_grad(set_to_none=True)
        total.backward()
        norm = float(nn.utils.clip_grad_norm_(self.planner.model.parameters(), self.o.grad_norm))
        if not np.isfinite(norm):
            raise FloatingPointError("the gradient is not finite; lower lr, or begin from an earlier checkpoint")
        self._optimiser.step()
        with torch.no_grad():
            gap = (logp - old)[mask]
            kl, moved = (gap.exp() - 1.0 - gap).mean(), gap.exp() - 1.0
            clipped = ((moved < -self.o.clip[0]) | (moved > self.o.clip[1])).float().mean()
        return {
            "policy_loss": float(loss.detach()), "kl": float(kl), "clipped": float(clipped), "gradient_norm": norm,
            **({} if bool(torch.isnan(entropy).any()) else {"entropy": float(entropy.detach()[mask].mean())}),
        }  # fmt: skip

    def _check(self, logp: Tensor, old: Tensor, mask: Tensor) -> None:
        """Before the first step acting and learning must agree about what was drawn."""
        self._checked = True
        worst = float((logp - old)[mask].abs().max())
        if not worst <= DRIFT:
            raise ValueError(
                f"log-probabilities differ by up to {worst:.3g} between acting and learning (allowed {DRIFT}); use one "
                "engine and one dtype for both"
            )

    def _remember_expert(self) -> None:
        """Successes of the scripted expert for the memory, `demos` for each sentence."""
        env = self._require_env()
        expert = env.parts.expert
        if expert is None:
            raise ValueError("demos needs an environment with a scripted expert; set demos=0")
        for _ in range(20):
            seeds = self._starts.integers(2**31, size=env.num_envs)
            wave = play(env, self.planner, seeds, generator=self._samples, expert=expert)
            clips, still = self.clips(wave)
            for i, text in enumerate(wave.goal):
                if wave.success[i] and self.memory.count(text) < self.o.demos:
                    self.memory.add(text, clips[i])
                    self.memory.add_idle(text, still[i])
            if all(self.memory.count(text) >= self.o.demos for text in set(wave.goal)):
                return

    def export(self, folder: Path) -> Path:
        """Write the policy as a folder of the guard.

        Raises:
            FileExistsError: the folder exists.
        """
        return save_folder(folder, self.planner, frozen=("critic",))

    def state_dict(self) -> StateDict:
        """Weights, those at the beginning, optimiser, memory, generators and counters."""
        if self._first is None:
            return {"kind": "vla_grpo"}  # has no policy yet
        return {
            "kind": "vla_grpo",
            "policy": self.policy.state_dict(),
            "first": {name: x.detach().clone() for name, x in self._first.state_dict().items()},
            "optimiser": copy.deepcopy(self._optimiser.state_dict()),
            "memory": self.memory.state_dict(),
            "samples": self._samples.get_state(),
            "starts": self._starts.bit_generator.state,
            "steps": self._steps,
            "env_steps": self.env_steps,
            "rows": self.seen_rows.state_dict(),
        }

    def load_state_dict(self, state: StateDict, /) -> None:
        """Go on with a run of this learner, or begin with the policy of an imitation.

        Raises:
            ValueError: the state is of another kind of learner.
        """
        if state.get("kind") not in ("vla_grpo", "vla_imitation"):
            raise ValueError("this learner begins with a run of policy=vla/imitation, or goes on with one of its own")
        self.policy.load_state_dict(state["policy"])
        self._ready = True
        if state["kind"] == "vla_imitation":
            self._begin(self.o.explore)
            return
        self._begin(0.0)
        assert self._first is not None
        self._first.load_state_dict(state["first"])
        self._optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        self.memory.load_state_dict(state["memory"])
        set_generator(self._samples, state["samples"])
        self._starts.bit_generator.state = state["starts"]
        self._steps, self.env_steps = int(state["steps"]), int(state["env_steps"])
        self.seen_rows.load_state_dict(state["rows"])
