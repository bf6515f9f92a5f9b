#!/usr/bin/env python3
"""Writes the example workflows: the same graphs for the API (api/) and for the editor (editor/), and for families of models
that people download, for the editor alone (families/).

    gantry serve --cpu --sim-device 8gb@12gbps --sim-device 8gb@12gbps &
    curl -s http://127.0.0.1:8188/object_info > object_info.json
    python3 examples/generate.py object_info.json

The order of an editor's widgets is that of the inputs in object_info. `cargo test -p gantry --test examples` runs
every file in both forms and compares them.
"""

import json
import pathlib
import sys
import uuid

HERE = pathlib.Path(__file__).parent
WIDGET_TYPES = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
WIDTH, COLUMN, ROW_GAP, TOP = 330, 410, 70, 120
PROMPT = "a red circle above a blue square"


class Graph:
    """A workflow: nodes in columns, columns in groups, and a note."""

    def __init__(self, note):
        self.nodes, self.note = [], note

    def add(self, group, column, kind, title=None, **inputs):
        self.nodes.append({"id": len(self.nodes) + 1, "group": group, "column": column, "class": kind,
                           "title": title or TITLES.get(kind, kind), "inputs": inputs})
        return (len(self.nodes), 0)

    def api(self):
        def value(v):
            return [str(v[0]), v[1]] if isinstance(v, tuple) else v
        return {str(n["id"]): {"class_type": n["class"], "_meta": {"title": n["title"]},
                               "inputs": {k: value(v) for k, v in n["inputs"].items()}} for n in self.nodes}

    def editor(self, name, info):
        links, nodes, outgoing = [], [], {}
        for node in self.nodes:
            for target in node["inputs"].values():
                if isinstance(target, tuple):
                    outgoing.setdefault(target, [])
        for order, node in enumerate(self.nodes):
            nodes.append(self.editor_node(node, order, info[node["class"]], links, outgoing))
        for shown, node in zip(nodes, self.nodes):
            kinds = info[node["class"]]["output"]
            names = info[node["class"]]["output_name"]
            shown["outputs"] = [{"name": names[i], "type": kinds[i], "links": outgoing.get((node["id"], i)) or None}
                                for i in range(len(kinds))]
            shown["size"] = [WIDTH, height(shown, node)]
        bottoms = {}
        for shown, node in zip(nodes, self.nodes):
            y = bottoms.get(node["column"], TOP)
            shown["pos"] = [40 + node["column"] * COLUMN, y]
            bottoms[node["column"]] = y + shown["size"][1] + ROW_GAP
        note = {"id": len(nodes) + 1, "type": "Note", "title": "What to replace", "pos": [40, max(bottoms.values())],
                "size": [WIDTH + COLUMN, 170], "flags": {}, "order": len(nodes), "mode": 0, "inputs": [], "outputs": [],
                "properties": {}, "widgets_values": [self.note], "color": "#432", "bgcolor": "#653"}
        nodes.append(note)
        return {"id": str(uuid.uuid5(uuid.NAMESPACE_URL, "gantry/examples/" + name)), "revision": 0,
                "last_node_id": len(nodes), "last_link_id": len(links), "nodes": nodes, "links": links,
                "groups": self.groups(nodes), "config": {}, "extra": {"ds": {"scale": 0.8, "offset": [0, 0]}},
                "version": 0.4}

    def editor_node(self, node, order, about, links, outgoing):
        inputs, widgets = [], []
        for group in ("required", "optional"):
            for name, spec in about["input"].get(group, {}).items():
                kind, options = spec[0], spec[1] if len(spec) > 1 else {}
                given = node["inputs"].get(name)
                if isinstance(given, tuple):
                    link = len(links) + 1
                    source = next(n for n in self.nodes if n["id"] == given[0])
                    kind_of_link = INFO[source["class"]]["output"][given[1]]
                    links.append([link, given[0], given[1], node["id"], len(inputs), kind_of_link])
                    outgoing[given].append(link)
                    inputs.append({"name": name, "type": kind, "link": link})
                elif isinstance(kind, list) or kind in WIDGET_TYPES:
                    if given is None:
                        sys.exit(f"{node['class']} has no value for {name}")
                    widgets.append(given)
                    if options.get("control_after_generate"):
                        widgets.append("fixed")
                    if options.get("image_upload"):
                        widgets.append("image")
                elif group == "required":
                    sys.exit(f"{node['class']} has no link for {name}")
                else:
                    inputs.append({"name": name, "type": kind, "link": None})
        return {"id": node["id"], "type": node["class"], "title": node["title"], "pos": None, "size": None, "flags": {},
                "order": order, "mode": 0, "inputs": inputs, "outputs": None,
                "properties": {"Node name for S&R": node["class"]}, "widgets_values": widgets}

    def groups(self, nodes):
        boxes = {}
        for shown, node in zip(nodes, self.nodes):
            (x, y), (w, h) = shown["pos"], shown["size"]
            box = boxes.setdefault(node["group"], [x, y, x + w, y + h])
            boxes[node["group"]] = [min(box[0], x), min(box[1], y), max(box[2], x + w), max(box[3], y + h)]
        return [{"id": i + 1, "title": title, "bounding": [x0 - 20, y0 - 80, x1 - x0 + 40, y1 - y0 + 100],
                 "color": "#3f789e", "font_size": 24, "flags": {}} for i, (title, (x0, y0, x1, y1)) in enumerate(boxes.items())]


def height(shown, node):
    """Room for the sockets, the widgets, and what the class shows."""
    rows = max(len(shown["inputs"]), len(shown["outputs"]))
    tall = {"CLIPTextEncode": 130, "LoadImage": 300, "SaveImage": 260, "PreviewImage": 240}.get(node["class"], 0)
    return 30 + 22 * rows + 26 * len(shown["widgets_values"]) + tall


TITLES = {"CLIPTextEncode": "Prompt", "ConditioningZeroOut": "No negative prompt", "KSampler": "Draw",
          "VAEDecode": "Latent to picture", "SaveImage": "Save", "EmptySD3LatentImage": "Size and number"}


def loaders(g, model="UNETLoader", clip="DualCLIPLoader", vae="VAELoader", model_inputs=None, clip_inputs=None, vae_inputs=None):
    unet = {"unet_name": "demo-flux.safetensors", "weight_dtype": "default"} if model.startswith("UNET") else \
           {"unet_name": "demo-flux-Q8_0.gguf"}
    m = g.add("Models", 0, model, "Diffusion model", **unet, **(model_inputs or {}))
    c = g.add("Models", 0, clip, "Text encoders", clip_name1="demo-clip-l.safetensors", clip_name2="demo-t5.safetensors",
              type="flux", **(clip_inputs or {"device": "default"}))
    v = g.add("Models", 0, vae, "Autoencoder", vae_name="demo-ae.safetensors", **(vae_inputs or {}))
    return m, c, v


def prompts(g, clip, text=PROMPT, column=1):
    positive = g.add("Prompt", column, "CLIPTextEncode", clip=clip, text=text)
    return positive, g.add("Prompt", column, "ConditioningZeroOut", conditioning=positive)


def sample(g, model, prompt, latent, column=2, seed=0, steps=12, denoise=1.0, title=None):
    return g.add("Drawing", column, "KSampler", title, model=model, positive=prompt[0], negative=prompt[1],
                 latent_image=latent, seed=seed, steps=steps, cfg=1.0, sampler_name="euler", scheduler="simple",
                 denoise=denoise)


def empty(g, column=1, side=128, batch=1):
    return g.add("Prompt", column, "EmptySD3LatentImage", width=side, height=side, batch_size=batch)


def save(g, latent, vae, name, column=3):
    picture = g.add("Picture", column, "VAEDecode", samples=latent, vae=vae)
    g.add("Picture", column, "SaveImage", images=picture, filename_prefix=name)
    return picture


def placed(device="sim:0", virtual=0.0, donor="cpu", text="", eject=False, keep=True, name="compute_device"):
    return {name: device, "virtual_vram_gb": virtual, "donor_device": donor, "expert_mode_allocations": text,
            "eject_models": eject, "keep_loaded": keep}


REPLACE = ("The three loaders name the small demo model that comes with Gantry. For FLUX, choose your own files there, "
           "set width and height to 1024, and for FLUX dev use 20 steps and a FluxGuidance node after the prompt.")
DEVICES = "sim:0 and sim:1 are simulated devices (--sim-device). On a machine with GPUs write cuda:0 and cuda:1."


def text_to_image():
    g = Graph(REPLACE)
    m, c, v = loaders(g)
    p = prompts(g, c)
    save(g, sample(g, m, p, empty(g)), v, "text-to-image")
    return g


def virtual_vram():
    g = Graph("virtual_vram_gb is how many gigabytes of the model leave compute_device for donor_device. The demo model has "
              "4 MB, so 4 gigabytes is all of it that can leave. " + DEVICES + "\n\n" + REPLACE)
    m, c, v = loaders(g, "UNETLoaderDisTorch2MultiGPU", model_inputs=placed(virtual=4.0))
    p = prompts(g, c)
    save(g, sample(g, m, p, empty(g)), v, "virtual-vram")
    return g


def allocation_string():
    g = Graph("expert_mode_allocations says how many bytes live where: 2 MB on the first GPU, 1 MB on the second, the rest "
              "in host memory. For FLUX in bf16 write, for example, cuda:0,10gb;cuda:1,6gb;cpu,* instead. " + DEVICES +
              "\n\n" + REPLACE)
    m, c, v = loaders(g, "UNETLoaderDisTorch2MultiGPU", model_inputs=placed(text="sim:0,2mb;sim:1,1mb;cpu,*"))
    p = prompts(g, c)
    save(g, sample(g, m, p, empty(g)), v, "allocation-string")
    return g


def keep_loaded():
    g = Graph("The diffusion model has keep_loaded on, the text encoders have it off. The button 'Unload Models' then unloads "
              "the text encoders and leaves the diffusion model. " + DEVICES + "\n\n" + REPLACE)
    m, c, v = loaders(g, "UNETLoaderDisTorch2MultiGPU", "DualCLIPLoaderDisTorch2MultiGPU", model_inputs=placed(keep=True),
                      clip_inputs=placed(keep=False, name="device"))
    p = prompts(g, c)
    save(g, sample(g, m, p, empty(g)), v, "keep-loaded")
    return g


def image_to_image():
    g = Graph("Choose your own picture in Load Image. A smaller denoise stays nearer to it: 1 forgets it, 0 gives it back.\n\n"
              + REPLACE)
    m, c, v = loaders(g)
    p = prompts(g, c, "a green circle above a blue square")
    image = g.add("Prompt", 1, "LoadImage", "Picture to start from", image="shapes.png")
    latent = g.add("Drawing", 2, "VAEEncode", "Picture to latent", pixels=image, vae=v)
    save(g, sample(g, m, p, latent, denoise=0.75, column=2), v, "image-to-image")
    return g


def inpaint():
    g = Graph("Load Image gives the transparent part of the picture as its mask; the editor's mask tool writes such pictures. "
              "Only that part is drawn anew.\n\n" + REPLACE)
    m, c, v = loaders(g)
    p = prompts(g, c, "a red circle above a green star")
    image = g.add("Prompt", 1, "LoadImage", "Picture with a hole", image="shapes-with-hole.png")
    latent = g.add("Drawing", 2, "VAEEncode", "Picture to latent", pixels=image, vae=v)
    masked = g.add("Drawing", 2, "SetLatentNoiseMask", "Only inside the mask", samples=latent, mask=(image[0], 1))
    save(g, sample(g, m, p, masked, column=2), v, "inpaint")
    return g


def lora():
    g = Graph("The LoRA draws outlines. Choose your own LoRA, and more of them by more of these nodes in a row.\n\n" + REPLACE)
    m, c, v = loaders(g)
    m = g.add("Prompt", 1, "LoraLoaderModelOnly", "LoRA", model=m, lora_name="demo-outline-lora.safetensors", strength_model=1.0)
    p = prompts(g, c)
    save(g, sample(g, m, p, empty(g)), v, "lora")
    return g


def gguf():
    g = Graph("A diffusion model in GGUF's Q8_0. 4 gigabytes of it may leave the device that computes. " + DEVICES + "\n\n" + REPLACE)
    m, c, v = loaders(g, "UnetLoaderGGUFDisTorch2MultiGPU", model_inputs=placed(virtual=4.0))
    p = prompts(g, c)
    save(g, sample(g, m, p, empty(g)), v, "gguf")
    return g


def checkpoint():
    g = Graph("One file with all parts, in models/checkpoints. The demo model comes in four files; "
              "examples/demo_checkpoint.py joins them. Or choose your own checkpoint.\n\n" + REPLACE)
    m = g.add("Models", 0, "CheckpointLoaderSimple", "Checkpoint", ckpt_name="demo-checkpoint.safetensors")
    p = prompts(g, (m[0], 1))
    save(g, sample(g, m, p, empty(g)), (m[0], 2), "checkpoint")
    return g


def custom_sampler():
    g = Graph("The sampler in parts: noise, guider, sampler and schedule. With these settings the picture is that of "
              "text-to-image, bit for bit.\n\n" + REPLACE)
    m, c, v = loaders(g)
    positive = g.add("Prompt", 1, "CLIPTextEncode", clip=c, text=PROMPT)
    latent = empty(g)
    guider = g.add("Drawing", 2, "BasicGuider", "Guider", model=m, conditioning=positive)
    noise = g.add("Drawing", 2, "RandomNoise", "Noise", noise_seed=0)
    sampler = g.add("Drawing", 2, "KSamplerSelect", "Sampler", sampler_name="euler")
    sigmas = g.add("Drawing", 2, "BasicScheduler", "Schedule", model=m, scheduler="simple", steps=12, denoise=1.0)
    drawn = g.add("Drawing", 3, "SamplerCustomAdvanced", "Draw", noise=noise, guider=guider, sampler=sampler, sigmas=sigmas,
                  latent_image=latent)
    save(g, drawn, v, "custom-sampler", column=4)
    return g


def two_passes():
    g = Graph("A first pass at 128 by 128, the latent enlarged, a second pass that keeps the scene (denoise 0.6). "
              "Both pictures are saved. The demo model was trained at 128 by 128 only, so its second pass is coarse.\n\n" + REPLACE)
    m, c, v = loaders(g)
    p = prompts(g, c)
    first = sample(g, m, p, empty(g), title="First pass")
    larger = g.add("Drawing", 3, "LatentUpscaleBy", "Enlarge", samples=first, upscale_method="bilinear", scale_by=1.5)
    second = sample(g, m, p, larger, column=3, denoise=0.6, title="Second pass")
    save(g, first, v, "two-passes-first", column=4)
    save(g, second, v, "two-passes", column=4)
    return g


def batch():
    g = Graph("Four pictures from one seed in one run, saved into the folder batch. The prompt is read once and the models are "
              "loaded once.\n\n" + REPLACE)
    m, c, v = loaders(g)
    p = prompts(g, c, "a large purple star")
    save(g, sample(g, m, p, empty(g, batch=4), seed=7), v, "batch/star")
    return g


def encoders_elsewhere():
    g = Graph("The diffusion model computes on the first GPU, the text encoders on the second, the autoencoder on the CPU. "
              + DEVICES + "\n\n" + REPLACE)
    m, c, v = loaders(g, "UNETLoaderMultiGPU", "DualCLIPLoaderMultiGPU", "VAELoaderMultiGPU", model_inputs={"device": "sim:0"},
                      clip_inputs={"device": "sim:1"}, vae_inputs={"device": "cpu"})
    p = prompts(g, c)
    save(g, sample(g, m, p, empty(g)), v, "encoders-elsewhere")
    return g


def masks():
    g = Graph("Two pictures, the left half of one laid over the other: a mask is made, shown and used. Preview shows it "
              "without saving it.\n\n" + REPLACE)
    m, c, v = loaders(g)
    p = prompts(g, c, "a large red circle in the center")
    q = prompts(g, c, "a large blue square in the center", column=1)
    latent = empty(g)
    one = g.add("Picture", 3, "VAEDecode", "First picture", samples=sample(g, m, p, latent, title="Draw the first"), vae=v)
    two = g.add("Picture", 3, "VAEDecode", "Second picture", samples=sample(g, m, q, latent, title="Draw the second"), vae=v)
    whole = g.add("Picture", 3, "SolidMask", "Nothing", value=0.0, width=128, height=128)
    left = g.add("Picture", 3, "SolidMask", "Left half", value=1.0, width=64, height=128)
    mask = g.add("Picture", 4, "MaskComposite", "Mask", destination=whole, source=left, x=0, y=0, operation="add")
    joined = g.add("Picture", 4, "ImageCompositeMasked", "One over the other", destination=two, source=one, x=0, y=0,
                   resize_source=False, mask=mask)
    shown = g.add("Picture", 4, "MaskToImage", "Mask as a picture", mask=mask)
    g.add("Picture", 5, "PreviewImage", "Preview", images=shown)
    g.add("Picture", 5, "SaveImage", images=joined, filename_prefix="masks-and-composite")
    return g


EXAMPLES = {"text-to-image": text_to_image, "virtual-vram": virtual_vram, "allocation-string": allocation_string,
            "keep-loaded": keep_loaded, "image-to-image": image_to_image, "inpaint": inpaint, "lora": lora, "gguf": gguf,
            "checkpoint": checkpoint, "custom-sampler": custom_sampler, "two-passes": two_passes, "batch": batch,
            "encoders-elsewhere": encoders_elsewhere, "masks-and-composite": masks}


def files_for(name, folders):
    return (f"Run `gantry pull {name}` to have the files that the loaders name, or choose your own:\n\n"
            + "\n".join(f"models/{folder}: {file}" for folder, file in folders))


SCENE = "a lighthouse on a cliff above a rough sea at dawn, photograph"
FLAWS = "blurry, low quality, watermark"


def guided(g, clip, flaws=FLAWS):
    positive = g.add("Prompt", 1, "CLIPTextEncode", clip=clip, text=SCENE)
    return positive, g.add("Prompt", 1, "CLIPTextEncode", "What to avoid", clip=clip, text=flaws)


def draw(g, model, prompt, latent, steps, cfg, sampler, scheduler):
    return g.add("Drawing", 2, "KSampler", model=model, positive=prompt[0], negative=prompt[1], latent_image=latent, seed=0,
                 steps=steps, cfg=cfg, sampler_name=sampler, scheduler=scheduler, denoise=1.0)


def whole(name, file, side, steps, cfg, sampler, scheduler):
    g = Graph(files_for(name, [("checkpoints", file)]))
    m = g.add("Models", 0, "CheckpointLoaderSimple", "Checkpoint", ckpt_name=file)
    p = guided(g, (m[0], 1))
    latent = g.add("Prompt", 1, "EmptyLatentImage", "Size and number", width=side, height=side, batch_size=1)
    save(g, draw(g, m, p, latent, steps, cfg, sampler, scheduler), (m[0], 2), name)
    return g


def in_parts(name, files, kind, side, shift):
    g = Graph(files_for(name, zip(["diffusion_models", "text_encoders", "vae"], files)))
    m = g.add("Models", 0, "UNETLoader", "Diffusion model", unet_name=files[0], weight_dtype="default")
    c = g.add("Models", 0, "CLIPLoader", "Text encoder", clip_name=files[1], type=kind, device="default")
    v = g.add("Models", 0, "VAELoader", "Autoencoder", vae_name=files[2])
    m = g.add("Models", 0, "ModelSamplingAuraFlow", "Shift of the noise levels", model=m, shift=shift)
    return g, m, c, v, g.add("Prompt", 1, "EmptySD3LatentImage", width=side, height=side, batch_size=1)


def qwen_image():
    files = ["qwen_image_fp8_e4m3fn.safetensors", "qwen_2.5_vl_7b_fp8_scaled.safetensors", "qwen_image_vae.safetensors"]
    g, m, c, v, latent = in_parts("qwen-image", files, "qwen_image", 1328, 3.1)
    save(g, draw(g, m, guided(g, c, ""), latent, 20, 2.5, "euler", "simple"), v, "qwen-image")
    return g


def z_image():
    files = ["z_image_turbo_bf16.safetensors", "qwen_3_4b.safetensors", "ae.safetensors"]
    g, m, c, v, latent = in_parts("z-image-turbo", files, "lumina2", 1024, 3.0)
    save(g, draw(g, m, prompts(g, c, SCENE), latent, 8, 1.0, "res_multistep", "simple"), v, "z-image")
    return g


FAMILIES = {"sd15": lambda: whole("sd15", "v1-5-pruned-emaonly-fp16.safetensors", 512, 20, 7.0, "dpmpp_2m", "karras"),
            "sdxl": lambda: whole("sdxl", "sd_xl_base_1.0.safetensors", 1024, 25, 7.0, "dpmpp_2m", "karras"),
            "qwen-image": qwen_image, "z-image": z_image}


def compact(workflow):
    """JSON with one node, link and group a line."""
    parts = []
    for key, value in workflow.items():
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join("    " + json.dumps(item, ensure_ascii=False) for item in value) + "\n  ]"
        else:
            text = json.dumps(value, ensure_ascii=False)
        parts.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    INFO = json.loads(pathlib.Path(sys.argv[1]).read_text())
    for name, make in EXAMPLES.items():
        graph = make()
        (HERE / "api" / f"{name}.json").write_text(compact(graph.api()))
        (HERE / "editor" / f"{name}.json").write_text(compact(graph.editor(name, INFO)))
    for name, make in FAMILIES.items():
        (HERE / "families" / f"{name}.json").write_text(compact(make().editor("families/" + name, INFO)))
