"""Code in the pages runs."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robot_rl.advantage import registry
from robot_rl.data.findings import BadData
from robot_rl.types import IOSpec, Transitions

ROOT = Path(__file__).resolve().parents[2]
IO = IOSpec(
    obs={"state": ((3,), "float32")},
    action_names=("x", "y"),
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    action_units=("1", "1"),
    control_hz=10.0,
)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)


def test_add_a_method_learner_on_the_page_learns_and_reloads() -> None:
    space: dict = {}
    exec(blocks("add_a_method.md")[0], space)
    learner = space["Mean"](space["MeanOptions"](), IO)
    no = torch.zeros(4, dtype=torch.bool)
    batch = Transitions(
        obs={"state": torch.zeros(4, 3)},
        action=torch.full((4, 2), 0.5),
        reward=torch.zeros(4),
        discount=torch.ones(4),
        next_obs={"state": torch.zeros(4, 3)},
        terminated=no,
        truncated=no,
        intervened=no,
        mask=~no,
    )
    learner.update(iter([batch]))
    action = learner.policy.act({"state": np.zeros((2, 3), np.float32)}).value
    np.testing.assert_allclose(action, 0.05)  # one tenth of the way from 0 to 0.5
    other = space["Mean"](space["MeanOptions"](), IO)
    other.load_state_dict(learner.state_dict())
    assert torch.equal(other.policy.mean, learner.policy.mean)


def test_log_format_reader_on_the_page_reads_what_it_says(tmp_path: Path) -> None:
    space: dict = {}
    exec(blocks("howto/log_format.md")[0], space)
    log = tmp_path / "log.motion"
    log.write_text("1 0 0.5\n2 1 -0.5\n-4 0 0\n")  # two steps, and where the episode stopped
    episode = space["read"](log).episodes[0]
    np.testing.assert_array_equal(episode.obs["state"], [[1, 0], [2, 1], [-4, 0]])
    np.testing.assert_array_equal(episode.action, [[0.5], [-0.5]])
    np.testing.assert_array_equal(episode.reward, [-2, -4])  # minus the distance after the step
    log.write_text("1 0\n")
    with pytest.raises(BadData, match="has 2 columns"):
        space["read"](log)


def test_estimator_on_the_page_registers_and_is_the_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    space: dict = {}
    for block in blocks("howto/estimator.md"):
        exec(block, space)
    gamma, value = 0.9, np.full(3, 10.0)  # r = 1 for ever is worth 1 / (1 - 0.9)
    steps = SimpleNamespace(reward=np.ones(3), value=value, next_value=value, terminated=np.array([0.0, 0.0, 1.0]))
    found = space["surprise"](SimpleNamespace(steps=steps), gamma=gamma)
    np.testing.assert_allclose(found.advantage, [0, 0, -9])  # the end was a surprise of 1 - 10


def test_no_page_ends_in_a_heading() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        assert not page.read_text().rstrip().splitlines()[-1].startswith("#"), page


def test_every_page_has_a_place_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert re.search(rf"[ :]{page.relative_to(ROOT / 'docs')}$", nav, re.MULTILINE), f"{page} is not in mkdocs.yml"


def test_readme_begins_with_picture_and_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.search(r"!\[.+\]\(.+\)\n\n```bash\nmake demo .*\nmake test ", text)
    assert text.index("make demo") < 300


def test_results_have_no_cell_longer_than_a_line() -> None:
    for line in (ROOT / "docs/results.md").read_text().splitlines():
        assert all(len(cell) <= 60 for cell in line.split("|")) or not line.startswith("|"), line


@pytest.mark.parametrize(
    "verb", ["train", "hil", "offline", "eval", "eval ope", "collect", "data", "deploy", "bench", "doctor ros"]
)
def test_readme_shows_every_verb(verb: str) -> None:
    assert f"robot-rl {verb}" in (ROOT / "README.md").read_text()


def test_every_row_of_the_security_tables_names_a_test_that_there_is() -> None:
    text = (ROOT / "docs/security.md").read_text()
    heads = "\n".join(
        line
        for page in (ROOT / "tests").rglob("test_*.py")
        for line in page.read_text().splitlines()
        if "def test_" in line
    )
    for name in re.findall(r"`(test_\w+)…?`", text):
        assert re.search(rf"def {name}", heads), name
    for page in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / page).is_file(), page
