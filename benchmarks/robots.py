"""Models of robots that the code has never met: does each get a card, and does the scripted expert work on it?

`python -m benchmarks.robots <folder> [out=<file.json>]` takes every URDF and MJCF below a folder, such as a clone of
example-robot-data. An arm is tried on 20 episodes of reach by moves of the tool; legs have to stand for four seconds in
which the policy leaves them alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.legs_card import new_legs_card
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.worlds.reach import Reach
from robot_rl.sim.worlds.walk import Walk
from robot_rl.types.card import Card


def run(folder: Path) -> list[dict[str, Any]]:
    """One row per model: file, kind of card, joints, and the share of episodes that succeed, or why there is none."""
    rows = []
    for path in sorted([*folder.rglob("*.urdf"), *folder.rglob("*.xml")]):
        if path.suffix == ".xml" and "<mujoco" not in path.read_text(errors="replace"):
            continue
        row: dict[str, Any] = {"file": str(path.relative_to(folder))}
        try:
            found = new_legs_card(str(path), "it")
            card = (found or new_card(str(path), "it"))[0]
            row |= {"card": "legs" if card.legs is not None else "arm", "joints": len(card.joints)}
            row["works"] = _stands(card) if card.legs is not None else _reaches(card)
        except (ValueError, RuntimeError) as error:
            row["said"] = str(error).replace(str(folder), "")
        sys.stdout.write(json.dumps(row) + "\n")
        rows.append(row)
    return rows


def _reaches(card: Card) -> float:
    env = make(20, 0, world=Reach(robot=card), options=EngineOptions(num_threads=2))
    obs, info = env.reset()
    for _ in range(env.world.episode_steps):
        obs, _, _, _, info = env.step(env.expert(obs))
    env.close()
    return float(np.mean(info["success"]))


def _stands(card: Card) -> float:
    env = make(4, 0, world=Walk(robot=card), options=EngineOptions(num_threads=2))
    env.reset()
    fell = np.zeros(4, bool)
    for _ in range(200):
        fell |= env.step(np.zeros((4, len(card.joints)), np.float32))[2]
    env.close()
    return float(1.0 - fell.mean())


if __name__ == "__main__":
    result = run(Path(sys.argv[1]))
    arms = [row.get("works", 0.0) for row in result if row.get("card") == "arm"]
    legs = [row.get("works", 0.0) for row in result if row.get("card") == "legs"]
    sys.stdout.write(
        f"{len(result)} models; {len(arms)} arms, of which {sum(x >= 0.85 for x in arms)} reach in 17 of 20 episodes "
        f"or more; {len(legs)} on legs, of which {sum(x == 1.0 for x in legs)} stand\n"
    )
    for word in sys.argv[2:]:
        Path(word.partition("out=")[2]).write_text("\n".join(json.dumps(row) for row in result) + "\n")
