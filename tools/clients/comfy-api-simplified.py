"""comfy-api-simplified: queue_and_wait_images: comfy-api-simplified.py PORT WORKFLOW PICTURE."""

import sys

from comfy_api_simplified import ComfyApiWrapper, ComfyWorkflowWrapper

port, workflow, picture = sys.argv[1:]
api = ComfyApiWrapper(f"http://127.0.0.1:{port}/")
pictures = api.queue_and_wait_images(ComfyWorkflowWrapper(workflow), "Save")
with open(picture, "wb") as file:
    file.write(next(iter(pictures.values())))
