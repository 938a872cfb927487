"""A setting that the chosen method would ignore is refused: what is stored says what was done."""

from pathlib import Path
from typing import Any

import pytest

PPO = ["policy=online/ppo", "policy.rollout_steps=40", "policy.minibatch=20", "policy.epochs=1"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([*PPO, "demos=99999999"], "demos has no effect on Ppo"),
        ([*PPO, "n_step=3"], "n_step has no effect on Ppo"),
        ([*PPO, "buffer_size=500"], "buffer_size has no effect on Ppo"),
        ([*PPO, "learning_starts=7"], "learning_starts has no effect on Ppo"),
        ([*PPO, "log=log.hdf5"], "log has no effect on Ppo"),
        (["demo_share=0.25"], "demo_share has no effect without demos"),
        (["log_share=0.25"], "log_share has no effect without log"),
        (["demos=2", "log=log.hdf5"], "demos and log are both given"),
        (["policy=offline/td3_bc", "policy.seeds=2", "demos=2"], "demos joins rows .* from one source alone"),
    ],
)
def test_a_setting_without_effect_is_refused_and_leaves_no_folder(
    make_job: Any, tmp_path: Path, overrides: list[str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make_job(tmp_path / "run", *overrides)
    assert not (tmp_path / "run").exists()


def test_what_a_method_heeds_is_taken(make_job: Any, tmp_path: Path) -> None:
    job = make_job(tmp_path / "run", "demos=2", "demo_share=0.25", "n_step=2", "buffer_size=500")
    assert job.settings.demo_share == 0.25
