"""The tables of newest figures are those of the committed files."""

import newest
import newest_uses


def test_the_pages_are_those_of_the_files():
    for file, text in newest.pages().items():
        assert file.read_text() == text, f"{file.name}: run {newest.COMMAND}"


def test_a_cell_without_a_figure_says_so():
    rows = newest_uses.overview()
    assert any(newest.NEVER in row for row in rows)
    assert all(row.count("|") == rows[0].count("|") for row in rows)
    assert not any("|  |" in row for row in rows[2:])


def test_a_use_of_an_unknown_pair_fails():
    assert all(pair in newest_uses.pairs_of(name) for use in newest_uses.USES for name, pair in use.pairs)
