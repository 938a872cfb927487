"""Multi-turn advantage core: torch and NumPy only, usable alone.

Three layers, each usable without the next: dense functions on arrays (`scan`, `gae`, `group_advantage`,
`policy_loss`), estimators on flat or time-major rows (`rollout_gae`, `turn_gae`, `hae`, `gigpo`, ...), and a
validated batch with a pipeline from configuration (`TurnBatch`, `Pipeline`). Every function takes NumPy arrays or torch
tensors and returns the same kind. Specialised functions live in the files of their subject, those that no learner uses
yet in `zoo`.
"""

from robot_rl.advantage.aggregate import aggregate, batch_totals, row_weight
from robot_rl.advantage.anchors import cluster_anchor, state_anchor, text_anchor
from robot_rl.advantage.backends import available, use_backend
from robot_rl.advantage.batch import TurnBatch, make_batch
from robot_rl.advantage.builders import from_chunks, from_log, from_tokens, from_vector_rollout, to_rollout
from robot_rl.advantage.clock import compact, foreign_cut, perspective
from robot_rl.advantage.fused import FusedLoss, FusedOptions, fused_policy_loss
from robot_rl.advantage.gae import gae, macro_reward, rollout_gae
from robot_rl.advantage.groups import dr_grpo, group_advantage, grpo, lite_ppo, rloo
from robot_rl.advantage.hierarchy import OptionRows, hae
from robot_rl.advantage.layout import RowIds
from robot_rl.advantage.losses import ClipRange, decoupled_policy_loss, policy_loss, policy_metrics
from robot_rl.advantage.normalise import EdgeRules, normalise, whiten
from robot_rl.advantage.pipeline import Credit, Pipeline, Stage
from robot_rl.advantage.registry import entries, register
from robot_rl.advantage.rows import RolloutRows
from robot_rl.advantage.scan import reverse_linear_scan, scan
from robot_rl.advantage.segments import combine_ids, seg_count, seg_max, seg_mean, seg_sum, seg_var
from robot_rl.advantage.tables import dense_ids
from robot_rl.advantage.turn_groups import gigpo, mapo, trloo
from robot_rl.advantage.turns import bilevel_gae, to_steps, to_turns, turn_gae
from robot_rl.advantage.value_losses import explained_variance, value_loss_rows

__all__ = [
    "ClipRange",
    "Credit",
    "EdgeRules",
    "FusedLoss",
    "FusedOptions",
    "OptionRows",
    "Pipeline",
    "RolloutRows",
    "RowIds",
    "Stage",
    "TurnBatch",
    "aggregate",
    "available",
    "batch_totals",
    "bilevel_gae",
    "cluster_anchor",
    "combine_ids",
    "compact",
    "decoupled_policy_loss",
    "dense_ids",
    "dr_grpo",
    "entries",
    "explained_variance",
    "foreign_cut",
    "from_chunks",
    "from_log",
    "from_tokens",
    "from_vector_rollout",
    "fused_policy_loss",
    "gae",
    "gigpo",
    "group_advantage",
    "grpo",
    "hae",
    "lite_ppo",
    "macro_reward",
    "make_batch",
    "mapo",
    "normalise",
    "perspective",
    "policy_loss",
    "policy_metrics",
    "register",
    "reverse_linear_scan",
    "rloo",
    "rollout_gae",
    "row_weight",
    "scan",
    "seg_count",
    "seg_max",
    "seg_mean",
    "seg_sum",
    "seg_var",
    "state_anchor",
    "text_anchor",
    "to_rollout",
    "to_steps",
    "to_turns",
    "trloo",
    "turn_gae",
    "use_backend",
    "value_loss_rows",
    "whiten",
]
