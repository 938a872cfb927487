"""The supervisor's whole tick, reading and sending included, beside that of a bare node in the same run.

    python tests/real/ros/whole_tick.py [seconds=30] [rounds=3] [rate=100]

Both hear the same states and commands and run at once, so that the machine's other work falls on both; the ratio is
what counts, the milliseconds are the machine's. Ticks that were missed and the longest period are told of both, too.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import conftest  # noqa: F401  (a domain of our own, before rclpy is loaded)
from foreign_cell import Cell
from ros_harness import ROOT, Processes
from std_msgs.msg import Float64MultiArray

from robot_rl.real.ros.io import JointTrajectory, qos

HERE = Path(__file__).parent


def main(arguments):
    given = dict(item.split("=", 1) for item in arguments)
    seconds, rounds, rate = float(given.get("seconds", 30)), int(given.get("rounds", 3)), float(given.get("rate", 100))
    rows = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            processes = Processes(Path(folder))
            made = Cell(processes, parameters=(f"rate:={rate}",))
            try:
                rows.append(measure(made, seconds, rate))
            finally:
                made.close()
                processes.close()
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    whole = [row for row in rows if row["state"] == "ACTIVE"]
    if not whole:
        sys.exit("no round stayed ACTIVE to its end, see above; try again on a quieter machine")
    told = {name: statistics.median(row[name] for row in whole) for name in ("ratio_p50", "ratio_p99")}
    sys.stdout.write(json.dumps({"median": told, "load": os.getloadavg()[0], "cores": os.cpu_count()}) + "\n")


def measure(made, seconds, rate):
    made.active().station.driver.rate = rate
    node = made.station.node
    node.create_subscription(Float64MultiArray, "bare/commands", lambda _: None, qos("hardware"))
    node.create_subscription(JointTrajectory, "bare/executed", lambda _: None, qos("executed"))
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    began, missed = time.monotonic(), float(made.told("loop")["missed"])
    command = [sys.executable, str(HERE / "bare_node.py"), str(rate), str(seconds)]
    bare = json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    loop = made.told("loop")
    row = {"seconds": round(time.monotonic() - began, 1), "state": made.station.state, "fifo": loop["fifo"]}
    if made.station.state != "ACTIVE":  # then it has done less
        row["fault"] = made.told().get("numbers")
    for name in ("p50", "p99"):
        ours, theirs = float(loop[f"compute_{name}_ms"]), bare[f"compute_{name}_ms"]
        row |= {f"supervisor_{name}_us": round(1e3 * ours), f"bare_{name}_us": round(1e3 * theirs)}
        row[f"ratio_{name}"] = round(ours / theirs, 2)
    row |= {"supervisor_missed": float(loop["missed"]) - missed, "bare_missed": bare["missed"]}
    row |= {"supervisor_period_max_ms": float(loop["period_max_ms"]), "bare_period_max_ms": bare["period_max_ms"]}
    return row


if __name__ == "__main__":
    main(sys.argv[1:])
