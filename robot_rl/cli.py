"""The command line: robot-rl <verb> [key=value ...]. What a verb needs is imported once its name was read."""

from __future__ import annotations

import difflib
import os
import sys

# NumPy's BLAS reads this as it is loaded. Its threads wait for each other in busy loops: two of them make training by
# PPO six times slower than one beside a busy process, and a fifth slower on an idle machine (docs/worlds/walk.md).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from robot_rl import child
from robot_rl.verbs import answer
from robot_rl.version import VERSION

USAGE = """robot-rl <verb> [key=value ...]

  train         train a policy in simulation             robot-rl train env=pick policy=online/rlpd demos=20
  sweep         many runs at once on Ray                 robot-rl sweep train env=reach seed=0,1,2 policy=online/sac
  tune          search for options with Optuna           robot-rl tune train env=reach 'policy.lr=interval(1e-4,1e-3)'
  hil           teach a robot, a person in the loop      robot-rl hil env=insert human=browser
  classify      learn what success looks like          robot-rl classify logs=[runs/hil/<run>]
  offline       train a policy from a log                robot-rl offline data=log.hdf5 policy=offline/iql
  prefer        a reward from preferences                robot-rl prefer data=log.hdf5 labels=ask
  design        a reward program by trying               robot-rl design codes=[...] -- env=reach total_steps=9000
  eval          evaluate a trained policy, film it       robot-rl eval path=runs/train/<run> episodes=100
  eval ope      estimate its value from a log alone      robot-rl eval ope path=runs/offline/<run> data=log.hdf5
  eval compare  is one run better than another?          robot-rl eval compare "path=[runs/train/a,runs/train/b]"
  eval fas      evaluate it at fewer decisions           robot-rl eval fas path=runs/train/<run>
  eval latency  with answers that come late            robot-rl eval latency path=runs/offline/<run> latency_ms=300
  collect       record episodes                          robot-rl collect env=pick out=pick.hdf5
  export        a policy as an ONNX graph                robot-rl export path=runs/train/<run> out=my_policy
  check         an environment against the contract       robot-rl check env=reach
  data          info, validate, convert or plot a log    robot-rl data info pick.hdf5
  data session  recorded robot sessions                  robot-rl data session convert <bag> out.hdf5 ...
  critic        clips, train, eval, label: progress      robot-rl critic train data=clips/train
  deploy        a policy on a ROS 2 robot, or simulated  robot-rl deploy robot_spec=desk_arm world=reach policy_path=...
  replay        a recorded flight again, bit for bit     robot-rl replay path=runs/flight/<flight>.mcap
  robot new     a card of your robot from URDF or MJCF   robot-rl robot new fr3.urdf name=my_arm
  robot show    the card as a page: model, limits        robot-rl robot show my_arm
  robot safety  what the supervisor takes from it        robot-rl robot safety my_arm
  robot policy  the card of a walking policy of others   robot-rl robot policy walk/policy.yaml robot=my_legs
  robot calibrate  lens and place of its cameras         robot-rl robot calibrate my_arm camera=front pictures=calib
  bench         measure ours against peers               robot-rl bench sac
  doctor        versions, devices, what is missing       robot-rl doctor
  doctor ros    a robot's topics, QoS, clocks, state     robot-rl doctor ros desk_arm
  doctor run    why a run does not learn               robot-rl doctor run runs/train/<run>
  doctor isaac  Isaac Gym and Isaac Lab, checked         robot-rl doctor isaac world=quadruped

robot-rl <verb> --help lists every choice and key. --debug shows the traceback of an error, --json answers in JSON."""

KINDS = {"eval": ("ope", "compare", "fas", "latency"), "doctor": ("ros", "run", "isaac")}
"""Verb -> words that may follow it."""
NAMES = (
    *dict.fromkeys(line.split()[0] for line in USAGE.splitlines() if line.startswith("  ")),
    *(f"eval {kind}" for kind in KINDS["eval"]),
)
"""Of all verbs."""


def main() -> None:
    """Entry point of the console script."""
    child.shield()
    try:
        try:
            arguments = [item for item in sys.argv[1:] if item != "--json"]
            if len(arguments) < len(sys.argv) - 1:
                with answer.document(" ".join(arguments[:1])):
                    _main(arguments)
            else:
                _main(arguments)
        finally:  # Hydra leaves by sys.exit, and what it has printed may still be on its way
            sys.stdout.flush()
    except BrokenPipeError:  # robot-rl … | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _main(arguments: list[str]) -> None:
    debug = "--debug" in arguments
    arguments = [item for item in arguments if item != "--debug"]
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if verb in ("", "-h", "--help", "help"):
        print(USAGE)
        return
    if verb in ("--version", "-V"):
        print(f"robot_rl {VERSION}")
        return
    if verb == "eval" and rest and rest[0] in KINDS["eval"]:
        verb, rest = f"eval {rest[0]}", rest[1:]
    wrong = _no_verb(verb, rest)
    if wrong:
        answer.error(wrong)
        sys.exit(2)
    from robot_rl.verbs.start import start

    start(verb, rest, debug=debug)


def _no_verb(verb: str, rest: list[str]) -> str:
    """What is wrong with the beginning of a line, or ""."""
    kinds = KINDS.get(verb, ())
    if kinds and rest and "=" not in rest[0] and rest[0] not in kinds and (rest[0][0] != "-" or verb == "doctor"):
        if "/" in rest[0]:
            return f"there is no '{verb} {rest[0]}'; did you mean {verb} path={rest[0]}?"
        if {"-h", "--help"} & set(rest):
            return ""
        return f"there is no '{verb} {rest[0]}'{_near(rest[0], kinds)}"
    if verb in NAMES:
        return ""
    if "=" in verb:
        first = rest[0] if rest and rest[0] in NAMES else "train"
        return f"a line begins with a verb: robot-rl {first} {verb} …"
    return f"there is no verb '{verb}'{_near(verb, NAMES)}; robot-rl --help says what each does"


def _near(given: str, known: tuple[str, ...]) -> str:
    found = difflib.get_close_matches(given.lower().lstrip("-"), known, 2)
    return f"; did you mean {' or '.join(found)}?" if found else f"; expected one of {', '.join(known)}"


if __name__ == "__main__":
    main()
