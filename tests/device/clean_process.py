"""A process that forks for each case and learns nothing itself.

Threads of autograd start with the first gradient of a process, and know of no device that comes later: in a process
that runs other tests, too, the pretend device would come too late.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
ERROR = "error.txt"


class CleanProcess:
    """The process, from the other side."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "clean_process.py")]
        env = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def run(self, kind: str, name: str, folder: Path) -> str:
        """What a case of `CASES` ("learner"), a function of `test_pretend_parts` ("part") or of `test_pretend_verbs`
        ("verb") raised; "" for nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind}\t{name}\t{folder}\n")
        self._process.stdin.flush()
        code = self._process.stdout.readline().strip()
        error = folder / ERROR
        return error.read_text() if error.exists() else "" if code == "0" else f"the case ended with {code}"

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=10.0)


def serve(run: Callable[[str, str, Path], None]) -> None:
    """Fork for each line of stdin, and say how the fork ended."""
    for line in sys.stdin:
        kind, name, folder = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(kind, name, Path(folder))
                code = 0
            except BaseException:
                (Path(folder) / ERROR).write_text(traceback.format_exc())
            finally:
                os._exit(code)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


def main() -> None:
    """Learners, parts and verbs, imported once."""
    from robot_rl.types import options

    options.Device = str  # before verbs read it: they refuse a device of another name than torch's own
    sys.path.insert(0, str(HERE))
    import test_pretend_device as learners
    import test_pretend_parts as parts
    import test_pretend_verbs as verbs

    for name in learners.CASES:
        learners.build.find("policy", name.split()[0])

    def run(kind: str, name: str, folder: Path) -> None:
        if kind == "learner":
            learners.run(learners.CASES[name], name.split()[0], folder)
        else:
            parts.pretend_device.load()
            vars(parts if kind == "part" else verbs)[name](folder)

    serve(run)


if __name__ == "__main__":
    main()
