"""Pipelines by name, one function per preset: `advantage=` of the language agent names one, or a registered stage."""

from __future__ import annotations

from collections.abc import Callable

from robot_rl.advantage.pipeline import Pipeline, Stage


def ppo_robot(
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    whiten: bool = True,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Pipeline:
    """PPO on control steps: GAE, whitening, clipped ratio per step."""
    gae = Stage("gae", options={"gamma": gamma, "gae_lambda": gae_lambda})
    return Pipeline([gae], clock_gap="add", whiten=whiten, loss={"clip": (clip_low, clip_high)})


def ppo_chunk(
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    lambda_unit: str = "decision",
    whiten: bool = True,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Pipeline:
    """PPO on action chunks: GAE with gamma^k, one ratio per chunk."""
    gae = Stage("gae", options={"gamma": gamma, "gae_lambda": gae_lambda, "lambda_unit": lambda_unit})
    loss = {"clip": (clip_low, clip_high), "ratio_unit": "turn", "aggregation": "turn_mean"}
    return Pipeline([gae], clock_gap="add", whiten=whiten, loss=loss)


def hil_ppo(
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    foreign_trace: str = "cut",
    timing: str = "before",
    reward_weight: float = 0.0,
    whiten: bool = True,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Pipeline:
    """PPO with a person in the loop: a take-over is the reward, traces stop at human rows, which leave the loss."""
    gae = Stage("gae", options={"gamma": gamma, "gae_lambda": gae_lambda, "foreign_trace": foreign_trace})
    take_over = Stage("intervention", options={"timing": timing, "reward_weight": reward_weight})
    loss = {"clip": (clip_low, clip_high)}
    return Pipeline([gae], redistribute=[take_over], clock_gap="add", whiten=whiten, loss=loss)


def hiper(
    *,
    use: str = "low",
    gamma: float = 1.0,
    lambda_low: float = 1.0,
    lambda_high: float = 0.95,
    switch_mode: str = "release",
    release_bootstrap: bool = False,
    norm: bool = True,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Pipeline:
    """Hierarchical advantages; one pipeline per head, `use` = low, high or switch."""
    options = {
        "use": use,
        "gamma": gamma,
        "lambda_low": lambda_low,
        "lambda_high": lambda_high,
        "switch_mode": switch_mode,
        "release_bootstrap": release_bootstrap,
        "norm": norm,
    }
    return Pipeline([Stage("hae", options=options)], loss={"clip": (clip_low, clip_high)})


def archer(*, aggregation: str = "seq_mean_token_sum") -> Pipeline:
    """Utterance-level twin critics, REINFORCE over the tokens of fresh samples."""
    return Pipeline([Stage("archer")], loss={"kind": "reinforce", "aggregation": aggregation})


def grpo(
    *,
    scale: str = "std",
    min_group: int = 2,
    aggregation: str = "seq_mean_token_mean",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Pipeline:
    """Group-relative outcomes, one advantage per episode."""
    stage = Stage("grpo", options={"scale": scale, "min_count": min_group})
    return Pipeline([stage], loss={"clip": (clip_low, clip_high), "aggregation": aggregation})


def gigpo(
    *,
    gamma: float = 0.95,
    omega: float = 1.0,
    mode: str = "mean_norm",
    unit: str = "episode",
    aggregation: str = "seq_mean_token_mean",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Pipeline:
    """Episode advantage plus the advantage among all visits of the same state."""
    stage = Stage("gigpo", options={"gamma": gamma, "omega": omega, "mode": mode, "unit": unit})
    return Pipeline([stage], loss={"clip": (clip_low, clip_high), "aggregation": aggregation})


def trloo(
    *,
    gamma: float = 1.0,
    singleton: str = "zero",
    absent: str = "skip",
    aggregation: str = "token_mean",
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> Pipeline:
    """Turn returns against the same turn of the other rollouts."""
    stage = Stage("trloo", options={"gamma": gamma, "singleton": singleton, "absent": absent})
    return Pipeline([stage], loss={"clip": (clip_low, clip_high), "aggregation": aggregation})


def mapo(
    *,
    gamma: float = 0.9,
    experimental_alpha: float = 0.5,
    batch_on: str = "reward",
    aggregation: str = "token_mean",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Pipeline:
    """Judge rewards per turn, normalised in the group and in the batch."""
    options = {"gamma": gamma, "experimental_alpha": experimental_alpha, "batch_on": batch_on}
    loss = {"clip": (clip_low, clip_high), "aggregation": aggregation}
    return Pipeline([Stage("mapo", options=options)], loss=loss)


def lite_ppo(*, scale_of: str = "raw", clip_low: float = 0.2, clip_high: float = 0.2) -> Pipeline:
    """Group mean, batch deviation, token mean."""
    stage = Stage("lite_ppo", options={"scale_of": scale_of})
    return Pipeline([stage], loss={"clip": (clip_low, clip_high), "aggregation": "token_mean"})


def async_areal(
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    whiten: bool = True,
    w_mode: str = "clamp",
    cap: float = 5.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Pipeline:
    """GAE with the decoupled loss for rollouts of older policies."""
    gae = Stage("gae", options={"gamma": gamma, "gae_lambda": gae_lambda})
    loss = {"clip": (clip_low, clip_high), "decoupled": True, "w_mode": w_mode, "cap": cap}
    return Pipeline([gae], whiten=whiten, loss=loss)


PRESETS: dict[str, Callable[..., Pipeline]] = {
    preset.__name__: preset
    for preset in (ppo_robot, ppo_chunk, hil_ppo, hiper, archer, grpo, gigpo, trloo, mapo, lite_ppo, async_areal)
}
