"""Tables for people."""

from moonpool.cli.tables import table_text


def test_numbers_stand_on_the_right_and_text_on_the_left() -> None:
    lines = table_text(("key", "bytes"), [("a", 1000), ("long", 7)]).splitlines()
    assert lines[0].split() == ["key", "bytes"]
    assert lines[2].endswith("1,000")
    assert lines[3].startswith("long")
    assert lines[3].endswith("    7")


def test_markup_in_a_cell_is_shown_as_it_is() -> None:
    assert "[red]x" in table_text(("key",), [("[red]x",)])


def test_no_rows_is_a_heading() -> None:
    assert table_text(("key",), []).splitlines()[0] == "key"
