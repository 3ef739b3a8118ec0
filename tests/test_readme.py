import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_results_in_the_readme_are_those_of_the_committed_fit():
    done = subprocess.run([sys.executable, "scripts/readme.py", "--check"], cwd=ROOT)
    assert done.returncode == 0, "run: python scripts/readme.py"


def test_every_room_named_in_the_readme_is_there():
    tree = (ROOT / "README.md").read_text().split("```")[3]
    rooms = {word for word in tree.split() if word.endswith((".py", "/")) and not word.startswith(("fits/", "smelt/"))}
    missing = [word for word in rooms if not (ROOT / "smelt" / word).exists() and not (ROOT / word).exists()]
    assert not missing
