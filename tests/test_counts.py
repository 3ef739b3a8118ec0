"""The papers' printed tables are reproduced, but for what is known not to be, and the page that shows it is current."""

from pathlib import Path

import pytest

from benchmarks import counts
from smelt import budget, papers, variants
from smelt.errors import BadInput

FOUND = counts.counts()


@pytest.mark.parametrize("count", FOUND, ids=lambda count: f"{count.model}: {count.quantity}")
def test_a_printed_number_is_reproduced_unless_it_is_known_not_to_be(count):
    assert count.reproduces == ((count.model, count.quantity) not in counts.KNOWN_MISSES)


def test_every_known_miss_is_shown():
    assert {(count.model, count.quantity) for count in FOUND if not count.reproduces} == counts.KNOWN_MISSES


def test_every_printed_number_of_the_sparse_smelt_rows_is_held_against_a_count():
    sparse = [c for c in FOUND if c.table == "SMELT" and c.model.endswith("experts") and " 16 " not in c.model]
    assert len(sparse) == 6 * 5


RUNS = [*papers.FOIL_TIED, *papers.FOIL_UNTIED, *papers.FOIL_LARGE]


@pytest.mark.parametrize("run", RUNS)
def test_every_registered_run_of_foil_has_the_parameters_of_its_released_formula(run):
    arch = papers.foil_run(run)
    d_model, d_ff = (1792, 4608) if "L" in run else (1024, 3072)
    main = papers.FOIL_LARGE.get(run, run)
    untied = main.startswith("U")
    num_experts, num_layers, num_passes = (papers.FOIL_UNTIED if untied else papers.FOIL_TIED)[main]
    outer = 4 if run == "S15" else 2
    attention_sets = num_layers * (num_passes if untied else 1) + outer
    experts = num_experts * num_layers + 8 * outer
    expected = 2 * 49_152 * d_model + attention_sets * 4 * d_model**2 + experts * (3 * d_model * d_ff // 2 + d_model)
    assert budget.params(arch).total == expected


def test_foils_runs_are_22_shapes_and_two_of_them_differ_in_their_ends_alone():
    assert len(papers.FOIL_TIED) == 19
    assert papers.FOIL_TIED["S15"] == papers.FOIL_TIED["S1"]
    assert len({papers.foil_run(run) for run in RUNS}) == len(RUNS)
    assert papers.foil_run("S14").loop.num_passes == 1


def test_an_unregistered_run_or_tier_is_refused():
    with pytest.raises(BadInput, match="registers no run 'L5': choose S1 to S15"):
        papers.foil_run("L5")
    with pytest.raises(BadInput, match="registers no tier 'huge': choose one of pilot, main, large"):
        papers.foil(8, 8, 2, untied=False, tier="huge")


def test_looped_moe_and_no_other_paper_has_mup():
    listed = counts.architectures()
    scaled = [label for label, arch in listed.items() if arch.mup_base_width is not None]
    assert scaled == [label for label in listed if label.endswith("d 704")]
    assert len(scaled) == 6


def test_more_heads_and_views_keep_what_is_computed_by_experts():
    one = papers.multi_view_backbone()
    both = variants.multi_view(variants.multi_router(one))
    assert budget.expert_budget(both) == budget.expert_budget(one)
    grown = budget.params(both).total - budget.params(one).total
    assert grown == 24 * 1024 * (256 + 512)


def test_the_page_of_counts_is_what_the_command_prints():
    page = Path(__file__).parent.parent / "docs" / "counts.md"
    assert page.read_text() == counts.markdown(FOUND), "run python -m benchmarks.counts > docs/counts.md"
