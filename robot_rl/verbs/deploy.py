"""The verb deploy: robot, supervisor and policy as processes."""

from __future__ import annotations

import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, create_model

from robot_rl import build
from robot_rl.types.options import Whole
from robot_rl.verbs import answer
from robot_rl.verbs.options import VerbOptions
from robot_rl.verbs.reading import plain, robot_file
from robot_rl.words import Refused


@cache
def deploy_options() -> type[VerbOptions]:
    """What can be chosen of a robot's processes, and what every verb may be told."""
    graph = build.options_of("graph", build.find("graph", "processes"))
    fields: dict[str, Any] = {name: (item.annotation, item) for name, item in graph.model_fields.items()}
    fields["seed"] = (Whole, Field(0, description="Of the simulation."))
    left_out = "run or checkpoint folder; left out = no policy"  # an empty one is a mistake
    fields["policy_path"] = (str | None, Field(None, description=left_out))
    return create_model("DeployOptions", __base__=VerbOptions, **fields)


def tell_shadow(folder: Path, begin: float) -> None:
    """What the comparison has found, for people and as the document; ends with 1 where it is not clean.

    Args:
        folder: of the reports.
        begin: when the deployment began [s since the epoch]; older reports are of others.
    """
    reports = build.tool("real.core.shadow_report:reports")
    found = [(path, table) for path, table in reports(folder) if path.stat().st_mtime >= begin]
    if not found:
        answer.error(f"no comparison was written into {folder}: the policy had ended before the first second was over")
        sys.exit(1)
    path, table = found[0]
    answer.note(report=str(path), **table)
    print(f"shadow of {table['policy']} on {table['robot']}: {path}")
    for state, head in (("wrong", "WRONG"), ("open", "not yet checked"), ("unknown", "cannot be checked")):
        for note in table[state]:
            print(f"  {head}: {note['check']}: {note['text']}")
    print(f"  fits: {', '.join(table['fits']) or 'nothing'}")
    if not table["clean"]:
        print("not clean: with sim=false this policy does not drive this robot, unless checked=false is said")
        sys.exit(1)
    print("clean: this policy may drive this robot")


def deploy(cfg: DictConfig) -> None:
    """Run robot, supervisor and policy as processes; Ctrl-C brakes first."""
    if cfg.policy_path == "":  # as from policy_path=$RUN with nothing in RUN
        raise Refused(
            "policy_path= is empty; give a run folder or checkpoint, or leave it out to deploy without a policy"
        )
    if cfg.world:
        build.find("world", str(cfg.world))
    robot_file(str(cfg.robot_spec))
    fields = build.options_of("graph", build.find("graph", "processes")).model_fields
    options = {"name": "processes", **plain(OmegaConf.masked_copy(cfg, list(fields)))}
    options["policy_path"] = options["policy_path"] or ""
    arguments = build.make("graph", options, seed=int(cfg.seed))
    begin = time.time()
    status = build.tool("real.processes:deploy")(arguments)
    if status:
        raise Refused(f"the deployment ended because one of its processes did (status {status}); see above")
    if cfg.propose:
        tell_shadow(Path(str(cfg.flight)).expanduser(), begin)
        return
    answer.note(robot=options["robot_spec"], policy=options["policy_path"] or None, seconds=time.time() - begin)
    answer.leave()  # all have ended
