"""The command `smelt`: parse, call, render. Every verb that prints numbers takes --json.

Exit codes: 0 done, 1 a run failed, a match does not fit, a fit comes out another or no grid reaches what is wanted,
2 bad input or a place that cannot be read or written, 75 stopped and resumable.
"""

import os
import sys
from collections.abc import Sequence

import tyro

# Read as numpy is imported. Fits are of small matrices, on which a second thread spends as much again and gains nothing
# (measured, two cores); workers have settings of their own.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from smelt import __version__
from smelt.cli import corpora, curves, fits, grids, matching, power, results
from smelt.cli.words import say
from smelt.errors import EXIT_BAD_INPUT, EXIT_RESUMABLE, BadInput

VERBS = {
    "match": matching.match,
    "plan": grids.plan,
    "run": grids.run,
    "status": grids.status,
    "fit": fits.fit,
    "predict": fits.predict,
    "savings": fits.savings,
    "envelope": curves.envelope,
    "link": curves.link,
    "power": power.power,
    "compare": results.compare,
    "report": results.report,
    "export": results.export,
    "merge": results.merge,
    "import": results.import_table,
    "repro": results.repro,
    "diff": results.diff,
    "corpus": corpora.corpus,
}
CORPUS_VERBS = {"build": corpora.build, "info": corpora.info, "verify": corpora.verify}
DESCRIPTION = """Scaling-law experiments for architecture research: matched budgets, IsoFLOP grids, fits with intervals.

First steps: smelt corpus build; smelt plan quickstart; smelt run quickstart; smelt report quickstart"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: returns the exit code. Bad input is one line on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        print(f"smelt {__version__}")
        return 0
    nested = words[:1] == ["corpus"] and words[1:]
    try:
        return tyro.extras.subcommand_cli_from_dict(
            CORPUS_VERBS if nested else VERBS,
            args=words[1:] if nested else words,
            prog="smelt corpus" if nested else "smelt",
            description=corpora.corpus.__doc__ if nested else DESCRIPTION,
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes),
        )
    except BadInput as error:
        say(f"error: {error}")
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        say("stopped")
        return EXIT_RESUMABLE
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        say(f"error: {error.filename} cannot be used ({error.strerror}): give another place, or mend this one")
        return EXIT_BAD_INPUT
