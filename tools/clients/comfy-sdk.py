"""comfy-sdk, the official one: submit, follow the events, download, and send an asset: comfy-sdk.py PORT WORKFLOW PICTURE."""

import os
import sys

port, workflow, picture = sys.argv[1:]
os.environ["COMFY_BASE_URL"] = f"http://127.0.0.1:{port}"

from comfy_sdk import Comfy  # noqa: E402  it reads the address when it is loaded

with Comfy() as client:
    job = client.submit(client.workflows.from_file(workflow), metadata={"client": "comfy-sdk"})
    events = [type(event).__name__ for event in job.events()]
    print(events)
    job.result()
    job.outputs[0].to_file(picture)
    if events[-1] != "StatusChange" or "Progress" not in events or "OutputReady" not in events:
        sys.exit(f"the events are {events}")
    if [summary.id for summary in client.list_jobs(metadata={"client": "comfy-sdk"})] != [job.id]:
        sys.exit("the job is not found by its label")
    if job.get_workflow().graph.keys() != client.workflows.from_file(workflow).json.keys():
        sys.exit("the job's workflow is another")

    # The picture once more, sent as an asset and loaded by a workflow.
    asset = client.assets.from_file(picture)
    graph = {
        "1": {"class_type": "LoadImage", "inputs": {}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "asset"}},
    }
    again = client.workflows.from_json(graph)
    again.set_input("1", "image", asset)
    copy = client.run(again, timeout=60)
    if copy.outputs[0].type != "image" or copy.outputs[0].size_bytes < 1000:
        sys.exit(f"the copy is {copy.outputs}")
