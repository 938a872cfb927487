"""Every verb that has a configuration: word -> name of the configuration, class of its options, what runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from omegaconf import DictConfig

from robot_rl.verbs.bench import BenchOptions, bench
from robot_rl.verbs.check import CheckOptions, check
from robot_rl.verbs.classify import ClassifyOptions, classify
from robot_rl.verbs.collect import CollectOptions, collect
from robot_rl.verbs.critic import CriticOptions, critic
from robot_rl.verbs.data import DataOptions, data
from robot_rl.verbs.deploy import deploy, deploy_options
from robot_rl.verbs.design import DesignOptions, design
from robot_rl.verbs.eval import EvalOptions, evaluate
from robot_rl.verbs.eval_compare import CompareOptions, compare
from robot_rl.verbs.eval_fas import FasOptions, evaluate_intervals
from robot_rl.verbs.eval_latency import LatencyOptions, evaluate_latency
from robot_rl.verbs.eval_ope import OpeOptions, evaluate_offline
from robot_rl.verbs.export import ExportOptions, export
from robot_rl.verbs.hil import HilVerbOptions, hil
from robot_rl.verbs.offline import OfflineOptions, offline
from robot_rl.verbs.options import VerbOptions
from robot_rl.verbs.prefer import PreferOptions, prefer
from robot_rl.verbs.replay import ReplayOptions, replay
from robot_rl.verbs.train import TrainOptions, train


class Verb(NamedTuple):
    """A verb of the command line.

    Attributes:
        config: name of its YAML in `configs`.
        options: () -> class of its options; that of deploy is made of what a graph of processes takes.
        run: what it does with a composed configuration.
    """

    config: str
    options: Callable[[], type[VerbOptions]]
    run: Callable[[DictConfig], None]


VERBS = {
    "train": Verb("train", lambda: TrainOptions, train),
    "hil": Verb("hil", lambda: HilVerbOptions, hil),
    "classify": Verb("classify", lambda: ClassifyOptions, classify),
    "offline": Verb("offline", lambda: OfflineOptions, offline),
    "prefer": Verb("prefer", lambda: PreferOptions, prefer),
    "design": Verb("design", lambda: DesignOptions, design),
    "eval": Verb("eval", lambda: EvalOptions, evaluate),
    "eval ope": Verb("ope", lambda: OpeOptions, evaluate_offline),
    "eval compare": Verb("compare", lambda: CompareOptions, compare),
    "eval fas": Verb("fas", lambda: FasOptions, evaluate_intervals),
    "eval latency": Verb("latency", lambda: LatencyOptions, evaluate_latency),
    "export": Verb("export", lambda: ExportOptions, export),
    "check": Verb("check", lambda: CheckOptions, check),
    "collect": Verb("collect", lambda: CollectOptions, collect),
    "data": Verb("data", lambda: DataOptions, data),
    "critic": Verb("critic", lambda: CriticOptions, critic),
    "deploy": Verb("deploy", deploy_options, deploy),
    "replay": Verb("replay", lambda: ReplayOptions, replay),
    "bench": Verb("bench", lambda: BenchOptions, bench),
}
"""Word of the command line -> verb."""

OPTIONS = {verb.config: verb.options for verb in VERBS.values()}
"""Name of a verb's configuration -> () -> the class of its options."""
