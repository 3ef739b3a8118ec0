"""The committed quickstart -> the results between the markers of README.md; --check says whether they are today's.

Run as `python scripts/readme.py` after `smelt fit quickstart --commit`.
"""

import sys
from pathlib import Path

from smelt import committed, terminal
from smelt.prediction import score_prediction
from smelt.report import tables

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->\n"


def results() -> str:
    """The verdict, the prediction's score and the savings as markdown."""
    rows, analysis, prediction = committed.read("quickstart")
    parts = [headline["sentence"] for headline in analysis["headline"].values()]
    if prediction is not None:
        parts.append(score_prediction(prediction, rows)["sentence"])
    savings = tables.savings(analysis)
    parts += [terminal.table(savings.headings, savings.rows, markdown=True), savings.note]
    return "\n\n".join(parts)


def main() -> int:
    text = README.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    made = f"{before}{BEGIN}{results()}\n{END}{after}"
    if "--check" in sys.argv:
        return 0 if made == text else 1
    README.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
