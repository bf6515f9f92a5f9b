"""Prints what passed and what did not, file by file, from pytest's report; then the names of what failed."""

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
