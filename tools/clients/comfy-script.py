"""comfy-script: the same graph, written in Python: comfy-script.py PORT WORKFLOW PICTURE."""

import json
import sys

from comfy_script.runtime import load, Workflow

port, workflow, picture = sys.argv[1:]
load(f"http://127.0.0.1:{port}/")
from comfy_script.runtime.nodes import *  # noqa: E402,F403  made from the server's own /object_info

with open(workflow, encoding="utf-8") as file:
    nodes = json.load(file)
made = {}


def value(given):
    return made[given[0]] if isinstance(given, list) else given


with Workflow(wait=True):
    for id, node in nodes.items():
        inputs = {name: value(given) for name, given in node["inputs"].items()}
        made[id] = globals()[node["class_type"]](**inputs)
saved = next(made[id] for id, node in nodes.items() if node["class_type"] == "SaveImage")
saved.wait()[0].save(picture)
