"""The tests marked `timing` again and again, with one busy core and without SCHED_FIFO: how often the machine stalls.

    python tests/real/timing_runs.py [runs=20] [busy=1] [fifo=false] [paths=tests/real/ros]

A run that fails, or more than two stalls in all, fails the whole.
"""

import contextlib
import ctypes
import os
import re
import resource
import subprocess
import sys
import time

PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23


def ordinary():
    """In the child: nobody below may ask for SCHED_FIFO, root neither."""
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0)


def main(arguments):
    given = dict(item.split("=", 1) for item in arguments)
    runs, busy, fifo = int(given.get("runs", 20)), int(given.get("busy", 1)), given.get("fifo", "false") == "true"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "timing and not slow"]
    command += given.get("paths", "tests/real/ros").split()
    stalls = failed = 0
    with contextlib.ExitStack() as stack:
        for _ in range(busy):
            spinner = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
            stack.callback(subprocess.Popen([sys.executable, "-S", "-c", spinner]).kill)
        for run in range(runs):
            begin = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, preexec_fn=None if fifo else ordinary)
            found = re.search(r"machine stalls: (\d+)", done.stdout)
            stalls += int(found[1]) if found else 0
            failed += done.returncode != 0
            last = (done.stdout.strip().splitlines() or [done.stderr])[-1]
            load = os.getloadavg()[0]
            sys.stdout.write(f"{run + 1}/{runs}: {last} in {time.monotonic() - begin:.0f} s, load {load:.1f}\n")
            told = [
                line
                for line in done.stdout.splitlines()
                if line.startswith(("FAILED", "ERROR")) or " ms late; " in line
            ]
            sys.stdout.writelines(f"    {line}\n" for line in told)
            sys.stdout.flush()
            if done.returncode:
                with open(f"timing_run_{run + 1}.txt", "w") as out:
                    out.write(done.stdout)
    sys.stdout.write(f"{runs} runs, {failed} failed, {stalls} stalls\n")
    return int(failed > 0 or stalls > 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
