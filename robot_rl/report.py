"""What a run leaves for the eye: learning-curve PNG, evaluation video, one-page HTML report."""

from __future__ import annotations

import base64
import html
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.atomic import write_bytes
from robot_rl.checkpoint import git_commit
from robot_rl.extras import require
from robot_rl.figure import main_directions, panels, save
from robot_rl.version import VERSION

CURVES = (
    *("eval/success", "rollout/success", "rollout/intervention_rate", "eval/score", "eval/return", "rollout/return"),
    *("train/q", "train/critic_loss", "time/sps", "time/ups"),
)
TITLES = {
    "success": "success rate",
    "intervention_rate": "share of steps that the person drove",
    "return": "return",
    "score": "normalised score",
    "q": "mean Q",
    "critic_loss": "critic loss",
    "ups": "updates per second",
    "sps": "environment steps per second",
}
MOST_COLUMNS = 4
"""Panels side by side."""
_TEMPLATE = Path(__file__).with_name("report.html.j2")


def missing() -> str:
    """What `write_curve`, `write_video` and `write_report` would fail for, or ""; loads nothing."""
    absent = [name for name in ("matplotlib", "jinja2", "av") if util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed; pip install 'robot_rl[report]'" if absent else ""


def export_model(learner: Any, path: Path) -> Path | None:
    """The learner's policy in a format of its own, where it has one (`export`); an earlier one of that name stays."""
    return path if path.exists() else learner.export(path)


def write_video(path: str | Path, frames: Sequence[np.ndarray], fps: float) -> Path:
    """Encode frames as H.264 mp4 that browsers play.

    Args:
        path: the mp4 file.
        frames: (H, W, 3) uint8 each, one size.
        fps: frames per second.

    Raises:
        ValueError: no frames.
    """
    if not frames:
        raise ValueError("no frames to encode; render at least one step")
    av = require("av")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = (size - size % 2 for size in frames[0].shape[:2])  # yuv420p needs even sizes
    partial = path.with_name(f".partial-{path.name}")
    with av.open(str(partial), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=max(round(fps), 1))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "20", "movflags": "faststart"}
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    partial.replace(path)
    return path


def write_curve(
    path: str | Path, rows: Sequence[dict[str, object]], *, title: str = "", unit: str = "environment step"
) -> Path:
    """Plot the learning curves found in metric rows.

    Args:
        path: the PNG file.
        rows: rows of metrics.jsonl.
        title: above the plots.
        unit: of "step" in the rows.
    """
    curves: dict[str, list[str]] = {}
    there = {name for row in rows for name, value in row.items() if value is not None}
    # a run without returns, such as a critic's, shows what its training said
    for name in [name for name in CURVES if name in there] or sorted(name for name in there if name[:6] == "train/"):
        curves.setdefault(name.split("/")[1], []).append(name)
    columns = min(max(len(curves), 1), MOST_COLUMNS)
    figure, axes = panels(max(-(-len(curves) // columns), 1), columns, width=4.2, height=3.2)
    for axis in axes.flat[len(curves) :]:
        axis.set_axis_off()
    for axis, (panel, names) in zip(axes.flat, curves.items()):
        for name in names:
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            dots = name.startswith("eval") or len(points) == 1  # no line is seen of one point
            style = {"marker": "o", "markersize": 3} if dots else {"alpha": 0.7}
            axis.plot(*zip(*points), label="evaluation" if name.startswith("eval") else "training", **style)
        axis.set_title(TITLES.get(panel, panel))
        axis.set_xlabel(f"{unit}s")
        axis.grid(alpha=0.3)
        if panel == "success":
            axis.set_ylim(-0.03, 1.03)
        if len(names) > 1:
            axis.legend()
    if title:
        figure.suptitle(title)
    return save(figure, Path(path))


def _terms(rows: Sequence[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(key.removeprefix("reward/") for row in rows for key in row if key.startswith("reward/")))


def rank_terms(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a reward consisted of over a run, the largest share first.

    Args:
        rows: rows of metrics.jsonl, with "reward/<term>", "reward_low/<term>" and "reward_high/<term>".

    Returns:
        Up to three lines: shares of all that was paid, shares of all penalties, and terms that were 0 in every step;
        empty where no terms are named.
    """
    paid, penalty, never = {}, {}, []
    for name in _terms(rows):
        mean = float(np.mean([row[f"reward/{name}"] for row in rows if f"reward/{name}" in row]))
        ends = [row[f"reward_{end}/{name}"] for end in ("low", "high") for row in rows if f"reward_{end}/{name}" in row]
        if not any(ends):
            never.append(name)
        elif mean:
            (paid if mean > 0.0 else penalty)[name] = abs(mean)
    lines = {}
    for title, shares in (("reward", paid), ("penalties", penalty)):
        whole = sum(shares.values())
        ranked = sorted(shares, key=lambda name: -shares[name])
        if ranked:
            lines[title] = ", ".join(f"{name} {shares[name] / whole:.0%}" for name in ranked)
    return {**lines, **({"always 0": ", ".join(never)} if never else {})}


def write_terms(path: Path, rows: Sequence[Mapping[str, object]]) -> Path | None:
    """Plot a reward term by term: the mean of a step over the run, and the least and the most that a step was paid.

    Args:
        path: the PNG file.
        rows: see `rank_terms`.

    Returns:
        The file, or None where the rows name no terms.
    """
    names = _terms(rows)
    if not names:
        return None
    figure, axes = panels(1, 2, width=5, height=3.6)
    for i, name in enumerate(names):
        some = [row for row in rows if f"reward/{name}" in row]
        at = [row["step"] for row in some]
        axes[0, 0].plot(at, [row[f"reward/{name}"] for row in some], color=f"C{i % 10}", label=name)
        low, high = ([row[f"reward_{end}/{name}"] for row in some] for end in ("low", "high"))
        axes[0, 1].fill_between(at, low, high, color=f"C{i % 10}", alpha=0.25)
    for axis, words in zip(axes[0], ("mean of a step", "from the least to the most of a step")):
        axis.set_title(words, fontsize=10)
        axis.set_xlabel("environment steps")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    return save(figure, path)


@dataclass(frozen=True)
class Support:
    """Where the policy stays with the data and where it leaves them, at logged states (at most 4,096).

    Attributes:
        state: (N, n).
        logged: (N, A) the data's actions.
        chosen: (N, A) the policy's.
        outside: (N,) bool: the behaviour would hardly have taken the policy's action.
    """

    state: np.ndarray
    logged: np.ndarray
    chosen: np.ndarray
    outside: np.ndarray

    @property
    def share(self) -> float:
        """Of the actions that are outside."""
        return float(self.outside.mean())


def write_support(path: str | Path, support: Support, *, actions: int = 6) -> Path:
    """Plot where a policy leaves its data: states where it does, and the logged and its own actions side by side.

    Args:
        path: the PNG file.
        support: states (N, n), logged and chosen actions (N, A), and which of the latter are outside the data.
        actions: components that get a histogram.
    """
    shown = min(actions, support.logged.shape[1])
    figure, axes = panels(1, 1 + shown, width=3, height=3.2)
    flat, _ = main_directions(support.state)
    first = axes[0][0]
    for part, colour, name in ((~support.outside, "#9db4cc", "inside"), (support.outside, "#b5562f", "outside")):
        first.scatter(*flat[part].T, s=3, c=colour, label=f"{name}: {part.mean():.0%}")
    first.set_title("logged states, two main directions", fontsize=9)
    first.legend(fontsize=8, title="the policy's action there", title_fontsize=8)
    edges = np.linspace(-1.0, 1.0, 41)
    for i in range(shown):
        axis = axes[0][1 + i]
        axis.hist(np.clip(support.logged[:, i], -1, 1), bins=edges, color="#9db4cc", label="logged")
        axis.hist(np.clip(support.chosen[:, i], -1, 1), bins=edges, histtype="step", color="#b5562f", label="policy")
        axis.set_title(f"action {i}", fontsize=9)
        axis.set_yticks([])
    axes[0][-1].legend(fontsize=8)
    return save(figure, Path(path))


def write_report(
    folder: str | Path,
    *,
    title: str,
    summary: dict[str, object],
    config: str,
    curve: Path | None,
    video: Path | None,
    pictures: Mapping[str, Path] | None = None,
    warnings: Sequence[str] = (),
) -> Path:
    """Write `report.html` in the run folder: numbers, curves, video, configuration, versions.

    Args:
        folder: the run folder.
        title: heading.
        summary: name -> value table shown on top.
        config: the composed configuration as YAML.
        curve: PNG to inline, or None.
        video: mp4 inside the folder to link, or None.
        pictures: heading -> further PNG to inline.
        warnings: sentences shown on top.
    """
    jinja2 = require("jinja2")
    folder = Path(folder)

    def inline(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    image = inline(curve) if curve is not None and curve.exists() else ""
    template = jinja2.Environment(autoescape=True).from_string(_TEMPLATE.read_text())
    page = template.render(
        title=title,
        summary={name: _short(value) for name, value in summary.items()},
        config=config,
        image=image,
        pictures={heading: inline(path) for heading, path in (pictures or {}).items() if path.exists()},
        warnings=list(warnings),
        video=video.relative_to(folder).as_posix() if video is not None and video.exists() else "",
        versions=versions(),
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )
    path = folder / "report.html"
    write_bytes(path, page.encode())
    return path


def versions() -> dict[str, str]:
    """Versions that matter for repeating a run."""
    found = {"robot_rl": VERSION, "python": platform.python_version(), "commit": git_commit() or "not a checkout"}
    for package in ("torch", "numpy", "gymnasium", "mujoco", "stable-baselines3", "hydra-core", "numba"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    found["platform"] = html.escape(platform.platform())
    return found


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
