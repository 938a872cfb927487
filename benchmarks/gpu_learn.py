"""Learners on a device: updates per second against the plain way of writing them, and time to a trained world.

`robot-rl bench gpu_learn +device=cuda`. All contestants of a size do the same arithmetic (two distributional critics,
squashed Gaussian, AdamW, the same networks and batch) on the same data, in alternation in one process:

- plain_eager: a module per network, autograd, one optimiser per part, batches drawn outside;
- plain_compile: the same, its update through torch.compile (what LeanRL adds to CleanRL);
- plain_compile_graph: the same, captured in a CUDA graph (CUDA only; LeanRL with `--compile --cudagraphs`);
- ours_eager, ours_compile, ours_graph, ours_compile_graph: `online/fast_sac` with that `accelerate`.

A row holds the median of rounds and the range of the ratios to plain_eager within rounds. The device is waited for at
the end of every round alone.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import compare, ratio
from benchmarks.point_world import PointWorld
from robot_rl import build
from robot_rl.data.device_replay import DeviceReplay
from robot_rl.loops.contract import every
from robot_rl.loops.device import DeviceOffPolicy
from robot_rl.loops.device_on_policy import DeviceOnPolicy
from robot_rl.types import IOSpec, PolicyParts, Step, Transitions

BINS, LOW, HIGH = 101, -5.0, 5.0
Go = Callable[[int], None]
# name: (state, action, batch, actor widths, critic widths, environments)
SIZES = {
    "humanoid": (99, 29, 8192, (512, 256, 128), (768, 384, 192), 4096),
    "cheetah": (17, 6, 256, (256, 256), (256, 256), 64),
    "tiny": (8, 2, 64, (32, 32), (32, 32), 16),
}


def run(quick: bool = False, device: str = "cpu") -> dict[str, Any]:
    """Measure all rows.

    Args:
        quick: small networks and few repetitions.
        device: "cpu" or "cuda".

    Returns:
        {"device": its name, "rows": `rows(device, quick)`}.
    """
    name = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "cpu"
    return {"device": name, "threads": torch.get_num_threads(), "rows": rows(device, quick)}


def rows(device: str = "cpu", quick: bool = False) -> list[dict[str, Any]]:
    """One dictionary per measurement: "what", "contestant", the figure, its unit and its ratio to the baseline."""
    cuda = torch.device(device).type == "cuda"
    sizes = ["tiny"] if quick else ["humanoid", "cheetah"] if cuda else ["cheetah"]
    found: list[dict[str, Any]] = []
    for size in sizes:
        found += sac_rows(device, size, quick)
    target, limit = (1.3, 60_000) if quick else (1.1, 10_000_000 if cuda else 400_000)
    for method in ("fast_ppo", "fast_sac", "fast_td3"):
        found.append(
            train_until(method, device, factor=target, limit=limit, num_envs=4096 if cuda and not quick else 64)
        )
    return found


def sac_rows(device: str, size: str, quick: bool) -> list[dict[str, Any]]:
    """SAC updates per second of all contestants at one size."""
    cuda = torch.device(device).type == "cuda"
    modes = ["eager"] + ([] if quick and not cuda else ["compile"]) + (["graph", "compile_graph"] if cuda else [])
    contestants: dict[str, Go] = {}
    for mode in modes:
        if mode != "graph":
            contestants[f"plain_{mode}"] = plain(device, size, mode)
        contestants[f"ours_{mode}"] = ours(device, size, mode)
    items = 200 if cuda else 10 if size != "humanoid" else 1
    for go in contestants.values():
        go(12)  # compile, capture

    def clock() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    cases = {name: partial(go, items) for name, go in contestants.items()}
    seconds = compare(cases, 3 if quick else 7, clock=clock)
    return [
        {
            "what": f"SAC update, {size}",
            "contestant": name,
            "figure": items / median(values),
            "unit": "updates/s",
            **ratio(values, seconds["plain_eager"]),
        }
        for name, values in seconds.items()
    ]


def train_until(
    method: str,
    device: str,
    *,
    factor: float,
    limit: int,
    num_envs: int,
    make_env: Callable[[int, int], Any] | None = None,
    target: float | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Time until the mean return of finished episodes reaches a target, exploration included.

    Args:
        method: "fast_ppo", "fast_sac" or "fast_td3".
        device: of the learner and, without `make_env`, of the world.
        factor: without `target`: return within this factor of the best one of `PointWorld` (returns are negative).
        limit: transitions after which it gives up.
        num_envs: copies.
        make_env: (num_envs, seed) -> another world; then `target` is needed.
        target: return to reach.
        options: of the method, beside those chosen here for `PointWorld`.
    """
    world = make_env(num_envs, 0) if make_env else PointWorld(num_envs, 0, device)
    goal = factor * world.best_return() if target is None else target
    if make_env is None:
        small: dict[str, Any] = {"lr": 1e-3, "batch_size": 256, "updates": 2, "actor_delay": 2}
        small |= {"actor_hidden": (64, 64), "critic_hidden": (64, 64)}
        if method == "fast_td3":
            small |= {"weight_decay": 0.0, "std_max": 0.2}
        if method == "fast_ppo":
            small = {"rollout_steps": 16, "hidden": (64, 64), "entropy_coef": 0.0, "gamma": 0.9}
        options = {**small, **options}
    given = {"gamma": options.pop("gamma")} if "gamma" in options else {}
    learner = build.make("policy", {"name": f"online/{method}", **options}, world.io, device=device, **given)
    # two small classes of loops with one `run`
    if method == "fast_ppo":
        loop: Any = DeviceOnPolicy(world, learner)
    else:
        loop = DeviceOffPolicy(world, learner, gamma=0.9, learning_starts=4 * num_envs)
    reached = False

    def look(step: int, metrics: dict[str, float]) -> bool:
        nonlocal reached
        reached = metrics.get("rollout/return", -float("inf")) >= goal
        return reached

    begin = time.perf_counter()
    loop.run(limit, look, due=every(32 * num_envs))
    seconds = time.perf_counter() - begin
    return {
        "what": f"time to return {goal:.3g}, {type(world).__name__} x {num_envs}",
        "contestant": method,
        "figure": seconds if reached else float("nan"),
        "unit": "s" if reached else f"s (not within {limit} steps)",
        "steps": loop.env_steps,
        "steps_per_s": loop.env_steps / seconds,
    }


def ours(device: str, size: str, accelerate: str) -> Go:
    """`online/fast_sac`; one item is one critic step, every second with an actor step, its batch included."""
    state, action, batch, actor, critic, _ = SIZES[size]
    options = {
        "batch_size": batch, "updates": 1, "actor_delay": 2, "actor_hidden": actor, "critic_hidden": critic,
        "value_range": (LOW, HIGH), "normalize_obs": False, "accelerate": accelerate,
    }  # fmt: skip
    learner = build.make("policy", {"name": "online/fast_sac", **options}, _io(state, action), device=device)
    batches = _memory(device, size).batches(batch)

    def go(items: int) -> None:
        for _ in range(items):
            learner.update(batches)

    return go


def plain(device: str, size: str, accelerate: str) -> Go:
    """The same method as one writes it first."""
    state, action, batch, actor, critic, _ = SIZES[size]
    cuda = torch.device(device).type == "cuda"
    memory = _memory(device, size)
    made = _Plain(state, action, actor, critic, device, amp=cuda)
    critic_step: Callable[[Transitions], None] = made.critic_step
    actor_step: Callable[[Transitions], None] = made.actor_step
    if accelerate != "eager":
        critic_step, actor_step = torch.compile(made.critic_step), torch.compile(made.actor_step)
    held = memory.sample(batch)  # a graph reads from memory that stays
    repeated = importlib.import_module("robot_rl.policies.nets.device_step").Repeated
    steps = (critic_step, actor_step)
    graphs = [repeated(lambda step=step: step(held), graph=accelerate == "compile_graph") for step in steps]

    def go(items: int) -> None:
        for i in range(items):
            drawn = memory.sample(batch)
            if accelerate == "compile_graph":
                for name in ("action", "reward", "discount"):
                    getattr(held, name).copy_(getattr(drawn, name))
                held.obs["state"].copy_(drawn.obs["state"])
                held.next_obs["state"].copy_(drawn.next_obs["state"])
                graphs[0]()
                if i % 2:
                    graphs[1]()
                continue
            critic_step(drawn)
            if i % 2:
                actor_step(drawn)

    return go


class _Plain:
    """SAC with two C51 critics: a module per network, autograd, one AdamW per part."""

    parts = PolicyParts()

    def __init__(
        self,
        state: int,
        action: int,
        actor: tuple[int, ...],
        critic: tuple[int, ...],
        device: str,
        amp: bool,
    ) -> None:
        def net(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for width in hidden:
                layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU()]
                inputs = width
            return nn.Sequential(*layers, nn.Linear(inputs, outputs)).to(device)

        self.device, self.amp = torch.device(device), amp
        self.actor = net(state, actor, 2 * action)
        self.critics = nn.ModuleList(net(state + action, critic, BINS) for _ in range(2))
        self.targets = nn.ModuleList(net(state + action, critic, BINS) for _ in range(2))
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_alpha = nn.Parameter(torch.zeros((), device=device))
        cuda = self.device.type == "cuda"
        shared: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 1e-3, "capturable": cuda}
        self.critic_adam = torch.optim.AdamW(self.critics.parameters(), **shared)
        self.actor_adam = torch.optim.AdamW(self.actor.parameters(), **shared)
        self.alpha_adam = torch.optim.AdamW([self.log_alpha], **shared)
        self.atoms = torch.linspace(LOW, HIGH, BINS, device=device)

    def act(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(state).float().chunk(2, -1)
        std = (-5.0 + 2.5 * (log_std.tanh() + 1.0)).exp()
        noise = torch.randn_like(mean)
        u = mean + std * noise
        action = u.tanh()
        inner = -0.5 * noise.square() - std.log() - 0.9189385
        return action, (inner - torch.log(1.0 - action.square() + 1e-6)).sum(-1)

    def critic_step(self, batch: Transitions) -> None:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.amp):
            with torch.no_grad():
                action, logp = self.act(batch.next_obs["state"])
                x = torch.cat([batch.next_obs["state"], action], -1)
                atoms = batch.reward[:, None] + batch.discount[:, None] * (
                    self.atoms - self.log_alpha.exp() * logp[:, None]
                )
                p = torch.stack([net(x).float().softmax(-1) for net in self.targets]).mean(0)
                at = (atoms.clamp(LOW, HIGH) - LOW) * ((BINS - 1) / (HIGH - LOW))
                lower = at.floor().clamp(max=BINS - 2).long()
                share = at - lower
                target = torch.zeros_like(p)
                target.scatter_add_(1, lower, p * (1 - share))
                target.scatter_add_(1, lower + 1, p * share)
            x = torch.cat([batch.obs["state"], batch.action], -1)
            losses = [-(target * functional.log_softmax(net(x).float(), -1)).sum(-1).mean() for net in self.critics]
            loss = losses[0] + losses[1]
        self.critic_adam.zero_grad(set_to_none=False)
        loss.backward()
        self.critic_adam.step()
        with torch.no_grad():
            for theirs, mine in zip(self.targets.parameters(), self.critics.parameters()):
                theirs.lerp_(mine, 0.125)

    def actor_step(self, batch: Transitions) -> None:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.amp):
            action, logp = self.act(batch.obs["state"])
            x = torch.cat([batch.obs["state"], action], -1)
            value = sum((net(x).float().softmax(-1) * self.atoms).sum(-1) for net in self.critics) / 2
            loss = (self.log_alpha.exp().detach() * logp - value).mean()
        self.actor_adam.zero_grad(set_to_none=False)
        loss.backward()
        self.actor_adam.step()
        loss = -(self.log_alpha * logp.detach().mean())
        self.alpha_adam.zero_grad(set_to_none=False)
        loss.backward()
        self.alpha_adam.step()


def _io(state: int, action: int) -> IOSpec:
    names = tuple(f"joint{i}" for i in range(action))
    ends = (-1.0,) * action, (1.0,) * action
    return IOSpec({"state": ((state,), "float32")}, names, *ends, ("1",) * action, control_hz=50.0)


def _memory(device: str, size: str) -> DeviceReplay:
    """Replay full of random transitions."""
    state, action, _, _, _, envs = SIZES[size]
    replay = DeviceReplay(_io(state, action), 16, num_envs=envs, device=device)
    draw = torch.Generator(replay.device).manual_seed(0)
    off = torch.zeros(envs, dtype=torch.bool, device=replay.device)
    for _ in range(16):
        parts = [torch.randn(envs, width, generator=draw, device=replay.device) for width in (state, state, action)]
        obs, after = {"state": parts[0]}, {"state": parts[1]}
        reward = parts[0][:, 0]
        replay.add(Step(obs, parts[2].tanh(), reward, after, off, off, after, ~off, off, parts[2]))
    return replay
