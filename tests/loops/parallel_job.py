"""What one of several processes does in test_parallel.py; alone it is the reference with the joint batch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.point_world import PointWorld
from robot_rl import parallel
from robot_rl.loops.device import DeviceOffPolicy
from robot_rl.policies.online.fast_ppo import FastPpo, FastPpoOptions
from robot_rl.policies.online.fast_sac import FastSac, FastSacOptions
from robot_rl.policies.online.fast_td3 import FastTd3, FastTd3Options
from robot_rl.types import IOSpec, Rollout, Transitions

IO = IOSpec({"state": ((2,), "float32")}, ("x", "y"), (-1.0,) * 2, (1.0,) * 2, ("1",) * 2, 20.0)
SMALL = {"batch_size": 16, "updates": 1, "actor_hidden": (8,), "critic_hidden": (8,), "bins": 21}


def part(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """This process's rows of a joint tensor."""
    return x.chunk(parallel.size(), dim)[parallel.rank()].contiguous()


def off_policy(kind: Any, options: Any) -> dict[str, torch.Tensor]:
    """Five updates on shares of joint batches, with shares of joint noise and observations."""
    draw = torch.Generator().manual_seed(0)
    learner = kind(options(**SMALL), IO)
    for _ in range(5):
        state, after, action = (torch.randn(16, 2, generator=draw) for _ in range(3))
        reward, noise = torch.randn(16, generator=draw), torch.randn(2, 16, 2, generator=draw)
        learner.explore({"state": part(3 * state)}, torch.ones(len(part(state)), dtype=torch.bool))
        off = torch.zeros(len(part(state)), dtype=torch.bool)
        batch = Transitions(
            {"state": part(state)}, part(action.tanh()), part(reward), torch.full(off.shape, 0.9),
            {"state": part(after)}, off, off, off, ~off,
        )  # fmt: skip
        learner.learn(batch, part(noise, 1), True)
    moments = torch.cat([learner.norm.shift, learner.norm.scale, learner.reward_scale.scale[None]])
    return {"actor": learner._actor.flat, "critic": learner.critic.params.flat, "moments": moments}


def on_policy() -> dict[str, torch.Tensor]:
    """One update on a share of a joint rollout, in whole passes."""
    draw = torch.Generator().manual_seed(1)
    learner = FastPpo(FastPpoOptions(hidden=(8,), minibatches=1, epochs=4, rollout_steps=6), IO)
    state, action = (torch.randn(6, 8, 2, generator=draw) for _ in range(2))
    logp, value, reward, ahead = (torch.randn(6, 8, generator=draw) for _ in range(4))
    ended = torch.rand(6, 8, generator=draw) < 0.2
    boundary = ended.clone()
    boundary[-1] = True
    a, log_prob, v, r, after, over = (part(x, 1) for x in (action, logp - 2, value, reward, ahead, ended))
    own = part(boundary, 1)
    none, every = torch.zeros_like(own), torch.ones_like(own)
    rollout = Rollout({"state": part(state, 1)}, a, log_prob, v, r, after, over, none, own, every)
    learner.update(iter((rollout,)))
    return {"params": learner.params.flat, "lr": learner.lr, "shift": learner.norm.shift}  # pyright: ignore[reportOptionalMemberAccess]


def loop() -> dict[str, torch.Tensor]:
    """A whole loop, every process with environments of its own."""
    world = PointWorld(8 // parallel.size(), 100 + parallel.rank())
    run = DeviceOffPolicy(
        world, FastSac(FastSacOptions.model_validate(SMALL), world.io), learning_starts=16, seed=3, buffer_size=256
    )
    run.run(80)
    actor = run.learner.policy.state_dict()["actor"]
    return {"actor": actor, "steps": torch.tensor(run.env_steps), "seen": run.replay.record[0, :, :2]}


def everything() -> dict[str, dict[str, torch.Tensor]]:
    """All results by name."""
    return {
        "sac": off_policy(FastSac, FastSacOptions),
        "td3": off_policy(FastTd3, FastTd3Options),
        "ppo": on_policy(),
        "loop": loop(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.start("cpu")
    result = everything()
    plain = {name: {key: value.detach().clone() for key, value in part.items()} for name, part in result.items()}
    torch.save(plain, Path(sys.argv[1]) / f"rank{parallel.rank()}.pt")
    assert parallel.agree(parallel.rank()) == 0
    parallel.stop()
