"""Actor and learner killed at random, the link cut at random: is any row lost or doubled?

An actor records numbered steps and sends them, a learner stores them and hands out numbered weights. Both are separate
processes, joined by a link that runs through a relay, so that it can be cut without killing anybody. At random moments
one of them gets a kill -9 and is started again, or the relay drops every connection for a while. At the end the
learner's disk is compared with the actor's, by key and by value.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import hil_images
from robot_rl.data.hil_episode import EpisodeDraft, EpisodeRules, to_steps
from robot_rl.data.hil_record import ControlStep, EndReason, Source
from robot_rl.data.hil_words import episode_key
from robot_rl.human.log import HilLog, read_manifest
from robot_rl.human.pieces import Inbox, Outbox, PieceHead, Place
from robot_rl.link import ActorLink, LearnerLink, LinkSettings
from robot_rl.types import IOSpec

IO = IOSpec({"state": ((2,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
WEIGHTS = {"actor": torch.zeros(1000)}


def run(
    quick: bool = False, kills: int = 200, seed: int = 0, pause_s: float = 0.25, images: bool = False
) -> dict[str, Any]:
    """Kill, cut, restart, compare.

    Args:
        quick: 10 kills.
        kills: in all, of actor, learner and link in turn at random.
        seed: of moments and victims.
        pause_s: mean time between two of them.
        images: measure image batches and camera pictures against LeRobot and gym_hil instead; see `hil_images`.

    Returns:
        {"rows": one row with counts of kills, recorded, lost, doubled and different steps, weights that were torn and
        weights that went back in version within one life of the learner}.
    """
    if images:
        return {"rows": hil_images.measure(quick)}
    kills = min(kills, 10) if quick else kills
    rng = random.Random(seed)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        relay = Relay()
        ports = relay.port, relay.target
        processes: dict[str, Any] = {}

        def start(who: str) -> None:
            function = _actor if who == "actor" else _learner
            processes[who] = context.Process(target=function, args=(folder, ports[who == "learner"]), daemon=True)
            processes[who].start()

        start("learner")
        start("actor")
        relay.start()  # a thread, so after the forks; later forks copy no thread and need none
        count: Counter[str] = Counter()
        begun = time.monotonic()
        for _ in range(kills):
            time.sleep(rng.expovariate(1.0 / pause_s))
            victim = rng.choice(("actor", "learner", "link"))
            count[victim] += 1
            if victim == "link":
                relay.cut(rng.random() * 0.3)
                continue
            os.kill(processes[victim].pid, signal.SIGKILL)
            processes[victim].join()
            time.sleep(rng.random() * 0.1)
            start(victim)
        end = time.monotonic() + 60.0  # on a busy machine little was recorded so far
        while time.monotonic() < end and (
            sum(line["steps"] for line in read_manifest(folder / "log")) < 150 or not (folder / "weights.txt").exists()
        ):
            time.sleep(0.05)
        (folder / "enough").touch()
        for who, process in processes.items():
            process.join(60.0)
            if process.is_alive():
                process.kill()
                raise RuntimeError(f"the {who} did not finish within 60 s after the last kill")
        relay.close()
        row = {"kills": kills, **{f"of_{who}": count[who] for who in ("actor", "learner", "link")}, **compare(folder)}
        return {"rows": [{**row, "seconds": time.monotonic() - begun}]}


def compare(folder: Path) -> dict[str, int]:
    """Steps of the actor's log against those on the learner's disk."""
    log, inbox = HilLog(folder / "log", IO), Inbox(folder / "rows", IO)
    recorded: dict[tuple[int, int], ControlStep] = {}
    for episode in log.episodes():
        number = episode_key(episode.meta).episode_id
        recorded |= {(number, i): step for i, step in enumerate(to_steps(episode))}
    arrived: Counter[tuple[int, int]] = Counter()
    different = 0
    for received in inbox.take_restored():
        for i, step in enumerate(received.steps):
            key = received.head.episode, received.head.first + i
            arrived[key] += 1
            twin = recorded.get(key)
            different += twin is not None and not _same(step, twin)
    text = (folder / "weights.txt").read_text().split() if (folder / "weights.txt").exists() else []
    seen = [tuple(int(x) for x in item.split(":")) for item in text]
    return {
        "recorded": len(recorded),
        "lost": sum(key not in arrived for key in recorded),
        "doubled": sum(n - 1 for n in arrived.values()),
        "unknown": sum(key not in recorded for key in arrived),
        "different": different,
        "weights": len(seen),
        "torn_weights": sum(not whole for _, _, whole in seen),
        "backward_weights": sum(a[0] == b[0] and b[1] < a[1] for a, b in pairwise(seen)),
    }


def _same(a: ControlStep, b: ControlStep) -> bool:
    return (
        np.array_equal(a.obs["state"], b.obs["state"])
        and np.array_equal(a.next_obs["state"], b.next_obs["state"])
        and np.array_equal(a.action_exec, b.action_exec)
        and (a.reward, a.discount, a.valid, a.terminated) == (b.reward, b.discount, b.valid, b.terminated)
    )


def _settings(port: int) -> LinkSettings:
    return LinkSettings(
        endpoint=f"tcp/127.0.0.1:{port}", name="bench", heartbeat_s=0.05, resend_s=0.2, lost_s=1.0, window=64
    )


def _actor(folder: Path, port: int) -> None:
    """Record and send until there was enough, then until everything is confirmed."""
    rng = np.random.default_rng()
    log = HilLog(folder / "log", IO)
    outbox = Outbox(log)

    def rows(place: Place) -> tuple[dict[str, Any], bytes, Place] | None:
        found = outbox.piece(place, most=16)
        return None if found is None else (vars(found[0]), found[1], found[0].after)

    link = ActorLink(_settings(port), rows, outbox.end, WEIGHTS, {"io": IO.to_dict()})
    while not (folder / "enough").exists():
        number = log.next_episode
        demo = rng.random() < 0.2
        if not demo:
            outbox.begin(number)
        log.begin()
        draft = EpisodeDraft(EpisodeRules(), 10.0)
        for t in range(int(rng.integers(5, 60))):
            draft.add(_step(number, t, human=demo or bool(rng.random() < 0.2)))
            log.journal(draft.steps[-1])
            if not demo:
                outbox.rows(draft.take_settled())
                link.notify()
            time.sleep(0.001)
        draft.close(EndReason.SUCCESS if rng.random() < 0.5 else EndReason.TIMEOUT)
        outbox.rows(draft.take_settled())
        outbox.finish(number, log.commit(draft, {"demo": demo, "discarded": False}))
        link.notify()
        found = link.take()
        if found is not None:
            values = found[1]["actor"]
            whole = bool((values == values[0]).all()) and int(values[1]) % 1_000_000 == found[0]
            with open(folder / "weights.txt", "a") as file:
                file.write(f"{int(values[0]) // 1_000_000}:{found[0]}:{int(whole)}\n")
    link.done = True
    link.notify()
    while link.acked != outbox.end() or not link.finished:
        time.sleep(0.02)
    link.close()


def _learner(folder: Path, port: int) -> None:
    """Store and confirm until the actor is done."""
    inbox = Inbox(folder / "rows", IO)
    with open(folder / "lives.txt", "a+") as file:
        file.write(".")
        life = file.tell() % 16  # float32 counts exactly up to 16 million
    link = LearnerLink(_settings(port), {"io": IO.to_dict()}, inbox.places)
    version = 0
    while not (link.complete() and (folder / "enough").exists()):
        for head, body in link.drain(0.02):
            inbox.take(PieceHead.parse(head), body)
        link.confirm(inbox.places)
        version += 1
        link.publish(version, {"actor": torch.full((1000,), float(life * 1_000_000 + version))})
    link.finished = True
    link.confirm(inbox.places)
    end = time.monotonic() + 10.0
    while link.alive() and time.monotonic() < end:
        time.sleep(0.02)
    link.close()


def _step(number: int, t: int, human: bool) -> ControlStep:
    """Every number in it names its episode and moment."""
    here, there = ({"state": np.array([1000.0 * number + moment, -moment], np.float32)} for moment in (t, t + 1))
    action = np.array([(number * 7 + t) % 100 / 100.0], np.float32)
    zero = np.zeros(1, np.float32)
    return ControlStep(
        here, there, zero, zero, action, action, source=Source.HUMAN if human else Source.POLICY,
        t_obs=t * 10**8, t_cmd=t * 10**8, t_next=(t + 1) * 10**8,
    )  # fmt: skip


class Relay:
    """TCP relay between actor and learner whose connections can be cut."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.target = free.getsockname()[1]
        """Where the learner is to listen."""
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed_until = 0.0
        self._stop = False

    def start(self) -> None:
        """Begin to relay."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds: float) -> None:
        """Drop all connections, and refuse new ones for a while."""
        self._closed_until = time.monotonic() + seconds
        for pair in self._pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs = []

    def close(self) -> None:
        """Stop."""
        self._stop = True
        self._door.close()
        self.cut(1e9)

    def _accept(self) -> None:
        while not self._stop:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            far = socket.socket()
            try:
                if time.monotonic() < self._closed_until:
                    raise OSError("cut")
                far.connect(("127.0.0.1", self.target))
            except OSError:
                near.close()
                far.close()
                continue
            self._pairs.append((near, far))
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(a, b), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
