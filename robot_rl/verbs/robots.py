"""Verbs about robots and simulators that are elsewhere: deploy, doctor ros, doctor isaac."""

from __future__ import annotations

import os
import sys

from omegaconf import DictConfig

from robot_rl import build
from robot_rl.verbs.compose import plain
from robot_rl.words import Refused


def deploy(cfg: DictConfig) -> None:
    """Run robot, supervisor and policy as processes; Ctrl-C brakes first."""
    if cfg.policy_path == "":  # as from policy_path=$RUN with nothing in RUN
        raise Refused(
            "policy_path= is empty; give a run folder or checkpoint, or leave it out to deploy without a policy"
        )
    options = plain(cfg.graph)
    options["policy_path"] = options["policy_path"] or ""
    arguments = build.make("graph", options, seed=int(cfg.seed))
    status = build.tool("deploy")(arguments)
    if status:
        raise Refused(f"the deployment ended because one of its processes did (status {status}); see above")
    # all have ended; the interpreter's own end, with all that the command line has loaded, takes a second and more
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def doctor_ros(arguments: list[str]) -> int:
    """What is on the wire of a robot: robot-rl doctor ros <spec> [namespace=…] [listen=3] [wiggle=true]."""
    given = [item for item in arguments if "=" not in item]
    options = dict(item.split("=", 1) for item in arguments if "=" in item)
    if (
        len(given) != 1
        or not options.keys() <= {"namespace", "listen", "wiggle"}
        or options.get("wiggle", "false") not in ("true", "false")
    ):
        print(
            "usage: robot-rl doctor ros <robot spec: path, or a name such as desk_arm> [namespace=/left] [listen=3.0] "
            "[wiggle=true: moves each joint by 0.01 rad]",
            file=sys.stderr,
        )
        return 2
    try:
        spec = build.tool("find_robot")(given[0])
        examine = build.tool("examine_robot")
        place, listen = options.get("namespace", ""), float(options.get("listen", "3"))
        found = examine(spec, namespace=place, listen=listen, wiggle=options.get("wiggle") == "true")
    except (OSError, ValueError, ImportError) as error:
        print(f"robot-rl: {error}", file=sys.stderr)
        return 2
    print(found.text())
    return 1 if found.problems else 0


def doctor_isaac(arguments: list[str]) -> int:
    """Check Isaac Gym and Isaac Lab: robot-rl doctor isaac [world=quadruped] [num_envs=16] [device=cuda] [id=…]."""
    options = dict(item.split("=", 1) for item in arguments if "=" in item)
    if len(options) != len(arguments) or not options.keys() <= {"world", "num_envs", "device", "id"}:
        print(
            "usage: robot-rl doctor isaac [world=quadruped] [num_envs=16] [device=cuda] [id=<task of Isaac Lab>]",
            file=sys.stderr,
        )
        return 2
    diagnose = build.tool("diagnose_isaac")
    text, healthy = diagnose(
        world=options.get("world", "quadruped"),
        num_envs=int(options.get("num_envs", "16")),
        device=options.get("device"),
        id=options.get("id"),
    )
    print(text)
    return 0 if healthy else 1
