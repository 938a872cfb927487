"""Learning with a person: today's defaults, what they leave out, other methods, a poor person; the same from pictures.

    python -m benchmarks.person                                   # cells that are not there yet, one after the other
    python -m benchmarks.person worlds=insert methods=ours seeds=50,51
    python -m benchmarks.person table=states                      # of the cells in docs/results/person
    python -m benchmarks.person table=pictures

A cell is one `robot-rl hil` of 3,000 own steps with 100 trials at its end, one core. The seeds were fixed before the
first run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.online.matrix import commit, say

CELLS = Path(__file__).resolve().parents[1] / "docs" / "results" / "person"
WORLDS = ("insert", "pick", "reach")
STATES = {
    "ours": "",
    "no demonstrations": "demos=0",
    "no help": "human.help=never",
    "hg_dagger": "policy=human/hg_dagger",
    "rlif": "policy=human/rlif",
    "hil_serl": "policy=human/hil_serl",
    "poor person": "human.skill=0.8 human.noise=0.1",
    "poor person, hg_dagger": "human.skill=0.8 human.noise=0.1 policy=human/hg_dagger",
}
"""Name -> words of the command line. The poor person does something at random in one tick of five, trembles by 0.1 of
the largest motion, and has the peg in the hole in a quarter of the demonstrations. (One with 0.3, 0.2 s late, was meant
first: none of 100 demonstrations succeeded. 0.15, or one tick late, is too much for `insert` already.)"""
PICTURES = {
    "selftrained": "encoder=selftrained",
    "robot": "encoder=robot",
    "frozen": "encoder=frozen",
    "one camera": "encoder=selftrained cameras=[front]",
    "front and wrist": "encoder=selftrained cameras=[front,wrist]",
    "no proprioception": "encoder=selftrained proprio=[]",
    "pictures, no help": "encoder=selftrained human.help=never",
    "pictures, no demonstrations": "encoder=selftrained demos=0",
}
"""The same from the world's two cameras of 64 x 64, goal and object hidden."""
TABLES = {"states": STATES, "pictures": PICTURES}
SEEDS: dict[str, range] = {
    **dict.fromkeys(STATES, range(50, 53)), **dict.fromkeys(PICTURES, range(70, 71)),
    "ours": range(80, 90), "selftrained": range(95, 100), "robot": range(95, 98),
}  # fmt: skip


def command(world: str, method: str, seed: int) -> list[str]:
    """Words behind `robot-rl`."""
    fixed = ["total_steps=3000", "eval_every=1000", "threads=1", f"seed={seed}"]
    return ["hil", f"env={world}", *fixed, *(STATES | PICTURES)[method].split()]


def run_cell(world: str, method: str, seed: int) -> dict[str, Any]:
    """Train, and try alone.

    Raises:
        RuntimeError: the run failed; with the end of what it said.
    """
    words, begin = command(world, method, seed), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "robot_rl", *words, f"output={folder}", "--json"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr[-600:]}")
        told = json.loads(done.stdout)
        rows = [json.loads(row) for row in (Path(told["folder"]) / "metrics.jsonl").read_text().splitlines()]
    way = [[row["step"], row["eval/success"]] for row in rows if "eval/success" in row]
    names = ("success", "success_low", "success_high", "human_seconds", "episodes")
    return {
        **{"command": " ".join(["robot-rl", *words]), "seed": seed, "on_the_way": way},
        **{name: round(told[name], 4) for name in names},
        **{"wall_s": round(time.monotonic() - begin, 1), "commit": commit()},
    }


def fill(world: str, method: str, seed: int) -> None:
    """Run one cell unless it is there."""
    path = CELLS / world / f"{method.replace(', ', '_').replace(' ', '_')}_{seed}.json"
    if path.exists():
        return
    cell = {"world": world, "method": method, **run_cell(world, method, seed)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(cell) + "\n")
    say(f"{world} {method} seed {seed}: {cell['success']} in {cell['wall_s']} s {cell['on_the_way']}")


def table(methods: dict[str, str]) -> str:
    """Success alone of 100 trials, in the order of the seeds, as a Markdown table."""
    cells = [json.loads(path.read_text()) for path in CELLS.glob("*/*.json")]
    cells = sorted((cell for cell in cells if cell["method"] in methods), key=lambda cell: cell["seed"])
    worlds = [world for world in WORLDS if any(cell["world"] == world for cell in cells)]
    lines = [f"| | {' | '.join(f'`{world}`' for world in worlds)} |", "|---|" + "---|" * len(worlds)]
    for method, words in methods.items():
        found = [[cell for cell in cells if (cell["world"], cell["method"]) == (world, method)] for world in worlds]
        shown = [_show(row) for row in found]
        lines.append(f"| {method}{f': `{words}`' if words else ''} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _show(row: list[dict[str, Any]]) -> str:
    seconds = [cell["human_seconds"] for cell in row]
    person = f" ({min(seconds):.0f} to {max(seconds):.0f} s)" if row else ""
    return " ".join(f"{cell['success']:.2f}" for cell in row) + person


def main(words: list[str]) -> int:
    """Fill the table, or print it; 1 if a cell failed."""
    said = {name: value for name, _, value in (word.partition("=") for word in words)}
    if unknown := set(said) - {"worlds", "methods", "seeds", "table"}:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; expected worlds, methods (with ;), seeds, or table")
    if "table" in said:
        if said["table"] not in TABLES:
            raise SystemExit(f"there is no table '{said['table']}'; expected table=states or table=pictures")
        sys.stdout.write(table(TABLES[said["table"]]) + "\n")
        return 0
    failed = False
    for world in said["worlds"].split(",") if "worlds" in said else WORLDS:
        for method in said["methods"].split(";") if "methods" in said else STATES | PICTURES:
            for seed in map(int, said["seeds"].split(",")) if "seeds" in said else SEEDS[method]:
                try:
                    fill(world, method, seed)
                except RuntimeError as error:
                    failed = True
                    say(str(error))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
