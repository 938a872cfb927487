"""What is known of D4RL's tasks: normalised scores, episode limits, sizes, and when an episode really ends."""

from __future__ import annotations

import re

import numpy as np

# (pattern of the full dataset name, score 0, score 100); the first match counts.
# Source: Farama-Foundation/D4RL d4rl/infos.py and d4rl/pointmaze/__init__.py (values; the same for all variants and
# versions of a dataset unless listed).
_SCORES: tuple[tuple[str, float, float], ...] = (
    (r"halfcheetah-", -280.178953, 12135.0),
    (r"hopper-", -20.272305, 3234.3),
    (r"walker2d-", 1.629008, 4592.3),
    (r"antmaze-", 0.0, 1.0),
    (r"ant-", -325.6, 3879.7),
    (r"pen-", 96.262799, 3076.8331017826877),
    (r"hammer-", -274.856578, 12794.134825156867),
    (r"relocate-", -6.425911, 4233.877797728884),
    (r"door-", -56.512833, 2880.5693087298737),
    (r"kitchen-", 0.0, 4.0),
    (r"maze2d-eval-umaze-dense-v1", 56.95455, 178.21373133248397),
    (r"maze2d-eval-medium-dense-v1", 42.28578, 235.5658957482388),
    (r"maze2d-eval-large-dense-v1", 56.95455, 326.09647655082637),
    (r"maze2d-eval-umaze-v1", 36.63, 141.4),
    (r"maze2d-eval-medium-v1", 13.07, 204.93),
    (r"maze2d-eval-large-v1", 16.4, 302.22),
    (r"maze2d-open-dense-v0", 11.17817, 27.166538620695782),
    (r"maze2d-open-v0", 0.01, 20.66),
    (r"maze2d-umaze-dense-v1", 68.537689, 193.66285642381482),
    (r"maze2d-medium-dense-v1", 44.264742, 297.4552547777125),
    (r"maze2d-large-dense-v1", 30.569041, 303.4857382709002),
    (r"maze2d-umaze-dense-v0", 23.249793, 81.78995240126592),
    (r"maze2d-medium-dense-v0", 19.477620, 96.03474232952358),
    (r"maze2d-large-dense-v0", 27.388310, 215.09965671563742),
    (r"maze2d-umaze-v1", 23.85, 161.86),
    (r"maze2d-medium-v1", 13.13, 277.39),
    (r"maze2d-large-v1", 6.7, 273.99),
    (r"maze2d-umaze-v0", 0.94, 62.6),
    (r"maze2d-medium-v0", 5.77, 85.14),
    (r"maze2d-large-v0", 4.83, 191.99),
)

_LIMITS: tuple[tuple[str, int], ...] = (
    (r"(halfcheetah|hopper|walker2d|ant)-", 1000),
    (r"antmaze-umaze", 700),
    (r"antmaze-", 1000),
    (r"pen-", 100),
    (r"(hammer|relocate|door)-", 200),
    (r"kitchen-", 280),
    (r"maze2d-(eval-)?umaze(-dense)?-v1", 300),
    (r"maze2d-(eval-)?medium(-dense)?-v1", 600),
    (r"maze2d-(eval-)?large(-dense)?-v1", 800),
)


def reference_scores(name: str) -> tuple[float, float]:
    """Returns that count as 0 and as 100.

    Args:
        name: dataset, such as "hopper-medium-v2" (underscores and capitals are accepted).

    Raises:
        ValueError: the name is none of D4RL's.
    """
    for pattern, low, high in _SCORES:
        if re.match(pattern, _plain(name)):
            return low, high
    known = sorted({pattern.split("-")[0] for pattern, _, _ in _SCORES})
    raise ValueError(
        f"there is no reference score for '{name}'; known are {', '.join(known)}, each as <task>-<variant>-v<k> "
        "(maze2d has different scores per variant and version)"
    )


def normalized_score(name: str, episode_return: float) -> float:
    """100 (R - R0) / (R100 - R0) for an undiscounted evaluation return R.

    Source: Fu et al., D4RL: Datasets for Deep Data-Driven Reinforcement Learning, section 5.
    """
    low, high = reference_scores(name)
    return 100.0 * (episode_return - low) / (high - low)


def normalized_std(name: str, std: float) -> float:
    """A standard deviation of returns on the scale of `normalized_score`: scaled, not shifted."""
    low, high = reference_scores(name)
    return 100.0 * std / (high - low)


def episode_limit(name: str) -> int | None:
    """Steps after which D4RL ends an episode, or None when the name says nothing about it."""
    return next((limit for pattern, limit in _LIMITS if re.match(pattern, _plain(name))), None)


# Observation and action sizes of the benchmark's own data sets. Source: D4RL (recalled).
_SIZES: tuple[tuple[str, int, int], ...] = (
    (r"halfcheetah-", 17, 6),
    (r"hopper-", 11, 3),
    (r"walker2d-", 17, 6),
    (r"antmaze-", 29, 8),
    (r"ant-", 111, 8),
    (r"maze2d-", 4, 2),
    (r"pen-", 45, 24),
    (r"hammer-", 46, 26),
    (r"door-", 39, 28),
    (r"relocate-", 39, 30),
    (r"kitchen-", 60, 9),
)
_VARIANTS = r"(random|medium|expert|full|human|cloned|complete|partial|mixed|umaze|large|open|eval)"


def sizes(name: str) -> tuple[int, int] | None:
    """(observation, action) dimensions of a data set of the benchmark, or None for any other name."""
    plain = _plain(name)
    if not re.match(rf"[a-z0-9]+-{_VARIANTS}(-|$)", plain):
        return None
    return next(((obs, action) for pattern, obs, action in _SIZES if re.match(pattern, plain)), None)


def terminates(name: str, state: np.ndarray) -> np.ndarray | None:
    """(B,) bool: does the task end in these observations (B, S)? None when its rule is not known.

    Source: the termination functions of the Gymnasium MuJoCo environments (v2 to v4).
    """
    plain, state = _plain(name), np.asarray(state)
    finite = np.isfinite(state).all(1)
    if plain.startswith("halfcheetah-"):
        return np.zeros(len(state), bool)
    if plain.startswith("hopper-") and state.shape[1] == 11:
        small = (np.abs(state[:, 1:]) < 100).all(1)
        return ~(finite & small & (state[:, 0] > 0.7) & (np.abs(state[:, 1]) < 0.2))
    if plain.startswith("walker2d-") and state.shape[1] == 17:
        return ~((state[:, 0] > 0.8) & (state[:, 0] < 2.0) & (np.abs(state[:, 1]) < 1.0))
    if plain.startswith("ant-"):
        return ~(finite & (state[:, 0] >= 0.2) & (state[:, 0] <= 1.0))
    return None


def _plain(name: str) -> str:
    return name.lower().replace("_", "-") + ("" if "-" in name or "_" in name else "-")
