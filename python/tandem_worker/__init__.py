"""Tandem's worker processes: what only Python libraries or the user's Python code can do, kept out of the trainer.

`python -m tandem_worker.<mode>`, where a mode is a module whose main() calls protocol.serve(), serves the program that
started it over an inherited socket. Nobody starts these by hand. Graders run in any Python from 3.9 on, with nothing
but its standard library (--rm-python).

The modes are in this folder, beside what several of them use: protocol.py, outcomes.py (what a grade says) and
tracker.py (what experiment trackers share). All else is in a folder for each subject:

    sandbox           what confines a worker process and ends it
    user_functions    how the user's functions are found and called, what they are given and may give back
    rules             the built-in rewards
    agents            the endpoint for agents that a generate function runs
    templates         chat templates, rendered within limits
"""

import sys

if sys.version_info < (3, 9):
    sys.exit("reward code needs Python 3.9 or newer, and this is %d.%d.%d" % sys.version_info[:3])
if sys.argv[:1] == ["-m"] and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the working directory: Python before 3.11 has no PYTHONSAFEPATH, which leaves it out
