"""What a tick of an arm of servos costs, its bytes at 1 Mbaud: python tests/real/servo_timing.py [ticks]."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from robot_rl.real.servos.bus import ServoBus
from robot_rl.real.servos.registers import GOAL, STATE


def main(ticks=1000):
    """Goals of six servos out, their state in, at 100 Hz."""
    command = [sys.executable, str(Path(__file__).parent / "servo_sim.py")]
    sim = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert sim.stdout is not None
    bus, ids = ServoBus(sim.stdout.readline().strip()), list(range(1, 7))
    spent, lost, used, due = [], 0, time.process_time(), time.monotonic()
    for _ in range(ticks):
        due += 0.01
        time.sleep(max(due - time.monotonic(), 0.0))
        begin = time.perf_counter()
        bus.write_all(GOAL, dict.fromkeys(ids, 2048))
        lost += len(bus.read_all(ids, *STATE)) < 6
        spent.append(time.perf_counter() - begin)
    used = time.process_time() - used
    sim.kill()
    middle, late = 1e3 * np.percentile(spent, [50, 99])
    sys.stdout.write(
        f"{ticks} ticks: {middle:.2f} ms, p99 {late:.2f} ms, {lost} not answered in full; {1e3 * used / ticks:.2f} ms "
        f"of a processor each\n"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
