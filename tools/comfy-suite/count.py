"""Prints what passed and what did not, file by file, from pytest's report; then the names of what failed.

Usage: count.py REPORT WORKERS [RESULT]. What was counted is written into RESULT, a JSON file, under the number of workers.
"""

import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

counts = {}
bad = []
for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    file = case.get("classname", "").split(".")[2:3] or ["?"]
    kinds = {child.tag for child in case}
    if "error" in kinds or "failure" in kinds:
        outcome = "failed"
        bad.append(f"{case.get('classname')}::{case.get('name')}")
    else:
        outcome = "skipped" if "skipped" in kinds else "passed"
    counts.setdefault(file[0], Counter())[outcome] += 1

print(f"{'':28}{'passed':>8}{'failed':>8}{'skipped':>8}")
for file, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
    print(f"{file:28}{count['passed']:8}{count['failed']:8}{count['skipped']:8}")
for name in bad:
    print("failed:", name)

if len(sys.argv) > 3:
    workers, result = sys.argv[2], sys.argv[3]
    kept = {"what": "the server tests of ComfyUI's own suite against gantry serve", "by_workers": {}}
    if os.path.exists(result):
        with open(result) as file:
            kept = json.load(file)
    plain = {file: {kind: count[kind] for kind in ("passed", "failed", "skipped")} for file, count in sorted(counts.items())}
    kept["by_workers"][workers] = {"files": plain, "not_passed": bad}
    with open(result, "w") as file:
        json.dump(kept, file, indent=2)
        file.write("\n")
