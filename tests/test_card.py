"""A card is read strictly: what is misspelt, doubled, missing or out of range is one sentence that names the key."""

from pathlib import Path

import pytest

from robot_rl import card, policy_card
from robot_rl.types.card import DEFAULTS, CameraCard, Card
from robot_rl.words import Refused

TEXT = """
name: two
model: {path: two.urdf}
tool: tip
joints:
  - {name: a, lower: -1, upper: 1, velocity: 2.0, acceleration: '?', effort: 5.0}
  - {name: b, continuous: true, velocity: '?', acceleration: 3.0, effort: 5.0}
home: [0.5, 0.0]
command_mode: jtc
controller_topic: ''
controller_timeout: 0
estop: {action: brake}
"""


def written(folder: Path, text: str = TEXT) -> Path:
    path = folder / "two.yaml"
    path.write_text(text)
    return path


def test_card_is_found_by_name_in_the_current_folder_and_its_model_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("two", "two.yaml", str(tmp_path / "two.yaml")):
        assert card.read(name).model.path == str(tmp_path / "two.urdf")
    monkeypatch.chdir("/")
    assert card.read(tmp_path / "two.yaml").model.path == str(tmp_path / "two.urdf")


def test_open_keys_are_those_that_say_question_mark_and_simulation_takes_defaults(tmp_path: Path) -> None:
    found = card.read(written(tmp_path))
    assert found.open_keys() == ["joints.a.acceleration", "joints.b.velocity"]
    assert found.limit("velocity") == (2.0, DEFAULTS["velocity"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tool: tip", "tol: tip", "did you mean tool"),
        ("tool: tip", "tool: tip\ntool: other", "tool stands in line"),
        ("velocity: 2.0", "velocty: 2.0", "joints.0.velocty is no key of a card; did you mean velocity"),
        ("velocity: 2.0", "velocity: -2.0", "joints.0.velocity"),
        ("lower: -1, upper: 1", "lower: 1, upper: -1", "expected lower below upper"),
        ("home: [0.5, 0.0]", "home: [0.5]", "home has 1 entries, expected 2"),
        ("home: [0.5, 0.0]", "home: [1.5, 0.0]", "home of a is 1.5, expected in [-1, 1]"),
        ("name: b", "name: a", "the name a occurs more than once"),
        ("command_mode: jtc", "command_mode: jtk", "command_mode is 'jtk'"),
        ("model: {path: two.urdf}", "", "it names no model"),
    ],
)
def test_wrong_card_is_refused_by_a_sentence_that_names_file_and_key(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(card.CardError, match=r"two\.yaml") as error:
        card.read(path)
    assert said in str(error.value)


def test_card_that_is_written_is_read_as_it_was_and_an_older_one_stays(tmp_path: Path) -> None:
    found = card.read(written(tmp_path, TEXT.replace("effort: 5.0}", "effort: 5.0, limit_slack: 0}", 1)))
    again = tmp_path / "again.yaml"
    card.write(found, again)
    assert "path: two.urdf" in again.read_text()  # beside it: a folder can be moved
    assert card.read(again) == found
    assert Card.model_validate(found.model_dump(mode="json")) == found
    with pytest.raises(card.CardError, match="exists"):
        card.write(found, again)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.yaml", "two.yaml"]


def test_a_camera_is_put_onto_a_card_without_the_loss_of_a_line(tmp_path: Path) -> None:
    cameras = "cameras:\n  front:\n    topic: a\n    type: sensor_msgs/Image\n"
    path = written(tmp_path, TEXT + cameras + "\n# why it brakes\nstatus: {}\n")
    card.put_camera(path, "wrist", CameraCard(topic="b", type="sensor_msgs/Image"))
    assert path.read_text().endswith("\n\n# why it brakes\nstatus: {}\n")
    assert list(card.read(path).cameras) == ["front", "wrist"]


def test_a_policys_card_with_numbers_for_names_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "io.yaml").write_text("1: 2\n")
    with pytest.raises(Refused, match=r"io\.yaml"):
        policy_card.read(tmp_path / "io.yaml")
    (tmp_path / "io.yaml").write_text("formats: onnx\n")
    with pytest.raises(Refused, match="formats is no option of the card of a policy; did you mean format"):
        policy_card.read(tmp_path / "io.yaml")
    (tmp_path / "g1.yaml").write_text("".join(f"{key}: [1]\n" for key in policy_card._NEEDED))
    with pytest.raises(Refused, match=r"num_actions is \[1\], expected a whole number"):
        policy_card.read_description(tmp_path / "g1.yaml")
