"""The offline job: a log in, a policy out, with evaluation, checkpoints, progress and report around the loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from robot_rl import checkpoint, report
from robot_rl.checkpoint import CheckpointError, write_bytes, write_json
from robot_rl.data import scores
from robot_rl.data.goal_pictures import GoalPictures
from robot_rl.data.goals import GoalDataset
from robot_rl.data.mix import Mix
from robot_rl.jobs import logs, ope
from robot_rl.jobs.contract import check_evaluations, check_learner
from robot_rl.jobs.interrupt import Interrupt
from robot_rl.jobs.live_bar import LiveBar
from robot_rl.jobs.logs import LogSettings
from robot_rl.jobs.offline_judge import Judges, judge, updates_of
from robot_rl.jobs.train import record_video
from robot_rl.loops.evaluate import Evaluation, evaluate
from robot_rl.loops.offline import Offline
from robot_rl.ope.intervals import iqm, stratified
from robot_rl.stopwatch import Stopwatch
from robot_rl.track import METRICS_FILE, read_metrics
from robot_rl.types import IOSpec, Learner, Metrics, Tracker


@dataclass(frozen=True)
class OfflineSettings(LogSettings):
    """Numbers of an offline run; with those of `LogSettings` the top-level keys of configs/offline.yaml.

    Attributes:
        updates: learner updates in all.
        seed: of everything; evaluation uses its own fixed seeds.
        expert: a second log, of demonstrations, for methods that imitate; half of every batch comes from it.
        score: dataset whose reference scores normalise the returns; "auto" tries the log's name and the environment's.
        log_every: updates between metric rows.
        eval_every: updates between evaluations; 0 means only at the end.
        eval_episodes: episodes of an evaluation in mid-run.
        eval_envs: copies of the evaluation environment.
        final_episodes: episodes of the evaluation at the end.
        estimate: updates of fitted Q evaluation at the end, which says from the log alone how good the policy is;
            "auto" = a tenth of `updates`, yet 10,000 where there are as many, 50,000 at most; 0 = no estimate.
        checkpoint_every: updates between checkpoints; 0 means only at the end and on interruption.
        keep_checkpoints: how many stay on disk.
        video_episodes: episodes in the final video; 0 = no video.
        allow_data_change: resume although the log is not the one that the run began with.
    """

    updates: int = 1_000_000
    seed: int = 0
    expert: str | None = None
    score: str = "auto"
    log_every: int = 1000
    eval_every: int = 5000
    eval_episodes: int = 10
    eval_envs: int = 10
    final_episodes: int = 10
    estimate: int | str = "auto"
    checkpoint_every: int = 50_000
    keep_checkpoints: int = 2
    video_episodes: int = 1
    allow_data_change: bool = False

    def __post_init__(self) -> None:
        check_evaluations(self)


class OfflineJob:
    """One offline run in one folder, resumable from its newest checkpoint."""

    def __init__(
        self,
        settings: OfflineSettings,
        folder: Path,
        *,
        make_env: Callable[..., Any] | None,
        make_learner: Callable[[Any], Any],
        make_tracker: Callable[[int | None], Tracker],
        config: str,
        env_name: str = "",
        judges: Judges | None = None,
        resume: bool = False,
    ) -> None:
        """Read the log, build learner and loop, and restore them when resuming.

        Args:
            settings: numbers of the run.
            folder: the run folder.
            make_env: (num_envs, seed, render) -> vector environment to evaluate in, or None.
            make_learner: (io) -> learner.
            make_tracker: (resume step or None) -> tracker.
            config: the composed configuration as YAML text.
            env_name: a name of the environment that may have a reference score.
            judges: what estimates the policy's value at the end, or None for no estimate.
            resume: continue from the newest checkpoint in `folder`.

        Raises:
            CheckpointError: nothing to resume from, or it does not fit.
            ValueError: the log cannot be read, or log and environment do not fit.
        """
        self.settings, self.folder, self.config, self.make_env = settings, folder, config, make_env
        self._judges, self._estimate_updates = judges, updates_of(settings.estimate, settings.updates)
        self.root = folder / "checkpoints"
        found = checkpoint.find(folder) if resume else None
        store = logs.open_log(settings.data)
        name = str(store.meta.get("name", Path(settings.data).stem))
        self._eval_env: Any = None
        if make_env is not None:
            self._eval_env = make_env(settings.eval_envs, settings.seed + 10_000, False)
        self.io: IOSpec = store.io if self._eval_env is None else logs.agree(store.io, self._eval_env.io)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "config.yaml", config.encode())
        self.learner: Learner[Any, Any] = make_learner(self.io)
        check_learner(self.learner)
        need = self.learner.need
        options: dict[str, Any] = {
            "reads": need.extras,
            "window": need.window,
            "return_gamma": need.return_gamma,
            "return_bootstrap": need.return_bootstrap,
            "reader": self.learner.reader,
            "keys": need.keys,
            "progress": need.progress,
        }
        self.sampler, self.findings = logs.sampler(store, settings, seed=settings.seed, seeds=need.seeds, **options)
        if not need.rewardless:
            logs.check_rewards(self.sampler)
        self.source: Any = self.sampler
        if need.goals is not None:
            self.source = GoalDataset(self.sampler, seed=settings.seed, **need.goals)
        if need.goal_pictures is not None:
            self.source = GoalPictures(self.sampler, seed=settings.seed, **need.goal_pictures)
        if settings.expert is not None:
            demos, notes = logs.sampler(
                logs.open_log(settings.expert),
                replace(settings, data=settings.expert, top_fraction=1.0),
                seed=settings.seed + 1,
                **options,
            )
            self.findings += notes
            self.source = Mix({"expert": (demos, 0.5), "other": (self.sampler, 0.5)}, seed=settings.seed)
        elif need.expert:
            raise ValueError("this method imitates: add expert=<log of demonstrations> beside data=<log>")
        self.loop = Offline(self.learner, self.source, batch_size=need.rows)
        self.resume_step: int | None = None
        if found is not None:
            self._restore(found)
        else:
            self.learner.prepare(logs.facts(self.sampler))
        self._score = self._find_score(settings.score, (name, env_name))
        self.tracker = make_tracker(self.resume_step)
        self._watch = Stopwatch()
        self._interrupt = Interrupt()
        self._saved_at = self.resume_step
        self._last_hook = self.resume_step or 0
        self._evaluated_at = -1
        self.evaluations: list[Evaluation] = []
        self.warnings: list[str] = []

    @staticmethod
    def _find_score(wanted: str, names: tuple[str, ...]) -> str | None:
        if wanted != "auto":
            scores.reference_scores(wanted)
            return wanted
        for name in names:
            try:
                scores.reference_scores(name)
            except ValueError:
                continue
            return name
        return None

    def run(self) -> dict[str, Any]:
        """Train, evaluate, write curve, video and report; returns the summary.

        Raises:
            CheckpointError: a checkpoint could not be written.
            KeyboardInterrupt: after a Ctrl-C, once everything is saved.
        """
        total, done = self.settings.updates, self.loop.updates
        progress = LiveBar(total, done, "update", lambda: self.loop.updates)
        with self._interrupt, progress as bar:
            self._bar = bar
            self._watch.resume()
            if done < total:
                asked = self._interrupt.look
                self.loop.run(total, self._hook, hook_every=self.settings.log_every, asked=asked)
        if self._saved_at != self.loop.updates:
            self._save()
        if self._interrupt.asked:
            self.tracker.close()
            raise KeyboardInterrupt(str(self.folder))
        summary = self._finish()
        self.tracker.close()
        return summary

    def _hook(self, step: int, metrics: Metrics) -> bool:
        s = self.settings
        self._watch.pause()
        wall, cpu = self._watch.read()
        metrics = {**metrics, "time/train_s": wall, "time/train_cpu_s": cpu}
        self._bar.to(step)
        short = {key: f"{metrics[f'train/{key}']:.3g}" for key in ("q", "loss") if f"train/{key}" in metrics}
        if self._eval_env is not None and s.eval_every and step // s.eval_every > self._last_hook // s.eval_every:
            results = self.evaluate(s.eval_episodes)
            if step >= s.updates and s.eval_episodes == s.final_episodes:
                self.evaluations, self._evaluated_at = results, step
            metrics = {**metrics, **self._summarise(results)}
            short["eval"] = f"{metrics.get('eval/score', metrics['eval/return']):.4g}"
        self._bar.note(short, metrics)
        self.tracker.log(metrics, step)
        if s.checkpoint_every and step // s.checkpoint_every > self._last_hook // s.checkpoint_every:
            self._save()
        self._last_hook = step
        self._watch.resume()
        return self._interrupt.asked

    def evaluate(self, episodes: int) -> list[Evaluation]:
        """Deterministic evaluation, one per seed that the learner trains side by side."""
        policy: Any = self.learner.policy
        results = []
        for active in range(getattr(policy, "seeds", 1)):
            policy.active = active
            results.append(evaluate(self._eval_env, policy, episodes=episodes, seed=10_000))
        policy.active = 0
        return results

    def _summarise(self, results: list[Evaluation]) -> Metrics:
        """Mean over seeds of the usual numbers, the normalised score, and the spread over seeds."""
        rows = [result.metrics() for result in results]
        out = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        per_seed = [row["eval/return"] for row in rows]
        if self._score is not None:
            per_seed = [scores.normalized_score(self._score, value) for value in per_seed]
            out["eval/score"] = float(np.mean(per_seed))
            out["eval/score_std"] = scores.normalized_std(self._score, out["eval/return_std"])
        if len(results) > 1:
            interval = stratified([per_seed])
            out["eval/seeds_std"] = float(np.std(per_seed))
            out["eval/seeds_iqm"] = iqm(np.array(per_seed))
            out["eval/seeds_low"], out["eval/seeds_high"] = interval.low, interval.high
        return out

    def _save(self) -> None:
        step = self.loop.updates
        checkpoint.save(
            self.root,
            step,
            policy=self.learner.policy.state_dict(),
            learner=self.learner.state_dict(),
            loop={**self.loop.state_dict(), "sampler": self.source.state_dict()},
            io=self.io,
            config=self.config,
            meta={
                "seed": self.settings.seed,
                "settings": asdict(self.settings),
                "data_fingerprint": self.sampler.store.fingerprint,
                "reward": {"scale": self.sampler.reward_scale, "bias": self.sampler.reward_bias},
            },
            keep=self.settings.keep_checkpoints,
        )
        self._saved_at = step

    def _restore(self, path: Path) -> None:
        differences = checkpoint.read_io(path).differences(self.io)
        if differences:
            raise CheckpointError(
                f"the checkpoint {path} was made for another interface than this log:\n  - "
                + "\n  - ".join(differences)
            )
        mark = checkpoint.read_meta(path).get("data_fingerprint")
        same = mark == self.sampler.store.fingerprint
        if not same and not self.settings.allow_data_change:
            raise CheckpointError(
                f"the log {self.settings.data} is not the one that the run began with; give the original, or add "
                "allow_data_change=true to go on with this one"
            )
        self.learner.load_state_dict(checkpoint.load_state(path / "learner.pt"))
        state = checkpoint.load_state(path / "loop.pt")
        self.loop.load_state_dict(state)
        if same:  # another log is drawn from anew
            self.source.load_state_dict(state["sampler"])
        self.resume_step = self.loop.updates

    def _finish(self) -> dict[str, Any]:
        s, step = self.settings, self.loop.updates
        summary: dict[str, Any] = {"updates": step, "transitions": len(self.sampler)}
        model = report.export_model(self.learner, self.folder / f"model_{step:09d}")
        if model is not None:
            summary["model"] = str(model)
        returns: list[list[float]] = []
        video: Path | str = "no environment to film in; add env=…"
        if self._eval_env is not None:
            if self._evaluated_at != step:
                self.evaluations = self.evaluate(s.final_episodes)
                self.tracker.log(self._summarise(self.evaluations), step)
            final = self._summarise(self.evaluations)
            summary |= {name.removeprefix("eval/"): value for name, value in final.items()}
            returns = [result.returns for result in self.evaluations]
            assert self.make_env is not None
            video = record_video(self.make_env, self.learner.policy, self.folder / "eval.mp4", s.video_episodes, s.seed)
        judged: ope.Report | None = None
        if self._judges is not None and self._estimate_updates:  # minutes: what is known already comes first
            self._write(summary, returns, video, None)
            tqdm.write(
                f"report so far: {self.folder / 'report.html'}\nnow estimating the policy's value from the log alone "
                f"({self._estimate_updates} updates, after cloning its behaviour); estimate=0 leaves that out",
                sys.stderr,
            )
            judged, why = self._judge()
            if judged is not None:
                summary |= {"value, from the log alone": ope.line(judged.estimates[0])}
                summary |= {"value of the logged policy": ope.line(ope.Estimate("", judged.behaviour))}
                summary |= {"actions outside the data": f"{judged.outside:.1%}"}
                self.warnings = [line for line in judged.warnings if line.startswith("WARNING")]
            elif why:
                summary["value, from the log alone"] = f"- ({why})"
        return self._write(summary, returns, video, judged)

    def _write(
        self, known: dict[str, Any], returns: list[list[float]], video: Path | str, judged: ope.Report | None
    ) -> dict[str, Any]:
        """Curve, evaluation.json and report; returns the whole summary."""
        support = None if judged is None else report.write_support(self.folder / "support.png", judged.support)
        rows = read_metrics(self.folder / METRICS_FILE)
        curve = report.write_curve(self.folder / "curve.png", rows, title=self.folder.name)
        summary = known | {
            "checkpoint": str(self.root / f"step_{self.loop.updates:09d}"),
            "curve": str(curve),
            "video": str(video),
            "report": str(self.folder / "report.html"),
        }
        write_json(
            self.folder / "evaluation.json",
            {
                **summary,
                "returns": returns,
                "score_of": self._score,
                "findings": self.findings,
                "estimate": None if judged is None else ope.plain_numbers(judged),
            },
        )
        report.write_report(
            self.folder,
            title=self.folder.name,
            summary=summary,
            config=self.config,
            curve=curve,
            video=video if isinstance(video, Path) else None,
            pictures={"Where the policy leaves the data": support} if support else {},
            warnings=self.warnings,
        )
        return summary

    def _judge(self) -> tuple[ope.Report | None, str]:
        assert self._judges is not None
        self.learner.policy.active = 0  # type: ignore[attr-defined]
        s = self.settings
        return judge(s, self.learner.policy, self.io, self._judges, updates=self._estimate_updates, seed=s.seed)
