"""The verb eval ope: a policy's value from a log alone."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from robot_rl import checkpoint
from robot_rl.checkpoint import write_json
from robot_rl.data.bounds import NORMALISED
from robot_rl.data.store import Store
from robot_rl.data.units import meaning_of
from robot_rl.verbs import answer, ope
from robot_rl.verbs.build import load_policy, read_action_meaning, run_folder, settings_of, threads
from robot_rl.verbs.offline_judge import judges_of
from robot_rl.verbs.ope import OpeSettings
from robot_rl.verbs.options import Machine
from robot_rl.verbs.reading import stored_config


class OpeOptions(Machine, OpeSettings):
    """robot-rl eval ope."""

    path: str
    """A run or checkpoint folder: the policy."""


def evaluate_offline(cfg: DictConfig) -> None:
    """Estimate a policy's value from a log alone."""

    threads(cfg)
    path = checkpoint.find(Path(cfg.path))
    policy = load_policy(cfg, stored_config(path), path)
    settings = settings_of(OpeSettings, cfg)
    meta = checkpoint.read_meta(path)
    io, known = meaning_of(checkpoint.read_io(path), meta.get("action"), read_action_meaning(cfg))

    def alike(store: Store) -> bool:
        both = known == store.meta.get("action") == NORMALISED
        return both or store.fingerprint == meta.get("data_fingerprint")

    report = ope.run(settings, policy, io, judges_of(cfg), alike=alike)
    folder = run_folder(cfg, "ope", path.parent.parent.name)
    write_json(folder / "ope.json", ope.plain_numbers(report))
    print(f"discounted value (gamma {cfg.gamma:g}), {cfg.confidence:.0%} intervals")
    answer.table({**ope.table(report), "numbers": str(folder / "ope.json")})
    answer.note(warnings=list(report.warnings))
    print("\n".join(f"  {warning}" for warning in report.warnings))
