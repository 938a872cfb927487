"""The fault table against a driver that is not ours: default timeouts, and stop times by what the joints truly did.

Row 43 is test_deploy's soak.
"""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

import fault_rows_programs  # noqa: F401  (they fill ROWS)
import fault_rows_robot  # noqa: F401
import fault_rows_sources  # noqa: F401
import pytest
from fault_table import ROWS, prove
from foreign_cell import Cell

pytestmark = [pytest.mark.ros, pytest.mark.timing, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def kept(processes):
    """The cell of the row before, if the next wants one of its kind and both are well."""
    made = {}

    def get(options):
        key = repr(options)
        old = made.get(key)
        if old is None or old.replace or old.supervisor.poll() is not None:
            for one in made.values():
                one.close()
            made.clear()
            given = {**options, "parameters": (*options.get("parameters", ()), "max_rearm_per_minute:=1000")}
            made[key] = Cell(processes, **given)
            if "use_sim_time" not in key:
                made[key].idle()
        return made[key]

    yield get
    for one in made.values():
        one.close()


def _table():
    for one in sorted(ROWS, key=lambda item: repr(item.cell)):  # one supervisor for all of a kind
        for trial in (1, 2, 3):
            marks = [] if one.first and trial == 1 else [pytest.mark.slow]
            yield pytest.param(one, id=f"{one.name}-{trial}", marks=marks)


@pytest.mark.parametrize("row", _table())
def test_a_fault_ends_as_the_table_says_and_the_robot_stands_in_time(kept, row, record_property):
    made = kept(row.cell)
    if "use_sim_time" not in repr(row.cell):
        made.home()
    try:
        stood = prove(made, row)
    except BaseException:
        made.replace = True
        raise
    made.replace |= "use_sim_time" in repr(row.cell)  # there is no way home on a clock that stands
    if stood is not None:
        record_property("stood_after_s", f"{stood[0]:.3f}")
        record_property("allowed_s", f"{stood[1]:.3f}")
