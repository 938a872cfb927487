import time

import numpy as np
import pytest

from benchmarks import env as suite


def test_rows_hold_rates_and_ratios(capsys):
    rows = suite._case(2, 1, 2, 0.01, suite.ENGINE, suite.WORLD)
    assert {"ours 2", "raw 2", "gymnasium sync 2", "gymnasium async 2", "gymnasium best 2", "envpool 2"} == set(rows)
    for name, row in rows.items():
        if name == "envpool 2" and "missing" in row:
            continue
        assert row["steps_per_s"] > 0
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["rounds"] == 2
    assert rows["ours 2"]["ratio"] == 1.0
    assert capsys.readouterr().out == ""


def test_gymnasium_is_not_made_thousands_of_times(monkeypatch):
    monkeypatch.setattr(suite, "MANY", 1)
    rows = suite._case(2, 1, 2, 0.01, suite.ENGINE, suite.WORLD)
    assert rows["gymnasium sync 2"] == rows["gymnasium async 2"] == {"missing": "not made 2 times"}
    assert rows["raw 2"]["rounds"] == 2


def test_ratio_is_ours_over_theirs():
    row = suite._row([10.0, 30.0, 20.0], [10.0, 10.0, 10.0])
    assert (row["ratio"], row["steps_per_s"], row["rounds"]) == (2.0, 10.0, 3)
    assert (row["ratio_low"], row["ratio_high"]) == (1.5, 2.5)


def test_raw_physics_repeats_what_our_engine_did():
    ours = suite._Ours(3, 1, suite.ENGINE, suite.WORLD)
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 3, 6)).astype(np.float32)
    ours.record(actions)
    ours.play(actions)
    ours.repeat()
    # physics of the last step: raw and ours end in the same state, where no episode ended
    same = (ours.raw.state == ours.env.physics.state).all(axis=1)
    assert same.all()


def test_episode_clocks_are_spread():
    ours = suite._Ours(4, 1, suite.ENGINE, suite.WORLD)
    assert ours.env.state_dict()["step"].tolist() == [0, 250, 500, 750]


def test_steps_for_fills_the_time():
    count = suite._steps_for(lambda action: time.sleep(0.001), np.zeros((1, 6)), 0.05)
    assert 5 <= count <= 50


def test_unknown_class_path_is_refused():
    with pytest.raises(ImportError, match=r"'robot_rl.sim.mujoco_env' has no 'build'"):
        suite.load("robot_rl.sim.mujoco_env.build")
