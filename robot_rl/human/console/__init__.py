"""The operator's web page: camera, take-over, labels, stop, curves."""
