"""Command line around recorded sessions: bags to data sets, joined episodes, recordings brought back after a kill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robot_rl.data import bag, session
from robot_rl.real.core.assembler import StepRules
from robot_rl.real.core.recording import convert
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import find_file

USAGE = {
    "convert": """robot-rl data session convert <bag> <out.hdf5> robot_spec=<yaml or name> [key=value ...]

  ticks=executed      what one step is: executed, rate or command
  rate=100            decisions per second
  tolerance=0         oldest observation [s]; 0 = 1.5 periods
  end_on_success=false  the first success message ends the episode
  namespace=          of the robot's topics
  tasks=goal          recorded task variables, comma-separated
  <role>=<topic>      where a third party's bag has other names: joints=/js executed=/cmd camera:wrist=/cam""",
    "join": "robot-rl data session join <session folder or episode.hdf5 ...> <out.hdf5>",
    "recover": "robot-rl data session recover <bag without metadata.yaml> <new bag>",
}


def main(verb: str, arguments: Sequence[str]) -> str:
    """Carry out `data session` convert, join or recover; returns what to print.

    Raises:
        ValueError: wrong arguments or data; the message says what to do.
        OSError: a file is missing or exists already.
    """
    if verb in ("-h", "--help"):
        return "\n\n".join(USAGE.values())
    if verb not in USAGE:
        raise ValueError(
            f"data session is given '{verb}', expected one of {', '.join(USAGE)} (see data session --help)"
        )
    plain = [item for item in arguments if "=" not in item]
    options = dict(item.split("=", 1) for item in arguments if "=" in item)
    if verb == "recover" and len(plain) == 2:
        count = bag.recover(plain[0], plain[1])
        return f"{count} messages recovered into {plain[1]}"
    if verb == "join" and len(plain) >= 2:
        rows = session.join(plain[:-1], plain[-1])
        return f"{rows} steps written to {plain[-1]}"
    if verb == "convert" and len(plain) == 2 and "robot_spec" in options:
        return _convert(plain[0], plain[1], options)
    raise ValueError(f"this has to be: {USAGE[verb].splitlines()[0]} (see data session --help)")


def _convert(source: str, out: str, options: dict[str, str]) -> str:
    spec = RobotSpec.load(find_file(options.pop("robot_spec")))
    rules: dict[str, Any] = {key: options.pop(key) for key in StepRules.model_fields if key in options}
    steps = StepRules(**rules)
    namespace = options.pop("namespace", "/")
    tasks = [name for name in options.pop("tasks", "").split(",") if name]
    odd = [key for key in options if not options[key].startswith("/")]
    if odd:
        raise ValueError(f"{odd[0]}={options[odd[0]]} is no option and no <role>=/topic (see data session --help)")
    rows = convert(Path(source), out, spec, steps, topics=options, namespace=namespace, tasks=tasks)
    return f"{rows} steps written to {out}"
