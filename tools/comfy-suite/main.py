"""Takes the place of ComfyUI's main.py: becomes `gantry serve`, with the flags that it was given.

The process is replaced, not started beside this one: the tests end their server by killing it.
"""

import os
import sys
import tempfile

# As in ComfyUI, everything that is not given by a flag lies beside main.py.
here = os.path.dirname(os.path.abspath(__file__))
# ComfyUI forgets its history when it ends, and the tests rely on that; Gantry keeps it in a database.
database = os.path.join(tempfile.mkdtemp(dir=here, prefix="server-"), "jobs.sqlite")

gantry = os.environ["GANTRY"]
flags = ["--testing-nodes", "--base-directory", here, "--database", database]
# Several workers need as many accelerators, and any machine can simulate them: none of the tests' nodes uses one.
workers = int(os.environ.get("WORKERS") or 1)
if workers > 1:
    flags += ["--sim-device", "256mb@20gbps"] * workers + ["--workers", ",".join(f"sim:{n}" for n in range(workers))]
os.execv(gantry, [gantry, "serve", *flags, *sys.argv[1:]])
