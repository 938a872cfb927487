"""`encoder=robot`: what comes with the package sees in scenes that it was not trained on, and nothing changes it."""

import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl import api
from robot_rl.policies.encoders.robot import RobotEncoder, RobotEncoderOptions
from robot_rl.policies.encoders.selftrained import SelfTrained, SelfTrainedOptions
from robot_rl.policies.nets.pinhole import project
from robot_rl.policies.nets.point_weights import WEIGHTS, Weights

SEEN = {"proprio": "own", "camera_size": [64, 64], "camera_quality": "fast", "supersample": 2}


def made(world: str, cameras: Any = "own", **options: Any) -> Any:
    return api.make(world, 1, seed=0, cameras=cameras, **{**SEEN, **options})


@pytest.fixture(scope="module")
def reach():
    env = made("reach")
    yield env.io
    env.close()


@pytest.fixture(scope="module")
def pick():
    env = made("pick")
    yield env.io
    env.close()


def errors(world: str, look: int, kind: str, steps: int) -> np.ndarray:
    """(steps, P) metres from where the points of a scene are, while the expert drives."""
    env = made(world, look={"seed": look, "range": kind})
    encoder = RobotEncoder(RobotEncoderOptions(), env.io)
    obs, _ = env.reset(seed=look)
    far = []
    for _ in range(steps):
        places, _ = encoder.see(obs, torch.from_numpy(obs["tool"]))
        marks = env.world.landmarks(env._view)
        names = [name for name in encoder.places.names if name in marks]
        truth = np.stack([marks[name][0, :3] for name in names])
        far.append(np.linalg.norm(places[0, : len(names)].numpy() - truth, axis=1))
        obs, *_ = env.step(env.expert(obs))
    env.close()
    return np.array(far)


@pytest.mark.parametrize(
    ("world", "kind", "points", "bound"),
    [
        ("pick", "known", 2, 0.012),
        ("insert", "known", 1, 0.01),
        ("reach", "known", 1, 0.012),
        ("pick", "unknown", 1, 0.02),
    ],
)
def test_it_sees_places_in_scenes_that_it_never_saw(world, kind, points, bound):
    """In the median of two fresh scenes; a pixel of the cameras that stand is 7 mm wide."""
    far = np.concatenate([errors(world, look, kind, 12) for look in (90_700, 90_701)])
    assert np.median(far, axis=0)[:points].max() < bound


def test_the_card_is_of_the_file_and_both_are_small():
    weights, card = Weights(WEIGHTS), json.loads(WEIGHTS.with_suffix(".json").read_text())
    assert weights.nets == sorted(card["pictures"])
    assert WEIGHTS.stat().st_size < 1e6
    points = ("goal", "goal_before", "goal_behind")
    count = sum(p.numel() for net in ("hole.world", "hole.tool") for p in weights.net(net, points).parameters())
    count += sum(p.numel() for p in weights.net("ball.world", ("object", "goal")).parameters())
    assert count == card["weights"]


def test_one_net_gives_the_points_that_a_world_has(reach):
    picture = torch.randint(0, 255, (1, 64, 64, 3), dtype=torch.uint8)
    weights = Weights(WEIGHTS)
    both, goal = (weights.net("ball.world", points)(picture) for points in (("object", "goal"), ("goal",)))
    assert torch.allclose(both[:, 1:], goal, atol=1e-5)
    assert RobotEncoder(RobotEncoderOptions(), reach).places.names == ("goal",)


def test_rays_that_do_not_meet_are_not_believed(reach, monkeypatch):
    """One camera sees the goal 6 pixels higher than it is: rays miss by 3 each, less what their slope takes up."""
    encoder, tool = RobotEncoder(RobotEncoderOptions(), reach), torch.zeros(1, 4)
    goal = torch.tensor([[[0.45, 0.02, 0.1]]])
    cell = (torch.arange(16) + 0.5) * 4

    def heat(key: str, higher: float) -> torch.Tensor:
        x, y = project(reach.calibration[key], tool, goal)[0][0, 0]
        return -0.1 * ((cell[:, None] - y + higher) ** 2 + (cell - x) ** 2)[None, None]

    sure = []
    for higher in (0.0, 6.0):
        found = [lambda _: heat("image.front", 0.0), lambda _, up=higher: heat("image.side", up)]
        monkeypatch.setattr(encoder, "_nets", found)
        places, confidence = encoder.see({"image.front": np.zeros(1), "image.side": np.zeros(1)}, tool)
        assert torch.allclose(places, goal, atol=0.003) is (higher == 0.0)
        sure.append(float(confidence))
    assert sure[0] > 0.8
    assert math.exp(-0.5 * (3.0**2 + 3.0**2) / 1.5**2) < sure[1] / sure[0] < 0.1


@pytest.mark.parametrize(("apart", "kept"), [(0.0, 0.03), (0.015, 1.0 - math.exp(-0.5)), (0.06, 1.0)])
def test_a_goal_that_is_seen_where_the_object_is_counts_little(pick, apart, kept):
    encoder, tool = RobotEncoder(RobotEncoderOptions(), pick), torch.zeros(1, 4)
    places = torch.tensor([[[0.45, 0.0, 0.1], [0.45, apart, 0.1]]])
    pixels = [project(pick.calibration[key], tool, places)[0] for key in ("image.front", "image.side")]
    sure = encoder.believe(torch.tensor([[0.9, 0.8]]), places, pixels, tool)
    assert sure[0].numpy() == pytest.approx([0.9, 0.8 * kept], abs=1e-3)


def test_it_stays_as_it_is_and_its_weights_travel_with_a_run(reach):
    encoder = RobotEncoder(RobotEncoderOptions(), reach)
    assert encoder.settle == 0
    assert not any(encoder.due(updates) for updates in range(3000))
    state = encoder.state_dict()
    other = RobotEncoder(RobotEncoderOptions(), reach)
    with torch.no_grad():
        for weight in other._nets.parameters():
            weight.zero_()
    other.load_state_dict(state)
    assert all(torch.equal(value, state["nets"][key]) for key, value in other.state_dict()["nets"].items())


def test_an_encoder_that_trains_itself_may_begin_with_its_nets(reach, tmp_path):
    begun, own = SelfTrained(SelfTrainedOptions(start="robot"), reach), RobotEncoder(RobotEncoderOptions(), reach)
    assert all(torch.equal(value, own.state_dict()["nets"][key]) for key, value in begun.state_dict()["nets"].items())
    with pytest.raises(ValueError, match="is no file of an encoder's weights"):
        SelfTrained(SelfTrainedOptions(start=str(tmp_path / "absent")), reach)


def test_cameras_that_it_cannot_see_with_are_refused(reach):
    blind = replace(reach, calibration={"image.front": reach.calibration["image.front"]})
    with pytest.raises(ValueError, match=r"the cameras \['side'\]: their calibration is unknown"):
        RobotEncoder(RobotEncoderOptions(), blind)
    large = {key: ((96, 96, 3), "uint8") if key.startswith("image.") else value for key, value in reach.obs.items()}
    with pytest.raises(ValueError, match="64 x 64 pixels, and front gives 96 x 96: use image_size=64"):
        RobotEncoder(RobotEncoderOptions(), replace(reach, obs=large))
    hand = replace(reach.calibration["image.front"], mount="tool")
    with pytest.raises(ValueError, match=r"finds no goal in pictures of a camera on the tool; it has ball\.world"):
        RobotEncoder(RobotEncoderOptions(), replace(reach, calibration={**reach.calibration, "image.side": hand}))


def container(head: dict, body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_files_that_are_no_weights_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="is no file of an encoder's weights"):
        Weights(tmp_path / "absent.safetensors")
    path = tmp_path / "file"
    for content, said in (
        (b"import os", "cannot be read as safetensors"),
        (container({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "holds no nets that find"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=said):
            Weights(path)
    # a head of the same length that promises more points than the net has
    path.write_bytes(WEIGHTS.read_bytes().replace(b'"ball.world":"object,goal"', b'"ball.world":"goal,a,b,cc"'))
    with pytest.raises(ValueError, match=r"the tensors of ball\.world in .* do not fit its net"):
        Weights(path).net("ball.world", ("goal", "cc"))
