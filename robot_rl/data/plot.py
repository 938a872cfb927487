"""What a log covers, as a picture: returns, lengths, states and actions."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from robot_rl.data.episode import Logs
from robot_rl.figure import figure, main_directions, save

_MOST = 16
"""Components that get a histogram of their own."""


def plot(logs: Logs, out: str | os.PathLike[str], *, points: int = 20_000, seed: int = 0) -> Path:
    """Draw returns, lengths, reward, the two main directions of the states, and every component's histogram.

    Args:
        logs: the data.
        out: the picture, .png, .pdf or .svg.
        points: rows drawn in the scatter plot and histograms, chosen at random.
        seed: of that choice.

    Returns:
        `out`.

    Raises:
        ImportError: matplotlib is missing.
    """
    episodes = logs.episodes
    rng = np.random.default_rng(seed)
    returns = np.array([float(e.reward.sum(dtype=np.float64)) for e in episodes])
    length = np.array([len(e) for e in episodes])
    rows = np.sort(rng.choice(int(length.sum()), min(points, int(length.sum())), replace=False))
    owner = np.repeat(np.arange(len(episodes)), length)[rows]
    action, reward = (np.concatenate([e.columns()[name] for e in episodes])[rows] for name in ("action", "reward"))
    vectors = [key for key, value in episodes[0].obs.items() if value.ndim == 2 and value.dtype.kind == "f"]
    state = None
    if vectors:
        parts = [np.concatenate([e.obs[key][:-1] for e in episodes])[rows] for key in vectors]
        state = np.nan_to_num(np.concatenate(parts, 1))
    shown_state, shown_action = min(_MOST, 0 if state is None else state.shape[1]), min(_MOST, action.shape[1])
    lines = 1 + -(-shown_state // 4) + -(-shown_action // 4)
    made = figure(13, 2.9 * lines + 0.5)
    grid = made.add_gridspec(lines, 4)
    top = [made.add_subplot(grid[0, i]) for i in range(4)]
    top[0].hist(returns, bins=min(50, max(5, len(returns) // 3)), color="#3b6ea5")
    top[0].set(title="return of an episode", ylabel="episodes")
    kinds = {"terminated": [], "truncated": [], "cut": []}
    for episode in episodes:
        kinds["terminated" if episode.terminated else "truncated" if episode.truncated else "cut"].append(len(episode))
    used = {name: values for name, values in kinds.items() if values}
    top[1].hist(list(used.values()), bins=30, stacked=True, label=list(used))
    top[1].set(title="length of an episode [steps]")
    top[1].legend(fontsize=8)
    top[2].hist(np.nan_to_num(reward), bins=60, color="#3b6ea5")
    top[2].set(title="reward of a step", yscale="log")
    if state is not None:
        _coverage(top[3], state, returns[owner])
    at = 4
    for name, values, shown in (("state", state, shown_state), ("action", action, shown_action)):
        names = (logs.io.obs_names if name == "state" else logs.io.action_names) or ()
        for i in range(shown):
            assert values is not None
            axis = made.add_subplot(grid[at // 4, at % 4])
            axis.hist(np.nan_to_num(values[:, i]), bins=60, color="#3b6ea5" if name == "state" else "#b5562f")
            title = names[i] if i < len(names) else f"{name} {i}"
            axis.set_title(title, fontsize=9)
            axis.set_yticks([])
            if name == "action":
                axis.axvline(-1, color="0.5", lw=0.8)
                axis.axvline(1, color="0.5", lw=0.8)
            at += 1
        at = -(-at // 4) * 4
    total = int(length.sum())
    hidden = [f"first {_MOST} {n} components" for n, v in (("state", state), ("action", action)) if _more(v)]
    made.suptitle(
        f"{logs.meta.get('name') or Path(str(logs.meta.get('path', ''))).name}: {len(episodes):,} episodes, {total:,} "
        f"steps ({len(rows):,} drawn{', ' + ', '.join(hidden) if hidden else ''})"
    )
    return save(made, Path(out))


def _more(value: np.ndarray | None) -> bool:
    return value is not None and value.shape[1] > _MOST


def _coverage(axis: object, state: np.ndarray, colour: np.ndarray) -> None:
    """States along their two main directions, coloured by the return of their episode."""
    flat, share = main_directions(state)
    drawn = axis.scatter(flat[:, 0], flat[:, 1], c=colour, s=2, cmap="viridis", rasterized=True)  # pyright: ignore
    axis.set_title(f"states, two main directions ({share:.0%} of the variance)", fontsize=9)  # pyright: ignore
    axis.figure.colorbar(drawn, ax=axis, label="return")  # pyright: ignore
