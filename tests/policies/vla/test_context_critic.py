"""A goal that is shown: which frames, what they are announced as, what is refused, and that it is learned from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.policies.nets.progress_net import CriticNet
from robot_rl.policies.nets.reference import BOTH, SHOWN, TOLD, RefClip, announced_progress, reference_indices
from robot_rl.policies.vla.context import ContextCritic, ContextCriticOptions, ContextLearner
from robot_rl.policies.vla.context_clips import ContextSampler, ShowOptions
from robot_rl.policies.vla.context_net import ContextNet
from robot_rl.policies.vla.context_report import evaluate, lines, traps
from robot_rl.policies.vla.critic import TinyCritic
from robot_rl.policies.vla.critic_clips import Clips
from robot_rl.policies.vla.critic_ensemble import CriticEnsemble
from robot_rl.verbs import critic_clips as job
from robot_rl.verbs.rewarders import read_reference as read

SIZE = 16
FACTS: dict[str, Any] = {
    "kinds": ["success", "stop"],
    "successes": ["success"],
    "phrasings": [["go to the red side"], ["go to the blue side"]],
    "held_out_phrasings": [["please find the red edge"], ["please find the blue edge"]],
    "stride_s": 0.2,
}


def arrays(count: int, seed: int) -> dict[str, np.ndarray]:
    """Known answer: a dot between a red and a blue side, which change places from scene to scene: goals are colours."""
    random = np.random.default_rng(seed)
    frames, work, done, start, goal, kind = [], [], [], [0], [], []
    for i in range(count):
        asked, mirrored = int(random.integers(2)), bool(random.integers(2))
        good = i % 2 == 0
        x, end = random.uniform(0.4, 0.6), 0.05 if (asked == 0) != mirrored else 0.95
        stop = end if good else x + (end - x) * random.uniform(0.2, 0.7)
        for place in np.concatenate([np.linspace(x, stop, 7), [stop]]):
            frame = np.full((SIZE, SIZE, 3), 90, np.uint8)
            sides = [(220, 30, 30), (30, 30, 220)]
            frame[:, 0], frame[:, -1] = sides[::-1] if mirrored else sides
            column = round(1 + place * (SIZE - 4))
            frame[7:10, column : column + 2] = 255
            frames.append(frame)
            left = np.array([place - 0.05, 0.95 - place])[:: -1 if mirrored else 1]
            work.append(np.maximum(left, 0.02))
            done.append(left < 0.02)
        start.append(len(frames))
        goal.append(asked)
        kind.append(0 if good else 1)
    return {
        "frames": np.stack(frames), "start": np.array(start), "work": np.array(work, np.float32),
        "done": np.array(done), "goal": np.array(goal), "kind": np.array(kind),
    }  # fmt: skip


class Sides:
    """`arrays` as a generator of clips."""

    def facts(self) -> dict[str, Any]:
        return FACTS

    def generate(self, kinds: list[str], seed: int) -> dict[str, np.ndarray]:
        return arrays(len(kinds), seed)


def clips(count: int = 40, seed: int = 0) -> Clips:
    return Clips.of(arrays(count, seed), FACTS)


def learner(seed: int = 0, **changes: Any) -> ContextLearner:
    options = ContextCriticOptions(size=(SIZE, SIZE), **{"items": 4, "goals": 2, "width": 32, **changes})
    return ContextLearner(options, seed=seed)


def untrained() -> ContextCritic:
    torch.manual_seed(0)
    return ContextCritic(ContextNet((SIZE, SIZE), width=32))


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3)).astype(np.uint8)


def test_frames_of_a_reference_and_what_they_are_announced_as() -> None:
    # worked by hand: i * 19 / 5 = 0, 3.8, 7.6, 11.4, 15.2, 19, cut; 300 / 19 = 15.8, 700 / 19 = 36.8, ...
    index = reference_indices(20, 6)
    assert index.tolist() == [0, 3, 7, 11, 15, 19]
    np.testing.assert_allclose(announced_progress(index, 20), [0, 0.15, 0.36, 0.57, 0.78, 1.0], atol=1e-6)
    assert reference_indices(6, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert reference_indices(9, 1).tolist() == [8]  # a picture of the goal
    frames = pictures(20)
    made = RefClip.of(frames, 6)
    np.testing.assert_array_equal(made.frames, frames[[0, 3, 7, 11, 15, 19]])
    assert RefClip.of(frames, 1).progress.tolist() == [1.0]
    with pytest.raises(ValueError, match="has 5 frames, expected at least 6"):
        reference_indices(5, 6)
    for wrong in (0, 12):
        with pytest.raises(ValueError, match=f"a reference of {wrong} frames"):
            reference_indices(50, wrong)


@pytest.mark.parametrize(
    ("frames", "progress", "error", "words"),
    [
        (pictures(2).astype(np.float32), [0, 1], TypeError, "expected uint8"),
        (pictures(2)[:, :8], [0, 1], ValueError, "8 x 16 x 3, the critic takes 16 x 16 x 3"),
        (pictures(2), [1, 0], ValueError, "that rise"),
        (pictures(2), [0, 1.5], ValueError, "that rise"),
        (pictures(2), [0, np.nan], ValueError, "that rise"),
        (pictures(2), [0, 0.5, 1], ValueError, r"shape \(3,\), expected \(2,\)"),
        (pictures(12), np.linspace(0, 1, 12), ValueError, "12 frames, expected 1"),
        (np.zeros((2, SIZE, SIZE, 3), np.uint8), [0, 1], ValueError, r"shows nothing in frames \[0, 1\]"),
    ],
)
def test_references_that_cannot_be_used_are_refused(frames: Any, progress: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        untrained().with_reference(RefClip(frames, np.asarray(progress, np.float32)))


def test_without_a_reference_it_answers_to_sentences_alone() -> None:
    critic, a, b = untrained(), pictures(3), pictures(3, 1)
    texts = ["to red", "to blue", "stop"]
    ref = RefClip.of(pictures(8, 2))
    told = critic(a, b, texts)
    for other in (critic.with_reference(None), critic.with_reference(ref).with_reference(None)):
        again = other(a, b, texts)
        assert torch.equal(told.dlogw, again.dlogw)
        assert torch.equal(told.done, again.done)
    assert critic.reference is None  # showing makes another critic and leaves this one as it was
    both, alone = critic.with_reference(ref)(a, b, texts), critic.with_reference(ref)(a, b, ["", "", ""])
    assert not torch.allclose(told.done, both.done)
    assert not torch.allclose(both.done, alone.done)
    mixed = critic.with_reference(ref)(a, b, ["to red", "", "stop"])
    torch.testing.assert_close(mixed.done, torch.stack([both.done[0], alone.done[1], both.done[2]]))
    with pytest.raises(ValueError, match="goal 1 is empty"):
        critic(a, b, ["x", "", "y"])
    # the empty sentence says nothing, not even by its number
    torch.testing.assert_close(critic.with_reference(ref)(a, b, [" "] * 3).done, alone.done)


def test_code_of_a_reference_knows_its_length_and_its_order() -> None:
    net, frames = ContextNet((SIZE, SIZE), width=32), torch.as_tensor(pictures(4))[None]
    progress, there = torch.tensor([[0, 0.3, 0.6, 1.0]]), torch.tensor([[True, True, True, True]])
    whole = net.encode_reference(frames, progress, there)
    filled = torch.cat([frames, torch.zeros_like(frames[:, :2])], dim=1)
    same = net.encode_reference(
        filled, torch.nn.functional.pad(progress, (0, 2)), torch.nn.functional.pad(there, (0, 2))
    )
    torch.testing.assert_close(whole, same)  # what fills up is not looked at
    assert not torch.allclose(whole, net.encode_reference(frames.flip(1), progress, there))
    assert not torch.allclose(whole, net.encode_reference(frames[:, -1:], progress[:, -1:], there[:, -1:]))


def test_a_critic_of_sentences_refuses_a_reference_and_an_ensemble_shows_it_to_all() -> None:
    ref = RefClip.of(pictures(8))
    plain = TinyCritic(CriticNet((SIZE, SIZE), width=32))
    assert plain.with_reference(None) is plain
    with pytest.raises(ValueError, match=r"trained on sentences alone.*critic=in_context"):
        plain.with_reference(ref)
    with pytest.raises(ValueError, match="trained on sentences alone"):
        CriticEnsemble([untrained(), plain]).with_reference(ref)
    one, frames = untrained(), pictures(5, 3)
    together = CriticEnsemble([one, one], "wco").with_reference(ref)
    np.testing.assert_allclose(
        together.trajectory(frames, "").u, one.with_reference(ref).trajectory(frames, "").u, atol=1e-6
    )


def test_clips_that_show_a_goal_met_it_alone_and_from_the_start_did_not() -> None:
    data = clips(20)
    pool = data.showing()
    for goal, rows in enumerate(pool):
        assert len(rows)
        assert (data.goal[rows] == goal).all()
        assert data.meets_goal()[rows].all()
    work, done = data.work.copy(), data.done.copy()
    row = int(pool[0][0])
    done[data.start[row] + 3, 1] = True  # another goal was met on the way
    spoilt = Clips(**{**vars(data), "done": done, "work": work})
    assert row not in spoilt.showing()[0]
    assert len(data.showing(frames=9)[0]) == 0  # clips have 8


def test_clips_of_one_goal_make_no_traps() -> None:
    data = clips(20).part(clips(20).showing()[0])
    one = Clips(**{**vars(data), "work": data.work[:, :1], "done": data.done[:, :1], "phrasings": data.phrasings[:1],
                   "held_out": data.held_out[:1]})  # fmt: skip
    found = traps(untrained(), one, frames=1)["wrong_reference"]
    assert found["pairs"] == 0
    assert np.isnan(found["false_done"])


def test_batches_label_what_is_asked_and_never_show_a_clip_itself() -> None:
    data = clips(12)
    options = ShowOptions(items=16, goals=2, shares=(0.2, 0.2, 0.2, 0.4), picture=0.5)
    sampler = ContextSampler(data, options, seed=1)
    seen = set()
    for _ in range(4):
        batch = next(sampler)
        assert len(batch.which) == len(batch.how) == len(batch.goal) == 32
        assert set(batch.how.tolist()) <= {TOLD, SHOWN, BOTH}
        lengths = batch.there.sum(dim=1)
        assert set(lengths.tolist()) <= {1, 6}
        last = batch.progress[torch.arange(len(lengths)), lengths - 1]
        assert (last == 1).all()  # each ends at the goal
        for slot in range(32):
            shows = int(batch.shows[batch.which[slot]])
            differ = int(batch.how[slot]) == BOTH and shows != int(batch.goal[slot])
            if int(batch.how[slot]) == SHOWN:
                assert shows == int(batch.goal[slot])
            seen.add((int(batch.how[slot]), differ))
            if differ:  # of two sides at least one is half the way off, and both are never met
                assert (batch.log_work[slot].exp() * sampler.reference_work >= 0.45 - 1e-5).all()
                assert not batch.done[slot].any()
    assert seen == {(TOLD, False), (SHOWN, False), (BOTH, False), (BOTH, True)}
    with pytest.raises(ValueError, match="four numbers"):
        ShowOptions(shares=(1.0,))
    with pytest.raises(ValueError, match="references is 1, expected a whole number of at least 2"):
        ShowOptions(references=1)  # a clip is never its own reference
    with pytest.raises(ValueError, match="nothing can be shown"):
        ContextSampler(data.part(np.flatnonzero(~data.meets_goal())), options)


def test_training_resumes_exactly_and_saved_critics_answer_alike(tmp_path: Path) -> None:
    from robot_rl.checkpoint import load_state, save_state

    data, made = clips(), learner(steps=6)
    sampler = made.sampler(data)
    for _ in range(3):
        made.update(next(sampler))
    save_state(tmp_path / "state.pt", {"learner": made.state_dict(), "sampler": sampler.state_dict()})
    saved = load_state(tmp_path / "state.pt")
    other = learner(steps=6, seed=5)
    again = other.sampler(data)
    other.load_state_dict(saved["learner"])
    again.load_state_dict(saved["sampler"])
    again._noise = sampler._noise  # the strip is of the seed, which the run's configuration keeps
    for _ in range(3):
        assert made.update(next(sampler)) == other.update(next(again))
    for one, two in zip(made.net.parameters(), other.net.parameters()):
        assert torch.equal(one, two)
    made.calibrate(clips(16, seed=3))
    third = learner(steps=6)
    third.load_state_dict(made.state_dict())
    assert third.platts == made.platts
    ref, frames = data.reference(int(data.showing()[0][0])), pictures(5)
    for text in ("", "go to the red side"):
        one, two = (x.critic().with_reference(ref).trajectory(frames, text) for x in (made, third))
        np.testing.assert_array_equal(one.done, two.done)
        np.testing.assert_array_equal(one.u, two.u)


def test_references_are_read_from_clips_and_bad_ones_say_why(tmp_path: Path) -> None:
    folder = tmp_path / "clips"
    job.make_clips(Sides(), folder, count=6, chunk=3, shares={"success": 1, "stop": 1}, seed=1)
    found, _ = job.load_clips(folder)
    good = np.flatnonzero(found["kind"] == 0)
    frames, source = read(f"{folder}:{good[0]}")
    np.testing.assert_array_equal(frames, found["frames"][found["start"][good[0]] : found["start"][good[0] + 1]])
    assert source == f"{folder}:{good[0]}"
    with pytest.raises(ValueError, match=r"fails \(kind 'stop'\).*successes are 0"):
        read(f"{folder}:1")
    with pytest.raises(ValueError, match="there are 6 clips"):
        read(f"{folder}:6")
    for text in ("clips", f"{folder}:", f"{folder}:last"):
        with pytest.raises(ValueError, match="expected <clips or log>:<episode>"):
            read(text)
    with pytest.raises(FileNotFoundError, match="there is no"):
        read("nowhere:0")


def test_references_are_read_from_logs_up_to_where_the_goal_was_met(tmp_path: Path) -> None:
    from robot_rl.data.recorder import Recorder
    from robot_rl.types import Episode

    frames, zeros = pictures(21), np.zeros((20, 1), np.float32)
    met = np.arange(20) >= 7  # seen first in frame 8
    with Recorder(tmp_path / "log") as writer:
        for success, columns in ((True, {"success": met}), (False, {"success": met & False}), (None, {})):
            facts: dict[str, Any] = {} if success is None else {"success": success}
            io = {
                "obs": {"image.front": {"shape": [SIZE, SIZE, 3], "dtype": "uint8"}},
                "action_names": ["x"], "action_low": [-1.0], "action_high": [1.0], "action_units": ["1"],
                "control_hz": 10.0,
            }  # fmt: skip
            writer.append(
                Episode(
                    obs={"image.front": frames}, action=zeros, proposed=zeros, reward=zeros[:, 0], terminated=False,
                    truncated=True, intervened=np.zeros(20, bool), stamp=np.arange(21.0) / 10,
                    meta={**facts, "columns": columns, "io": io},
                )
            )  # fmt: skip
    log = tmp_path / "log"
    np.testing.assert_array_equal(read(f"{log}:0")[0], frames[:15])  # frame 8 and six more
    np.testing.assert_array_equal(read(f"{log}:2")[0], frames)  # nothing says when: all of it
    with pytest.raises(ValueError, match="log:1 fails, and only a success shows its goal; successes are 0"):
        read(f"{log}:1")
    with pytest.raises(ValueError, match="the log holds 3 episodes, 0 to 2"):
        read(f"{log}:3")
    with pytest.raises(ValueError, match=r"holds no 'image\.top'; it holds \['image\.front'\]"):
        read(f"{log}:0", camera="top")


@pytest.mark.slow
def test_critic_learns_two_goals_that_only_the_reference_tells_apart() -> None:
    """Learning test: unseen scenes, no sentence; the sides change places, so that a colour has to be shown."""
    made = learner(steps=240, items=8, lr=4e-3, shares=(0.1, 0.7, 0.1, 0.1), picture=0.2)
    sampler = made.sampler(clips(80))
    for _ in range(240):
        made.update(next(sampler))
    made.calibrate(clips(24, seed=5))
    test = clips(32, seed=9)
    report = evaluate(made.critic(), test, phrasing="train", loops=5)
    shown = report["conditions"]["reference"]
    assert shown["wrong_goal"]["false_done"] <= 0.1
    assert shown["wrong_goal"]["margin"] > 0.8
    assert shown["success"]["done"] > 0.8
    assert report["traps"]["wrong_reference"]["false_done"] <= 0.1
    assert report["traps"]["right_sentence_wrong_reference"]["false_done"] <= 0.25
    assert report["success"]["voc_f1"] == report["conditions"]["sentence"]["success"]["voc_f1"]
    json.dumps(report)  # plain numbers
    assert any(row[0].startswith("trap, wrong reference") for row in lines(report))
