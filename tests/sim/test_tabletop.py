"""Tabletop: the contract, what counts as met, remaining work by hand, sentences, and clips that show what they name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.film import Film
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.tabletop import BLOCKS, GOALS, PLATES, WORK_MIN, Tabletop
from robot_rl.sim.worlds.tabletop_clips import KINDS, TabletopClips
from robot_rl.sim.worlds.tabletop_text import phrasings

ONE_THREAD = EngineOptions(num_threads=1)


def test_tabletop_passes_the_check() -> None:
    env = make(4, 0, world=Tabletop(seconds=2.0), options=ONE_THREAD)
    findings = check(env, steps=60)
    env.close()
    assert not findings, "\n".join(findings)


def test_tabletop_expert_meets_every_goal_and_work_never_grows() -> None:
    world = Tabletop()
    env = make(36, 0, world=world, options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    view: Any = env._view
    view.task["goal"][...] = np.arange(36) % 6
    obs["state"][:, 20:] = world.one_hot(view.task["goal"])
    work, info = [], {}
    for _ in range(45):
        obs, _, _, _, info = env.step(env.expert(obs))
        work.append(world.remaining(view)[np.arange(36), view.task["goal"]])
    assert info["success"].all()
    assert np.diff(work, axis=0).max() < 0.01  # m
    np.testing.assert_allclose(work[-1], WORK_MIN)
    others = world.satisfies(view)
    assert others.sum() == 36  # each met its own goal and no other
    env.close()


def test_tabletop_random_actions_meet_nothing() -> None:
    env = make(16, 1, world=Tabletop(), options=ONE_THREAD)
    env.reset(seed=1)
    random = np.random.default_rng(0)
    met = [env.step(random.uniform(-1, 1, (16, 4)).astype(np.float32))[4]["success"] for _ in range(79)]
    assert np.mean(met) < 0.02
    env.close()


def placed() -> tuple[Any, Any, Any]:
    """One environment with the red block at the origin, the yellow plate 30 cm to the right, open fingers far above."""
    env = make(1, 0, world=Tabletop(), options=ONE_THREAD)
    env.reset(seed=0)
    view: Any = env._view
    view.qpos[0, :5] = (0.0, 0.0, 0.12, 0.04, 0.04)
    for i, y in enumerate((0.0, 0.1, -0.1)):
        view.qpos[0, 5 + 7 * i : 8 + 7 * i] = (0.0, y, 0.02)
    view.task["plate_yellow"][0] = (0.3, 0.0, 0.002)
    view.task["plate_purple"][0] = (-0.3, 0.0, 0.002)
    return env, view, env.world


def test_tabletop_remaining_work_by_hand() -> None:
    env, view, world = placed()
    # red on yellow: down to it .1, grasp .05, across .3, up .08, down .08, release .03
    assert world.remaining(view)[0, 0] == pytest.approx(0.64)
    # green on yellow: to it sqrt(.1^2 + .1^2), across sqrt(.3^2 + .1^2), the rest alike
    assert world.remaining(view)[0, 2] == pytest.approx(np.hypot(0.1, 0.1) + np.hypot(0.3, 0.1) + 0.24)
    # red in the hand, 5 cm up: neither way nor grasp; 3 cm more to climb. Green: red has to be let go first.
    view.qpos[0, :5] = (0.0, 0.0, 0.07, 0.02, 0.02)
    view.qpos[0, 7] = 0.07
    assert world.remaining(view)[0, 0] == pytest.approx(0.3 + 0.03 + 0.08 + 0.03)
    far = np.sqrt(0.1**2 + 0.05**2)
    assert world.remaining(view)[0, 2] == pytest.approx(far + 0.05 + 0.03 + np.hypot(0.3, 0.1) + 0.19)
    # lying on the plate but still held: only the release is left
    view.qpos[0, :3] = view.qpos[0, 5:8] = (0.3, 0.0, 0.02)
    assert world.remaining(view)[0, 0] == pytest.approx(0.03)
    assert not world.satisfies(view).any()
    view.qpos[0, 3:5] = 0.04
    assert world.satisfies(view)[0].tolist() == [True] + [False] * 5
    assert world.remaining(view)[0, 0] == pytest.approx(WORK_MIN)
    env.close()


def test_tabletop_block_in_the_air_or_beside_the_plate_is_not_there() -> None:
    env, view, world = placed()
    view.qpos[0, 5:8] = (0.3, 0.0, 0.05)
    assert not world.satisfies(view)[0, 0]
    view.qpos[0, 5:8] = (0.3, 0.036, 0.02)
    assert not world.satisfies(view)[0, 0]
    view.qpos[0, 5:8] = (0.3, 0.034, 0.02)
    assert world.satisfies(view)[0, 0]
    env.close()


def test_tabletop_start_meets_no_goal_and_nothing_overlaps() -> None:
    world = Tabletop()
    env = make(200, 3, world=world, options=ONE_THREAD)
    env.reset(seed=3)
    view: Any = env._view
    assert not world.satisfies(view).any()
    spots = [view.qpos[:, 5 + 7 * i : 7 + 7 * i] for i in range(3)]
    spots += [view.task[f"plate_{name}"][:, :2] for name in PLATES]
    for i in range(5):
        for j in range(i):
            assert np.linalg.norm(spots[i] - spots[j], axis=1).min() > 0.085
    assert set(np.unique(view.task["goal"])) == set(range(6))
    env.close()


def test_tabletop_work_reward_is_minus_the_remaining_work() -> None:
    world = Tabletop(reward="work")
    env = make(3, 0, world=world, options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    _, reward, *_ = env.step(env.expert(obs))
    view: Any = env._view
    work = world.remaining(view)[np.arange(3), view.task["goal"]]
    np.testing.assert_allclose(reward, -work, rtol=1e-5)
    env.close()
    with pytest.raises(ValueError, match="reward is 'dense'"):
        Tabletop(reward="dense")
    with pytest.raises(ValueError, match="control_hz"):
        Tabletop(control_hz=15.0)


def test_tabletop_sentences_name_their_goal_and_held_out_ones_are_new() -> None:
    train, held_out = phrasings("train"), phrasings("held_out")
    for texts in (train, held_out):
        for (block, plate), sentences in zip(GOALS, texts):
            for text in sentences:
                assert [name for name in BLOCKS if name in text.split()] == [BLOCKS[block]]
                assert [name for name in PLATES if name in text.split()] == [PLATES[plate]]
    known = {text for sentences in train for text in sentences}
    assert not known & {text for sentences in held_out for text in sentences}
    assert sum(len(sentences) for sentences in held_out) == 30
    with pytest.raises(ValueError, match="split is"):
        phrasings("test")


@pytest.fixture(scope="module")
def clips() -> dict[str, np.ndarray]:
    return TabletopClips(size=(16, 16)).generate([kind for kind in KINDS for _ in range(4)], 11)


def test_clips_end_as_their_kind_says(clips: dict[str, np.ndarray]) -> None:
    for c, (goal, number) in enumerate(zip(clips["goal"], clips["kind"])):
        kind, part = KINDS[number], slice(clips["start"][c], clips["start"][c + 1])
        done, work = clips["done"][part], clips["work"][part]
        block, plate = GOALS[goal]
        assert done[-1, goal] == (kind in ("success", "pause")), kind
        assert not done[0].any()
        if kind == "wrong_object":
            assert GOALS[int(np.argmax(done[-1]))][0] != block
            assert done[-1].any()
        if kind == "wrong_place":
            assert done[-1, GOALS.index((block, 1 - plate))]
        if kind == "undo":
            assert done[:, goal].any()
            assert done[-1, GOALS.index((block, 1 - plate))]
        if kind in ("drop", "stall", "miss", "regress"):
            assert not done[-1].any(), kind
        if kind == "regress":
            assert work[-1, goal] > work[:, goal].min() + 0.02
        if kind == "stall":
            assert np.ptp(work[-3:, goal]) < 0.02


def test_clips_pictures_change_and_repeat_with_the_seed(clips: dict[str, np.ndarray]) -> None:
    assert len(clips["frames"]) == clips["start"][-1] == len(clips["work"]) == len(clips["done"])
    assert clips["frames"].dtype == np.uint8
    moved = np.abs(np.diff(clips["frames"][: clips["start"][1]].astype(int), axis=0)).max(axis=(1, 2, 3))
    assert (moved[:4] > 10).all()
    again = TabletopClips(size=(16, 16)).generate([kind for kind in KINDS for _ in range(4)], 11)
    for name, value in clips.items():
        np.testing.assert_array_equal(value, again[name], err_msg=name)


def test_clips_refuse_unknown_kinds_and_cameras() -> None:
    with pytest.raises(ValueError, match="explode"):
        TabletopClips().generate(["explode"], 0)
    with pytest.raises(ValueError, match="camera is 'side'"):
        TabletopClips(camera="side")


def test_tabletop_says_the_goal_and_rows_of_one_seed_have_one_start() -> None:
    env = make(
        4,
        0,
        world=Tabletop(seconds=1.0, sentences="train", layout="fixed", hand_spread=0.0),
        options=ONE_THREAD,
    )
    obs, _ = env.reset(seed=[3, 3, 4, 4])
    for key in ("state", "instruction"):
        np.testing.assert_array_equal(obs[key][::2], obs[key][1::2])
    words = [bytes(row).rstrip(b"\0").decode() for row in obs["instruction"]]
    view: Any = env._view
    for text, goal in zip(words, view.task["goal"]):
        assert text in phrasings()[goal]
    np.testing.assert_allclose(obs["state"][:, :2], 0.0, atol=1e-6)
    for _ in range(9):
        obs, _, _, truncated, info = env.step(np.zeros((4, 4), np.float32))
    before = view.task["goal"].copy()
    obs, _, _, truncated, info = env.step(np.zeros((4, 4), np.float32))
    assert truncated.all()
    np.testing.assert_array_equal(info["task"], before)  # of the episode that ended, not of the next
    assert len(env.parts.task_names) == 6
    env.close()
    plain = make(2, 0, world=Tabletop(), options=ONE_THREAD)
    assert "instruction" not in plain.io.obs
    plain.close()


def test_tabletop_starts_are_what_they_were_without_sentences() -> None:
    states = []
    for sentences in (None, "plain"):
        env = make(3, 5, world=Tabletop(sentences=sentences), options=ONE_THREAD)
        states.append(env.reset(seed=5)[0]["state"])
        env.close()
    np.testing.assert_array_equal(states[0], states[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentences": "rhymes"}, "expected 'plain', 'train' or 'held_out'"),
        ({"layout": "round"}, "expected 'random' or 'fixed'"),
        ({"jitter": 0.1}, "neighbours would touch"),
        ({"hand_spread": 2.0}, "a share from 0 to 1"),
    ],
)
def test_tabletop_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tabletop(**options)


def test_film_takes_new_pictures_only_when_they_are_due() -> None:
    taken: list[list[int]] = []

    def draw(rows: np.ndarray) -> dict[str, np.ndarray]:
        taken.append(rows.tolist())
        return {"top": np.full((len(rows), 2, 2, 3), len(taken), np.uint8)}

    film, every, step = Film(["top"], 3), np.arange(2), np.zeros(2, np.int64)
    shown: dict[str, np.ndarray] = {}
    for _ in range(4):
        shown = film.take(every, step, draw, anew=False)
        step += 1
    assert taken == [[0, 1], [0, 1]]  # at steps 0 and 3
    assert shown["image.top"][0, 0, 0, 0] == 2
    step[:] = (0, 4)  # the first begins anew
    shown = film.take(every, step, draw, anew=False)
    assert taken[-1] == [0]
    assert shown["image.top"][:, 0, 0, 0].tolist() == [3, 2]
    other = Film(["top"], 3)
    other.take(every, step, draw, anew=True)
    np.testing.assert_array_equal(other.load_state_dict(film.state_dict())["image.top"], shown["image.top"])
    with pytest.raises(ValueError, match="camera_every is 0"):
        Film(["top"], 0)


def test_tabletop_asks_only_what_it_is_told_and_says_it_in_words() -> None:
    world = Tabletop(only=["red on yellow", "blue on purple"])
    env = make(40, 0, world=world, options=ONE_THREAD)
    env.reset(seed=0)
    goals = np.asarray(env._view.task["goal"])
    assert set(goals) == {0, 5}
    assert env.parts.instructions is not None
    said = env.parts.instructions()
    assert said is not None
    assert {said[int(np.flatnonzero(goals == g)[0])] for g in (0, 5)} == {
        "put the red block on the yellow plate", "put the blue block on the purple plate"
    }  # fmt: skip
    env.close()
    with pytest.raises(ValueError, match="expected some of red on yellow"):
        Tabletop(only=["pink on yellow"])
    worded = make(3, 0, world=Tabletop(sentences="held_out"), options=ONE_THREAD)
    obs, _ = worded.reset(seed=0)
    assert worded.parts.instructions is not None
    found = worded.parts.instructions()
    assert found == [bytes(row).rstrip(b"\0").decode() for row in obs["instruction"].tolist()]
    worded.close()


def test_tabletop_mistaken_states_ask_for_another_goal_and_nothing_else_changes() -> None:
    world = Tabletop()
    env = make(30, 0, world=world, options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    draw = np.where(np.arange(30) % 3 == 0, np.nan, np.linspace(0, 0.999, 30))
    assert env.parts.mistaken is not None
    state = env.parts.mistaken(obs, draw)
    first = len(world.obs_names) - 5
    np.testing.assert_array_equal(state[:, :first], obs["state"][:, :first])
    same = (state == obs["state"]).all(axis=1)
    np.testing.assert_array_equal(same, np.isnan(draw))
    assert (state[:, first : first + 3].sum(1) == 1).all()
    assert (state[:, first + 3 :].sum(1) == 1).all()
    env.close()


def test_held_pictures_are_new_at_the_ends_of_an_episode() -> None:
    env = make(
        2,
        0,
        world=Tabletop(seconds=0.5),
        options=EngineOptions(num_threads=1, cameras=("front",), camera_size=(16, 16), camera_every=3),
    )
    whole = make(
        2,
        0,
        world=Tabletop(seconds=0.5),
        options=EngineOptions(num_threads=1, cameras=("front",), camera_size=(16, 16)),
    )
    for each in (env, whole):
        each.reset(seed=0)
    action = np.tile(np.array([1.0, 1.0, -1.0, 1.0], np.float32), (2, 1))
    rows = [(env.step(action), whole.step(action)) for _ in range(5)]
    for i, (held, fresh) in enumerate(rows):
        due = i in (2, 4)  # third step, and the last of the episode
        same = (held[4]["final_obs"]["image.front"] == fresh[4]["final_obs"]["image.front"]).all()
        assert bool(same) == due, i
    np.testing.assert_array_equal(rows[4][0][0]["image.front"], rows[4][1][0]["image.front"])  # of the next episode
    env.close()
    whole.close()
