"""The train job: loop, evaluation, checkpoints, progress and report around one learner."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import checkpoint, parallel, report
from robot_rl.checkpoint import CheckpointError, write_bytes, write_json
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.device_replay import DeviceReplay
from robot_rl.data.mix import Mix
from robot_rl.data.rescale import Rescaled
from robot_rl.jobs import logs
from robot_rl.jobs.collect import ExpertPolicy, keep_steps
from robot_rl.jobs.contract import check_evaluations, check_learner
from robot_rl.jobs.interrupt import Interrupt
from robot_rl.jobs.live_bar import LiveBar
from robot_rl.jobs.logs import LogSettings
from robot_rl.loops.cluster import Cluster, ClusterOffPolicy
from robot_rl.loops.contract import rows_per_batch
from robot_rl.loops.device import DeviceOffPolicy
from robot_rl.loops.device_on_policy import DeviceOnPolicy
from robot_rl.loops.evaluate import Evaluation, evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.loops.on_policy_async import AsyncOnPolicy
from robot_rl.stopwatch import Stopwatch
from robot_rl.track import METRICS_FILE, read_metrics
from robot_rl.types import Learner, Metrics, Tracker


@dataclass(frozen=True)
class TrainSettings:
    """Numbers of a training run; the top-level keys of configs/train.yaml.

    Attributes:
        total_steps: environment steps (transitions) in all.
        num_envs: copies of the training environment, over all processes that torchrun started.
        seed: of everything; evaluation uses its own fixed seeds.
        gamma: discount per control step.
        n_step: n of the n-step return, in control steps.
        buffer_size: transitions kept.
        learning_starts: transitions before the first update.
        updates_per_step: learner updates per transition; learners on a device have a number of their own.
        workers: Ray actors that step the environments (`num_envs` copies each), on this machine or a cluster; 0 = none.
        demos: successful scripted-expert episodes collected before training and sampled beside the run's own data.
        demo_share: share of every batch that comes from them.
        init: an offline run whose learner goes on from here (fine-tuning); its actions are taken from the first step.
        log: a log that is sampled beside the run's own data, in the reward units of `init`.
        log_share: share of every batch that comes from it.
        log_every: steps between metric rows.
        eval_every: steps between evaluations; 0 means only at the end.
        eval_episodes: episodes of an evaluation in mid-run.
        eval_envs: copies of the evaluation environment.
        final_episodes: episodes of the evaluation at the end.
        stop_success: stop once an evaluation over `final_episodes` reaches this success rate; None = never.
        checkpoint_every: steps between checkpoints; 0 means only at the end and on interruption.
        keep_checkpoints: how many stay on disk.
        video_episodes: episodes in the final video; 0 = no video.
    """

    total_steps: int
    num_envs: int = 1
    seed: int = 0
    gamma: float = 0.99
    n_step: int = 1
    buffer_size: int = 1_000_000
    learning_starts: int = 100
    updates_per_step: float = 1.0
    workers: int = 0
    demos: int = 0
    demo_share: float = 0.5
    init: str | None = None
    log: str | None = None
    log_share: float = 0.5
    log_every: int = 1000
    eval_every: int = 10_000
    eval_episodes: int = 10
    eval_envs: int = 1
    final_episodes: int = 20
    stop_success: float | None = None
    checkpoint_every: int = 50_000
    keep_checkpoints: int = 2
    video_episodes: int = 2

    def __post_init__(self) -> None:
        check_evaluations(self)


PERIODIC = (OffPolicy, DeviceOffPolicy, DeviceOnPolicy, ClusterOffPolicy)
"""Loops whose hook comes every `log_every` steps; the others call it after every iteration."""


class TrainJob:
    """One training run in one folder, resumable from its newest checkpoint."""

    def __init__(
        self,
        settings: TrainSettings,
        folder: Path,
        *,
        make_env: Callable[..., Any],
        make_learner: Callable[[Any], Any],
        make_tracker: Callable[[int | None], Tracker],
        config: str,
        resume: bool = False,
        make_actor: Callable[[Any], Any] | None = None,
    ) -> None:
        """Build environment, learner, buffer and loop, and restore them when resuming.

        Args:
            settings: numbers of the run.
            folder: the run folder.
            make_env: (num_envs, seed, render) -> vector environment.
            make_learner: (io) -> learner.
            make_tracker: (resume step or None) -> tracker.
            config: the composed configuration as YAML text.
            resume: continue from the newest checkpoint in `folder`.
            make_actor: (io) -> learner on the CPU, for the policy of rollout workers; default `make_learner`.

        Raises:
            CheckpointError: nothing to resume from, or it does not fit.
        """
        self.settings, self.folder, self.config = settings, folder, config
        self.make_env, self._make_actor = make_env, make_actor or make_learner
        self._plain = getattr(make_env, "plain", make_env)  # judged by the simulator, whatever paid in training
        self.cluster: Cluster | None = None
        # Every process keeps what is its own (environments, replay); rank 0 writes all that is for people.
        rank = parallel.rank()
        self.root = folder / "checkpoints" if rank == 0 else folder / "ranks" / f"rank{rank}"
        found = self._newest(folder) if resume else None
        folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            write_bytes(folder / "config.yaml", config.encode())
        self.env = make_env(parallel.shard(settings.num_envs), settings.seed + 100_003 * rank, False)
        self.learner: Learner[Any, Any] = make_learner(self.env.io)
        check_learner(self.learner)
        self.buffer: ReplayBuffer | DeviceReplay | None = None
        self.loop: Any = self._make_loop(folder)
        self.resume_step: int | None = None
        if found is not None:
            self._restore(found)
        elif settings.init is not None:
            self._begin_from(checkpoint.find(Path(settings.init)))
        self.tracker = make_tracker(self.resume_step) if rank == 0 else Silent()
        self._eval_env: Any = None
        self._watch = Stopwatch()
        self._interrupt = Interrupt()
        self._saved_at = self.resume_step
        self._evaluated_at = -1
        self.evaluation: Evaluation | None = None

    def _newest(self, folder: Path) -> Path:
        """The checkpoint of rank 0's newest step, of this process.

        Raises:
            CheckpointError: there is none, or the run was of another number of processes.
        """
        step = parallel.agree(checkpoint.find(folder).name if parallel.rank() == 0 else "")
        path = checkpoint.find(folder) if parallel.rank() == 0 else self.root / step
        ranks = len(list((folder / "ranks").glob("rank*"))) + 1
        if ranks != parallel.size() or not (path / "meta.json").exists():
            raise CheckpointError(
                f"{folder} was trained by {ranks} processes and this is process {parallel.rank() + 1} of "
                f"{parallel.size()}; resume it with torchrun --nproc-per-node={ranks}"
            )
        return path

    def _make_loop(self, folder: Path) -> Any:
        s = self.settings
        need = self.learner.need
        consumes = need.then if s.init is not None and need.then else need.feeds
        if consumes.startswith("device_"):
            return self._device_loop(folder)
        if parallel.size() > 1:
            raise ValueError(
                f"{type(self.learner).__name__} learns in one process, and torchrun started {parallel.size()}; use "
                "policy=online/fast_sac, online/fast_td3 or online/fast_ppo, or start without torchrun"
            )
        if s.workers and consumes != "transitions":
            raise ValueError(
                f"workers={s.workers} feeds learners from a replay buffer, and {type(self.learner).__name__} reads "
                f"'{consumes}'; use policy=online/sac or online/rlpd, or workers=0"
            )
        if consumes == "episodes":
            raise ValueError(
                f"{type(self.learner).__name__} learns with a person in the loop; use robot-rl hil policy=..."
            )
        if consumes == "rollout":
            return OnPolicy(self.env, self.learner, seed=s.seed, save_to=folder)  # type: ignore[arg-type]
        if consumes == "stale_rollout":
            return AsyncOnPolicy(self.env, self.learner, seed=s.seed, save_to=folder)  # type: ignore[arg-type]
        if consumes == "environment":  # a learner that brings its own loop, such as stable-baselines3's
            own: Any = self.learner
            own.attach(self.env)
            return own
        if self._window > 1 and s.n_step != 1:
            raise ValueError(
                f"n_step is {s.n_step}, and this policy sums over chunks of {self._window} steps itself; use n_step=1"
            )
        self.buffer = ReplayBuffer(
            self.env.io,
            min(s.buffer_size, max(s.total_steps, 1) + s.num_envs),
            num_envs=1 if s.workers else s.num_envs,
            n_step=s.n_step,
            gamma=s.gamma,
            window=self._window,
            seed=s.seed,
            extras=dict(need.columns),
        )
        sampler: Any = self.buffer
        if s.demos:
            sampler = Mix({"online": (self.buffer, 1.0 - s.demo_share), "demos": (self._demos(), s.demo_share)})
        elif s.log is not None:
            sampler = self._beside_log(s.log)
        if s.workers:
            # On a cluster the factories travel; the environment made here only tells the interface.
            self.cluster = Cluster(self.make_env, self._make_actor, workers=s.workers, num_envs=s.num_envs, seed=s.seed)
            return ClusterOffPolicy(
                self.cluster,
                self.learner,
                self.buffer,
                sampler=sampler,
                batch_size=rows_per_batch(self.learner),
                learning_starts=s.learning_starts if s.init is None else 0,
                updates_per_step=s.updates_per_step,
                workers_file=folder / "workers",
            )
        return OffPolicy(
            self.env,
            self.learner,
            self.buffer,
            sampler=sampler,
            batch_size=rows_per_batch(self.learner),
            learning_starts=s.learning_starts,
            random_steps=None if s.init is None else 0,
            updates_per_step=s.updates_per_step,
            seed=s.seed,
            failure_folder=folder,
        )

    def _device_loop(self, folder: Path) -> Any:
        """The loop of a learner whose data stays on the device."""
        s, learner = self.settings, self.learner
        unfit = [name for name, value in (("demos", s.demos), ("log", s.log), ("workers", s.workers)) if value]
        if unfit or s.updates_per_step != 1.0:
            names = ", ".join(unfit) or "updates_per_step"
            raise ValueError(
                f"{names} does not go with {type(learner).__name__}, which has its own replay on the device and counts "
                "updates per step of all environments (policy.updates); use policy=online/sac or online/rlpd for it"
            )
        if learner.need.feeds == "device_rollout":
            return DeviceOnPolicy(self.env, learner, seed=s.seed, save_to=folder)  # type: ignore[arg-type]
        loop = DeviceOffPolicy(
            self.env,
            learner,  # type: ignore[arg-type]
            buffer_size=min(s.buffer_size, max(s.total_steps, 1) + s.num_envs),
            n_step=s.n_step,
            gamma=s.gamma,
            learning_starts=s.learning_starts,
            seed=s.seed,
            save_to=folder,
        )
        self.buffer = loop.replay
        return loop

    @property
    def _window(self) -> int:
        """Steps per sample that the learner reads."""
        return self.learner.need.window

    def _beside_log(self, path: str) -> Mix:
        """The run's own transitions and those of a log, rewards alike."""
        s = self.settings
        assert isinstance(self.buffer, ReplayBuffer)
        if s.n_step != 1:
            raise ValueError(f"n_step is {s.n_step}; beside a log it has to be 1")
        store = logs.open_log(path)
        logs.agree(store.io, self.env.io)
        reward = {"scale": 1.0, "bias": 0.0}
        if s.init is not None:
            reward |= checkpoint.read_meta(checkpoint.find(Path(s.init))).get("reward", {})
        settings = LogSettings(path, s.gamma, "scale_bias", reward["scale"], reward["bias"], action_clip=True)
        data, _ = logs.sampler(store, settings, seed=s.seed + 1, window=self._window)
        own = Rescaled(self.buffer, scale=reward["scale"], bias=reward["bias"])
        return Mix({"online": (own, 1.0 - s.log_share), "log": (data, s.log_share)}, seed=s.seed)

    def _begin_from(self, path: Path) -> None:
        """Take over the learner of an offline run.

        Raises:
            CheckpointError: it was made for another interface.
        """
        differences = checkpoint.read_io(path).differences(self.env.io)
        if differences:
            raise CheckpointError(f"{path} does not fit this environment:\n  - " + "\n  - ".join(differences))
        self.learner.load_state_dict(checkpoint.load_state(path / "learner.pt"))

    def _demos(self) -> ReplayBuffer:
        """Successful episodes of the scripted expert; the same for the same seed, so a resume makes them anew."""
        s = self.settings
        env = self.make_env(min(s.demos, 16), s.seed + 77_777, False)
        expert = ExpertPolicy(env)
        episodes = keep_steps(env, expert, episodes=s.demos, seed=s.seed + 77_777, only_success=True)
        rows = sum(len(episode) for episode in episodes)
        options = {"n_step": s.n_step, "gamma": s.gamma, "window": self._window, "seed": s.seed + 1}
        buffer = ReplayBuffer(env.io, rows + 1, **options)  # type: ignore[arg-type]
        for episode in episodes:
            buffer.add_episode(episode)
        env.close()
        return buffer

    def run(self) -> dict[str, Any]:
        """Train, evaluate, write curve, video and report; returns the summary.

        Raises:
            CheckpointError: a checkpoint could not be written.
            KeyboardInterrupt: after a Ctrl-C, once everything is saved.
        """
        s = self.settings
        step = int(self.loop.env_steps)
        progress = LiveBar(s.total_steps, step, "step", lambda: int(self.loop.env_steps), disable=parallel.rank() > 0)
        with self._interrupt, progress as bar:
            self._bar = bar
            self._watch.resume()
            if step < s.total_steps:
                every: dict[str, Any] = {"hook_every": s.log_every} if isinstance(self.loop, PERIODIC) else {}
                if isinstance(self.loop, OffPolicy):
                    every["asked"] = self._interrupt.look
                try:
                    self.loop.run(s.total_steps, self._hook, **every)
                finally:
                    if self.cluster is not None:
                        self.cluster.close()
        if self._saved_at != self.loop.env_steps:
            self._save()
        if self._interrupt.asked:
            self.tracker.close()
            raise KeyboardInterrupt(str(self.folder))
        summary = self._finish() if parallel.rank() == 0 else {"rank": parallel.rank()}
        self.tracker.close()
        return summary

    def _hook(self, step: int, metrics: Metrics) -> bool:
        s = self.settings
        self._watch.pause()
        wall, cpu = self._watch.read()
        metrics = {**metrics, "time/train_s": wall, "time/train_cpu_s": cpu}
        self._bar.to(step)
        short = {}
        for name, key in (("return", "rollout/return"), ("success", "rollout/success")):
            if key in metrics and np.isfinite(metrics[key]):
                short[name] = f"{metrics[key]:.3g}"
        stop = False
        due = s.eval_every and step // s.eval_every > self._previous(step) // s.eval_every
        if due and parallel.rank() == 0:
            result = self.evaluate(s.eval_episodes)
            metrics = {**metrics, **result.metrics()}
            good = metrics.get("eval/success", 0.0)
            if s.stop_success is not None and good >= s.stop_success:
                result = self.evaluate(s.final_episodes)  # sure of it only on the full number of episodes
                metrics = {**metrics, **result.metrics()}
                stop = metrics["eval/success"] >= s.stop_success
                if stop:
                    self.evaluation, self._evaluated_at = result, step
            short["eval"] = f"{metrics.get('eval/success', metrics['eval/return']):.3g}"
        self._bar.note(short, metrics)
        self.tracker.log(metrics, step)
        if s.checkpoint_every and step // s.checkpoint_every > self._previous(step) // s.checkpoint_every:
            self._save()
        self._last_hook = step
        self._watch.resume()
        return stop or self._interrupt.asked

    def _previous(self, step: int) -> int:
        """Step of the previous hook, so that periods that do not divide log_every are kept."""
        return getattr(self, "_last_hook", self.resume_step or 0) if step else 0

    def evaluate(self, episodes: int, frames: int = 0) -> Evaluation:
        """Deterministic evaluation on environments of its own; leaves the training state untouched."""
        s = self.settings
        if self._eval_env is None:
            self._eval_env = self._plain(s.eval_envs, s.seed + 10_000, False)
        return evaluate(self._eval_env, self.learner.policy, episodes=episodes, seed=10_000, frames=frames)

    def _save(self) -> None:
        step = int(self.loop.env_steps)
        own_loop = self.loop is self.learner
        checkpoint.save(
            self.root,
            step,
            policy=self.learner.policy.state_dict(),
            learner=self.learner.state_dict(),
            loop={"env_steps": step} if own_loop else self.loop.state_dict(),
            io=self.env.io,
            config=self.config,
            meta={"seed": self.settings.seed, "settings": asdict(self.settings)},
            save_buffer=self._save_buffer if self.buffer is not None else None,
            keep=self.settings.keep_checkpoints,
        )
        self._saved_at = step

    def _save_buffer(self, path: Path) -> None:
        assert self.buffer is not None
        earlier = checkpoint.complete(self.root)
        # rows that the last checkpoint holds already are linked, not written again
        self.buffer.save(path, base=earlier[-1] / "buffer" if earlier else None)
        if self.loop.sampler is not self.buffer:
            state = self.loop.sampler.state_dict()
            state["parts"].pop("online", None)  # the buffer just saved
            checkpoint.save_state(path.with_name("sampler.pt"), state)

    def _restore(self, path: Path) -> None:
        differences = checkpoint.read_io(path).differences(self.env.io)
        if differences:
            raise CheckpointError(
                f"the checkpoint {path} was made for another interface than this environment:\n  - "
                + "\n  - ".join(differences)
            )
        self.learner.load_state_dict(checkpoint.load_state(path / "learner.pt"))
        if self.loop is not self.learner:
            self.loop.load_state_dict(checkpoint.load_state(path / "loop.pt"))
        if self.buffer is not None:
            self.buffer.load(path / "buffer")
            if self.loop.sampler is not self.buffer:
                self.loop.sampler.load_state_dict(checkpoint.load_state(path / "sampler.pt"))
        self.resume_step = int(self.loop.env_steps)

    def _finish(self) -> dict[str, Any]:
        s, step = self.settings, int(self.loop.env_steps)
        if self._evaluated_at != step or self.evaluation is None:
            self.evaluation = self.evaluate(s.final_episodes)
        report.export_model(self.learner, self.folder / f"model_{step:09d}")
        final = self.evaluation.metrics()
        self.tracker.log(final, step)
        rows = read_metrics(self.folder / METRICS_FILE)
        curve = report.write_curve(self.folder / "curve.png", rows, title=self.folder.name)
        video = record_video(self._plain, self.learner.policy, self.folder / "eval.mp4", s.video_episodes, s.seed)
        summary: dict[str, Any] = {
            "steps": step,
            **{name.removeprefix("eval/"): value for name, value in final.items()},
            "checkpoint": str(self.root / f"step_{step:09d}"),
            "curve": str(curve),
            "video": str(video) if isinstance(video, Path) else video,
            "report": str(self.folder / "report.html"),
        }
        write_json(
            self.folder / "evaluation.json",
            {**summary, "returns": self.evaluation.returns, "successes": self.evaluation.successes},
        )
        report.write_report(
            self.folder,
            title=self.folder.name,
            summary=summary,
            config=self.config,
            curve=curve,
            video=video if isinstance(video, Path) else None,
        )
        return summary


class Silent:
    """The tracker of processes that write nothing."""

    def log(self, metrics: Metrics, step: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def record_video(
    make_env: Callable[..., Any], policy: Any, path: Path, episodes: int, seed: int, *, seconds: float = 30.0
) -> Path | str:
    """Film the policy; a machine that cannot render gets the reason instead of a file."""
    if episodes < 1:
        return "switched off"
    try:
        env = make_env(1, seed + 20_000, True)
        try:
            frames = evaluate(
                env, policy, episodes=episodes, seed=20_000, frames=int(seconds * env.io.control_hz)
            ).frames
            return report.write_video(path, frames, env.io.control_hz)
        finally:
            env.close()
    except (ImportError, RuntimeError, OSError) as error:
        return f"not recorded: {str(error).splitlines()[0] if str(error) else type(error).__name__}"


def read_summary(folder: Path) -> dict[str, Any]:
    """The numbers of a finished run."""
    return json.loads((folder / "evaluation.json").read_text())
