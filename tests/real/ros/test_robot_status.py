"""What a driver that is not ours tells of itself, as the RobotSpec maps it: who may move, and what is an e-stop."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

import pytest
from fault_table import ACCELERATION, POSITION, TICK, VELOCITY, now
from ros_harness import RT, SUPERVISOR, wait
from std_msgs.msg import Bool, UInt8

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.core.status_spec import StatusSpec
from robot_rl.real.ros.io import qos
from robot_rl.real.ros.robot_status import message_kind

pytestmark = [pytest.mark.ros, pytest.mark.timeout(200)]
UR = """
status:
  safety_mode: {topic: io_and_status_controller/safety_mode, type: std_msgs/UInt8, good: [1, 2], estop: [6, 7]}
  program: {topic: io_and_status_controller/robot_program_running, type: std_msgs/Bool, good: [true]}
"""
"""As UR's driver has them, with std_msgs/UInt8 for ur_dashboard_msgs/SafetyMode, of which PyPI has no wheel."""
REPEATED = "  mode: {topic: robot_mode, type: std_msgs/UInt8, good: [2], timeout: 0.3}\n"
NORMAL, PROTECTIVE_STOP, EMERGENCY_STOP = 1, 3, 6
STOP = VELOCITY / ACCELERATION + 2 * TICK + 2 / 200.0 + 0.05  # and a message's way


class Modes:
    def __init__(self, made):
        node = made.driver.broadcaster
        self.safety = node.create_publisher(UInt8, "io_and_status_controller/safety_mode", qos("latched"))
        self.program = node.create_publisher(Bool, "io_and_status_controller/robot_program_running", qos("latched"))

    def tell(self, safety=NORMAL, program=True):
        self.safety.publish(UInt8(data=safety))
        self.program.publish(Bool(data=program))


def refused(made):
    return made.station.diagnostic("safety_supervisor: safety")[1]


def check_fault(made, since, *, within, numbers):
    """The robot has come to rest by the driver's truth, and the fault says why."""
    assert made.stopped_after(since) < within
    made.station.wait_state("FAULT")
    made.station.until(lambda: made.fault() == "robot_status", what="the fault")
    assert numbers in made.told()["numbers"]
    made.station.quiet()


def test_driver_that_tells_its_modes_is_enabled_stopped_and_reset_by_them(cell):
    made = cell(spec=POSITION + UR)
    made.station.connected().wait_state("STARTUP", limit=60.0)
    made.station.until(
        lambda: "status safety_mode: nothing heard on io_and" in refused(made), what="what is waited for"
    )
    modes = Modes(made)
    modes.tell(program=False)
    made.station.until(lambda: "status program is False, expected True" in refused(made), what="the value")
    assert not made.station.enable().success
    modes.tell()
    made.moving()
    since = now()
    modes.tell(PROTECTIVE_STOP)
    check_fault(made, since, within=STOP, numbers="safety_mode is 3, expected 1 or 2")
    assert "safety_mode is 3" in made.station.reset().message
    modes.tell()
    wait(lambda: made.station.reset().success, what="a reset")
    made.home().moving()
    since = now()
    modes.tell(EMERGENCY_STOP)
    assert made.stopped_after(since) < STOP
    made.station.wait_state("ESTOP")
    assert "estop_robot_safety_mode" in made.told()["faults"]
    made.station.quiet()
    assert not made.station.reset().success
    modes.tell()
    made.station.wait_state("ESTOP")  # the value's end clears nothing
    wait(lambda: made.station.reset().success, what="a reset")
    made.check_commands()


def test_value_that_is_repeated_and_falls_silent_stops_the_robot(cell):
    made = cell(spec=f"{POSITION}\nstatus:\n{REPEATED}")
    out = made.driver.broadcaster.create_publisher(UInt8, "robot_mode", qos("state"))
    repeat = made.driver.broadcaster.create_timer(0.05, lambda: out.publish(UInt8(data=2)))
    made.moving()
    since = now()
    repeat.cancel()
    check_fault(made, since, within=0.3 + STOP, numbers="nothing on robot_mode for")
    assert "allowed 0.3 s" in made.station.reset().message
    repeat.reset()
    wait(lambda: made.station.reset().success, what="a reset")
    made.home().moving()


def test_simulated_robot_tells_good_values_so_that_the_card_can_be_rehearsed(processes, station):
    (processes.folder / "ur.yaml").write_text((processes.folder / "arm.yaml").read_text() + UR + REPEATED)
    processes.start("sim_robot_node", RT, spec="ur.yaml")
    processes.start("safety_supervisor_node", *SUPERVISOR, spec="ur.yaml")
    station.connected().wait_state("IDLE", limit=60.0)
    wait(lambda: station.enable().success, what="enable")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"good": []}, "good is empty"),
        ({"good": 1}, "expected a list of values"),
        ({"estop": [2, 6]}, "2 is in good and in estop"),
        ({"timeout": 0.0}, "timeout is 0.0, expected seconds > 0"),
    ],
)
def test_status_that_cannot_be_is_refused(change, words):
    table = {"topic": "safety_mode", "type": "std_msgs/UInt8", "good": [1, 2], **change}
    joint = {"name": "j", "lower": -1.0, "upper": 1.0, "velocity": 1.0, "acceleration": 5.0, "effort": 1.0}
    with pytest.raises(ValueError, match=words):
        RobotSpec.from_dict({"name": "arm", "joints": [joint], "status": {"safety": table}})


def test_type_that_is_not_installed_and_field_that_is_not_there_are_named():
    with pytest.raises(ValueError, match="'ur_dashboard_msgs/SafetyMode' is not installed here"):
        message_kind("safety", StatusSpec("safety_mode", "ur_dashboard_msgs/SafetyMode", (1,), field="mode"))
    with pytest.raises(ValueError, match=r"status.safety.field is 'mode', and std_msgs/UInt8 has data"):
        message_kind("safety", StatusSpec("safety_mode", "std_msgs/UInt8", (1,), field="mode"))
