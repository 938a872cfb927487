"""The success classifier: labels, network, calibration, threshold, false alarms, duty."""
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false

import json
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from robot_rl.checkpoint import CheckpointError
from robot_rl.data.hil_episode import EpisodeDraft, EpisodeRules
from robot_rl.data.hil_record import EndReason, RewardSource
from robot_rl.data.hil_words import read_corrections
from robot_rl.human.judge import Judge
from robot_rl.human.log import HilLog
from robot_rl.human.success_labels import LabelledFrames, LabelRules, false_alarms, frames, pick_threshold, quality
from robot_rl.policies.reward.success import SuccessClassifier, SuccessOptions
from robot_rl.run import RunStart
from robot_rl.track import METRICS_FILE, Jsonl, Many, read_metrics
from robot_rl.types import IOSpec
from robot_rl.verbs.classify import ClassifyJob, ClassifySettings, load, rescore
from tests.human import traces

TICK = traces.TICK
SMALL = {"hidden": (16,), "steps": 150, "batch_size": 64, "members": 2}


def fit(model: SuccessClassifier, *data) -> list[float]:
    model.prepare(*data)
    return [model.update()["loss"] for _ in range(model.steps)]


def job(place, out, make, **options) -> ClassifyJob:
    logs, track = [str(place / "run")], lambda folder, _: Many([Jsonl(folder)])
    return ClassifyJob(ClassifySettings(), logs, RunStart(out, "seed: 0\n", track, **options), make=make)


def labelled(folder, trace: str, *, success: bool, pressed_at: float | None = None, probability=None):
    """One recorded episode; a key pressed at tick `pressed_at` ends it, otherwise the world does."""
    log = HilLog(folder, traces.io())
    log.begin()
    draft = traces.draft(trace, EpisodeRules())
    for i, p in enumerate(probability or ()):
        draft.steps[i].reward_prob = p
    if pressed_at is not None:
        draft.label(success, round(pressed_at * TICK))
    else:
        draft.close(EndReason.SUCCESS if success else EndReason.TIMEOUT)
    log.commit(draft)
    log.close()
    return list(HilLog(folder, traces.io()).episodes())


def seen(data: LabelledFrames) -> dict[float, bool]:
    return {float(o[0]): bool(y) for o, y in zip(data.obs["state"], data.label)}


def test_labels_of_a_key_press_leave_out_the_margin_and_take_what_came_after(tmp_path):
    # pressed at 8.5, 200 ms of reaction: step 6 (from 6 to 7) is the success; 7 and 8 were driven after it
    episodes = labelled(tmp_path, "ppppppppp", success=True, pressed_at=8.5)
    assert seen(frames(episodes, ["state"], LabelRules(margin=2))) == {
        **{float(t): False for t in (1, 2, 3, 4)},  # successors of steps 0 to 3
        **{float(t): True for t in (7, 8, 9)},
    }
    assert seen(frames(episodes, ["state"], LabelRules(margin=0, after=False)))[6.0] is False
    assert 8.0 not in seen(frames(episodes, ["state"], LabelRules(margin=0, after=False)))


def test_every_observation_of_a_failure_is_negative(tmp_path):
    episodes = labelled(tmp_path, "ppp", success=False)
    assert seen(frames(episodes, ["state"])) == {1.0: False, 2.0: False, 3.0: False}


def test_correction_turns_an_episode_around_and_marks_what_fooled_the_classifier(tmp_path):
    episodes = labelled(tmp_path, "pppp", success=True, probability=[0.1, 0.2, 0.9, 0.95])
    log = HilLog(tmp_path, traces.io())
    log.correct(0, False)
    data = frames(episodes, ["state"], corrected=read_corrections(tmp_path))
    assert not data.label.any()
    assert data.hard.tolist() == [False, False, True, True]


def test_a_word_that_was_taken_back_is_no_label(tmp_path):
    for name, pressed_at in (("key", 6.5), ("word", None)):
        episodes = labelled(tmp_path / name, "pppppppp", success=True, pressed_at=pressed_at)
        log = HilLog(tmp_path / name, traces.io())
        log.correct(0, False)
        log.correct(0, pressed_at is None, undone=True)
        words = read_corrections(tmp_path / name)
        if pressed_at is None:  # the world had said it, and that counts again
            data = frames(episodes, ["state"], corrected=words)
            assert (seen(data), data.hard.any()) == (seen(frames(episodes, ["state"])), False)
        else:
            with pytest.raises(ValueError, match="no labelled observations"):
                frames(episodes, ["state"], corrected=words)


def test_what_a_classifier_said_itself_is_no_label(tmp_path):
    log = HilLog(tmp_path, traces.io())
    log.begin()
    draft = traces.draft("p" * 14)
    draft.steps[-1].reward_source = RewardSource.CLASSIFIER
    draft.close(EndReason.SUCCESS)
    log.commit(draft)
    data = frames(log.episodes(), ["state"])
    assert not data.label.any()
    assert data.step.max() == 2


def blobs(rng, episodes=60, steps=12, size=2) -> LabelledFrames:
    """Episodes that walk towards success: the state's first number is how far they are; half of them arrive."""
    obs, label, episode, step = [], [], [], []
    for n in range(episodes):
        arrives = n % 2 == 0
        for t in range(steps):
            done = arrives and t == steps - 1
            far = 0.0 if done else rng.uniform(0.4, 2.0)
            obs.append([far + 0.05 * rng.normal(), *rng.normal(size=size - 1)])
            label.append(done)
            episode.append(n)
            step.append(t)
    arrays = np.array(label), np.zeros(len(label), bool), np.array(episode), np.array(step)
    names = tuple(f"0.0.{n}" for n in range(episodes))
    return LabelledFrames({"state": np.array(obs, np.float32)}, arrays[0], arrays[1], arrays[2], arrays[3], names)


def test_classifier_learns_and_its_probabilities_mean_what_they_say():
    """Success has probability 0.5 where the state is ambiguous and 0 or 1 elsewhere; positives are rare."""
    rng = np.random.default_rng(0)

    def draw(n):
        x = rng.normal(size=(n, 2)).astype(np.float32)
        truth = np.where(x[:, 0] > 1.6, 0.95, np.where(x[:, 0] > 0.8, 0.3, 0.005))
        return {"state": x}, rng.random(n) < truth, truth

    model = SuccessClassifier(SuccessOptions(hidden=(32,), steps=400, members=2), traces.io(), seed=1)
    obs, label, _ = draw(3000)
    losses = fit(model, obs, label)
    assert np.mean(losses[-20:]) < 0.7 * losses[0]
    model.calibrate(*draw(1500)[:2])
    obs, label, truth = draw(4000)
    p = model.probability(obs)
    measured = quality(p, label, 0.5)
    assert measured["ece"] < 0.04  # without the prior's correction it is above 0.1
    assert abs(p[truth == 0.3].mean() - 0.3) < 0.08
    uncorrected = 1 / (1 + np.exp(-(np.log(p / (1 - p)) - float(model._prior / model._temperature))))
    assert quality(uncorrected, label, 0.5)["ece"] > 0.1


def test_classifier_sees_images_whatever_their_shift():
    io = IOSpec({"image.front": ((24, 24, 3), "uint8")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
    rng = np.random.default_rng(0)

    def pictures(n):
        image, label = rng.integers(0, 60, (n, 24, 24, 3)).astype(np.uint8), rng.random(n) < 0.4
        for i in np.flatnonzero(label):
            y, x = rng.integers(6, 12, 2)
            image[i, y : y + 6, x : x + 6] = 230
        return {"image.front": image}, label

    model = SuccessClassifier(SuccessOptions(hidden=(16,), steps=60, batch_size=32, members=1, lr=3e-3), io)
    fit(model, *pictures(200))
    obs, label = pictures(200)
    assert ((model.probability(obs) > 0.5) == label).mean() > 0.95
    with pytest.raises(ValueError, match="nothing to look at"):
        SuccessClassifier(SuccessOptions(sees="state"), io)


def test_corrected_negatives_weigh_more():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    label = x[:, 0] > 0
    hard = np.zeros(400, bool)
    wrong = np.flatnonzero(label)[:12]
    label[wrong], hard[wrong] = False, True  # inside the region that looks like success
    means = []
    for marked in (None, hard):
        model = SuccessClassifier(SuccessOptions(hard_weight=16.0, **SMALL), traces.io())
        fit(model, {"state": x}, label, marked)
        means.append(model.probability({"state": x[wrong]}).mean())
    assert means[1] < means[0] - 0.1


def test_saved_and_loaded_classifier_says_the_same():
    data = blobs(np.random.default_rng(1), episodes=20)
    model, other = (SuccessClassifier(SuccessOptions(**SMALL), traces.io(), seed=s) for s in (0, 5))
    fit(model, data.obs, data.label)
    model.calibrate(data.obs, data.label)
    other.load_state_dict(model.state_dict())
    assert (other.probability(data.obs) == model.probability(data.obs)).all()
    assert all(isinstance(v, (torch.Tensor, dict)) for v in model.state_dict().values())


@pytest.mark.parametrize("label", [[True, True], [False, False]])
def test_one_kind_of_label_is_refused_with_what_to_do(label):
    model = SuccessClassifier(SuccessOptions(**SMALL), traces.io())
    with pytest.raises(ValueError, match="press 1"):
        model.prepare({"state": np.zeros((2, 2), np.float32)}, np.array(label))


def test_split_is_by_episode_and_spreads_successes():
    data = blobs(np.random.default_rng(0))
    parts = data.split([0.6, 0.2, 0.2], seed=3)
    groups = [set(part.episode.tolist()) for part in parts]
    assert [len(group) for group in groups] == [36, 12, 12]
    assert not groups[0] & groups[1]
    assert not groups[1] & groups[2]
    assert [int(part.label.sum()) for part in parts] == [18, 6, 6]


def test_quality_against_hand_worked_numbers():
    p, y = np.array([0.9, 0.8, 0.3, 0.1, 0.6]), np.array([True, True, True, False, False])
    found = quality(p, y, 0.5, bins=2)
    assert [found[k] for k in ("true_positives", "false_positives", "false_negatives", "true_negatives")] == [
        2,
        1,
        1,
        1,
    ]
    assert found["brier"] == pytest.approx((0.01 + 0.04 + 0.49 + 0.01 + 0.36) / 5)
    # below 0.5: said 0.2, was 0.5, two of five; above: said 0.76667, was 0.66667, three of five
    assert found["ece"] == pytest.approx(0.3 * 0.4 + 0.1 * 0.6)
    assert found["false_positive"] == 0.5


def test_threshold_allows_the_wanted_rate_of_false_alarms():
    p = np.concatenate([np.linspace(0.0, 0.7, 1000), np.full(10, 0.9)])
    y = np.concatenate([np.zeros(1000, bool), np.ones(10, bool)])
    high = pick_threshold(p, y, steps=100, most=0.01)  # 1e-4 per observation: none of 1000
    assert 0.7 < high < 0.71
    low = pick_threshold(p, y, steps=1, most=0.1)  # a tenth of them
    assert low == pytest.approx(0.63, abs=0.01)
    assert pick_threshold(p[1000:], y[1000:], 100) == 0.5


def test_false_alarms_need_observations_in_a_row():
    data = blobs(np.random.default_rng(0), episodes=3, steps=4)
    p = np.array([0.9, 0.1, 0.9, 0.0, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert false_alarms(p, data, 0.5, 1) == (2, 3)
    assert false_alarms(p, data, 0.5, 2) == (1, 3)
    apart = replace(data, step=data.step * 2)  # observations between them were left out
    assert false_alarms(p, apart, 0.5, 2) == (0, 3)


def test_judge_needs_several_in_a_row_and_never_ends_an_episode_unsure():
    answers = iter([0.9, 0.1, 0.9, 0.95, float("nan"), 0.99])
    judge = Judge(lambda obs: np.array([next(answers)]), threshold=0.8, in_a_row=2)
    said = [judge({"state": np.zeros(2)}) for _ in range(6)]
    assert [v.success for v in said] == [False, False, False, True, False, False]
    assert [v.known for v in said] == [True, True, True, True, False, True]
    judge.begin()

    def broken(obs):
        raise RuntimeError("no GPU")

    judge = Judge(broken, 0.8)
    assert judge({"state": np.zeros(2)}).known is False
    assert "no GPU" in judge.problem
    assert Judge(lambda obs: np.array([0.9]), 0.5)({"state": np.zeros(1)}, patience=0.0).known is False


def test_job_trains_reports_asks_for_what_it_lacks_and_judges_anew(tmp_path):
    rng = np.random.default_rng(0)
    log = HilLog(tmp_path / "run" / "log", traces.io())
    for n in range(30):
        log.begin()
        draft = EpisodeDraft(EpisodeRules(), 10.0)
        for t in range(8):
            step = traces.step(t)
            near = 0.0 if n % 2 == 0 and t == 7 else rng.uniform(0.5, 2.0)
            step.next_obs = {"state": np.array([near, rng.normal()], np.float32)}
            step.obs = draft.steps[-1].next_obs if draft.steps else step.obs
            draft.add(step)
        draft.close(EndReason.SUCCESS if n % 2 == 0 else EndReason.TIMEOUT)
        log.commit(draft)

    def make(io, stop: int = -1):
        made = SuccessClassifier(SuccessOptions(**{**SMALL, "steps": 400}), io)
        steps, update = iter(range(400)), made.update

        def interrupted():
            if next(steps) == stop:
                signal.raise_signal(signal.SIGINT)  # Ctrl-C, once
            return update()

        made.update = interrupted
        return made

    out = tmp_path / "out"
    report = job(tmp_path, out, make).run()
    parts = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        job(tmp_path, parts, lambda io: make(io, 99)).run()
    with pytest.raises(CheckpointError, match="did not reach its end: resume it"):
        load(parts, make)
    again = job(tmp_path, parts, make, resume=True).run()  # as if nothing had happened
    assert again["checkpoint"].endswith("parts/checkpoints/step_000000400")
    places = dict.fromkeys(("checkpoint", "curve", "report"), "")
    assert {**again, **places} == {**report, **places}
    assert [row["step"] for row in read_metrics(parts / METRICS_FILE)] == [50, 100, 150, 200, 250, 300, 350, 400]
    assert json.loads((parts / "evaluation.json").read_text())["recall"] == report["recall"]
    assert report["recall"] >= 0.6
    assert report["false_positive"] < 0.05
    assert any("record more successes" in line for line in report["advice"])
    assert any("cannot be excluded" in line for line in report["advice"])
    assert report["hard_negatives"][0]["probability"] >= report["hard_negatives"][1]["probability"]
    model, again = load(out, make)
    assert again["threshold"] == report["threshold"]
    scores = rescore(model, {**again, "in_a_row": 1}, [str(tmp_path / "run")], tmp_path / "scores.jsonl")
    assert scores["episodes"] == 30
    assert scores["agree"] >= 24
    assert scores["labelled_episodes"] == 30
    assert scores["recall"] >= 0.6
    assert scores["false_alarm_episodes"] <= 2
    line = json.loads((tmp_path / "scores.jsonl").read_text().splitlines()[0])
    assert len(line["probability"]) == 8
    with pytest.raises(ValueError, match="logs is empty"):
        rescore(model, again, [], tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="logs is empty"):
        ClassifyJob(ClassifySettings(), [], RunStart(out, "", lambda *_: Many([])), make=make)


def test_draws_are_made_on_the_device_of_the_generator(monkeypatch):
    """PyTorch refuses a generator of a GPU for numbers of the processor, which `device=cuda` would meet."""
    io = IOSpec({"state": ((3,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
    model, real = SuccessClassifier(SuccessOptions(), io), torch.randint

    def draw(*args, generator=None, device=None, **more):
        assert generator is None or device == generator.device
        return real(*args, generator=generator, device=device, **more)

    monkeypatch.setattr(torch, "randint", draw)
    model.prepare({"state": np.zeros((20, 3), np.float32)}, np.arange(20) < 10)
    model.update()
