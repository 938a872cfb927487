"""The version of the package; read by setup.py without importing it."""

VERSION = "0.1.0"
