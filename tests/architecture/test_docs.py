"""Code in the pages runs."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

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
    learner = space["Mean"](IO)
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
    other = space["Mean"](IO)
    other.load_state_dict(learner.state_dict())
    assert torch.equal(other.policy.mean, learner.policy.mean)


def test_readme_begins_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.search(r"```bash\nmake demo .*\nmake test ", text)
    assert text.index("make demo") < 300


@pytest.mark.parametrize(
    "verb", ["train", "hil", "offline", "eval", "eval ope", "collect", "data", "deploy", "bench", "doctor ros"]
)
def test_readme_shows_every_verb(verb: str) -> None:
    assert f"robot-rl {verb}" in (ROOT / "README.md").read_text()
