"""What can be wrong with what a user gave: one exception, one line, the offending value and the mend.

The command line prints a BadInput as a single line and exits with 2 (EXIT_BAD_INPUT), and so a file or folder that
the system refuses. Everything else that is raised is a fault of ours and keeps its traceback.
"""

EXIT_DONE = 0
EXIT_FAILED = 1  # a run failed, its reason stands in its folder; or the answer is no (a match, a fit, a grid)
EXIT_BAD_INPUT = 2
EXIT_RESUMABLE = 75  # EX_TEMPFAIL: stopped on request, the same command goes on


class BadInput(ValueError):
    """The user's input cannot be used. The message is one line: what, the offending value, and the mend."""
