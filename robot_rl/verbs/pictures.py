"""`cameras=`, `proprio=`, `image_size=` and `encoder=`: a world seen in pictures, its goals and objects hidden."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from robot_rl import build
from robot_rl.verbs.reading import plain
from robot_rl.words import Refused

BEHIND = "encoders/encoded"
"""The method that stands behind an encoder, and holds the one that was chosen."""
SUPERSAMPLE = 2
"""Pictures for policies are drawn at so many times their size and averaged: small things keep their place."""


def put_pictures(cfg: DictConfig) -> None:
    """Put what these options say into the environment of a configuration; changed in place.

    Raises:
        Refused: an environment whose pictures are chosen otherwise, or `proprio` without pictures.
    """
    if cfg.get("encoder") is not None:
        _put_encoder(cfg)
    if cfg.get("cameras") is None:
        if cfg.get("proprio") is not None:
            raise Refused("proprio goes with pictures: add cameras=own, or a list such as cameras=[front,side]")
        if cfg.get("critic_state"):
            _put_critic_state(cfg)
        return
    if not cfg.cameras:
        raise Refused(
            "cameras=[] names no camera, and goals and objects would be hidden with nothing in their place; name some "
            "(cameras=[front,side]), or leave cameras out to learn from states"
        )
    engine = None if cfg.get("env") is None else cfg.env.get("engine")
    if engine != "mujoco":
        raise Refused(
            f"cameras= chooses pictures of a world of ours on the engine mujoco (env=pick, insert, reach), and this "
            f"environment's engine is {engine}; its own options say what it shows"
        )
    seen = {
        "cameras": plain(cfg.cameras) if not isinstance(cfg.cameras, str) else cfg.cameras,
        "proprio": "own" if cfg.get("proprio") is None else cfg.proprio,
        "camera_size": [cfg.image_size, cfg.image_size],
        "camera_quality": "fast",
        "supersample": SUPERSAMPLE,
        "critic_state": bool(cfg.get("critic_state")),
    }
    cfg.env = OmegaConf.merge(cfg.env, OmegaConf.create(seen))


def _put_critic_state(cfg: DictConfig) -> None:
    """Let the environment tell critics more than its policy sees; whether it has more, it says when it is made."""
    engine = None if cfg.get("env") is None else cfg.env.get("engine")
    known = {} if engine is None else build.options_of("engine", build.find("engine", str(engine))).model_fields
    if "critic_state" not in known:
        raise Refused(
            f"critic_state=true asks for what the policy does not see, and this environment's engine ({engine}) does "
            "not tell it: critics could read no more than the policy. Leave critic_state out, or use a world of ours "
            "that knows more than it shows, such as env=pendulum env.world.velocity=false, env=quadruped "
            "env.proprio=own, env=walk robot=<card>, or pictures (cameras=own)"
        )
    cfg.env = OmegaConf.merge(cfg.env, {"critic_state": True})


def _put_encoder(cfg: DictConfig) -> None:
    """The chosen policy behind the chosen encoder, so that whoever loads the run finds both in its policy."""
    if cfg.get("role", "both") != "both":
        raise Refused(f"encoder= learns beside the robot, in one process: leave role={cfg.role} out")
    if cfg.get("cameras") is None:
        cfg.cameras = "own"
    world = plain(cfg.env).get("world") if cfg.get("env") is not None else None
    if cfg.encoder.get("lift", 0.0) is None and world and ":" not in str(world["name"]):
        cfg.encoder.lift = build.tool("sim.world:parts_of")(build.find("world", str(world["name"]))).goal_lift
    cfg.policy = OmegaConf.create({"name": BEHIND, "method": plain(cfg.policy), "encoder": plain(cfg.encoder)})
