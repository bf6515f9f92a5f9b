"""comfy-cli: `comfy run --wait`, and the picture that it names: comfy-cli.py PORT WORKFLOW PICTURE."""

import json
import subprocess
import sys
import urllib.request

port, workflow, picture = sys.argv[1:]
subprocess.run(["comfy", "--skip-prompt", "tracking", "disable"], check=True)
command = ["comfy", "--skip-prompt", "run", "--workflow", workflow, "--wait", "--host", "127.0.0.1", "--port", port]
told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
print(told)
# Where nobody reads along, it prints one line of JSON.
answers = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
outputs = [url for answer in answers for url in (answer.get("data") or {}).get("outputs", [])]
if not outputs:
    sys.exit("comfy names no picture")
with urllib.request.urlopen(outputs[0]) as answer, open(picture, "wb") as file:
    file.write(answer.read())
