"""Tables of bench results."""

from benchmarks.report import table


def test_table_aligns_rows_of_either_form() -> None:
    expected = ["name  ratio", "----  -----", "a     2", "bb    0.5", "threads: 1"]
    assert (
        table({"rows": [{"name": "a", "ratio": 2}, {"name": "bb", "ratio": 0.5}], "threads": 1}).split("\n") == expected
    )
    assert table({"rows": {"a": {"ratio": 2}, "bb": {"ratio": 0.5}}, "threads": 1}).split("\n") == expected
    assert table({"a": {"ratio": 2}, "bb": {"ratio": 0.5}, "threads": 1}).split("\n") == expected
