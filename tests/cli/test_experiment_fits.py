"""`smelt fit NAME`: what a committed experiment's fits hang on, briefly, and its tables."""

from smelt.cli import main
from smelt.errors import EXIT_DONE


def test_a_fit_of_an_experiment_says_what_it_hangs_on_and_warns_once_of_what_is_alike(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SMELT_RUNS", str(tmp_path / "runs"))
    assert main(["fit", "quickstart", "--draws", "60", "--tables", str(tmp_path / "t")]) == EXIT_DONE
    out = capsys.readouterr().out
    for words in ("largest budget, from the rest", "irreducible loss", "exponents, against baseline", "without bias"):
        assert words in out
    assert "warning (few_budgets): baseline; loop_middle: 4 budgets leave" in out
    assert out.count("warning (few_budgets)") == 1
    written = {path.stem for path in (tmp_path / "t").iterdir()}
    assert written >= {"tests", "refits", "minima_corrected", "intervals", "exponents"}
