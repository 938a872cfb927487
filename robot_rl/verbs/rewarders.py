"""Environments with a reward of `rewarder=`: progress critics that watch, and programs that compute it beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from omegaconf import DictConfig

from robot_rl import build, checkpoint
from robot_rl.checkpoint import CheckpointError
from robot_rl.data import formats
from robot_rl.types import VecEnv
from robot_rl.verbs.build import EnvMaker, env_factory, make_env
from robot_rl.verbs.critic_clips import FACTS, load_clips, picture_key
from robot_rl.verbs.reading import plain, stored_config
from robot_rl.words import Refused

_AFTER = 6
"""Control steps of a log that are kept after its goal was met for the first time."""


def rewarded_factory(cfg: DictConfig) -> EnvMaker:
    """`env_factory`, with the reward of `rewarder=` where one is chosen; its `plain` makes it without."""
    without = env_factory(cfg)
    if cfg.get("rewarder") is None:
        return without
    options = plain(cfg.rewarder)
    if "judge" not in options:
        return watched_factory(cfg, options, without)
    camera = options["camera"]
    how, caution = options.pop("combine", "wco"), options.pop("caution", 1.0)
    judge = load_judge(options.pop("judge"), how, caution, str(cfg.device))
    reference, frames = options.pop("reference", None), options.pop("reference_frames", 6)
    if reference is not None:
        judge = with_reference(judge, str(reference), int(frames), camera)
        options["instruction"] = options["instruction"] or ""  # the reference alone, not what the world asks
    audit = build.tool("policies.reward.critic_reward:Audit")

    def make(num_envs: int, seed: int, render: bool) -> VecEnv:
        from robot_rl.loops.rewarded import Rewarded

        node, hidden, alone = add_cameras(cfg, [camera])
        if hidden:  # pictures for the critic alone, of its size, no more often than it looks
            node["camera_size"] = list(judge.meta.image_size)
        if alone and cfg.env.engine == "mujoco":
            node["camera_every"] = options["every"]
        env = make_env(cfg, node, num_envs, seed, render)
        reward = build.make("rewarder", options, judge, gamma=float(cfg.gamma))
        return Rewarded(env, reward, camera=camera, hide=bool(hidden), instruction=reward.instruction, audit=audit())

    return replace(without, make=make)


def shown_cameras(cfg: DictConfig) -> list[str] | None:
    """Cameras whose pictures the policy sees; None where the environment takes none."""
    shown = cfg.env.get("cameras")
    if shown == "own":
        world = build.make("world", plain(cfg.env.world), where="env.world")
        return list(build.tool("sim.world:parts_of")(world).policy_cameras)
    return shown if shown is None else list(shown)


def add_cameras(cfg: DictConfig, wanted: Sequence[str]) -> tuple[dict[str, Any], list[str], bool]:
    """The environment's options with the cameras that a reward looks through.

    Returns:
        The options, those cameras that are hidden from the policy, and whether no other takes pictures.
    """
    node, shown = plain(cfg.env), shown_cameras(cfg)
    hidden = [camera for camera in wanted if shown is not None and camera not in shown]
    if hidden:
        node["cameras"] = [*(shown or ()), *hidden]
    return node, hidden, bool(hidden) and not shown


def watched_factory(cfg: DictConfig, options: Mapping[str, object], without: EnvMaker) -> EnvMaker:
    """The same with the reward of `options`."""
    found: list[float] = []
    build.make("rewarder", options, seed=cfg.seed)  # what is wrong with the options is said before anything is built

    def make(num_envs: int, seed: int, render: bool) -> VecEnv:
        from robot_rl.loops.watched import PictureWatcher, Watched

        reward = build.make("rewarder", options, seed=cfg.seed)
        node, hidden, alone = add_cameras(cfg, reward.cameras)
        if alone and isinstance(reward, PictureWatcher) and reward.image_size is not None:
            node["camera_size"] = list(reward.image_size)
        env = make_env(cfg, node, num_envs, seed, render)
        if isinstance(reward, PictureWatcher) and reward.z_max is None:
            if not found:
                found.append(reward.calibrate(random_pictures(env, reward.cameras[0], reward.calibration, seed)))
                print(f"  z_max {found[0]:.4g}: the 95th percentile over {reward.calibration} random steps")
            reward.z_max = found[0]
        return Watched(env, reward, hide=tuple(f"image.{camera}" for camera in hidden))

    return replace(without, make=make)


def random_pictures(env: VecEnv, camera: str, steps: int, seed: int) -> np.ndarray:
    """(steps * N, H, W, 3) pictures of random actions; whoever uses the environment then resets it."""
    rng, key = np.random.default_rng(seed), f"image.{camera}"
    env.reset(seed=seed)
    found = []
    for _ in range(steps):
        obs = env.step(rng.uniform(-1, 1, (env.num_envs, env.io.action_dim)).astype(np.float32))[0]
        found.append(np.array(obs[key]))
    return np.concatenate(found)


def load_critic(folder: Path, device: str) -> Any:
    """The learner of a run of robot-rl critic train.

    Raises:
        Refused: no checkpoint there, or one of another verb.
    """
    try:
        found = checkpoint.find(folder)
    except CheckpointError as error:
        raise Refused(f"{error}; give path=<run folder of critic train>") from error
    run = stored_config(found)
    if run.get("critic") is None:
        raise Refused(f"{folder} is no critic; give path=<run folder of critic train>")
    learner = build.make("critic", plain(run.critic), seed=run.seed, device=device)
    learner.load_state_dict(checkpoint.load_state(found / "learner.pt", device=device))
    if learner.done_steps < learner.steps:
        print(f"  note: trained for {learner.done_steps} of {learner.steps} updates; done is not calibrated")
    return learner


def load_judge(folders: Any, how: str, caution: float, device: str) -> Any:
    """The critic of a run, or of several runs as one cautious ensemble."""
    folders = [folders] if isinstance(folders, str) else list(folders)
    critics = [load_critic(Path(folder), device).critic() for folder in folders]
    if len(critics) == 1:
        return critics[0]
    ensemble = build.tool("policies.vla.critic_ensemble:CriticEnsemble")
    return ensemble(critics, how, caution)


@runtime_checkable
class ShownCritic(Protocol):
    """A critic that may be shown its goal."""

    def with_reference(self, reference: object) -> Any:
        """The critic with a `policies.nets.reference.RefClip`, or None for none."""
        ...


def with_reference(judge: object, reference: str, frames: int, camera: str) -> Any:
    """A critic that is shown its goal: `frames` frames of an episode, `<clips or log>:<episode>`.

    Raises:
        ValueError: the critic cannot be shown a goal, or the reference cannot be used; says why.
    """
    if not isinstance(judge, ShownCritic):
        raise Refused(f"{type(judge).__name__} cannot be shown a goal; train one that can with critic=in_context")
    pictures, source = read_reference(reference, camera)
    clip = build.tool("policies.nets.reference:RefClip")
    return judge.with_reference(clip.of(pictures, frames, source=source))


def read_reference(text: str, camera: str = "front") -> tuple[np.ndarray, str]:
    """All pictures of a reference, up to where its goal is met, and what to call it.

    Args:
        text: "<folder of clips>:<clip>" or "<log>:<episode>", counted from 0.
        camera: which pictures of a log.

    Returns:
        (n, H, W, 3) uint8, and a name.

    Raises:
        FileNotFoundError: there is no such folder or log.
        ValueError: no number, none of that number, no such pictures, or an episode that failed.
    """
    place, _, number = str(text).rpartition(":")
    if not place or not number.strip().isdigit():
        raise ValueError(f"reference={text}: expected <clips or log>:<episode>, such as clips/train:12")
    path, row = Path(place), int(number)
    if not path.exists():
        raise FileNotFoundError(f"reference={text}: there is no {path}")
    if (path / FACTS).exists():
        return _clip(path, row), f"{path}:{row}"
    return _episode(path, row, camera), f"{path}:{row}"


def _failure(what: str, good: Sequence[int], others: str) -> ValueError:
    """What to say of a reference that fails, with those of the others that do not."""
    some = f"{', '.join(map(str, good[:8])) or f'none of {others}'}{', …' if len(good) > 8 else ''}"
    return ValueError(f"reference {what}, and only a success shows its goal; successes are {some}")


def _clip(path: Path, row: int) -> np.ndarray:
    arrays, facts = load_clips(path)
    count = len(arrays["goal"])
    if row >= count:
        raise ValueError(f"reference {path}:{row}: there are {count} clips, 0 to {count - 1}")
    kinds = np.array(facts["kinds"])[arrays["kind"]]
    good = np.flatnonzero(np.isin(kinds, facts["successes"]))
    if row not in good:
        raise _failure(f"{path}:{row} fails (kind '{kinds[row]}')", good.tolist(), "these clips")
    return arrays["frames"][int(arrays["start"][row]) : int(arrays["start"][row + 1])]


def _episode(path: Path, row: int, camera: str) -> np.ndarray:
    episodes = formats.load(path).episodes
    if row >= len(episodes):
        raise ValueError(f"reference {path}:{row}: the log holds {len(episodes)} episodes, 0 to {len(episodes) - 1}")
    episode = episodes[row]
    frames = np.asarray(episode.obs[picture_key(camera, episode.obs)])
    met = episode.meta.get("columns", {}).get("success")
    if not episode.meta.get("success", True):
        good = [i for i, other in enumerate(episodes) if other.meta.get("success")]
        raise _failure(f"{path}:{row} fails", good, "this log")
    if met is not None and np.asarray(met).any():
        frames = frames[: int(np.argmax(np.asarray(met) > 0)) + 2 + _AFTER]
    return frames
