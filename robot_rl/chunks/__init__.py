"""Chunks of actions: one meaning for replay, critics, policies, the deploy loop and the robot's node.

A decision ("turn") is one call of a policy that answers with H future actions, of which k are executed. Its record is a
row of `Transitions`: `action` (B, H, A) executed and zero behind the k-th, `mask` (B, H) true for i < k, `reward` the
sum of gamma^i r, `discount` gamma^k (1 - terminated), `next_obs` the true successor of the k-th step.
"""

from robot_rl.chunks.delayed import DelayedPolicy, DelayOptions
from robot_rl.chunks.execution import MODES, Execution, ensemble_weights
from robot_rl.chunks.guidance import guidance_factor, guidance_weights, guided_flow
from robot_rl.chunks.horizons import Horizons
from robot_rl.chunks.latency import DelayEstimate, LatencyModel, ticks_of
from robot_rl.chunks.meter import ChunkMeter
from robot_rl.chunks.policy import ChunkedPolicy, Held, Plan, Planner
from robot_rl.chunks.rows import chunk_rows, critic_action, critic_width

__all__ = [
    "MODES",
    "ChunkMeter",
    "ChunkedPolicy",
    "DelayEstimate",
    "DelayOptions",
    "DelayedPolicy",
    "Execution",
    "Held",
    "Horizons",
    "LatencyModel",
    "Plan",
    "Planner",
    "chunk_rows",
    "critic_action",
    "critic_width",
    "ensemble_weights",
    "guidance_factor",
    "guidance_weights",
    "guided_flow",
    "ticks_of",
]
