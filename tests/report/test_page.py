"""The page: one file that loads nothing, gives the answer first and hides no failure."""

import copy
import json
import math
import re
from html.parser import HTMLParser

import pytest

from smelt import analysis, ledger, prediction, variants
from smelt.analysis import LOSS
from smelt.errors import BadInput
from smelt.experiment import Experiment
from smelt.launch.folder import Status
from smelt.report import evidence, page, words
from tests import synthetic

DOCSTRING = """Do scaled heads save compute?

Prediction  the interval includes 0. Written before.
Varies      size x FLOPs.      Fixed  the rest.
Found       see below.
"""


class Reading(HTMLParser):
    """Tags with their attributes, ids, and the text outside of figures."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.parts, self.inside = [], [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.parts).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        if tag in ("style", "svg"):
            self.inside.append(tag)

    def handle_endtag(self, tag):
        if tag in ("style", "svg"):
            self.inside.remove(tag)

    def handle_data(self, data):
        if not self.inside:
            self.parts.append(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The page of a finished grid with a diverged run, a failed one, a hit and a miss, through its run folders."""
    root = tmp_path_factory.mktemp("runs")
    design = synthetic.planted_grid()
    grid_cells = [cell for cell in design.cells if cell.role == "grid"]
    diverged, failed = grid_cells[7].run.run_id, grid_cells[12].run.run_id
    rows = [r for r in synthetic.planted_rows(design, saving=0.08, diverged=[diverged]) if r["run_id"] != failed]
    for row in rows:
        ledger.write(root / "planted" / row["run_id"], row)
    curve = [json.dumps({"step": step, "lr": 0.01, "loss_nats": 5.0 / (step + 1)}) for step in range(50)]
    torn = root / "planted" / grid_cells[0].run.run_id / "metrics.jsonl"
    torn.write_text("\n".join(curve) + '\n{"step": 50, "lo')
    known = [row for row in rows if row["role"] != "prediction"]
    predicted = prediction.predict(known, prediction.targets(design), "baseline", draws=100)
    missed = copy.deepcopy(rows)
    next(r for r in missed if r["role"] == "prediction" and r["variant"] == "scaled_heads")[LOSS] += 0.1
    found = analysis.analyse(missed, "baseline", draws=100)

    def status_of(cell):
        if cell.run.run_id == failed:
            return Status("failed", "MemoryError: 3 GB asked for")
        return Status("diverged" if cell.run.run_id == diverged else "finished")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMELT_RUNS", str(root))
        experiment = Experiment(name="planted", path=root / "planted.py", docstring=DOCSTRING, grid=design)
        out = page.write_experiment(
            experiment,
            missed,
            found,
            root / "report.html",
            status_of=status_of,
            prediction={**predicted, "written_at": "2026-11-30T11:00:00+00:00"},
        )
    return out, Reading(out.read_text()), found, diverged, failed


@pytest.mark.smoke
def test_a_page_loads_nothing(whole):
    text, reading = whole[0].read_text(), whole[1]
    assert "http" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert not {"script", "link", "img", "iframe", "object", "image"} & {tag for tag, _ in reading.tags}
    for _, attributes in reading.tags:
        assert not {"src", "srcset", "data"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")


def test_ids_are_unique_and_every_reference_has_its_target(whole):
    text, ids = whole[0].read_text(), whole[1].ids
    assert len(ids) == len(set(ids))
    referenced = {one or other for one, other in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)}
    assert len(referenced) > 20
    assert referenced <= set(ids)


def test_the_answer_stands_before_everything_else(whole):
    reading, found = whole[1], whole[2]
    sentence = found["headline"]["scaled_heads"]["sentence"]
    assert "less compute" in sentence
    assert reading.text.index(sentence) < reading.text.index("Savings and exponents")
    assert reading.text.index(sentence) < reading.text.index(words.captions(found, "surface")["frontiers"])


def test_what_failed_and_diverged_is_listed_with_the_reason(whole):
    _, reading, _, diverged, failed = whole
    assert "MemoryError: 3 GB asked for" in reading.text
    assert "loss_nats is nan at step 7" in reading.text
    assert diverged in reading.text
    assert failed in reading.text
    assert "Provisional: 39 of 40 cells" in reading.text


def test_a_hit_and_a_miss_are_both_shown(whole):
    text = whole[1].text
    assert re.search(r"At 3e12 FLOPs: baseline hit \([\d.]+ in \[", text)
    assert re.search(r"scaled_heads missed \([\d.]+ outside \[.*difference of scaled_heads missed \(", text)
    assert "Written 2026-11-30T11:00:00+00:00" in text


def test_question_prediction_and_finding_are_told_apart(whole):
    assert words.sections(DOCSTRING) == [
        ("Question", "Do scaled heads save compute?"),
        ("Prediction", "the interval includes 0. Written before."),
        ("Varies", "size x FLOPs."),
        ("Fixed", "the rest."),
        ("Found", "see below."),
    ]
    assert "Found see below." in whole[1].text


def test_every_figure_is_there_and_described(whole):
    described = [attributes["aria-label"] for tag, attributes in whole[1].tags if tag == "svg"]
    assert sorted(described) == sorted(words.captions(whole[2], "surface").values())


def test_what_the_fit_hangs_on_has_a_section_with_every_variant(whole):
    _, reading, found, _, _ = whole
    section = reading.text.split("Asked of the surface of the validation loss")[1].split("Training curves")[0]
    for parts in words.hangs_on(found).values():
        for sentence in parts.values():
            assert " ".join(sentence.split()) in section
    assert "What each 95 % interval assumes" in section
    assert "without the largest budget, 1.5e12" in section


def test_costs_versions_and_the_command_are_there(whole):
    for expected in ("predicted runs 2", "failed, without a row 1 not recorded", "c0ffee000001", "smelt run planted"):
        assert expected in whole[1].text


def test_figures_rows_and_analysis_are_written_as_files(tmp_path):
    rows = [row for row in synthetic.planted_rows(synthetic.planted_grid()) if row["role"] == "grid"]
    found = {**analysis.analyse(rows, "baseline", draws=50), "examined": None}
    page.write("planted", found, rows, [], {}, None, tmp_path / "page.html", files=tmp_path / "files")
    names = {path.name for path in (tmp_path / "files").iterdir()}
    drawn = set(page.draw(found, None, [], {}))
    assert {"frontiers", "saving", "isoflop", "residuals"} <= drawn
    assert names == {
        *(f"{name}.{kind}" for name in drawn for kind in ("svg", "pdf")),
        "results.csv",
        "results.parquet",
        "analysis.json",
    }
    assert ledger.read_csv(tmp_path / "files" / "results.csv")


def test_a_half_run_unmatched_grid_has_a_page_that_says_so(tmp_path):
    design = synthetic.planted_grid(arms=(variants.baseline, variants.loop_middle), held="none")
    rows = [r for r in synthetic.planted_rows(design, saving=0.08) if r["role"] == "grid"][:24]
    found = analysis.analyse(rows, "baseline", draws=50)
    plan_rows = [
        {**dict.fromkeys(("variant", "role", "budget_flops"), ""), "run_id": cell.run.run_id, "batch_tokens": 512}
        | {"variant": cell.variant, "role": cell.role, "budget_flops": cell.budget_flops, "size": cell.size}
        for cell in design.cells
    ]
    out = page.write("half", found, rows, plan_rows, {}, None, tmp_path / "half.html")
    text = Reading(out.read_text()).text
    assert "Provisional: 24 of 40 cells" in text
    assert "The pairs are not matched: FLOPs per token" in text
    assert "baseline and loop_middle have no minimum inside the sizes trained at 6e11 FLOPs" in text
    assert "No run was predicted before it was trained." in text
    assert "no cell has two finished seeds" in text


def downhill(rows):
    """The rows with losses that fall with size at every budget: no parabola has a minimum inside."""
    return [row | {LOSS: row[LOSS] - 0.4 * math.log(row["num_params"] / 1e4)} for row in rows]


def test_a_grid_without_any_minimum_inside_has_a_page_without_a_number_or_solver_words_at_its_top(tmp_path):
    design = synthetic.planted_grid()
    rows = [row for row in synthetic.planted_rows(design) if row["role"] == "grid" and row["budget_flops"] < 3e11]
    sizes = sorted({row["size"] for row in rows if row["budget_flops"] == 1e11} & {row["size"] for row in rows})[:3]
    few = [row for row in downhill(rows) if row["budget_flops"] == 1e11 or row["size"] in sizes]
    found = analysis.analyse([row for row in few if row["size"] in sizes], "baseline", draws=50)
    text = Reading(page.write("flat", found, few, [], {}, None, tmp_path / "flat.html").read_text()).text
    top = text[: text.index("Savings and exponents")]
    assert "No answer yet on scaled_heads: 2 budgets x" in top
    assert "give no interval; add budgets (3 or more) and sizes (5 or more)." in top
    assert "needs" not in top
    assert "not proven" not in text[: text.index("What touches the verdict")]
    assert "95 % band" not in text
    assert "Stars are" not in text


def test_minima_without_a_law_through_them_are_drawn_without_a_warning():
    rows = [row for row in synthetic.planted_rows(synthetic.planted_grid()) if row["role"] == "grid"]
    one = [row for row in rows if row["budget_flops"] == 2.5e11]
    bent = downhill([row for row in rows if row["budget_flops"] == 6e11])
    found = analysis.analyse([*one, *bent], "baseline", draws=50)
    group = found["losses"][LOSS]["groups"]["baseline"]
    assert [minimum["inside"] for minimum in group["minima"]] == [True, False]
    assert group["allocation"]["num_params"] is None
    legends = [axes.get_legend().get_texts()[0].get_text() for axes in evidence.allocation(found).axes]
    assert legends == ["baseline"] * 3


def test_a_report_is_one_html_file(tmp_path):
    with pytest.raises(BadInput, match=r"one \.html file, got report\.pdf"):
        page.write("x", {}, [], [], {}, None, tmp_path / "report.pdf")
