"""Policies that look: what the robot's pictures become in an observation, and what is refused."""

import numpy as np
import pytest

from robot_rl.real.cameras import Camera, PictureError
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.policy_runner import Unfit, fit_policy, prove
from robot_rl.real.port import SightedPort, SpecPort, with_sight
from robot_rl.types import Action, IOSpec, Loaded, PolicyParts

SPEC = RobotSpec.from_dict(
    {
        "name": "arm",
        "joints": [{"name": "j0", "lower": -1.0, "upper": 1.0, "velocity": 1.0, "acceleration": 5.0, "effort": 1.0}],
        "home": [0.0],
        "cameras": {"wrist": {"topic": "wrist", "type": "sensor_msgs/Image"}},
    }
)


def interface(*, state=True, camera="wrist", shape=(4, 6, 3), dtype="uint8"):
    own = SpecPort(SPEC, 50.0).io.to_dict()
    own["obs"] = (own["obs"] if state else {}) | {f"image.{camera}": {"shape": list(shape), "dtype": dtype}}
    own["obs_names"] = own["obs_names"] if state else []
    return IOSpec.from_dict(own)


class Sees:
    parts = PolicyParts()

    def __init__(self, io):
        self.io, self.keys = io, set()

    def reset(self, rows=None):
        pass

    def act(self, obs, *, deterministic=False):
        self.keys = {key: value.shape for key, value in obs.items()}
        return Action(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("state", [True, False])
def test_pictures_come_in_the_policys_size_beside_or_without_the_state(state) -> None:
    io = interface(state=state)
    port = SightedPort(SpecPort(SPEC, 50.0), io, SPEC.cameras)
    policy = Sees(io)
    prove(policy, port)
    big = np.zeros((40, 60, 3), np.uint8)
    big[:, 30:] = 200
    port.reset(np.zeros(1), np.zeros(1), {})
    obs = port.observe(np.array([0.25]), np.zeros(1), {"image.wrist": big})
    assert set(obs) == ({"state", "image.wrist"} if state else {"image.wrist"})
    assert obs["image.wrist"].shape == (1, 4, 6, 3)
    assert (obs["image.wrist"][0, :, :3] == 0).all()
    assert (obs["image.wrist"][0, :, 3:] == 200).all()
    if state:
        np.testing.assert_allclose(obs["state"], [[0.25, 0.0]])
    cut = SightedPort(
        SpecPort(SPEC, 50.0),
        IOSpec.from_dict({**io.to_dict(), "crop": {"image.wrist": [0.5, 0.0, 1.0, 1.0]}}),
        SPEC.cameras,
    )
    assert (cut.observe(np.array([0.25]), np.zeros(1), {"image.wrist": big})["image.wrist"] == 200).all()
    np.testing.assert_allclose(port.act(np.array([[1.0]], np.float32)), SPEC.bounds()[1])


def test_a_camera_that_the_robot_has_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"looks through top; the cameras of the RobotSpec are: wrist"):
        SightedPort(SpecPort(SPEC, 50.0), interface(camera="top"), SPEC.cameras)


@pytest.mark.parametrize(("shape", "dtype"), [((4, 6), "uint8"), ((4, 6, 3), "float32"), ((3, 4, 6), "uint8")])
def test_pictures_of_another_layout_are_refused(shape, dtype) -> None:
    with pytest.raises(ValueError, match=r"image\.wrist is .* expected uint8\[height, width, 3\]"):
        SightedPort(SpecPort(SPEC, 50.0), interface(shape=shape, dtype=dtype), SPEC.cameras)


def test_a_policy_that_does_not_look_keeps_its_port_and_one_that_looks_gets_one_that_sees() -> None:
    blind = SpecPort(SPEC, 50.0)
    assert with_sight(blind, blind.io, SPEC.cameras) is blind
    for io, cameras in ((interface(), ("wrist",)), (blind.io, ())):
        policy, port = fit_policy(Loaded(Sees(io), io, None, "p"), SPEC, {}, pytest.fail)
        assert port.cameras == cameras
        assert isinstance(policy, Sees)  # nothing to scale
    top = interface(camera="top")
    with pytest.raises(Unfit, match="looks through top"):
        fit_policy(Loaded(Sees(top), top, None, "p"), SPEC, {}, pytest.fail)


def test_eager_camera_decodes_on_receipt_and_never_when_asked() -> None:
    decoded = []

    def decode(message):
        decoded.append(message)
        if message == b"bad":
            raise PictureError("garbage")
        return np.zeros((2, 2, 3), np.uint8)

    camera = Camera("wrist", decode, lambda message: message, timeout=0.5, freeze_time=1.0, eager=True)
    camera.take(b"one", 1.0)
    assert decoded == [b"one"]
    for _ in range(3):
        assert camera.picture(1.1) is not None
        assert camera.problem(1.1) == ""
    camera.take(b"bad", 1.2)
    assert camera.errors == 1
    assert camera.picture(1.3) is not None  # the last good one, until it is too old
    assert "garbage" in camera.problem(1.6)
    assert decoded == [b"one", b"bad"]
