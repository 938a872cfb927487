"""What an offline run says of its own policy before a robot does: its value from the log alone, and where data end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from omegaconf import DictConfig

from robot_rl import build
from robot_rl.types import IOSpec, TrainedPolicy
from robot_rl.verbs import ope
from robot_rl.verbs.logs import LogSettings
from robot_rl.verbs.reading import plain

_MOST, _LEAST, _BEHAVIOUR = 50_000, 10_000, 5_000


def judges_of(cfg: DictConfig) -> ope.Judges:
    """What judges a policy, as it is configured under `ope`, `behaviour` and, where there is one, `model`."""
    shared = {"seed": cfg.seed, "device": cfg.device, "gamma": cfg.gamma}

    def maker_of(group: str) -> Callable[..., Any]:
        node = plain(cfg[group])
        return lambda io, policy, **how: build.make("ope", node, io, policy, where=group, **shared, **how)

    behaviour = plain(cfg.behaviour)
    return ope.Judges(
        maker_of("ope"),
        lambda io: build.make("policy", behaviour, io, where="behaviour", **shared),
        None if cfg.get("model") is None else maker_of("model"),
    )


def updates_of(wanted: int | Literal["auto"], run: int) -> int:
    """Updates of the evaluation: a number, or "auto".

    That is a tenth of the run's, yet 10,000 where the run has as many, and 50,000 at most.
    """
    return min(_MOST, max(run // 10, min(run, _LEAST))) if wanted == "auto" else wanted


def judge(
    settings: LogSettings, policy: TrainedPolicy, io: IOSpec, judges: ope.Judges, *, updates: int, seed: int
) -> tuple[ope.OpeReport | None, str]:
    """Value of `policy` by FQE on the log that it was learnt from, and its support.

    Args:
        settings: how the log is read.
        policy: answers tensors with tensors.
        io: its interface.
        judges: see there.
        updates: of FQE.
        seed: of everything.

    Returns:
        The report, or None and the reason.
    """
    if set(io.obs) != {"state"}:
        return None, f"the estimators read vector observations named state, this log has {', '.join(sorted(io.obs))}"
    plain = settings.model_dump(include=set(LogSettings.model_fields))
    plain["top_fraction"] = 1.0  # value and support are those of all data, whichever episodes were learnt from
    numbers = ope.OpeSettings(
        **plain, seed=seed, methods=("fqe",), updates=updates, behaviour_updates=min(_BEHAVIOUR, max(updates, 1))
    )
    try:
        # alike: it is the log that the policy was made from
        return ope.run(numbers, policy, io, judges, alike=lambda store: True), ""
    except (ValueError, FloatingPointError) as error:  # the policy itself is trained and saved
        return None, str(error)
