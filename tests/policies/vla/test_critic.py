"""The small critic: refusals, exact identities, recipes, resuming, and that it learns what it is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.checkpoint import CheckpointError
from robot_rl.policies.nets.progress_net import CriticNet
from robot_rl.policies.nets.vla_words import HashedWords
from robot_rl.policies.reward.critic_reward import progress_reward
from robot_rl.policies.vla.critic import Clips, CriticLearner, TinyCritic, TinyCriticOptions
from robot_rl.policies.vla.critic_clips import ClipSampler, DrawOptions
from robot_rl.policies.vla.critic_report import evaluate, lines
from robot_rl.policies.vla.guard import check_critic
from robot_rl.run import RunStart
from robot_rl.track import Many
from robot_rl.types import Episode
from robot_rl.verbs import critic_clips as job
from robot_rl.verbs.critic_clips import CriticJob, TrainingClips

SIZE = 16
FACTS: dict[str, Any] = {
    "kinds": ["success", "stop"],
    "successes": ["success"],
    "phrasings": [["go to the red side"], ["go to the blue side"]],
    "held_out_phrasings": [["please find the red edge"], ["please find the blue edge"]],
    "stride_s": 0.2,
}


class Line:
    """Known answer: a white dot on a line between a red and a blue side; the work is the distance to the side asked."""

    def facts(self) -> dict[str, Any]:
        return FACTS

    def generate(self, kinds: list[str], seed: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(seed)
        frames, work, done, start, goal = [], [], [], [0], []
        for kind in kinds:
            asked = int(random.integers(2))
            x, end = random.uniform(0.35, 0.65), 0.05 if asked == 0 else 0.95
            stop = end if kind == "success" else x + (end - x) * random.uniform(0.2, 0.7)
            path = np.concatenate([np.linspace(x, stop, 8), [stop, stop]])
            for place in path:
                frame = np.full((SIZE, SIZE, 3), 90, np.uint8)
                frame[:, 0], frame[:, -1] = (220, 30, 30), (30, 30, 220)
                column = round(1 + place * (SIZE - 4))
                frame[7:10, column : column + 2] = 255
                frames.append(frame)
                left = np.array([place - 0.05, 0.95 - place])
                work.append(np.maximum(left, 0.02))
                done.append(left < 0.02)
            start.append(len(frames))
            goal.append(asked)
        return {
            "frames": np.stack(frames), "start": np.array(start), "work": np.array(work, np.float32),
            "done": np.array(done), "goal": np.array(goal), "kind": np.array([FACTS["kinds"].index(k) for k in kinds]),
        }  # fmt: skip


def clips(count: int = 40, seed: int = 0) -> Clips:
    kinds = ["success", "stop"] * (count // 2)
    return Clips.of(Line().generate(kinds, seed), FACTS)


def learner(**changes: Any) -> CriticLearner:
    return CriticLearner(TinyCriticOptions(size=(SIZE, SIZE), **{"items": 8, "goals": 1, "width": 32, **changes}))


def untrained(readout: str = "pairwise") -> TinyCritic:
    torch.manual_seed(0)
    return TinyCritic(CriticNet((SIZE, SIZE), width=32), readout=readout)


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3)).astype(np.uint8)


@pytest.mark.parametrize("readout", ["pairwise", "siamese"])
def test_pair_and_its_reversal_cancel_and_equal_pictures_give_zero(readout: str) -> None:
    critic, a, b = untrained(readout), pictures(5), pictures(5, 1)
    text = ["move the dot"] * 5
    forward, backward = critic(a, b, text), critic(b, a, text)
    torch.testing.assert_close(forward.dlogw, -backward.dlogw, atol=1e-6, rtol=0)
    assert (critic(a, a, text).delta == 0).all()
    torch.testing.assert_close(forward.dlogw, -forward.delta.sign() * torch.log1p(-forward.delta.abs()))
    assert forward.valid.all()
    assert forward.sigma.isnan().all()
    assert forward.match.isnan().all()


def test_siamese_closed_loop_adds_up_to_nothing() -> None:
    critic, frames = untrained("siamese"), pictures(9)
    loop = np.concatenate([frames, frames[:1]])
    out = critic(loop[:-1], loop[1:], ["x"] * 9)
    assert abs(float(out.dlogw.sum())) < 1e-6


def test_item_alone_and_in_a_batch_get_the_same_answer() -> None:
    critic, a, b = untrained(), pictures(4), pictures(4, 1)
    texts = ["put it down", "a much longer sentence about the red block", "stop", "go on"]
    together = critic(a, b, texts)
    for i in range(4):
        alone = critic(a[i : i + 1], b[i : i + 1], texts[i : i + 1])
        torch.testing.assert_close(alone.dlogw, together.dlogw[i : i + 1], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(alone.done, together.done[i : i + 1], atol=1e-6, rtol=1e-5)


def test_a_batch_without_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="frames"):
        learner(frames=1)
    made = learner(frames=2)
    assert np.isfinite(made.update(next(made.sampler(clips())))["loss"])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda a, t: (a / 255.0, t), TypeError, "expected uint8"),
        (lambda a, t: (a.transpose(0, 3, 1, 2), t), ValueError, "channels come last"),
        (lambda a, t: (a[..., :1], t), ValueError, "3 channels"),
        (lambda a, t: (a[:, :8], t), ValueError, "resize them first"),
        (lambda a, t: (a[0], t), ValueError, r"expected \(B, H, W, 3\)"),
        (lambda a, t: (a[:2], t), ValueError, "as many of each"),
        (lambda a, t: (a, t[:2]), ValueError, "2 sentences, expected 3"),
        (lambda a, t: (a, ["x", "  ", "y"]), ValueError, "goal 1 is empty"),
        (lambda a, t: (a, "one string"), ValueError, "one string"),
        (lambda a, t: (a, [" ".join(["word"] * 33)] * 3), ValueError, "33 words"),
    ],
)
def test_bad_input_is_refused(change: Any, error: type[Exception], words: str) -> None:
    images, texts = change(pictures(3), ["a", "b", "c"])
    with pytest.raises(error, match=words):
        untrained()(images, pictures(3, 1), texts)


def test_covered_lens_has_no_answer() -> None:
    black = np.zeros((2, SIZE, SIZE, 3), np.uint8)
    black[1] = pictures(1)[0]
    out = untrained()(black, pictures(2, 1), ["x", "x"])
    assert out.valid.tolist() == [False, True]
    assert bool(out.delta[0].isnan())
    assert float(out.done[0]) == 0.0
    path = untrained().trajectory(np.concatenate([pictures(2), black[:1], pictures(1, 3)]), "x")
    assert path.valid.tolist() == [True, False, False]
    assert np.isfinite(path.values).all()  # an unanswered step counts as no progress


def test_empty_batch_gives_empty_answers() -> None:
    out = untrained()(pictures(0), pictures(0), [])
    assert out.delta.shape == out.done.shape == out.valid.shape == (0,)


def test_trajectory_keeps_the_last_frame_and_counts_from_the_first() -> None:
    critic, frames = untrained(), pictures(8)
    path = critic.trajectory(frames, "x", stride=3)
    assert path.index.tolist() == [0, 3, 6, 7]
    assert len(path.deltas) == 3
    assert path.values[0] == path.u[0] == 0.0
    np.testing.assert_allclose(path.values, 1 - np.exp(-path.u))
    assert critic.score(torch.as_tensor(frames[None]), ["x"]).shape == (1, 8)
    with pytest.raises(ValueError, match="at least 2"):
        critic.trajectory(frames[:1], "x")


def test_words_are_the_same_everywhere_and_never_cut() -> None:
    words = HashedWords()
    assert words.words("Put the RED block") == words.words("put the red block")
    # the published check value of CRC-32
    assert words.words("123456789") == [1 + 0xCBF43926 % 508]
    ids, length = words(["put it", "stop"])
    assert ids[1, 1] == 0
    assert length.tolist() == [2, 1]
    with pytest.raises(ValueError, match="0 words"):
        words(["   "])


def test_sampler_labels_pairs_by_work_under_the_goal_drawn() -> None:
    data = clips()
    sampler = ClipSampler(data, DrawOptions(items=16, goals=1, other_goals=1.0), seed=3)
    batch = next(sampler)
    share = batch.share
    assert torch.equal(share, -share.transpose(1, 2))
    ratio = torch.exp(batch.log_work[:, None, :] - batch.log_work[:, :, None])  # W_b / W_a
    expected = torch.where(ratio <= 1, 1 - ratio, 1 / ratio - 1).clamp(-0.98, 0.98)
    torch.testing.assert_close(share, expected, atol=1e-5, rtol=0)
    assert not batch.pair_mask.diagonal(dim1=1, dim2=2).any()


def test_success_only_recipe_sees_successes_alone_and_time() -> None:
    data = clips()
    with pytest.raises(ValueError, match="successes_only"):
        ClipSampler(data, DrawOptions(), labels="vlac")
    drawn = DrawOptions(items=32, goals=1, other_goals=0.0)
    sampler = ClipSampler(data, drawn, labels="vlac", successes_only=True)
    assert set(data.kind[sampler._rows]) == {0}
    batch = next(sampler)
    assert float(batch.share.min()) >= -0.981
    late = batch.log_work.argmin(dim=1)  # the last frames drawn: nothing is won from a frame to itself
    rows = torch.arange(32)
    assert (batch.share[rows, late, late] == 0).all()
    same = batch.log_work[:, :, None] == batch.log_work[:, None, :]
    assert (batch.share[same] == 0).all()
    drawn = DrawOptions(items=8, goals=1, other_goals=1.0)
    mismatched = next(ClipSampler(data, drawn, labels="vlac", successes_only=True))
    assert (mismatched.share == 0).all()
    assert (mismatched.done == 0).all()
    assert mismatched.done_mask.all()


def test_sampler_labels_every_goal_of_an_item() -> None:
    data = clips()
    sampler = ClipSampler(data, DrawOptions(items=6, goals=9), seed=3)  # more than there are: all
    batch = next(sampler)
    assert batch.images.shape[:2] == (6, 4)
    assert batch.share.shape == (12, 4, 4)
    assert len(batch.ids) == len(batch.length) == 12
    for item in range(6):  # what is left to one side and to the other is .9 in all
        both = torch.exp(batch.log_work[2 * item : 2 * item + 2]).sum(dim=0) * sampler.reference_work
        torch.testing.assert_close(both, torch.full((4,), 0.9), atol=0.08, rtol=0)
    made = learner(items=6, goals=2)
    one, two = made.net.under(batch.images[:, 0], torch.randn(6, 2, 64)), made.net.frames
    sentence = torch.randn(6, 64)
    torch.testing.assert_close(
        two(batch.images[:, 0], sentence), made.net.under(batch.images[:, 0], sentence[:, None])[:, 0]
    )
    assert one.shape == (6, 2, 32)


def test_words_of_every_goal_may_be_missing_and_the_others_never() -> None:
    sampler = ClipSampler(clips(), DrawOptions(), seed=0)
    assert sampler._common == {"go", "to", "the", "side"}
    said = [sampler._fill("go to the red side").split() for _ in range(200)]
    assert all("red" in words for words in said)
    assert any("the" not in words for words in said)


def test_anchor_pulls_a_trajectory_towards_the_absolute_value() -> None:
    net, frames = CriticNet((SIZE, SIZE), width=32), pictures(6)
    free, tight = TinyCritic(net, anchor=0.0), TinyCritic(net, anchor=1.0)
    path = free.trajectory(frames, "x")
    np.testing.assert_allclose(path.u[1:], np.cumsum(-np.sign(path.deltas) * np.log1p(-np.abs(path.deltas))), atol=1e-6)
    held = tight.trajectory(frames, "x")
    np.testing.assert_allclose(held.values, held.absolute, atol=1e-6)
    np.testing.assert_allclose(held.deltas, path.deltas)


def train(made: CriticLearner, data: Any, folder: Path, *, digest: str = "x", **options: Any) -> CriticJob:
    found = TrainingClips(data, data, hash=digest)
    start = RunStart(folder, "a: 1\n", lambda *_: Many([]), options.pop("resume", False))
    return CriticJob(made, found, start, save_every=1, **options)


def test_training_resumes_exactly(tmp_path: Path) -> None:
    data, rows, made = clips(), {}, learner(steps=6)
    for name, stops in (("whole", [6]), ("parts", [2, 5, 6])):
        folder = tmp_path / name
        for steps in stops:
            made = learner(steps=6)
            update = made.update

            def stop(batch: Any, made: Any = made, update: Any = update, last: int = steps) -> Any:
                if made.done_steps == last:
                    raise KeyboardInterrupt  # a second Ctrl-C, which does not wait
                return update(batch)

            made.update = stop  # type: ignore[method-assign]
            try:
                summary = train(made, data, folder, resume=steps != stops[0]).run()
            except KeyboardInterrupt:
                continue
            assert summary is not None
            assert summary["updates"] == 6
        rows[name] = made.net.state_dict()
    for key, value in rows["whole"].items():
        # the update that was under way when it was killed is done again from the state before it
        torch.testing.assert_close(value, rows["parts"][key], atol=0, rtol=0, msg=key)


def test_training_that_could_not_be_calibrated_is_refused_before_its_first_update(tmp_path: Path) -> None:
    data, made = clips(), learner(steps=6)
    failures = data.part(np.flatnonzero(~data.meets_goal()))
    with pytest.raises(ValueError, match=r"none of the \d+ clips kept for calibration is a success"):
        TrainingClips(data, failures)
    assert made.done_steps == 0


def test_training_whose_time_is_up_is_saved_and_goes_on_with_the_same_clips_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert train(learner(steps=6), clips(), folder, minutes=1e-9).run() is None
    (saved,) = (folder / "checkpoints").iterdir()
    assert saved.name == "step_000000001"
    assert not (folder / "evaluation.json").exists()  # nothing is finished yet
    with pytest.raises(CheckpointError, match="not those that the run began with"):
        train(learner(steps=6), clips(), folder, resume=True, digest="other")
    assert train(learner(steps=6), clips(), folder, resume=True).run() is not None
    assert json.loads((folder / "evaluation.json").read_text())["calibrated_on"] == len(clips())
    assert json.loads((folder / "lineage.json").read_text())["from"]["clips"]["hash"] == "x"


def test_clips_on_disk_continue_where_they_stopped(tmp_path: Path) -> None:
    shares = {"success": 2, "stop": 1}
    job.make_clips(Line(), tmp_path / "a", count=10, chunk=4, shares=shares, seed=5)
    job.make_clips(Line(), tmp_path / "b", count=10, chunk=4, shares=shares, seed=5)
    (tmp_path / "b" / "clips_0001.npz").unlink()
    with pytest.raises(ValueError, match="2 of 3 files"):
        job.load_clips(tmp_path / "b")
    kept = (tmp_path / "b" / "clips_0000.npz").stat().st_mtime_ns
    job.make_clips(Line(), tmp_path / "b", count=10, chunk=4, shares=shares, seed=5)
    assert (tmp_path / "b" / "clips_0000.npz").stat().st_mtime_ns == kept
    (one, first), (two, second) = job.load_clips(tmp_path / "a"), job.load_clips(tmp_path / "b")
    assert first["hash"] == second["hash"]
    np.testing.assert_array_equal(one["frames"], two["frames"])
    assert one["start"][-1] == len(one["frames"]) == 100
    assert np.bincount(one["kind"]).tolist() == [7, 3]
    with pytest.raises(ValueError, match=r"made otherwise \(seed\)"):
        job.make_clips(Line(), tmp_path / "a", count=10, chunk=4, shares=shares, seed=6)
    with pytest.raises(FileNotFoundError, match="holds no clips"):
        job.load_clips(tmp_path / "c")


@pytest.mark.slow
def test_critic_learns_a_line_and_tells_its_two_goals_apart() -> None:
    """Learning test: a known world, 260 small batches; unseen clips and sentences."""
    made = learner(steps=260, lr=3e-3, goals=2)
    data, test = clips(80), clips(24, seed=9)
    sampler = made.sampler(data)
    first = made.update(next(sampler))
    for _ in range(259):
        made.update(next(sampler))
    last = np.mean([made.update(next(sampler))["pair_mae"] for _ in range(10)])
    assert last < 0.5 * first["pair_mae"]
    made.calibrate(clips(20, seed=5))
    report = evaluate(made.critic(), test, phrasing="train", loops=10)
    assert report["success"]["voc_f1"] > 0.85  # the dot stands still at the end and moves in whole pixels
    assert report["wrong_goal"]["false_done"] < 0.1
    assert report["wrong_goal"]["margin"] > 0.8
    assert report["failure"]["kinds"]["stop"]["false_done"] < 0.1
    assert report["failure"]["rank_end"] > 0.8
    assert report["done"]["recall"] > 0.7
    json.dumps(report)  # plain numbers
    row = int(np.flatnonzero(test.meets_goal())[0])
    frames, asked = test.frames[test.start[row] : test.start[row + 1]], int(test.goal[row])
    right, wrong = (FACTS["phrasings"][goal][0] for goal in (asked, 1 - asked))
    assert check_critic(made.critic(), frames, right, wrong) == []
    assert {item.check for item in check_critic(made.critic(), frames, wrong, right)} >= {"critic_order", "critic_goal"}
    assert [item.check for item in check_critic(untrained(), frames, right, right)][-1] == "critic_goal"
    assert any("VOC-F1" in row[0] for row in lines(report))


def test_label_keeps_what_was_there_and_pays_at_the_frames_looked_at() -> None:
    frames = pictures(6)
    reward = np.arange(5, dtype=np.float32)
    action = np.zeros((5, 1), np.float32)
    episode = Episode(
        obs={"image.front": frames}, action=action, proposed=action, reward=reward, terminated=False, truncated=True,
        intervened=np.zeros(5, bool), stamp=np.arange(6.0), meta={},
    )  # fmt: skip
    judge = untrained()
    options = job.LabelledOptions(mode="delta", gamma=0.9, stride=2)
    out = job.label(episode, judge, progress_reward, options, instruction="x")
    path = judge.trajectory(frames, "x", stride=2)  # frames 0, 2, 4, 5
    columns = out.meta["columns"]
    np.testing.assert_allclose(out.reward, [0, path.deltas[0], 0, path.deltas[1], path.deltas[2]], atol=1e-6)
    expected = path.values[[0, 1, 1, 2, 3]]
    np.testing.assert_allclose(columns["critic_progress"], expected, atol=1e-6)
    np.testing.assert_array_equal(columns["env_reward"], reward)
    assert out.meta["instruction"] == "x"
    twice = job.label(out, judge, progress_reward, job.LabelledOptions(gamma=0.9, stride=2), instruction="x")
    np.testing.assert_array_equal(twice.meta["columns"]["env_reward"], reward)  # the first, not the critic's
    with pytest.raises(ValueError, match="never written over"):
        job.label(out, judge, progress_reward, options, instruction="x")
    with pytest.raises(ValueError, match=r"holds no 'image\.top'"):
        job.label(episode, judge, progress_reward, job.LabelledOptions(camera="top"), instruction="x")


def test_label_pays_for_a_goal_that_is_met_and_may_leave_the_pictures_out() -> None:
    frames = pictures(6)
    judge = Oracle(CriticNet((SIZE, SIZE), width=32))
    zeros = np.zeros((5, 1), np.float32)
    io = {"obs": {"image.front": 1, "state": 2}}
    episode = Episode(
        obs={"image.front": frames, "state": np.zeros((6, 2), np.float32)}, action=zeros, proposed=zeros,
        reward=zeros[:, 0], terminated=False, truncated=True, intervened=np.zeros(5, bool), stamp=np.arange(6.0),
        meta={"io": io},
    )  # fmt: skip

    def met(done: np.ndarray, values: np.ndarray) -> np.ndarray:
        assert len(done) == len(values) == 4  # frames 0, 2, 4, 5
        return np.array([False, False, True, False])

    plain = job.LabelledOptions(gamma=0.9, stride=2)
    shaped = job.label(episode, judge, progress_reward, plain, instruction="x")
    more = job.LabelledOptions(gamma=0.9, stride=2, done_reward=3.0, pictures=False)
    paid = job.label(episode, judge, progress_reward, more, instruction="x", met=met)
    np.testing.assert_allclose(paid.reward - shaped.reward, [0, 0, 0, 3, 0], atol=1e-6)
    assert list(paid.obs) == ["state"] == list(paid.meta["io"]["obs"])
    values = shaped.meta["columns"]["critic_progress"]
    # a potential that is held between looks adds up exactly
    total = float((0.9 ** np.arange(5) * shaped.reward).sum())
    assert total == pytest.approx(0.9**5 * values[-1], abs=1e-5)


class Oracle(TinyCritic):
    """Knows the line: answers from where the dot is."""

    def trajectory(self, frames: Any, goal: str, *, stride: int = 1) -> Any:
        from robot_rl.policies.nets.progress import add_up
        from robot_rl.policies.vla.interface import Trajectory

        place = np.array([int(np.argmax(frame[8, 1:-1].sum(1))) for frame in frames]) / (SIZE - 4)
        left = place - 0.05 if "red" in goal else 0.95 - place
        work = np.maximum(left, 0.02)
        steps = -np.diff(np.log(work))
        u, values = add_up(steps)
        done = (left < 0.05).astype(float)
        index = np.unique(np.append(np.arange(0, len(frames), stride), len(frames) - 1))
        u, values, done, steps = u[index], values[index], done[index], np.diff(u[index])
        return Trajectory(1 - np.exp(-np.abs(steps)), u, values, done, index, values, np.ones(len(steps), bool))


def test_report_of_a_critic_that_knows_and_of_one_that_says_nothing() -> None:
    data = clips(24, seed=2)
    torch.manual_seed(0)
    net = CriticNet((SIZE, SIZE), width=32)
    good = evaluate(Oracle(net), data, phrasing="train", loops=5)
    assert good["success"]["done"] == 1.0
    assert good["failure"]["rank_end"] > 0.95
    assert good["failure"]["kinds"]["stop"]["false_done"] == 0.0
    assert good["wrong_goal"]["false_done"] == 0.0
    assert good["done"]["recall"] == 1.0
    with torch.no_grad():
        for weight in net.parameters():
            weight.zero_()
    mute = evaluate(TinyCritic(net), data, phrasing="train", loops=5)
    assert mute["success"]["voc_f1"] == 0.0
    assert mute["success"]["always_zero"] == 12
    with pytest.raises(ValueError, match="no success or no failure"):
        evaluate(TinyCritic(net), data.part(np.flatnonzero(data.meets_goal())))


def test_command_line_without_clips_is_one_line_and_leaves_no_run(tmp_path: Path, robot_rl) -> None:
    out = robot_rl("critic", "train", "data=nowhere")
    assert out.returncode == 2
    assert "nowhere holds no clips; make them with robot-rl critic clips out=nowhere" in out.stderr
    assert "Traceback" not in out.stderr
    assert not list(tmp_path.rglob("config.yaml"))
