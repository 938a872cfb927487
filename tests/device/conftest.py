"""The process in which the pretend device lives."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import pretend_device
from clean_process import CleanProcess


@pytest.fixture(scope="module")
def clean() -> Iterator[CleanProcess]:
    """A process that has learnt nothing yet."""
    pretend_device.build()
    made = CleanProcess()
    yield made
    made.close()
