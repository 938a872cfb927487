"""The table of goal tasks: cells that are there are not made again, and what a line says of one."""

import json
from pathlib import Path

from benchmarks.her import SETTINGS, rhythm, run


def test_cells_that_are_there_are_read_and_say_when_they_reached_nine_in_ten(tmp_path: Path) -> None:
    cell = {"task": "FetchPush-v4", "side": "ours", "seed": 3, "steps": 900, "success": 0.97, "wall_s": 9, "cpu_s": 8}
    curve = [[300, 0.1], [600, 0.92], [900, 0.88]]
    (tmp_path / "FetchPush-v4_ours_3.json").write_text(json.dumps({**cell, "curve": curve}))
    rows = run(str(tmp_path), task="FetchPush-v4", seeds=(3,), who=("ours",))["rows"]
    shown = {name: cell[name] for name in ("seed", "steps", "success", "wall_s", "cpu_s")}
    assert rows == [{"cell": "FetchPush-v4_ours_3", **shown, "steps_to_.9": 600}]


def test_copies_end_an_episode_each_before_the_first_update() -> None:
    for settings in SETTINGS.values():  # which the peer needs, and hindsight is worth more after
        assert settings["learning_starts"] > 50 * settings["num_envs"]


def test_the_peer_makes_as_many_updates_a_step_as_we_do() -> None:
    for settings in SETTINGS.values():
        given = rhythm(settings)
        steps = given["train_freq"][0] * settings["num_envs"]
        assert given["gradient_steps"] / steps == settings["updates_per_step"]
