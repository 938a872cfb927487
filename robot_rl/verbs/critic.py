"""The verb critic: clips, train, eval, label."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
from omegaconf import DictConfig, OmegaConf
from pydantic import Field
from tqdm import tqdm

from robot_rl import build, checkpoint
from robot_rl.atomic import new_folder
from robot_rl.checkpoint import write_json
from robot_rl.data import formats, recorder
from robot_rl.types.options import Count, NotNegative, Part, Positive
from robot_rl.verbs import answer
from robot_rl.verbs import critic_clips as job
from robot_rl.verbs.build import begin, choice, settings_of, start_of, threads
from robot_rl.verbs.critic_clips import CriticJob, TrainingClips, plot_clip
from robot_rl.verbs.options import Folders, Machine, Resume
from robot_rl.verbs.reading import plain
from robot_rl.verbs.rewarders import load_critic, load_judge, with_reference
from robot_rl.words import Refused

SHARES = {
    "success": 4, "pause": 1, "wrong_object": 2, "wrong_place": 2, "drop": 2, "stall": 2, "miss": 2, "regress": 2,
    "undo": 1,
}  # fmt: skip


class CriticOptions(Machine, Resume, job.LabelledOptions):
    """robot-rl critic."""

    what: Literal["clips", "train", "eval", "label"]
    """clips, train, eval or label."""
    path: Folders | None = None
    """eval, label: a critic's run (label: a list is an ensemble)."""
    data: str | None = None
    """train: folder of clips; eval: another; label: a log with pictures."""
    out: str | None = None
    """clips: folder to write; label: log to write."""
    count: Count = 900
    """Clips to make."""
    chunk: Count = 60
    """Clips in a file."""
    shares: dict[str, NotNegative] = Field(default_factory=lambda: dict(SHARES))
    """Of the kinds of clips, in parts."""
    calibration: Part = 0.1
    """Share of the clips kept from training, to calibrate done."""
    save_every: Count = 500
    """Updates between saved states."""
    minutes: Positive | None = None
    """train: stop and save after so many; resume=<run> continues."""
    phrasing: Literal["held_out", "train"] = "held_out"
    """eval: which sentences."""
    combine: Literal["mean", "wco", "uwo"] = "wco"
    """label: of an ensemble, the mean, the minimum (wco) or mean - caution * variance (uwo)."""
    caution: NotNegative = 1.0
    """label: of uwo."""
    instruction: str | None = None
    """label: the sentence; null takes that of each episode of the log."""
    reference: str | None = None
    """label: <clips or log>:<episode> that shows the goal; alone, or beside instruction=."""
    reference_frames: Count = 6
    """label: frames of it; 1 = its last one, a picture of the goal."""


def critic(cfg: DictConfig) -> None:
    """Dispatch on `what`."""
    parts = {"clips": _clips, "train": _train, "eval": _eval, "label": _label}
    if cfg.what not in parts:
        raise Refused(f"there is no 'critic {cfg.what}'; choose {', '.join(parts)}")
    if cfg.resume is not None and cfg.what != "train":
        raise Refused(f"resume= goes on with a training; critic {cfg.what} takes path=<run of critic train>")
    threads(cfg)
    parts[cfg.what](cfg)


def _need(cfg: DictConfig, **keys: str) -> None:
    for key, what in keys.items():
        if cfg.get(key) is None:
            raise Refused(f"critic {cfg.what} needs {key}=<{what}>")


def _clips(cfg: DictConfig) -> None:
    _need(cfg, out="folder to write")
    shares: Any = OmegaConf.to_container(cfg.shares)
    with answer.bar(cfg.count, "clip") as bar:
        made = job.make_clips(
            build.make("clips", plain(cfg.clips)),
            Path(cfg.out),
            count=cfg.count,
            chunk=cfg.chunk,
            shares=shares,
            seed=cfg.seed,
            on_clips=bar,
        )
    if made < cfg.count:
        raise Refused(f"stopped after {made} of {cfg.count} clips; the same command continues")
    arrays, facts = job.load_clips(Path(cfg.out))
    kinds = np.bincount(arrays["kind"], minlength=len(facts["kinds"]))
    answer.table(
        {
            "folder": str(cfg.out),
            "clips": len(arrays["goal"]),
            "frames": len(arrays["frames"]),
            "hash": facts["hash"],
            **{f"  {name}": int(number) for name, number in zip(facts["kinds"], kinds)},
        }
    )


def _train(cfg: DictConfig) -> None:
    minutes = cfg.minutes  # of this start: a run that goes on has none, unless told
    cfg, folder = begin(cfg, "critic", CriticOptions, ("critic", "clips"), f"{choice('critic')}_{cfg.seed}")
    _need(cfg, data="folder of clips")
    learner = build.make("critic", plain(cfg.critic), seed=cfg.seed, device=str(cfg.device))
    made = CriticJob(
        learner,
        TrainingClips.of(Path(cfg.data), learner, share=cfg.calibration, seed=cfg.seed),
        start_of(cfg, folder),
        save_every=cfg.save_every,
        minutes=minutes,
    )
    summary = answer.run(made, "critic train")
    if summary is None:
        answer.say_how_to_continue("stopped after its minutes", "critic train", made.folder)
    else:
        answer.table(summary)


def _eval(cfg: DictConfig) -> None:
    _need(cfg, path="run of critic train", data="folder of clips")
    if not isinstance(cfg.path, str):
        raise Refused("critic eval takes one path=<run of critic train>; several are an ensemble of critic label")
    learner = load_critic(Path(cfg.path), str(cfg.device))
    arrays, facts = job.load_clips(Path(cfg.data))
    if facts["hash"] == checkpoint.read_meta(checkpoint.find(Path(cfg.path)))["clips"]["hash"]:
        raise Refused(f"{cfg.data} is what this critic was trained on; make others: robot-rl critic clips seed=1 out=…")
    clips = learner.clips(arrays, facts)
    with answer.bar(len(clips), "clip") as bar:  # the same clips in another condition begin it anew
        report = learner.evaluate(clips, phrasing=cfg.phrasing, on_clip=bar)
    report["hash"] = facts["hash"]
    folder = Path(cfg.path)
    write_json(folder / f"report_{cfg.phrasing}.json", report)
    place = "policies.vla.context_report:lines" if "conditions" in report else "policies.vla.critic_report:lines"
    rows = build.tool(place)(report)
    width = max(len(row[0]) for row in rows)
    for what, measured, wanted in rows:
        print(f"  {what:<{width}}  {measured:<22}  {wanted}")
    picture = folder / "clip.png"
    _plot(learner, clips, picture)
    answer.table({"numbers": str(folder / f"report_{cfg.phrasing}.json"), "plot": str(picture)})


def _label(cfg: DictConfig) -> None:
    _need(cfg, path="run of critic train", data="log with pictures", out="log to write")
    out = Path(cfg.out)
    if out.exists():
        raise Refused(f"{out} exists already; choose another name (nothing is overwritten)")
    reward = build.tool("policies.reward.critic_reward:progress_reward")
    met = build.tool("policies.reward.critic_reward:done_events")
    caveat = build.tool("policies.reward.critic_reward:CAVEATS").get(cfg.mode)
    if caveat:
        print(f"  warning: mode={cfg.mode}: {caveat}", file=sys.stderr)
    chosen = cfg.path if isinstance(cfg.path, str) else [str(path) for path in cfg.path]
    judge = load_judge(chosen, str(cfg.combine), float(cfg.caution), str(cfg.device))
    if cfg.reference is not None:
        judge = with_reference(judge, str(cfg.reference), int(cfg.reference_frames), str(cfg.camera))
    logs = formats.load(cfg.data)
    options = settings_of(job.LabelledOptions, cfg)
    ends, truths = [], []
    bar = tqdm(logs.episodes, unit="episode", file=sys.stderr)
    with bar, new_folder(out) as whole, recorder.Recorder(whole) as writer:
        for episode in bar:
            # a reference takes the place of the log's own sentences; a sentence given here stands beside it
            own = episode.meta.get("instruction") if cfg.reference is None else ""
            text = cfg.instruction or own
            if not text and cfg.reference is None:
                raise Refused("the log names no instruction; add instruction='<sentence>' or reference=<log>:<episode>")
            labelled = job.label(episode, judge, reward, options, instruction=str(text or ""), met=met)
            writer.append(labelled)
            columns = labelled.meta["columns"]
            ends.append((float(columns["critic_progress"][-1]), float(columns["critic_done"][-1])))
            if "success" in episode.meta:
                truths.append(bool(episode.meta["success"]))
    progress, done = np.array(ends).T
    rows: dict[str, object] = {
        "log": str(out),
        "episodes": len(ends),
        "mean end progress": float(progress.mean()),
        "called done": float((done > 0.5).mean()),
    }
    if len(truths) == len(ends):
        rows["truly successful"] = float(np.mean(truths))
        rows["agreement"] = float(np.mean((done > 0.5) == np.array(truths)))
    answer.table(rows)


def _plot(learner: Any, clips: Any, path: Path) -> None:
    """A success under its own goal, under another block's and another plate's, against the truth."""

    judge = learner.critic()
    row = int(np.flatnonzero(clips.meets_goal())[0])
    part = slice(int(clips.start[row]), int(clips.start[row + 1]))
    asked, goals = int(clips.goal[row]), len(clips.held_out)
    lines, done = {}, {}
    for goal in (asked, asked ^ 1, (asked + 2) % goals):
        text = clips.held_out[goal][0]
        path_of = judge.trajectory(clips.frames[part], text)
        name = f"{'asked: ' if goal == asked else ''}{text}"
        lines[name] = path_of.values
        work = clips.work[part][:, goal].astype(np.float64)
        lines[f"{name}, truth"] = np.maximum(1.0 - work / work[0], -1.0)
        done[name] = path_of.done
    plot_clip(path, clips.frames[part], lines, done)
