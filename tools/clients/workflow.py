"""Prints a workflow of the API with another seed and another name for its pictures: workflow.py FILE PREFIX SEED."""

import json
import sys

path, prefix, seed = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    workflow = json.load(file)
for node in workflow.values():
    if node["class_type"] == "KSampler":
        node["inputs"].update(seed=int(seed), steps=4)
    if node["class_type"] == "SaveImage":
        node["inputs"]["filename_prefix"] = prefix
json.dump(workflow, sys.stdout)
