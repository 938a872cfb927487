"""How late the ticks of a session with a person come, with cameras, the page's pictures and a learner beside it.

`robot-rl hil role=learner` and `role=actor human=browser` run as their users start them, beside processes that do
nothing but keep a core busy. A client takes the page's part: it presses go and takes every picture. A loop that does
nothing but sleep until its next tick of 10 Hz, at ordinary priority, says what the machine allows at that moment.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.console import page_socket

SESSION = (
    *("env=pick", "cameras=[front,side]", "env.world.seconds=8", "demos=0", "task_reward=env", "eval_every=0"),
    *("policy.batch_size=64", "threads=1", "total_steps=1000000", "name=tick"),
)


def run(
    quick: bool = False, ticks: int = 1000, burners: int = 1, realtime: tuple[int, ...] = (0, 20)
) -> dict[str, Any]:
    """One session for each priority.

    Args:
        quick: 100 ticks.
        ticks: of each session, and over how many the newest are judged (1,000 at most).
        burners: processes that keep a core busy.
        realtime: what `realtime=` of the actor is set to.

    Returns:
        {"rows": milliseconds of ticks whose period is 100, of the bare loop's lateness, pictures, updates, load}.
    """
    busy = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(burners)]
    for process in busy:
        process.start()
    try:
        return {"rows": [_session(100 if quick else ticks, burners, priority) for priority in realtime]}
    finally:
        for process in busy:
            process.kill()


def _session(ticks: int, burners: int, priority: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "robot_rl", "hil", *SESSION]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        learner = _start([*command, "role=learner", "output=learner"], folder, "learner")
        actor = _start(
            [*command, "role=actor", "human=browser", "human.port=0", f"realtime={priority}", "output=actor"],
            folder,
            "actor",
        )
        try:
            page = _Page(_address(folder / "actor.txt", actor))
            late, over = multiprocessing.Queue(), multiprocessing.Event()
            bare = multiprocessing.Process(target=_sleep, args=(late, over), daemon=True)
            bare.start()
            rows: list[dict[str, float]] = []
            while not rows or rows[-1]["step"] < ticks:
                if actor.poll() is not None or learner.poll() is not None:
                    raise RuntimeError(f"a process ended: {(folder / 'actor.txt').read_text()[-2000:]}")
                time.sleep(0.5)
                rows = _rows(folder / "actor", "rollout/tick_ms_p99")
            load = Path("/proc/loadavg").read_text().split()[0]
            over.set()
            slept = late.get(timeout=10.0)
            learned = _rows(folder / "learner", "train/updates")
        finally:
            for process in (actor, learner):
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(30.0)
                except subprocess.TimeoutExpired:
                    process.kill()
        page.thread.join(5.0)
    return {
        "realtime": priority,
        "ticks": int(rows[-1]["step"]),
        "tick_ms_p50": rows[-1]["rollout/tick_ms_p50"],
        "tick_ms_p99": rows[-1]["rollout/tick_ms_p99"],
        "bare_late_ms_p99": float(np.percentile(slept, 99)),
        "pictures_of_the_page": page.pictures[0],
        "pictures_of_the_policy": page.pictures[1],
        "updates": int(learned[-1]["train/updates"]) if learned else 0,
        "burners": burners,
        "load_average": float(load),
    }


def _start(command: list[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
    with open(folder / f"{name}.txt", "wb") as out:
        return subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)


def _address(path: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + 120.0
    while time.monotonic() < end and process.poll() is None:
        found = [word for word in path.read_text().split() if word.startswith("http://")]
        if found:
            return found[0]
        time.sleep(0.1)
    raise RuntimeError(f"the actor gave no address: {path.read_text()[-2000:]}")


def _rows(folder: Path, name: str) -> list[dict[str, float]]:
    path = next(folder.rglob("metrics.jsonl"), None)
    lines = [] if path is None else path.read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return [row for row in rows if name in row]


def _burn() -> None:
    while True:
        pass


def _sleep(late: Any, over: Any) -> None:
    """A loop of 10 Hz without work."""
    found, due = [], time.monotonic()
    while not over.is_set():
        due += 0.1
        time.sleep(max(due - time.monotonic(), 0.0))
        found.append(1e3 * (time.monotonic() - due))
        due = max(due, time.monotonic() - 0.1)
    late.put(found)


class _Page:
    """What the page does, without a browser: presses go, takes every picture."""

    def __init__(self, url: str) -> None:
        self._url, self.pictures = url, Counter[int]()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._watch()), daemon=True)
        self.thread.start()

    async def _watch(self) -> None:
        async with page_socket(self._url) as socket:
            speaking = asyncio.ensure_future(self._speak(socket))
            pressed = 0.0
            async for message in socket:
                if message.type.name == "BINARY":
                    self.pictures[message.data[0]] += 1
                    await socket.send_str(json.dumps({"type": "seen"}))
                    continue
                told = json.loads(message.data)
                kind = {"HOLD": "resume", "STOPPED": "reset"}.get(told.get("driver", ""))
                if kind and not told["busy"] and time.monotonic() - pressed > 0.5:
                    pressed = time.monotonic()
                    await socket.send_str(json.dumps({"type": "press", "kind": kind}))
            speaking.cancel()

    async def _speak(self, socket: Any) -> None:
        number = 0
        while not socket.closed:
            number += 1
            await socket.send_str(json.dumps({"type": "input", "seq": number, "axes": {}, "enable": False}))
            await asyncio.sleep(1 / 30)
