"""The papers' printed tables are reproduced, but for what is known not to be, and the page that shows it is current."""

from pathlib import Path

import pytest

from benchmarks import counts

FOUND = counts.counts()


@pytest.mark.parametrize("count", FOUND, ids=lambda count: f"{count.model}: {count.quantity}")
def test_a_printed_number_is_reproduced_unless_it_is_known_not_to_be(count):
    assert count.reproduces == ((count.model, count.quantity) not in counts.KNOWN_MISSES)


def test_every_known_miss_is_shown():
    assert {(count.model, count.quantity) for count in FOUND if not count.reproduces} == counts.KNOWN_MISSES


def test_every_printed_number_of_the_sparse_smelt_rows_is_held_against_a_count():
    sparse = [c for c in FOUND if c.table == "SMELT" and c.model.endswith("experts") and " 16 " not in c.model]
    assert len(sparse) == 6 * 5


def test_the_page_of_counts_is_what_the_command_prints():
    page = Path(__file__).parent.parent / "docs" / "counts.md"
    assert page.read_text() == counts.markdown(FOUND), "run python -m benchmarks.counts > docs/counts.md"
