"""A wrong command line is answered with one readable paragraph that says how to mend it, and leaves nothing behind."""

import shlex
import textwrap
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from robot_rl import cli
from robot_rl.verbs.compose import find_wrong_name, find_wrong_value
from robot_rl.verbs.data import name_positions
from robot_rl.verbs.items import quote_signs

# line -> what the answer has to hold: the fix, or the range
WRONG = r"""
trian env=reach -> did you mean train?
evaluate path=x -> robot-rl --help
eval opee path=x -> did you mean ope?
doctor rso -> did you mean ros?
train total_steps -> did you mean train total_steps=<...>?
train reach -> expected key=value
train "env=reach -> quotes or brackets do not match
train policy.hidden=[256,256 -> quotes or brackets do not match
train total_stepz=5 -> did you mean total_steps?
train updates=5 -> did you mean total_steps?
train polizy.lr=1 -> did you mean policy?
train =reach -> has no name before the equal sign
train ++env=reach -> force-add of config groups is not supported: '++env=reach'
train policy={_target_:os.system} -> policy
bench sac +quick=true -> remove + prefix: 'quick=true'
doctor ros=maybe -> robot-rl doctor takes no options
train zzz=1 -> all keys: robot-rl train --help
train total_steps=-5 -> expected a whole number of at least 1
train total_steps=0 -> expected a whole number of at least 1
train total_steps=many -> expected a whole number of at least 1
train total_steps= -> expected a whole number of at least 1
train checkpoint_every=-1 -> expected a whole number of at least 0
train seed=-1 -> expected a whole number of at least 0
train seed=1.5 -> expected a whole number of at least 0
train seed=true -> seed is true, expected a whole number
train num_envs=0 -> expected a whole number of at least 1
train device=gpu9 -> expected cpu, cuda, or cuda:<number>
train gamma=1.5 -> expected a number in [0, 1]
train threads=-1 -> expected a whole number of at least 0
train updates_per_step=-1 -> expected a number of at least 0
train eval_episodes=0 -> expected a whole number of at least 1
train stop_success=2 -> expected a number in [0, 1] or null
train demo_share=1 demos=5 -> expected a number in (0, 1)
train trust=maybe -> expected true or false or changed
train -m seed=0,x -> 'x' in one of the runs, expected a whole number of at least 0
train -m seed=range(0,2,0.5) -> '0.5' in one of the runs, expected a whole number of at least 0
train policy=online/sca -> did you mean online/sac
data convert log.hdf5 out=log.csv -> .csv files are not written; a name with .hdf5 becomes a D4RL file
data info lög&1.hdf5 -> lög&1.hdf5 does not exist
train env=raech --help -> did you mean reach
train policy=./none.py:Learner --help -> expected <file>.py:<name>
train policy=null -> policy is one of
train policy=./none.py:Learner -> expected <file>.py:<name>
train policy=no_such_module:Learner -> there is no module 'no_such_module'
train env=raech -> did you mean reach
train engine=warpp -> did you mean warp?
train track=file -> did you mean files?
train preset=demos -> did you mean demo?
train rewarder=critc -> did you mean critic?
train policy.lrr=1e-3 -> did you mean lr
train policy.gamma=0.9 -> gamma=… (without policy.) sets it for the whole run
train policy.seed=3 -> seed=… (without policy.) sets it for the whole run
train policy.device=cuda -> device=… (without policy.) sets it for the whole run
train policy=offline/bc policy.gamma=0.9 -> gamma=… (without policy.)
train policy.batch_size.rows=3 -> policy.batch_size is a value
train policy.lr=fast -> policy.lr is 'fast', expected a number
train policy.batch_size=1.5 -> expected a whole number
train policy=offline/iql policy.lr=0 -> expected a number in (0, 1)
train policy=offline/iql policy.expectile=2 -> expected a number in (0, 1)
train policy=offline/iql policy.hidden=[256,0] -> expected a list, each a whole number of at least 1
train policy=offline/iql policy.kernel=fastest -> expected one of auto, explicit or autograd
train policy=contrib/tdmpc2 policy.horizon=0 -> expected a whole number of at least 1
train policy=contrib/simba policy.tau=0 -> expected a number in (0, 1]
train policy=contrib/dt policy.dropout=-1 -> expected a number in [0, 1)
train advantage=gae -> policy.advantage is no option of online/sac
train env.raech=3 -> env.raech is no option of mujoco
train env.look.seed=3 -> env.look is null, so that seed cannot be set alone
train env.world.rewards=sparse -> did you mean reward?
train env.world.seconds=0 -> env.world.seconds is 0, expected a number above 0
train track.tensorbord=true -> did you mean tensorboard?
train resume=runs/train/none -> expected a run folder
train init=runs/offline/none -> the folder does not exist
offline -> data=<
offline data=none.hdf5 -> none.hdf5 does not exist
offline data=none.hdf5 updates=0 -> expected a whole number of at least 1
offline data=none.hdf5 reward=minus_on -> did you mean minus_one?
offline data=none.hdf5 top_fraction=0 -> expected a number in (0, 1]
offline data=none.hdf5 policy=offline/iqll -> did you mean offline/iql
offline data=none.hdf5 policy.seeds=0 -> expected a whole number of at least 1
offline data=none.hdf5 estimate=sometimes -> expected a whole number of at least 0 or auto
offline data=none.hdf5 total_steps=5 -> did you mean updates?
offline data=none.hdf5 ope=null -> estimate=0 for no estimate
offline data=none.hdf5 ope.members=0 -> ope.members is 0, expected a whole number of at least 1
hil demo_share=1 -> expected a number in [0, 1)
hil task_reward=sucess -> did you mean success?
hil realtime=20 -> take role=actor
hil task_reward=labels -> Take human=browser
hil human=scriptd -> did you mean scripted?
hil human.skill=2 -> human.skill is 2, expected a number in [0, 1]
hil link.speed=0 -> link.speed is 0, expected a number above 0
hil link.sped=1 -> did you mean speed?
eval -> path=<
eval path=none -> the folder does not exist
eval path=none episodes=0 -> expected a whole number of at least 1
eval policy=sb3 path=agent.zip -> add env=
eval path=[none,nowhere] -> expected one path (robot-rl eval compare takes several)
robot new arm.urdf name=../arm -> expected letters, digits, _, - and . only
eval ope path=none data=none.hdf5 methods=[fqee] -> did you mean fqe?
eval ope path=none data=none.hdf5 confidence=1 -> expected a number in (0, 1)
eval compare path=none -> compare takes two runs or more
eval compare path=[none,nowhere] episodes=0 -> expected a whole number of at least 1
eval fas path=none episodes=0 -> expected a whole number of at least 1
eval latency path=none latency_kind=normal -> expected one of const, uniform or lognormal
eval latency path=none compensation=[queues] -> did you mean queue?
collect -> out=<
collect out=x.hdf5 episodes=0 -> expected a whole number of at least 1
collect out=x.hdf5 level=mediun -> did you mean medium
check env=reach steps=0 -> expected a whole number of at least 1
data inf none.hdf5 -> did you mean info?
data info none.hdf5 control_hz=0 -> expected a number above 0 or null
data validate none.hdf5 batch=0 -> expected a whole number of at least 1
data convert none.hdf5 out=x.store to=stor -> did you mean store?
data info none.hdf5 image_size=[0,10] -> [height,width]
data session convertt a b -> expected one of convert, join, recover
critic tain -> did you mean train?
critic clips -> out=<folder to write>
critic train data=none calibration=1 -> expected a number in (0, 1)
critic train data=none critic.lr=0 -> expected a number in (0, 1)
critic label path=none data=none out=x mode=potentiall -> did you mean potential?
classify logs=[none] calibrate_share=0.5 test_share=0.5 -> expected a sum below 0.9
classify logs=[none] classifier.lr=-1 -> classifier.lr is -1
prefer data=none.hdf5 pairs=3 -> expected a whole number of at least 10
prefer data=none.hdf5 rule=entropi -> did you mean entropy?
design -> codes=[
design codes=[1] rounds=0 -> expected a whole number of at least 1
deploy robot_spec=fr4 -> there is no robot 'fr4'
deploy robot_spec=desk_arm world=raech -> did you mean reach
deploy robot_spec=desk_arm teleop=joyy -> did you mean joy?
deploy robot_spec=desk_arm rate=0 -> expected a number above 0
deploy robot=fr4 -> did you mean robot_spec?
replay -> path=<
replay none.mcap -> did you mean path=none.mcap?
replay path=none.mcap -> there is no flight at none.mcap
replay path=/etc/hostname -> does not begin like an MCAP file
replay path=none.mcap only=supervisr -> did you mean supervisor?
replay path=none.mcap limits.velocity=fast -> limits.velocity=0.5
replay path=none.mcap limit=3 -> did you mean limits?
bench sacc -> did you mean sac?
sweep trian seed=0,1 -> train or offline
sweep train seed=0,1 --cpu=2 -> did you mean cpus
sweep train seed=0,1 --retries=-1 -> expected a whole number of at least 0
tune env=reach policy.lr=interval(1e-4,1e-3) -> a search is of train or offline
tune train env=reach -> nothing is searched
tune train env=reach policy.lr=interval(1e-4,1e-3) --trial=3 -> did you mean trials
tune train env=reach policy.lr=interval(1e-3,1e-4) -> the first end is not below the second
tune train env=reach policy.lr=tag(log,interval(0,1e-4)) -> its ends have to be above 0
tune train resume=x policy.lr=interval(1e-4,1e-3) -> resume belongs to a single run
tune train env=reach policy.lr=interval(1e-4 -> cannot be read
tune train env=reach seed=1 policy.lr=1e-4,1e-3 --seeds=2 -> leave seed= out
doctor isaac world=quadrupet -> did you mean quadruped?
doctor isaac num_envs=0 -> expected a whole number of at least 1
doctor ros desk_arm listen=0 -> expected a number above 0
doctor ros fr4 -> there is no robot 'fr4'
train --total_steps=5 -> written without dashes, as key=value: total_steps=5
train -total_steps 5 -> written without dashes, as key=value: total_steps=5
train --hepl -> did you mean --help?
train total_steps=5,000 -> a number is written total_steps=5000
train gamma=0,99 -> a number is written gamma=0.99
train policy.hidden=256,256 -> a list is written policy.hidden=[256,256]
train policy.hidden=256 -> expected a list, each a whole number
train policy.hidden=[] -> such as hidden=[256,256]
train env=reach,pick -> one run for each needs -m
offline data=a.hdf5,b.hdf5 -> one run for each needs -m
train ~policy -> choose another with policy=…
train +foo=3 -> has no key 'foo'
train +total_stepz=3 -> did you mean total_steps?
env=reach train -> a line begins with a verb: robot-rl train env=reach
trainenv=reach -> a line begins with a verb
train policy@foo=online/sac -> policy=online/sac
train total_steps:=5 -> here it is total_steps=5
train total_steps = 5 -> did you mean train total_steps=<...>?
train rewarder.keep=1 -> choose one first with rewarder=<name>
train env.world=pick -> a world is chosen with env=pick
train policy=SAC -> did you mean online/sac
train policy=sac -> did you mean online/sac
train env=gym -> id=<Gymnasium id>
train policy=online/her env=pendulum -> env=gym id=FetchReach-v4
train policy=online/her env=pick -> env.world.reward=sparse
train policy=online/her env=reach n_step=3 -> use n_step=1
train policy=online/her env=reach workers=2 -> use workers=0
train policy=sequence/srl env=reach workers=2 -> without previous_action of every step
train policy=online/her env=reach rewarder=program rewarder.code="norm(tip_to_goal)" -> without pictures, rewarder
train policy=online/her policy.hindsight=0 -> expected a whole number of at least 1
hil policy=online/her human=scripted -> use policy=human/imitation_sac
train env=gym id=Pendulum -> similar: Pendulum-v1
train env.camera_size=84 -> [height,width]
train policy.value_range=[1,-1] -> the first is not below the second
train env=quadruped env.world.forward=[1,0] -> the first is above the second
train env=pendulum env.world.mass=-1 -> env.world.mass is -1, expected a number above 0
train policy=online/fast_td3 policy.bins=1 -> expected a whole number of at least 2
train policy=offline/cql policy.clip_low=low -> expected a number or null
train resume= -> resume= is empty
train output=/proc/x total_steps=5 -> /proc/x
hil judge=none -> belong together; give both or neither
hil +takeover.hold=200 -> did you mean hold_ms
eval path= -> path= is empty
eval path=. -> expected a run folder
eval runs/train/x -> did you mean eval path=runs/train/x?
eval path=none action=normal -> did you mean normalised?
eval fas path=none action_low=-1 -> expected for both
eval latency path=none action_low=2 action_high=1 -> the first below the second
eval fas path=none largest=-1 -> expected a number above 0
offline log.hdf5 -> did you mean data=log.hdf5?
offline data=/etc/hostname -> is not an HDF5 file
collect env=reach out=x.csv -> a .hdf5 file, or a folder
collect env=gym id=Pendulum-v1 out=x.hdf5 -> path=runs/train/<run>
classify logs=runs/x -> expected a list
deploy desk_arm.yaml -> did you mean robot_spec=desk_arm.yaml?
deploy robot_spec=desk_arm sim=flase -> expected true or false
deploy robot_spec=desk_arm action=raw -> expected nothing or normalised
deploy robot_spec=desk_arm action_low=-1 -> give both or neither
deploy robot_spec=desk_arm policy_path=runs/none -> policy_path is runs/none, which is no folder
doctor ros desk_arm wigle=true -> did you mean wiggle?
bench sac +foo=1 -> it takes no options
train id=HalfCheetah-v5 -> add env=gym
eval path=. id=HalfCheetah-v5 -> add env=gym
check preset=Pendulum-v1 -> has no key 'preset'
collect env=reach steps=100 out=x.hdf5 -> has no effect without level=
collect env=reach level=random episodes=5 out=x.hdf5 -> has no effect with level=
collect path=none noise=0.1 out=x.hdf5 -> a policy acts here
critic eval path=[a,b] data=x -> takes one path
robot bounds fr4 -> there is no robot 'fr4'
design codes=[x] -- env=rich -> did you mean reach?
design codes=[x] -- env=reach total_step=5 -> did you mean total_steps
"""
LINES = [tuple(line.split(" -> ")) for line in WRONG.strip().splitlines()]


def said(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit code and what is written to the terminal, in a process that goes on."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["robot-rl", *(shlex.split(line) if '"' not in line else line.split())])
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), capsys.readouterr().err


def test_there_are_enough_lines_over_all_verbs() -> None:
    assert len(LINES) >= 92
    verbs = {"train", "offline", "hil", "eval", "collect", "check", "data", "critic", "classify", "prefer", "design"}
    assert verbs | {"deploy", "bench", "sweep", "doctor"} <= {line.split()[0] for line, _ in LINES}


@pytest.mark.parametrize(("line", "fix"), LINES, ids=[line for line, _ in LINES])
def test_a_wrong_line_gets_one_paragraph_with_its_fix(
    line: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(line, tmp_path, monkeypatch, capsys)
    assert code == 2, text
    paragraph = text.strip()
    assert paragraph.startswith("robot-rl: ")
    assert "\n\n" not in paragraph
    assert len([row for part in paragraph.splitlines() for row in textwrap.wrap(part, 100)]) <= 6
    assert fix in paragraph
    for bare in ("Traceback", "Error", "Errno", "hydra", "--debug", "object has no attribute"):
        assert bare not in paragraph
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("item", "read"),
    [
        ("data=/home/jürgen/a log#2.hdf5", "/home/jürgen/a log#2.hdf5"),
        ("path=[runs/ä,runs/R&D,runs/b]", ["runs/ä", "runs/R&D", "runs/b"]),
        ("data=plain log.hdf5", "plain log.hdf5"),
        ("lr=interval(1e-5,1e-2)", None),
    ],
)
def test_signs_of_file_names_need_no_quotes(item: str, read: object) -> None:
    (quoted,) = quote_signs([item])
    if read is None:
        assert quoted == item
    else:
        assert OverridesParser.create().parse_override(quoted).value() == read


@pytest.mark.parametrize(
    "item",
    [
        "seed=range(0,3)", "seed=choice(0,1)", "stop_success=null,0.9", "total_steps=1e3,2e3", "name=1,2",
        "cameras=[front],[side]", "policy=choice(online/sac,online/ppo)", "policy=glob(online/*)",
    ],
)  # fmt: skip
def test_several_values_are_read_as_hydra_gives_them_to_the_runs(item: str) -> None:
    assert find_wrong_value("train", ["-m", item]) == ""
    assert find_wrong_name("train", ["-m", item]) == ""


def test_a_name_with_an_apostrophe_is_read() -> None:
    assert name_positions(["info", "it's.hdf5"]) == ["what='info'", 'path="it\'s.hdf5"']
