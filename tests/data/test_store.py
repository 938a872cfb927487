"""The columnar store: what goes in comes out, and what is sampled is what a literal loop would pick."""
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.episode import episode_from_columns
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import Store, StoreWriter, open_store, write_store
from robot_rl.data.store_write import source_facts
from robot_rl.types import Episode


def episode(number: int, steps: int, end: str = "terminal", **options: Any) -> Episode:
    """State [100 number + t, t]; action 0.001 (100 number + t); reward 100 number + t."""
    base = 100.0 * number + np.arange(steps + 1)
    final = options.pop("final", True)
    return episode_from_columns(
        {"state": np.stack((base[:-1], np.arange(steps)), 1).astype(np.float32)},
        (base[:-1, None] / 1000).astype(np.float32),
        base[:-1].astype(np.float32),
        terminated=end == "terminal",
        truncated=end == "timeout",
        final_obs={"state": np.array([base[-1], steps], np.float32)} if final else None,
        meta={"task": "toy", "number": number, "columns": {"logp": base[:-1] / 7, **options.pop("columns", {})}},
        **options,
    )


def toy() -> list[Episode]:
    """A terminal end, a time limit, and a cut tail whose last observation is not known."""
    return [episode(1, 3), episode(2, 4, "timeout"), episode(3, 2, "cut", final=False)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "toy.store", toy(), report=["a finding"])


def test_store_columns_of_the_toy_are_those_of_the_specification(store: Store) -> None:
    assert (len(store), store.steps) == (3, 9)
    assert store.start_obs.tolist() == [0, 4, 9]  # 4, 5 and 3 observations
    assert store.start_step.tolist() == [0, 3, 7]
    assert store.length.tolist() == [3, 4, 2]
    assert store.final_obs_valid.tolist() == [True, True, False]
    assert store.complete.tolist() == [True, True, False]
    assert store.obs()[:, 0].tolist() == [100, 101, 102, 103, 200, 201, 202, 203, 204, 300, 301, 301]
    assert store.column("terminal").tolist() == [False, False, True] + [False] * 6
    assert store.column("truncated").tolist() == [False] * 6 + [True, False, False]
    assert store.column("reward").tolist() == [100, 101, 102, 200, 201, 202, 203, 300, 301]
    assert store.returns().tolist() == [303, 806, 601]
    assert store.report == ["a finding"]
    assert store.success() is None
    assert not store.obs().flags.writeable
    # moments leave the final observations out: t is 0 1 2 0 1 2 3 0 1
    assert store.moments()[0][1] == pytest.approx(10 / 9)
    assert store.moments()[1][1] == pytest.approx(np.std([0, 1, 2, 0, 1, 2, 3, 0, 1]))


def test_store_episodes_come_back_exactly(store: Store) -> None:
    for made, read in zip(toy(), store.episodes()):
        for name in ("action", "proposed", "reward", "intervened", "stamp", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(made, name), getattr(read, name))
        np.testing.assert_array_equal(made.obs["state"], read.obs["state"])
        np.testing.assert_array_equal(made.meta["columns"]["logp"], read.meta["columns"]["logp"])
        assert made.meta["number"] == read.meta["number"]
        assert made.meta.get("final_obs_valid", True) == read.meta.get("final_obs_valid", True)
    assert json.loads((store.path / "meta.json").read_text())["episode_meta"] == {"task": "toy"}


def test_store_proposals_appear_from_the_first_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robot_rl.data.store_write.CHUNK", 1)  # every episode is a chunk of its own
    plain, other = episode(1, 3), episode(2, 2, proposed=np.full((2, 1), 0.5, np.float32))
    store = write_store(tmp_path / "s", [plain, other, plain])
    assert store.column("proposed")[:, 0].tolist() == pytest.approx([0.1, 0.101, 0.102, 0.5, 0.5, 0.1, 0.101, 0.102])
    store.verify()
    assert "proposed" not in write_store(tmp_path / "t", [plain]).names


def test_store_damage_is_named(store: Store) -> None:
    file = store.path / store.meta["columns"]["action"]["file"]
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    open_store(store.path)
    with pytest.raises(ValueError, match="column 'action' changed since it was written"):
        open_store(store.path).verify()
    file.write_bytes(data[:-4])
    with pytest.raises(ValueError, match="has 32 bytes, expected 36"):
        open_store(store.path)
    file.unlink()
    with pytest.raises(ValueError, match="is missing"):
        open_store(store.path)
    with pytest.raises(ValueError, match="is no store"):
        open_store(store.path.parent)
    with pytest.raises(FileNotFoundError):
        open_store(store.path / "nothing")


def test_store_that_fails_to_be_written_leaves_the_old_one(store: Store) -> None:
    def broken() -> Any:
        yield episode(1, 3)
        raise RuntimeError("the robot fell over")

    with pytest.raises(RuntimeError, match="fell over"):
        write_store(store.path, broken())
    assert open_store(store.path).steps == 9
    store.verify()
    assert [p.name for p in store.path.parent.iterdir()] == ["toy.store"]
    with pytest.raises(ValueError, match="got no episodes"):
        write_store(store.path, [])


def test_store_other_shapes_are_refused_and_odd_columns_left_out(tmp_path: Path) -> None:
    wide = episode_from_columns(
        {"state": np.zeros((2, 3), np.float32)}, np.zeros((2, 1)), np.zeros(2), terminated=False, truncated=True
    )
    with pytest.raises(ValueError, match=r"episode 1: 'obs/state' has shape \[3\] per step"):
        write_store(tmp_path / "s", [episode(1, 3), wide])
    without = episode(2, 2)
    del without.meta["columns"]["logp"]
    store = write_store(tmp_path / "s", [episode(1, 3, columns={"text": np.array(["a"] * 3)}), without])
    assert not any(name.startswith("info/") for name in store.names)
    assert any("'text' is <U1" in line for line in store.report)
    assert any("'logp' is not in every episode" in line for line in store.report)


def test_store_top_episodes_by_count_and_by_steps(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", [episode(1, 4), episode(5, 2), episode(3, 3), episode(3, 3)])
    # returns 406, 1001, 903, 903
    assert store.top_episodes(0.5).tolist() == [1, 2]
    assert store.top_episodes(0.01).tolist() == [1]
    assert store.top_episodes(0.3, unit="steps").tolist() == [1, 2]  # 2 steps are not 3.6, 5 are


def literal(store: Store, row: int, n_step: int, gamma: float) -> dict[str, Any]:
    """One transition by walking over the episodes."""
    number = max(e for e in range(len(store)) if store.start_step[e] <= row)
    item, t = store.episode(number), row - int(store.start_step[number])
    k = min(n_step, len(item) - t)
    ended = item.terminated and t + k == len(item)
    return {
        "state": item.obs["state"][t],
        "next": item.obs["state"][t + k],
        "action": item.action[t],
        "reward": sum(gamma**i * float(item.reward[t + i]) for i in range(k)),
        "discount": 0.0 if ended else gamma**k,
        "terminated": ended,
        "truncated": item.truncated and t + k == len(item),
        "next_action": item.action[t + k] if t + k < len(item) else None,
        "to_go": sum(gamma**i * float(r) for i, r in enumerate(item.reward[t:])),
    }


@pytest.mark.parametrize("n_step", [1, 3])
def test_dataset_equals_a_literal_walk(store: Store, n_step: int) -> None:
    data = LogDataset(
        store,
        LogView(
            n_step=n_step, gamma=0.9, next_action=True, return_to_go=True, extras=["row", "episode", "step", "logp"]
        ),
    )
    assert len(data) == 8  # the last step of the cut tail has no successor
    batch = data.sample(200)
    assert set(batch.extras["row"].tolist()) == set(range(8))
    for i, row in enumerate(batch.extras["row"].tolist()):
        want = literal(store, row, n_step, 0.9)
        if row == 7 and n_step == 3:  # the tail: only its first step leads somewhere known
            want = literal(store, row, 1, 0.9) | {"to_go": want["to_go"]}
        np.testing.assert_array_equal(batch.obs["state"][i], want["state"])
        np.testing.assert_array_equal(batch.next_obs["state"][i], want["next"])
        np.testing.assert_array_equal(batch.action[i], want["action"])
        assert float(batch.reward[i]) == pytest.approx(want["reward"], rel=1e-6)
        assert float(batch.discount[i]) == pytest.approx(want["discount"], rel=1e-6)
        assert bool(batch.terminated[i]) == want["terminated"]
        assert bool(batch.truncated[i]) == want["truncated"]
        assert float(batch.extras["return_to_go"][i]) == pytest.approx(want["to_go"], rel=1e-6)
        assert bool(batch.extras["next_action_valid"][i]) == (want["next_action"] is not None)
        np.testing.assert_array_equal(
            batch.extras["next_action"][i], 0 * want["action"] if want["next_action"] is None else want["next_action"]
        )
        assert int(batch.extras["step"][i]) == int(want["state"][1])
    assert bool(batch.mask.all())


def test_dataset_terminal_without_final_observation_is_kept_and_masked(tmp_path: Path) -> None:
    data = LogDataset(write_store(tmp_path / "s", [episode(1, 3, final=False)]), LogView(extras=["row"]))
    batch = data.sample(50)
    assert set(batch.extras["row"].tolist()) == {0, 1, 2}
    last = batch.extras["row"] == 2
    assert bool((batch.discount[last] == 0).all())
    assert torch.equal(batch.next_obs["state"][last], batch.obs["state"][last])


def test_dataset_cloning_uses_every_step(store: Store) -> None:
    assert len(LogDataset(store, LogView(require_next=False))) == 9


def test_dataset_windows_end_with_the_episode(store: Store) -> None:
    data = LogDataset(store, LogView(window=3, gamma=0.5, extras=["row"], require_next=False))
    batch = next(data.in_order(100))
    assert batch.obs["state"].shape == (9, 3, 2)
    assert batch.extras["row"][2].tolist() == [2, 2, 2]
    assert batch.mask[2].tolist() == [True, False, False]
    assert batch.reward[2].tolist() == [102, 0, 0]
    assert batch.discount[1].tolist() == [0.5, 0, 0]  # 101, then the terminal, then nothing
    assert batch.extras["row"][4].tolist() == [4, 5, 6]
    assert batch.mask[4].all()


def test_dataset_invalid_steps_cut_chains(tmp_path: Path) -> None:
    valid = np.array([True, True, False, True, True])
    store = write_store(
        tmp_path / "s", [episode(1, 5, columns={"valid": valid}), episode(2, 2, columns={"valid": valid[:2]})]
    )
    data = LogDataset(store, LogView(n_step=3, gamma=1.0, extras=["row"]))
    batch = next(data.in_order(100))
    assert batch.extras["row"].tolist() == [0, 1, 3, 4, 5, 6]
    assert batch.reward.tolist() == [100 + 101, 101, 103 + 104, 104, 200 + 201, 201]
    assert batch.next_obs["state"][:, 0].tolist() == [102, 102, 105, 105, 202, 202]


def test_dataset_seeds_are_the_single_runs_side_by_side(store: Store) -> None:
    together = LogDataset(store, LogView(extras=["row"]), seed=5, seeds=3)
    single = [LogDataset(store, LogView(extras=["row"]), seed=5 + i) for i in range(3)]
    for _ in range(3):
        rows = together.sample(3 * 7).extras["row"].tolist()
        assert rows == [row for data in single for row in data.sample(7).extras["row"].tolist()]
    with pytest.raises(ValueError, match="multiple of 3 seeds"):
        together.sample(8)


def test_dataset_stream_does_not_depend_on_the_batch_size_and_resumes(store: Store) -> None:
    a, b = (LogDataset(store, LogView(extras=["row"]), seed=1) for _ in range(2))
    one = torch.cat([a.sample(1000).extras["row"] for _ in range(70)])
    two = torch.cat([b.sample(700).extras["row"] for _ in range(100)])
    assert torch.equal(one, two)
    c = LogDataset(store, LogView(extras=["row"]), seed=9)
    c.load_state_dict(a.state_dict())
    assert torch.equal(a.sample(100_000).extras["row"], c.sample(100_000).extras["row"])
    fresh = LogDataset(store, seed=2)
    c.load_state_dict(fresh.state_dict())
    assert torch.equal(fresh.sample(10).reward, c.sample(10).reward)


def test_dataset_of_other_data_is_not_resumed(store: Store, tmp_path: Path) -> None:
    other = LogDataset(write_store(tmp_path / "o", [episode(1, 3)]))
    with pytest.raises(ValueError, match="trained on other data"):
        other.load_state_dict(LogDataset(store).state_dict())


def test_dataset_reward_transform_and_subset(store: Store) -> None:
    # complete episodes return 303 and 806; the cut tail does not count
    data = LogDataset(store, LogView(reward_scale="return_range", reward_bias=-1.0, extras=["row"]), episodes=[0, 1])
    batch = next(data.in_order(100))
    assert batch.extras["row"].tolist() == list(range(7))
    assert float(batch.reward[0]) == pytest.approx(100 * 1000 / 503 - 1, rel=1e-6)
    assert data.reward_range() == pytest.approx((100 * 1000 / 503 - 1, 203 * 1000 / 503 - 1))
    assert data.horizon == 4
    assert data.moments()[0][1] == pytest.approx(9 / 7)
    flat = LogDataset(store, LogView(reward_scale="return_range"), episodes=[0])
    assert flat.reward_scale == 1.0
    assert any("rewards unchanged" in line for line in flat.notes)
    assert data.initial_obs()["state"][:, 0].tolist() == [100, 200]


def test_dataset_clips_actions(store: Store) -> None:
    batch = LogDataset(store, LogView(action_clip=0.15, next_action=True)).sample(100)
    assert float(batch.action.abs().max()) == pytest.approx(0.15)
    assert float(batch.extras["next_action"].abs().max()) == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_step": 0}, "n_step is 0"),
        ({"gamma": 2.0}, "gamma is 2"),
        ({"keys": ["image"]}, "has no image"),
        ({"extras": ["nope"]}, "has no nope"),
        ({"episodes": [3]}, "expected at least one index"),
        ({"episodes": np.zeros(2, bool)}, "mask of episodes"),
        ({"reward_scale": "max"}, "return_range"),
    ],
)
def test_dataset_bad_arguments_are_refused(store: Store, options: dict[str, Any], message: str) -> None:
    own = {name: options[name] for name in ("keys", "episodes") if name in options}
    view = {name: value for name, value in options.items() if name not in own}
    with pytest.raises(ValueError, match=message):
        LogDataset(store, LogView(**view), **own)


def test_dataset_return_to_go_of_long_episodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = [
        episode_from_columns(
            {"state": np.zeros((n, 1), np.float32)},
            np.zeros((n, 1), np.float32),
            rng.normal(size=n).astype(np.float32),
            terminated=True,
            truncated=False,
        )
        for n in (1, 64, 65, 1000)
    ]
    data = LogDataset(write_store(tmp_path / "s", made))
    want = []
    for item in made:
        total, back = 0.0, []
        for r in item.reward[::-1].tolist():
            total = r + 0.97 * total
            back.append(total)
        want += back[::-1]
    np.testing.assert_allclose(data.returns_to_go(0.97), want, rtol=1e-5, atol=1e-5)


def test_store_of_ten_million_steps_opens_in_fifty_milliseconds(tmp_path: Path) -> None:
    steps, count = 10_000, 1000
    rows = np.zeros((steps, 1), np.float32)
    one = episode_from_columns(
        {"state": rows}, rows, rows[:, 0], terminated=False, truncated=True, final_obs={"state": rows[0]}
    )
    with StoreWriter(tmp_path / "s") as writer:
        for _ in range(count):
            writer.add(one)
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        store = open_store(tmp_path / "s")
        best = min(best, time.perf_counter() - start)
    assert store.steps == 10_000_000
    assert best < 0.05


def test_a_large_source_is_told_by_samples_of_it(tmp_path: Path) -> None:
    """First and last block are among them, so that a change there, or in size, shows."""
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"abc")
    assert source_facts(small)["sha256"] == hashlib.sha256(b"abc").hexdigest()
    content = bytearray((1 << 24) + 5)
    found = set()
    for place in (None, 0, len(content) - 1):
        if place is not None:
            content[place] ^= 1
        large.write_bytes(content)
        facts = source_facts(large)
        assert "sha256" not in facts
        found.add(facts["sha256_sampled"])
    assert len(found) == 3


def test_columns_of_later_episodes_alone_are_told(tmp_path: Path) -> None:
    more = episode(2, 4, columns={"force": np.zeros(4)})
    store = write_store(tmp_path / "x.store", [episode(1, 3), more])
    assert "info/logp" in store.names
    assert store.report[-1] == "column 'force' is not in every episode in one form: left out"


def test_a_share_of_the_episodes_is_counted_exactly(tmp_path: Path) -> None:
    store = write_store(tmp_path / "x.store", [episode(i, 1) for i in range(100)])
    assert [len(store.top_episodes(share)) for share in (0.29, 0.57, 0.291)] == [29, 57, 29]


def test_numbers_that_a_column_does_not_hold_are_told(tmp_path: Path) -> None:
    small, large = np.zeros(3, np.int8), np.full(3, 1000)
    store = write_store(
        tmp_path / "x.store", [episode(1, 3, columns={"k": small}), episode(2, 3, columns={"k": large})]
    )
    assert "info/k" not in store.names
    assert "column 'k' is not in every episode in one form: left out" in store.report
    first, second = episode(1, 3), episode(2, 3)
    first.obs["mask"], second.obs["mask"] = np.zeros((4, 2), np.uint8), np.full((4, 2), 0.7, np.float32)
    with pytest.raises(ValueError, match="episode 1: 'obs/mask' is float32, in the first one uint8"):
        write_store(tmp_path / "y.store", [first, second])


def test_no_next_action_is_that_of_a_step_that_is_no_transition(tmp_path: Path) -> None:
    store = write_store(tmp_path / "x.store", [episode(1, 6, columns={"valid": np.array([1, 1, 0, 1, 1, 1], bool)})])
    data = LogDataset(store, LogView(next_action=True, extras=("step",)))
    (batch,) = data.in_order(9)
    assert batch.extras["step"].tolist() == [0, 1, 3, 4, 5]
    assert batch.extras["next_action_valid"].tolist() == [True, False, True, True, False]
    assert batch.extras["next_action"][1].item() == 0.0
