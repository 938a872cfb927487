"""Verbs about robots and simulators that are elsewhere: deploy, doctor ros, doctor isaac."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from robot_rl import build
from robot_rl.verbs import answer
from robot_rl.verbs.compose import plain, read_words
from robot_rl.verbs.options import IsaacDoctorOptions, RosDoctorOptions
from robot_rl.words import Refused, near


def deploy(cfg: DictConfig) -> None:
    """Run robot, supervisor and policy as processes; Ctrl-C brakes first."""
    if cfg.policy_path == "":  # as from policy_path=$RUN with nothing in RUN
        raise Refused(
            "policy_path= is empty; give a run folder or checkpoint, or leave it out to deploy without a policy"
        )
    if cfg.world:
        build.find("world", str(cfg.world))
    if not Path(build.tool("find_robot")(str(cfg.robot_spec))).expanduser().is_file():
        hint = near(str(cfg.robot_spec), ["desk_arm"])
        raise Refused(f"there is no robot '{cfg.robot_spec}'{hint} (or give robot_spec=<path of its YAML>)")
    fields = build.options_of("graph", build.find("graph", "processes")).model_fields
    options = {"name": "processes", **plain(OmegaConf.masked_copy(cfg, list(fields)))}
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
    try:
        options = read_words(RosDoctorOptions, [item for item in arguments if "=" in item], "doctor ros")
        if len(given) != 1:
            raise Refused("say which robot: robot-rl doctor ros <path of its YAML, or a name such as desk_arm>")
        spec = build.tool("find_robot")(given[0])
        if not Path(spec).expanduser().is_file():
            raise Refused(
                f"there is no robot '{given[0]}'{near(given[0], ['desk_arm'])} (or give the path of its YAML)"
            )
        examine = build.tool("examine_robot")
        found = examine(spec, namespace=options.namespace, listen=options.listen, wiggle=options.wiggle)
    except (Refused, OSError, ValueError, ImportError) as error:
        answer.error(str(error))
        return 2
    answer.note(problems=list(found.problems), report=found.text())
    print(found.text())
    return 1 if found.problems else 0


def doctor_isaac(arguments: list[str]) -> int:
    """Check Isaac Gym and Isaac Lab: robot-rl doctor isaac [world=quadruped] [num_envs=16] [device=cuda] [id=…]."""
    try:
        options = read_words(IsaacDoctorOptions, arguments, "doctor isaac")
        build.find("world", options.world)
    except Refused as error:
        answer.error(str(error))
        return 2
    text, healthy = build.tool("diagnose_isaac")(**options.model_dump())
    answer.note(healthy=healthy, report=text)
    print(text)
    return 0 if healthy else 1
