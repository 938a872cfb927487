"""Text worlds: rules, optimum against brute force, expert, and the vector interface."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from robot_rl.loops.stepping import autoreset_mode
from robot_rl.sim.text import TextVectorEnv
from robot_rl.sim.worlds.text_guess import TextGuess, best
from robot_rl.sim.worlds.text_maze import TextMaze
from robot_rl.sim.worlds.text_tools import TextTools

WORLDS = [TextGuess, TextMaze, TextTools]


def play_expert(world, seed):
    words = set(world.vocabulary)
    prompt = world.reset(seed)
    assert set(prompt.split()) <= words
    total, over = 0.0, False
    while not over:
        said = world.expert()
        text, reward, terminated, truncated = world.step(said)
        assert set(said.split()) <= words
        assert set(text.split()) <= words
        total, over = total + reward, terminated or truncated
    return total


@pytest.mark.parametrize("make_world", WORLDS)
def test_expert_reaches_the_optimum_of_every_task(make_world):
    world = make_world()
    for seed in range(60):
        world.reset(seed)
        optimum = world.optimum
        # 16 numbers are halved four times and every tool answers surely: the optimum holds for each task by itself.
        assert play_expert(world, seed) == pytest.approx(optimum, abs=1e-6)
        assert world.success


@pytest.mark.parametrize("make_world", WORLDS)
def test_same_seed_is_the_same_task_and_words_are_distinct(make_world):
    first, second = make_world(), make_world()
    assert len(set(first.vocabulary)) == len(first.vocabulary)
    assert [first.reset(s) for s in range(20)] == [second.reset(s) for s in range(20)]
    assert first.expert() == second.expert()


@pytest.mark.parametrize("make_world", WORLDS)
def test_nonsense_costs_a_turn_and_is_cut_at_the_limit(make_world):
    world = make_world()
    world.reset(3)
    for turn in range(world.max_turns):
        text, reward, terminated, truncated = world.step("go go go")
        assert "what" in text
        assert reward < 0
        assert not terminated
        assert truncated == (turn == world.max_turns - 1)
    assert not world.success


def test_guess_optimum_by_hand():
    # 4 numbers, two questions at 0.1: 0.8; 3 numbers: ask 1 of 3 -> -0.1 + 1/3 + 2/3 (-0.1 + 1) = 0.8333.
    assert best(4, 9, 0.1) == (pytest.approx(0.8), 2)
    assert best(3, 9, 0.1)[0] == pytest.approx(-0.1 + 1 / 3 + 2 / 3 * 0.9)
    # A question for 0.6 is worth less than a blind guess between two.
    assert best(2, 9, 0.6) == (pytest.approx(0.5), 0)
    # With one turn left only the guess remains.
    assert best(4, 1, 0.1) == (pytest.approx(0.25), 0)


def test_guess_expert_reaches_the_expected_optimum_over_all_secrets():
    world = TextGuess(numbers=6, cost=0.05)
    seen = {}
    for seed in range(200):
        total = play_expert(world, seed)
        seen[world._secret] = total
    assert sorted(seen) == list(range(6))
    assert np.mean(list(seen.values())) == pytest.approx(world.optimum)


def test_guess_answers_truthfully():
    world = TextGuess(numbers=8)
    world.reset(1)
    secret = world._secret
    for number in range(9):
        assert world.step(f"ask {number}")[0] == ("yes" if secret < number else "no")
    assert world.anchor == f"{secret} {secret + 1}"
    world.reset(1)
    assert world.step(f"guess {(secret + 1) % 8}") == ("wrong", 0.0, True, False)


def test_maze_optimum_equals_an_exhaustive_search():
    world = TextMaze(size=3, goals=2, min_distance=2, max_turns=12)
    for seed in range(10):
        world.reset(seed)
        goal = world._goal
        # Brute force: all walks up to the length of the optimum.
        front, steps = {world._room}, 0
        while goal not in front:
            front |= {other for room in front for other in world._doors[room].values()}
            steps += 1
        assert world.shortest == steps
        assert world.optimum == pytest.approx(1 - steps / 12)


def test_maze_wall_keeps_the_room_and_plan_depends_on_the_layout():
    world = TextMaze()
    prompt = world.reset(0)
    closed = next(move for move in ("north", "east", "south", "west") if move not in prompt.split())
    text, _, _, _ = world.step(f"go {closed}")
    assert text == f"wall {prompt}"
    assert TextMaze(layout=1)._doors != world._doors


def test_tools_need_each_other():
    world = TextTools()
    numbers = set()
    for seed in range(30):
        item = world.reset(seed).split()[-1]
        shelf = world.step(f"find {item}")[0].split()[1]
        number = world.step(f"open {shelf}")[0].split()[1]
        assert world.anchor == f"{item} {shelf} {number}"
        assert world.step(f"answer {number}") == ("right", 1.0, True, False)
        numbers.add((shelf, number))
    assert len({shelf for shelf, _ in numbers}) > 5
    assert len({number for _, number in numbers}) > 5


def best_play(shelves, cost, items, turns):
    """Optimal expected return of `text/tools` by exhaustive search over what the player can know of the store."""
    stores = frozenset(itertools.product(range(shelves), itertools.permutations(range(shelves))))

    @functools.cache
    def value(possible, left, turns):
        if not left or not turns:
            return 0.0
        options = []
        for number in range(shelves):
            right = sum(store[1][store[0]] == number for store in possible) / len(possible)
            options.append(right + value(stores, left - 1, turns - 1))
        tools = [lambda store: store[0]] + [lambda store, shelf=i: store[1][shelf] for i in range(shelves)]
        for tool in tools:
            answers: dict[int, set] = {}
            for store in possible:
                answers.setdefault(tool(store), set()).add(store)
            rest = [(len(x) / len(possible), value(frozenset(x), left, turns - 1)) for x in answers.values()]
            options.append(-cost + sum(chance * later for chance, later in rest))
        return max(options)

    return value(stores, items, turns)


@pytest.mark.parametrize(
    ("shelves", "cost", "items", "turns"),
    [(2, 0.05, 2, 7), (2, 0.3, 2, 6), (3, 0.1, 1, 4), (3, 0.1, 2, 6), (2, 0.2, 3, 9)],
)
def test_tools_optimum_equals_an_exhaustive_search(shelves, cost, items, turns):
    world = TextTools(shelves=shelves, cost=cost, items=items, max_turns=turns)
    world.reset(0)
    assert world.optimum == pytest.approx(best_play(shelves, cost, items, turns))


def test_tools_with_several_items_by_hand():
    world = TextTools(shelves=5, items=3, max_turns=9)
    item = world.reset(2).split()[-1]
    stores, anchors = [], []
    for question in (1, 2, 3):
        assert world.anchor.startswith(f"{question} {item}")
        anchors.append(world.anchor)
        stores.append((dict(world._shelf), list(world._number)))
        shelf = world.step(f"find {item}")[0].split()[1]
        number = world.step(f"open {shelf}")[0].split()[1]
        assert world.anchor == f"{question} {item} {shelf} {number}"
        # The second answer is wrong: nothing for it, and the dialogue goes on.
        said = number if question != 2 else f"n{(int(number[1:]) + 1) % 5}"
        text, reward, terminated, truncated = world.step(f"answer {said}")
        assert reward == (0.0 if question == 2 else 1.0)
        assert text.split()[0] == ("wrong" if question == 2 else "right")
        assert terminated == (question == 3)
        assert not truncated
        if question < 3:
            assert text.split()[1:3] == ["which", "number"]
            item = text.split()[3]
    assert stores[0] != stores[1] != stores[2]  # what the tools said before is out of date
    assert len(set(anchors)) == 3
    assert not world.success


def test_tools_with_several_items_expert_and_limit():
    world = TextTools(shelves=5, items=6, max_turns=18)
    for seed in range(20):
        assert play_expert(world, seed) == pytest.approx(6 * 0.9)
        assert world.success
    world.reset(0)
    for turn in range(18):
        _, _, terminated, truncated = world.step("answer n0" if turn < 5 else "find apple")
        assert not terminated
        assert truncated == (turn == 17)
    # One item: the words are what they were before there could be several.
    single = TextTools()
    single.reset(3)
    assert single.anchor.split() == [single._item]


def test_bad_options_are_refused():
    for build in (
        lambda: TextGuess(numbers=1),
        lambda: TextGuess(max_turns=0),
        lambda: TextMaze(size=1),
        lambda: TextMaze(min_distance=99),
        lambda: TextTools(shelves=1),
        lambda: TextTools(max_turns=2),
        lambda: TextTools(items=0),
        lambda: TextTools(items=3),
        lambda: TextVectorEnv(TextGuess(), 0, 0),
    ):
        with pytest.raises(ValueError, match=r"expected|lower"):
            build()


def test_vector_env_resets_itself_and_keeps_the_last_answer():
    env = TextVectorEnv(TextGuess(numbers=2), 2, 0)
    assert autoreset_mode(env) is AutoresetMode.SAME_STEP
    obs, _ = env.reset(seed=5)
    assert list(obs["text"]) == ["numbers 2", "numbers 2"]
    action = np.array([["ask 1"], ["guess 0"]], object)
    obs, reward, terminated, truncated, info = env.step(action)
    assert obs["text"][0] in ("yes", "no")
    assert obs["text"][1] == "numbers 2"
    assert info["final_obs"]["text"][1] in ("right", "wrong")
    assert info["success"][1] == (info["final_obs"]["text"][1] == "right")
    assert reward[0] == pytest.approx(-0.05)
    assert list(terminated) == [False, True]
    assert not truncated.any()
    assert info["optimum"] == pytest.approx([0.95, 0.95])
    with pytest.raises(ValueError, match="one utterance a row"):
        env.step(np.array(["ask 1", "ask 1"], object))
    with pytest.raises(RuntimeError, match="no picture"):
        env.render()


def played(env: TextVectorEnv) -> np.ndarray:
    """(N, 1) utterances of the worlds' experts."""
    return np.array([[world.expert()] for world in env._rows], object)


def test_vector_env_expert_is_always_right():
    env = TextVectorEnv(TextTools(), 3, 0)
    env.reset(seed=0)
    for _ in range(2):
        assert not env.step(played(env))[2].any()
    _, reward, terminated, _, info = env.step(played(env))
    assert terminated.all()
    assert info["success"].all()
    assert reward == pytest.approx([1.0, 1.0, 1.0])


def test_begin_and_say_play_the_tasks_that_are_asked_for():
    env = TextVectorEnv(TextMaze(), 1, 0)
    prompts = env.begin([7, 7, 8])
    assert prompts[0] == prompts[1]
    said = [env.facts(i).expert() for i in (0, 2)]
    result = env.say([0, 2], said)
    assert len(result.text) == 2
    assert result.reward == pytest.approx([-0.05, -0.05])
    assert env.facts(1).anchor != env.facts(0).anchor  # dialogue 1 has not moved
