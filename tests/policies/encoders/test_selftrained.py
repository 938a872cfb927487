"""`encoder=selftrained` finds points, reads them as vectors from the tool, and is made again after every fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from robot_rl.policies.encoders.encoded import Encoded, EncodedOptions
from robot_rl.policies.encoders.selftrained import SelfTrained, SelfTrainedOptions
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.policies.nets.heat_maps import HeatMaps
from robot_rl.policies.nets.pinhole import project
from robot_rl.policies.nets.point_weights import FORMAT
from robot_rl.types import IOSpec, Transitions
from robot_rl.types.camera import Calibration
from robot_rl.types.frames import FrameRun

AXES = {
    "front": (0.0, 0.0, 1.0, -1.0, 0.0, 0.0, 0.0, -1.0, 0.0),
    "side": (1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0),
}
PLACE = {"front": (-1.0, 0.0, 0.0), "side": (0.0, -1.0, 0.0)}
CAMERAS = {
    f"image.{name}": Calibration(64, 64, (140.0, 140.0), (32.0, 32.0), "world", PLACE[name], AXES[name])
    for name in AXES
}
IO = IOSpec(
    obs={
        "state": ((3,), "float32"),
        "tool": ((4,), "float32"),
        **dict.fromkeys(CAMERAS, ((64, 64, 3), "uint8")),
    },
    action_names=("tip_dx", "tip_dy", "tip_dz"),
    action_low=(-0.04,) * 3,
    action_high=(0.04,) * 3,
    action_units=("m",) * 3,
    control_hz=10.0,
    obs_names=("tip_x", "tip_y", "tip_z"),
    calibration=CAMERAS,
)


def draw(tool: np.ndarray, goal: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """One observation: grey noise, a red block where the tool is and a green one where the goal is."""
    out: dict[str, np.ndarray] = {"state": (tool[:3] / 0.15).astype(np.float32), "tool": tool.astype(np.float32)}
    places = torch.from_numpy(np.stack([tool[:3], goal]))[None].float()
    for key, camera in CAMERAS.items():
        picture = rng.integers(90, 130, (64, 64, 3)).astype(np.uint8)
        pixel, _ = project(camera, torch.zeros(1, 4), places)
        for (x, y), colour in zip(pixel[0].tolist(), ((220, 30, 30), (30, 220, 30))):
            row, column = int(y), int(x)
            picture[max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3] = colour
        out[key] = picture
    return out


class Kept:
    """Frames in a list, as a memory would keep them."""

    def __init__(self, episodes: int, seed: int = 0, lost: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.frames: list[dict[str, np.ndarray]] = []
        self.goals: list[np.ndarray] = []
        self.marks: list[FrameRun] = []
        self.encoded, self.unseen = -1, False
        for number in range(episodes):
            start, goal = rng.uniform(-0.15, 0.15, 3), rng.uniform(-0.15, 0.15, 3)
            first = len(self.frames)
            end = goal if number >= lost else rng.uniform(-0.15, 0.15, 3)  # a failure ends somewhere else
            for part in np.linspace(0.0, 1.0, 8):
                self.frames.append(draw(np.array([*(start + part * (end - start)), 0.0]), goal, rng))
                self.goals.append(goal)
            self.marks.append(FrameRun(first, len(self.frames) - 1, number >= lost))
        self.sight = np.full((len(self.frames), 8), np.nan, np.float32)

    def runs(self):
        return self.marks

    def read(self, key, numbers):
        return self.sight[numbers] if key == "sight" else np.stack([self.frames[i][key] for i in numbers])

    def write(self, first, sight):
        self.sight[first : first + len(sight)] = sight


def encoder(io: IOSpec = IO, **options) -> SelfTrained:
    return SelfTrained(SelfTrainedOptions(**options), io, seed=0)


@pytest.fixture(scope="module")
def fitted():
    """An encoder after 200 steps on 24 successes, with 6 failures among them that would mislead it."""
    torch.set_num_threads(1)
    found, frames = encoder(first_steps=200), Kept(30, lost=6)
    return found, frames, found.fit(frames)


def test_successes_alone_teach_where_goals_are(fitted):
    """Median error within 6 mm on scenes that it never saw; a pixel is 7 mm wide."""
    found, _, metrics = fitted
    fresh = Kept(20, seed=1)
    found.encode(fresh)
    error = np.linalg.norm(fresh.sight[:, :3] - np.stack(fresh.goals), axis=1)
    assert metrics["encoder/frames"] == 24 * 8  # of the failures none
    assert np.median(error) < 0.006
    assert metrics["encoder/error_mm"] < 6.0
    untrained = encoder()
    untrained.encode(fresh)
    assert np.median(np.linalg.norm(fresh.sight[:, :3] - np.stack(fresh.goals), axis=1)) > 0.05


def test_nets_that_begin_with_weights_are_refitted_the_first_time(tmp_path):
    path = tmp_path / "mine.safetensors"
    save_file(
        {f"ball.world.{key}": value for key, value in HeatMaps(1, torch.Generator(), 4, 1).state_dict().items()},
        path,
        {"format": FORMAT, "size": "64", "ball.world": "goal"},
    )
    found, frames = encoder(start=str(path), refit_steps=2, first_steps=10_000), Kept(3)
    assert found.state_dict()["nets"]["1.first.bias"].shape == (4,)  # the file says how wide they are
    found.fit(frames)  # two steps, not thousands
    assert found.fits == 1


def test_features_are_vectors_from_the_tool(fitted):
    found, _, _ = fitted
    sight = torch.tensor([[0.30, 0.10, 0.20, 0.5, 0.32, 0.10, 0.20, 0.25]])
    state, tool = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.25, 0.10, 0.25, 0.0]])
    features = dict(zip(found.io.obs_names, found.read(sight, state, tool)[0].tolist()))
    assert [features[name] for name in ("tip_x", "tip_y", "tip_z")] == [1.0, 2.0, 3.0]
    assert features["goal_x"] == pytest.approx(0.5)  # 5 cm in units of 10
    assert features["goal_z"] == pytest.approx(-0.5)
    assert features["goal_fine_x"] == pytest.approx(np.tanh(0.05 / 0.025))
    assert features["goal_mean_x"] == pytest.approx(0.7)
    assert features["goal_sure"] == pytest.approx(0.3 * np.log(0.5))


def test_the_running_estimate_weighs_by_the_square_of_the_confidence(fitted):
    found, _, _ = fitted
    first = found.follow(torch.zeros(1, 1, 3), torch.tensor([[1.0]]), None)
    place, weight = found.follow(torch.ones(1, 1, 3), torch.tensor([[0.5]]), first)
    # 0.9 of weight 1 at 0, and 0.25 at 1: 0.25 / 1.15
    assert float(weight) == pytest.approx(1.15)
    assert place.flatten().tolist() == pytest.approx([0.25 / 1.15] * 3)


def test_what_the_policy_records_is_what_the_replay_makes_again(fitted):
    found, frames, _ = fitted
    learner = behind(found)
    found.encode(frames)
    run = frames.runs()[7]
    learner.policy.reset()
    for number in range(run.first, run.last):
        obs = {key: value[None] for key, value in frames.frames[number].items()}
        sight = learner.policy.act(obs, deterministic=True).extras["sight"]
        assert np.allclose(sight[0], frames.sight[number], atol=1e-4)
    last = {key: value[None] for key, value in frames.frames[run.last].items()}
    assert np.allclose(learner.policy.look(last)[0], frames.sight[run.last], atol=1e-4)


def behind(found: SelfTrained, **options) -> Encoded:
    """imitation_sac behind this encoder."""

    def method(io, **context):
        small = {"hidden": (16, 16), "batch_size": 8, "bc_steps": 5, "critics": 2, "utd": 1}
        return ImitationSac(ImitationSacOptions(**{**small, **options}), io, **_without_gamma(context))

    return Encoded(EncodedOptions(method=method, encoder=lambda **_: found), IO, seed=0)


def _without_gamma(context):
    return {key: value for key, value in context.items() if key != "gamma"}


def batches(frames: Kept, size: int = 8):
    """Endless rows of neighbouring frames, as a memory gives them: without pictures."""
    rng = np.random.default_rng(0)
    while True:
        here = rng.integers(0, 8, size) % 7 + 8 * rng.integers(0, len(frames.runs()), size)
        read = lambda at: {key: torch.from_numpy(frames.read(key, at)) for key in ("state", "tool", "sight")}  # noqa: E731
        yield Transitions(
            obs=read(here),
            action=torch.zeros(size, 3),
            reward=torch.zeros(size),
            discount=torch.full((size,), 0.97),
            next_obs=read(here + 1),
            terminated=torch.zeros(size, dtype=torch.bool),
            truncated=torch.zeros(size, dtype=torch.bool),
            intervened=torch.ones(size, dtype=torch.bool),
            mask=torch.ones(size, dtype=torch.bool),
        )


def test_a_fit_encodes_all_kept_frames_again_and_settles_until_it_is_frozen():
    torch.set_num_threads(1)
    frames = Kept(4)
    found = encoder(first_steps=3, refit_every=4, refit_steps=2, freeze_after=9, settle=3)
    learner = behind(found)
    learner.take_frames(frames)
    inner: Any = learner.learner
    learner.pretrain(batches(frames))
    assert (found.fits, frames.encoded) == (1, 1)
    assert np.isfinite(frames.sight).all()
    seen, counts = [frames.sight.copy()], []
    for number in range(1, 15):
        learner.update(batches(frames))
        assert learner.works_between == (number in (4, 8))
        if learner.works_between:  # between two episodes
            learner.work_between(batches(frames))
        seen.append(frames.sight.copy())
        counts.append(inner.state.updates)
    changed = [i for i in range(1, 15) if not np.array_equal(seen[i], seen[i - 1])]
    assert changed == [4, 8]  # not at 12: frozen after 9
    assert (found.fits, frames.encoded) == (3, 3)
    assert counts == [1, 2, 3, 7, 8, 9, 10, 14, 15, 16, 17, 18, 19, 20]  # three more updates after each fit


def test_only_what_came_without_is_looked_at_again():
    frames = Kept(3)
    learner = behind(encoder(first_steps=2, refit_every=0))
    learner.take_frames(frames)
    learner.pretrain(batches(frames))
    seen = frames.sight.copy()
    frames.sight[:8] = 5.0  # of the first run: it stays as it is
    frames.sight[12] = np.nan
    frames.unseen = True
    learner.update(batches(frames))
    assert not frames.unseen
    assert np.array_equal(frames.sight[8:], seen[8:])
    assert (frames.sight[:8] == 5.0).all()


def test_frames_of_another_fit_are_encoded_before_they_are_learned_from():
    frames = Kept(2)
    learner = behind(encoder(first_steps=2, refit_every=0))
    learner.take_frames(frames)
    learner.pretrain(batches(frames))
    frames.sight[:] = np.nan
    frames.encoded = -1  # as after a resume, or a frame that came without
    learner.update(batches(frames))
    assert np.isfinite(frames.sight).all()


def test_saved_and_loaded_it_goes_on_bit_for_bit():
    torch.set_num_threads(1)

    def begin():
        frames = Kept(3)
        learner = behind(encoder(first_steps=3, refit_every=3, refit_steps=2, settle=1))
        learner.take_frames(frames)
        return frames, learner

    frames, learner = begin()
    learner.pretrain(batches(frames))
    learner.update(batches(frames))
    state, sight = learner.state_dict(), frames.sight.copy()
    others, again = begin()
    again.load_state_dict(state)
    others.write(0, sight)
    others.encoded = frames.encoded
    for one, kept in ((learner, frames), (again, others)):
        rows = batches(kept)
        for _ in range(4):  # a fit lies among them
            one.update(rows)
            if one.works_between:
                one.work_between(rows)
    assert np.array_equal(frames.sight, others.sight)
    weights = [one.policy.state_dict()["method"]["actor"] for one in (learner, again)]
    assert torch.equal(*weights)
    fresh = behind(encoder())
    fresh.policy.load_state_dict(learner.policy.state_dict())
    obs = {key: value[None] for key, value in frames.frames[0].items()}
    answers = []
    for policy in (learner.policy, fresh.policy):
        policy.reset()
        answers.append(policy.act(obs, deterministic=True).value)
    assert np.array_equal(*answers)


@pytest.mark.parametrize(
    ("io", "words"),
    [
        (replace(IO, obs={"state": ((3,), "float32")}), "looks at pictures: add cameras=own"),
        (replace(IO, calibration={}), "nothing says that of the cameras .*'front', 'side'"),
        (replace(IO, obs={k: v for k, v in IO.obs.items() if k != "tool"}), "does not observe its tool"),
        (
            replace(IO, action_names=("tip_dx", "tip_dy", "gripper_opening")),
            "add opening to proprio",
        ),
    ],
)
def test_what_it_cannot_see_with_is_refused(io, words):
    with pytest.raises(ValueError, match=words):
        encoder(io)


def test_the_method_sees_no_picture_and_no_goal_that_was_not_seen():
    found = encoder()
    assert list(found.io.obs) == ["state"]
    learner = behind(found)
    assert learner.need.keys == ("state", "tool", "sight")
    with pytest.raises(ValueError, match="use robot-rl hil"):
        learner.update(iter([]))


def test_a_fit_that_is_due_is_due_after_a_resume():
    frames = Kept(3)
    learner = behind(encoder(first_steps=2, refit_every=2, refit_steps=2, settle=1))
    learner.take_frames(frames)
    learner.pretrain(batches(frames))
    for _ in range(2):
        learner.update(batches(frames))
    again = behind(encoder(first_steps=2, refit_every=2, refit_steps=2, settle=1))
    again.load_state_dict(learner.state_dict())
    assert again.works_between
    learner.work_between(batches(frames))
    again.load_state_dict(learner.state_dict())
    assert not again.works_between
