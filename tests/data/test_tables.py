"""CSV logs by a column map, and archives of arrays."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl import plain_pickle
from robot_rl.data import convert, formats, npz, tables
from robot_rl.data.findings import BadData
from robot_rl.data.read_options import ReadOptions

PENDULUM = next(
    (p for p in (up / "shared/data/double_pendulum" for up in Path(__file__).parents) if p.exists()), Path("absent")
)
DOOR = next(
    (p for p in (up / "shared/data/adroit/door_human_demos.npz" for up in Path(__file__).parents) if p.exists()),
    Path("absent"),
)
MAP: dict[str, Any] = {
    "time": "t",
    "control_hz": 10,
    "state": [{"column": "q", "transform": "sin"}, {"column": "w", "scale": 0.5, "offset": 1.0}],
    "action": [{"column": "u", "scale": 0.1, "unit": "N*m"}],
    "info": {"heat": "c"},
    "reward": "2 * w - action0 ** 2",
    "success": "q > 0.5",
    "success_hold_s": 0.25,
    "complete_s": 0.9,
}


def csv(path: Path, *, end: float = 1.0, rows: str | None = None) -> Path:
    """q(t) = t and w(t) = 10 t at irregular times, u steps from 1 to 5 at t = 0.5."""
    t = np.array([0.0, 0.03, 0.12, 0.29, 0.33, 0.48, 0.5, 0.71, 0.88, 1.0])
    t = t[t <= end]
    lines = [f"{a:.3f},{a:.3f},{10 * a:.3f},{1 if a < 0.5 else 5},{7}" for a in t]
    path.write_text(rows or "t,q,w,u,c\n" + "\n".join(lines) + "\n")
    return path


def test_csv_is_resampled_held_and_interpolated(tmp_path: Path) -> None:
    logs = tables.read(csv(tmp_path / "a.csv"), ReadOptions(map=MAP))
    (one,) = logs.episodes
    t = np.arange(11) / 10
    np.testing.assert_allclose(one.stamp, t)
    np.testing.assert_allclose(one.obs["state"][:, 0], np.sin(t), atol=1e-6)
    np.testing.assert_allclose(one.obs["state"][:, 1], 5 * t + 1, atol=1e-6)
    np.testing.assert_allclose(one.action[:, 0], [0.1] * 5 + [0.5] * 5, rtol=1e-6)  # held: 0.48 still 1, 0.5 is 5
    np.testing.assert_allclose(one.reward, 20 * t[:-1] - one.action[:, 0] ** 2, atol=1e-5)
    assert one.meta["columns"]["heat"].tolist() == [7] * 10
    assert (one.meta["success"], one.truncated, one.meta.get("cut")) == (True, True, None)
    assert (logs.io.action_low, logs.io.action_high, logs.io.action_units) == ((-10.0,), (10.0,), ("N*m",))
    assert "largest gap 210 ms" in str(logs.findings[0])


def test_csv_short_recording_is_cut_and_no_success(tmp_path: Path) -> None:
    (one,) = tables.read(csv(tmp_path / "a.csv", end=0.72), ReadOptions(map=MAP)).episodes
    assert (one.meta["cut"], one.meta["success"]) == (True, False)


def test_csv_folder_variants_and_gzip(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    text = csv(tmp_path / "left/a.csv").read_text()
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    plan = {**MAP, "variants": {"left": {"action": [{"column": "c", "scale": 0.1}]}}}
    other, left = tables.read(tmp_path, ReadOptions(map=plan)).episodes
    assert left.action[0, 0] == pytest.approx(0.7)
    assert other.action[0, 0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("t,q,w,u\n0,0,0,0\n1,1,1,1\n", "'c' is missing"),
        ("t,q,w,u,c\n0,0,0,0,0\n0,0,,0,0\n", "row 2 below the names, column w: '' is no number"),
        ("t,q,w,u,c\n0,0,0,0,0\n0,0,0\n", "from 5 to 3 at row 2 below the names"),
        ("t,q,w,u,c\n0,0,0\n", "3 columns of data, but 5 names"),
    ],
)
def test_csv_what_is_wrong_is_named(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(BadData, match=message):
        tables.read(csv(tmp_path / "a.csv", rows=rows), ReadOptions(map=MAP))


@pytest.mark.parametrize(
    ("between", "point", "mark"), [(";", ",", ""), ("\t", ",", ""), (";", ".", ""), (",", ".", "\ufeff")]
)
def test_csv_of_other_countries_is_the_same(tmp_path: Path, between: str, point: str, mark: str) -> None:
    plain = csv(tmp_path / "a.csv")
    text = plain.read_text().replace(",", between).replace(".", point)
    other = tmp_path / "b.csv"
    other.write_text(mark + text)
    first, second = (tables.read(file, ReadOptions(map=MAP)).episodes[0] for file in (plain, other))
    assert np.array_equal(first.obs["state"], second.obs["state"])
    assert np.array_equal(first.action, second.action)


def test_columns_of_words_stand_beside_the_numbers(tmp_path: Path) -> None:
    plain = csv(tmp_path / "a.csv")
    _, *rows = (line.split(",") for line in plain.read_text().splitlines())
    lines = [f'{t},{q},"reach, then lift",{w},{u},ok,{c}' for t, q, w, u, c in rows]
    (tmp_path / "b.csv").write_text("\n".join(["t,q,phase,w,u,mark,c", *lines]) + "\n")
    found = tables.read(tmp_path / "b.csv", ReadOptions(map=MAP))
    (want,), (got,) = tables.read(plain, ReadOptions(map=MAP)).episodes, found.episodes
    np.testing.assert_array_equal(got.obs["state"], want.obs["state"])
    np.testing.assert_array_equal(got.action, want.action)
    assert any("columns of words, which are left out: phase, mark" in str(item) for item in found.findings)
    (tmp_path / "both").mkdir()
    for name in ("c.csv", "d.csv"):
        (tmp_path / "both" / name).write_text((tmp_path / "b.csv").read_text())
    many = tables.read(tmp_path / "both", ReadOptions(map=MAP)).findings
    assert sum("columns of words" in str(item) for item in many) == 1
    with pytest.raises(BadData, match="'phase' is missing"):
        tables.read(tmp_path / "b.csv", ReadOptions(map={**MAP, "info": ["phase"]}))


def test_csv_map_with_a_wrong_expression_is_named_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"the map's expression 'q\^2': .*BinOp.*correct the map"):
        tables.read(csv(tmp_path / "a.csv"), ReadOptions(map={**MAP, "reward": "q^2"}))


def test_csv_without_a_map_lists_the_columns(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"has the columns t, q, w, u, c, .*maps of the package: double_pendulum"):
        formats.load(csv(tmp_path / "a.csv"))
    with pytest.raises(ValueError, match="states is no option of a map; did you mean state"):
        tables.read(csv(tmp_path / "a.csv"), ReadOptions(map={"states": []}))


@pytest.mark.parametrize("text", ["__import__('os')", "q.real", "[q]", "open(1)", "lambda: 1", "q; w"])
def test_expression_runs_nothing_but_arithmetic(text: str) -> None:
    with pytest.raises(ValueError, match=r"not allowed|only these may be called|must be 'name = expression'"):
        tables.evaluate(text, {"q": np.zeros(2), "w": np.zeros(2)})


def test_expression_of_columns() -> None:
    got = tables.evaluate(
        "-(0.2 * cos(q) + maximum(w, 1)) / 2 > -1", {"q": np.array([0.0, np.pi]), "w": np.array([0, 3])}
    )
    assert got.tolist() == [True, False]  # -(0.2 + 1) / 2 = -0.6, -(-0.2 + 3) / 2 = -1.4


@pytest.mark.skipif(not PENDULUM.exists(), reason="the folder shared/data/double_pendulum is absent")
def test_real_pendulum_logs_succeed_as_their_owners_say() -> None:
    logs = tables.read(PENDULUM, ReadOptions(map="double_pendulum"))
    assert len(logs.episodes) == 35
    won: dict[str, int] = {}
    for e in logs.episodes:
        group = "/".join(e.meta["source"].split("/")[:2])
        won[group] = won.get(group, 0) + e.meta["success"]
    # of ten experiments 10, 10, 8, 10 and 4 were successes; seven of each group are here
    assert won["acrobot/ilqr_tvlqr_lqr"] == won["acrobot/mcpilco"] == won["pendubot/mcpilco"] == 7
    assert 5 <= won["pendubot/ilqr_tvlqr_lqr"] <= 7
    assert 1 <= won["pendubot/sac_lqr"] <= 4
    state = np.concatenate([e.obs["state"] for e in logs.episodes])
    np.testing.assert_allclose(state[:, 0] ** 2 + state[:, 1] ** 2, 1.0, atol=1e-5)
    assert np.abs(np.concatenate([e.action for e in logs.episodes])).max() <= 1.0
    hanging = logs.episodes[0]
    assert hanging.reward[0] == pytest.approx(-1.0, abs=0.01)  # both links down: h = -0.5


def test_npz_by_index_keeps_starts_and_successors(tmp_path: Path) -> None:
    n = np.arange(7, dtype=np.float32)
    np.savez(
        tmp_path / "x.npz", obs=n[:, None], next_obs=n[:, None] + 1, action=n[:, None] / 10, reward=n[:, None],
        done=np.array([0, 0, 1, 0, 0, 0, 0])[:, None], index=np.array([0, 3]),
    )  # fmt: skip
    logs = npz.read(tmp_path / "x.npz")
    assert [(len(e), e.terminated, e.truncated) for e in logs.episodes] == [(3, True, False), (4, False, True)]
    assert logs.episodes[1].obs["state"][:, 0].tolist() == [3, 4, 5, 6, 7]


def test_pickled_list_of_episodes_is_read(tmp_path: Path) -> None:
    common = {"actions": np.zeros((4, 1)), "rewards": np.arange(4.0)}
    paths = [{**common, "observations": np.ones((4, 2)) * i, "terminals": [0, 0, 0, i]} for i in range(2)]
    for protocol in (2, 5):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(paths, protocol))
        logs = formats.load(tmp_path / "x.pkl")
        assert [(len(e), e.terminated) for e in logs.episodes] == [(4, False), (4, True)]


@pytest.mark.skipif(not DOOR.exists(), reason="the folder shared/data/adroit is absent")
def test_real_door_demonstrations() -> None:
    logs = formats.load(DOOR)
    assert len(logs.episodes) == 15
    assert logs.io.action_dim == 28
    assert logs.episodes[0].obs["state"].shape == (301, 39)


def test_csv_with_a_time_and_no_rate_keeps_its_rows_and_their_rate(tmp_path: Path) -> None:
    lines = [f"{0.01 * i:.3f},{i},{i},1,7" for i in range(200)]
    path = csv(tmp_path / "a.csv", rows="t,q,w,u,c\n" + "\n".join(lines) + "\n")
    logs = tables.read(path, ReadOptions(map={**MAP, "control_hz": None}))
    assert (len(logs.episodes[0]), logs.io.control_hz) == (199, 100.0)


def test_csv_map_with_one_entry_in_place_of_a_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"map: action is .*expected a list, each"):
        tables.read(csv(tmp_path / "a.csv"), ReadOptions(map={**MAP, "action": {"column": "u"}}))


def test_columns_named_alone_are_taken_as_they_are(tmp_path: Path) -> None:
    plan = {"time": "t", "state": ["q", "w"], "action": ["u"], "variants": {"hot": {"state": ["c"]}}}
    (one,) = tables.read(csv(tmp_path / "a.csv"), ReadOptions(map=plan)).episodes
    np.testing.assert_allclose(one.obs["state"][:3], [[0, 0], [0.03, 0.3], [0.12, 1.2]], atol=1e-6)
    (tmp_path / "hot").mkdir()
    (one,) = tables.read(csv(tmp_path / "hot/a.csv"), ReadOptions(map=plan)).episodes
    assert one.obs["state"][0].tolist() == [7]


def test_what_is_no_utf8_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,q,w,u,c\n0,0,0,0,0\n", encoding="utf-16")
    with pytest.raises(BadData, match="is no text in UTF-8; save it as CSV in UTF-8"):
        tables.read(tmp_path / "a.csv", ReadOptions(map=MAP))


def test_csv_with_one_row_is_left_out(tmp_path: Path) -> None:
    csv(tmp_path / "a.csv")
    csv(tmp_path / "b.csv", end=0.0)
    logs = tables.read(tmp_path, ReadOptions(map=MAP))
    assert len(logs.episodes) == 1
    assert any("b.csv has fewer than two rows: left out" in str(f) for f in logs.findings)


def test_csv_rate_and_bounds_of_variants(tmp_path: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        csv(tmp_path / name / "a.csv")
    plain = {key: value for key, value in MAP.items() if key != "control_hz"}
    both = {"variants": {"left": {"control_hz": 5}, "right": {"control_hz": 5}}}
    logs = tables.read(tmp_path, ReadOptions(map={**plain, **both}))
    assert ([len(e) for e in logs.episodes], logs.io.control_hz) == ([5, 5], 5.0)
    for change in ({"control_hz": 5}, {"action": [{"column": "u", "scale": 0.2}]}):
        with pytest.raises(BadData, match=r"left/a.csv and .*right/a.csv have another rate, or other actions"):
            tables.read(tmp_path, ReadOptions(map={**MAP, "variants": {"right": change}}))


def test_csv_names_that_nothing_reads_or_that_stand_twice_are_refused(tmp_path: Path) -> None:
    plan = {**MAP, "action": [{"column": "u", "scal": 0.1}]}
    with pytest.raises(BadData, match=r"action.0.scal is no key of a map"):
        tables.read(csv(tmp_path / "a.csv"), ReadOptions(map=plan))
    with pytest.raises(BadData, match="has several columns called q; give each a name of its own"):
        tables.read(csv(tmp_path / "a.csv", rows="t,q,w,u,c,q\n0,0,0,0,0,1\n1,0,0,0,0,1\n"), ReadOptions(map=MAP))


def test_steps_keep_their_distance_at_times_since_1970() -> None:
    times = tables.even_times(1.7e9, 1.7e9 + 1000.0, 1000.0)
    assert (len(times), times[-1]) == (1_000_001, 1.7e9 + 1000.0)


def test_names_in_capitals_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "A.CSV.GZ").write_bytes(gzip.compress(csv(tmp_path / "a.csv").read_bytes()))
    assert len(formats.load(tmp_path / "A.CSV.GZ", map=MAP).episodes[0]) == 10
    rows = {"observations": np.zeros((4, 2)), "actions": np.zeros((4, 1)), "rewards": np.arange(4.0)}
    (tmp_path / "A.PKL").write_bytes(pickle.dumps([rows]))
    assert len(formats.load(tmp_path / "A.PKL").episodes[0]) == 4


def test_npz_rows_without_groups_keep_the_observation_after_the_last(tmp_path: Path) -> None:
    rows = {"actions": np.zeros((3, 1)), "rewards": np.zeros(3), "timeouts": np.array([False, False, True])}
    np.savez(tmp_path / "x.npz", observations=np.arange(4.0)[:, None], **rows)
    (one,) = npz.read(tmp_path / "x.npz").episodes
    assert one.obs["state"][:, 0].tolist() == [0, 1, 2, 3]
    assert one.meta.get("final_obs_valid", True)


def test_npz_index_is_looked_at(tmp_path: Path) -> None:
    rows = {"obs": np.zeros((4, 1)), "action": np.zeros((4, 1)), "reward": np.zeros(4), "done": np.array([0, 1, 0, 1])}
    np.savez(tmp_path / "x.npz", **rows, index=np.array([0, 3]))
    assert any(
        "1 ends before the last step of an episode: ignored" in str(f) for f in npz.read(tmp_path / "x.npz").findings
    )
    for wrong in ([0, 9], [2, 3], [0, 3, 1]):
        np.savez(tmp_path / "x.npz", **rows, index=np.array(wrong))
        with pytest.raises(BadData, match="expected the first row of every episode, from 0 to 4"):
            npz.read(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", **{key: value[:0] for key, value in rows.items()})
    with pytest.raises(BadData, match=r"x\.npz has no rows"):
        npz.read(tmp_path / "x.npz")


def test_another_map_is_another_log(tmp_path: Path) -> None:
    log, plan = csv(tmp_path / "a.csv"), tmp_path / "map.yaml"
    for column in ("w", "c"):
        plan.write_text(f"time: t\nstate: [{column}]\naction: [u]\n")
        for named in (plan, str(plan)):
            state = convert.convert_once(log, map=named).obs()
        assert state[-1, 0] == (10.0 if column == "w" else 7.0)


def test_pickled_arrays_of_any_layout_come_back(tmp_path: Path) -> None:
    block = np.arange(24.0).reshape(4, 2, 3)
    turned = {"obs": block.transpose(1, 0, 2), "act": block[:, :, 0].T, "some": block[::2]}
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(turned, 5))
    for name, value in plain_pickle.load(tmp_path / "x.pkl").items():
        np.testing.assert_array_equal(value, turned[name])
