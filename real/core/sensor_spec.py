"""Topics that tell how a robot is, and what it sees."""

from __future__ import annotations

from dataclasses import dataclass

from robot_rl.types.card import CalibrationCard

CLOCKS = ("auto", "common", "foreign")
FREE, RATE = "free", "rate"


@dataclass(frozen=True)
class SensorSpec:
    """One topic that is read.

    Args:
        topic: its name.
        type: of its messages.
        required: nothing moves without it.
        timeout: largest age [s].
        clock: `auto` believes the stamps of senders on this host and estimates the offset of others; `common` believes
            them too, e.g. of hosts under PTP; `foreign` estimates always, for stamps that are not of the host's clock.
        acceleration: of an IMU: None = as an accelerometer reads, 9.81 m/s2 upwards at rest; `free` = without gravity;
            `rate` = how its velocity changes in its own frame, which turns with it, without gravity.

    Source: of `rate`, the IMU sensor of Isaac Sim with readGravity off, which differentiates the velocity in the
    sensor's frame; what an accelerometer feels differs from that by angular velocity x velocity, too.
    """

    topic: str
    type: str
    required: bool = True
    timeout: float = 0.1
    clock: str = "auto"
    acceleration: str | None = None

    @property
    def kind(self) -> str:
        """Message type as "package/Name", however it was written."""
        return self.type.replace("/msg/", "/")

    def wrong(self) -> str:
        """What cannot be used, or ""."""
        if self.clock not in CLOCKS:
            return f"clock is {self.clock!r}, expected one of {', '.join(CLOCKS)}"
        if self.acceleration is None or (self.acceleration in (FREE, RATE) and self.type.endswith("Imu")):
            return ""
        return (
            f"acceleration is {self.acceleration!r} of a {self.type}; expected {FREE} or {RATE} of a sensor_msgs/Imu "
            "whose driver takes gravity out, or nothing"
        )


@dataclass(frozen=True)
class CameraSpec(SensorSpec):
    """A topic of pictures, and where points fall in them where that is known: `robot-rl robot calibrate`."""

    calibration: CalibrationCard | None = None
