"""Arms of serial bus servos: the bus through the vendor's SDK, calibration, and a driver without ROS."""
