"""What a hostile client sends: names that try to leave a folder, JSON that is too deep, too large or of the wrong type."""

import json
from urllib.parse import quote

# Every route, with `{}` where a name goes. Those that only exist under /api or without it are as they are.
GET_ROUTES = [
    "/", "/users", "/settings", "/settings/{}", "/extensions", "/object_info", "/object_info/{}", "/prompt", "/queue",
    "/history", "/history/{}", "/system_stats", "/features", "/userdata", "/userdata/{}", "/v2/userdata", "/embeddings",
    "/models", "/models/{}", "/experiment/models", "/experiment/models/{}", "/experiment/models/preview/{}/0/{}",
    "/view", "/view_metadata/{}", "/i18n", "/workflow_templates", "/global_subgraphs", "/global_subgraphs/{}",
    "/node_replacements", "/templates/{}", "/docs/{}", "/internal/logs", "/internal/logs/raw", "/internal/folder_paths",
    "/internal/files/{}", "/api/jobs", "/api/jobs/{}", "/extensions/{}", "/{}",
    "/gantry/", "/gantry/{}", "/gantry/now", "/gantry/now?after={}", "/gantry/devices", "/gantry/models", "/gantry/models/{}",
    "/gantry/files", "/gantry/snapshots?after={}", "/gantry/stats?jobs={}", "/gantry/openapi.json",
]
JSON_ROUTES = [
    ("POST", "/prompt"), ("POST", "/queue"), ("POST", "/interrupt"), ("POST", "/history"), ("POST", "/free"),
    ("POST", "/settings"), ("POST", "/settings/a"), ("POST", "/users"), ("POST", "/api/jobs/cancel"),
    ("PATCH", "/internal/logs/subscribe"), ("POST", "/gantry/plan"), ("PATCH", "/gantry/models/1"),
    ("DELETE", "/gantry/models/1"),
]
PREFIXABLE = ("/api/", "/gantry/", "/internal/", "/templates/", "/docs/", "/extensions/")


def with_api(route):
    """A route and its twin under /api, if it has one."""
    return [route] if route == "/" or route == "/{}" or route.startswith(PREFIXABLE) else [route, "/api" + route]


def climbing(leaf):
    """Names that try to reach `leaf` (a path without a leading slash) from inside a folder, as text."""
    ups = ["../", "../../", "../" * 6, "../" * 12, "a/../../", "./../", "..//", "....//", "..././", "/../", "~/"]
    names = [up + leaf for up in ups]
    names += ["/" + leaf, "//" + leaf, "file:///" + leaf, "/proc/self/root/" + leaf, "C:/" + leaf, "//localhost/" + leaf]
    names += [name.replace("/", "\\") for name in names[:6]]
    names += [up + leaf + "\0.png" for up in ups[:2]] + ["..\u2215" + leaf, "\uff0e\uff0e/" + leaf, "..\r\n/" + leaf]
    names += [f"x [{leaf}]", f"../{leaf} [output]", f"../../{leaf} [input]", f"/{leaf} [temp]"]
    return names


def odd_names():
    """Names that lead nowhere but may upset a parser."""
    return [
        "", ".", "..", "/", "\\", "%", "%%", "%2", "%zz", "\0", " ", "\n", "a" * 5000, "a/" * 2000, "CON", "nul.png",
        "\u202etxt.png", "e\u0301" * 100, "x" * 255 + ".png", "[output]", " [output]", "[]", "?", "#", "a?b=c", "a#b",
        "__proto__", "constructor", "${jndi:ldap://127.0.0.1/a}", "$(id)", "`id`", "';--", "%s%n%x", "{0}", "\ufeff",
    ]  # fmt: skip


def escapes(name):
    """A name as it can stand in a URL: escaped once, twice, not at all, and in forms that only a careless reader takes."""
    once = quote(name, safe="")
    yield once
    yield quote(once, safe="")
    yield quote(name, safe="/\\")
    if ".." in name:
        dots = once.replace(".", "%2e")
        yield dots
        yield once.replace("..", "%c0%ae%c0%ae")
        yield once.replace("%2F", "%c0%af")
        yield once.replace("..", "%u002e%u002e")
    if all(" " < character < "\x7f" and character not in "?#" for character in name):
        yield name


def bombs(size):
    """Bodies that are JSON, or nearly, and cost much to read. `size` bounds their bytes."""
    depth = size // 2
    digits = b"9" * min(size, 200_000)
    return {
        "nothing": b"",
        "deep arrays": b"[" * depth + b"]" * depth,
        "deep arrays, open": b"[" * size,
        "deep objects": b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
        "deep prompt": b'{"prompt":' + b"[" * depth + b"]" * depth + b"}",
        "long array": b"[" + b"0," * (size // 2) + b"0]",
        "array of objects": b"[" + b"{}," * (size // 3) + b"{}]",
        "many keys": b"{" + b",".join(b'"k%d":%d' % (key, key) for key in range(size // 16)) + b"}",
        "the same key": b'{"prompt":{}' + b',"prompt":{}' * (size // 16) + b"}",
        "long text": b'"' + b"a" * size + b'"',
        "long escapes": b'"' + b"\\u0000" * (size // 6) + b'"',
        "many digits": b'{"number":' + digits + b"}",
        "many decimals": b'{"number":0.' + digits + b"}",
        "huge exponent": b'{"prompt":{"1":{"class_type":"StubFloat","inputs":{"value":1e999999999}}},"number":1e400}',
        "lone surrogate": b'{"client_id":"\\ud800","prompt":{}}',
        "no UTF-8": b'{"prompt":"\xff\xfe\xfd"}',
        "UTF-16": '{"prompt":{}}'.encode("utf-16"),
        "a mark first": b'\xef\xbb\xbf{"prompt":{}}',
        "NaN": b'{"number":NaN,"prompt":{"1":{"class_type":"StubFloat","inputs":{"value":-Infinity}}}}',
        "rubbish": bytes(range(256)) * 4,
        "cut off": b'{"prompt": {"1": {"class_type": "Stub',
        "two values": b"{} {}",
    }


WRONG_VALUES = [
    None, True, 0, -1, 1.5, 1e308, 2**63, 2**64, -(2**63) - 1, "", "text", "\0", "a" * 3000, [], [[]], ["1", 0], ["1"],
    ["1", 0, 0], ["1", -1], ["1", 10**6], ["nowhere", 0], [1, 0], ["1", "0"], {}, {"__value__": []}, {"a": {"b": [None]}},
]  # fmt: skip


def good_prompt():
    size = {"height": 8, "width": 8, "batch_size": 1}
    return {
        "1": {"class_type": "StubImage", "inputs": {"content": "BLACK", **size}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }


def wrong_bodies():
    """Bodies for each JSON route with one value of the wrong type."""
    fields = {
        "/prompt": ["prompt", "client_id", "prompt_id", "number", "front", "extra_data", "partial_execution_targets"],
        "/queue": ["clear", "delete"],
        "/history": ["clear", "delete"],
        "/interrupt": ["prompt_id"],
        "/free": ["unload_models", "free_memory"],
        "/users": ["username"],
        "/api/jobs/cancel": ["job_ids"],
        "/internal/logs/subscribe": ["clientId", "enabled"],
    }
    for method, route in JSON_ROUTES:
        for value in WRONG_VALUES:
            yield method, route, value
            for field in fields.get(route, []):
                body = {"prompt": good_prompt()} if route == "/prompt" else {}
                yield method, route, {**body, field: value}
    for value in WRONG_VALUES:
        for path in (["extra_pnginfo"], ["extra_pnginfo", "workflow"], ["preview_method"], ["create_time"]):
            yield "POST", "/prompt", {"prompt": good_prompt(), "extra_data": nested(path, value)}


def nested(path, value):
    for key in reversed(path):
        value = {key: value}
    return value


def wrong_prompts():
    """Prompts that are wrong in one place, or odd as a whole."""
    for value in WRONG_VALUES:
        for path in (["1"], ["1", "class_type"], ["1", "inputs"], ["1", "inputs", "height"], ["1", "inputs", "content"],
                     ["2", "inputs", "images"], ["1", "_meta"], ["2", "is_changed"]):  # fmt: skip
            prompt = good_prompt()
            place = prompt
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            yield prompt
    for name in odd_names():
        yield {name: good_prompt()["1"], "2": {"class_type": "PreviewImage", "inputs": {"images": [name, 0]}}}
        yield {"1": {"class_type": name, "inputs": {}}}
    yield from looping_prompts()


def looping_prompts():
    mask = {"class_type": "StubMask", "inputs": {"value": 0.5, "height": 8, "width": 8, "batch_size": 1}}
    mix = {"class_type": "TestLazyMixImages", "inputs": {"image1": ["1", 0], "image2": ["1", 0], "mask": ["m", 0]}}
    out = {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}
    yield {"m": mask, "1": mix, "2": out}
    yield {"2": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}}}
    # A chain as long as no workflow is: what walks it must not do so by calling itself.
    chain = dict(good_prompt())
    del chain["2"]
    for number in range(2, 5000):
        chain[str(number)] = {"class_type": "TestVariadicAverage", "inputs": {"input1": [str(number - 1), 0]}}
    chain["out"] = {"class_type": "PreviewImage", "inputs": {"images": ["4999", 0]}}
    yield chain
    circle = {str(n): {"class_type": "TestVariadicAverage", "inputs": {"input1": [str((n + 1) % 3000), 0]}} for n in range(3000)}
    yield {**circle, "out": {"class_type": "PreviewImage", "inputs": {"images": ["0", 0]}}}
    wide = {f"input{number}": ["1", 0] for number in range(1, 2000)}
    yield {
        "1": good_prompt()["1"],
        "2": {"class_type": "TestVariadicAverage", "inputs": wide},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
    }
    size = {"height": 2**30, "width": 2**36, "batch_size": 2**30}
    yield {"1": {"class_type": "StubImage", "inputs": {"content": "WHITE", **size}}, "2": good_prompt()["2"]}
    yield {"1": {"class_type": "TestWhileLoopClose", "inputs": {"flow_control": ["1", 0], "condition": ["1", 0]}}, "2": good_prompt()["2"]}


QUERIES = {
    "/history": ["max_items", "offset"],
    "/api/jobs": ["limit", "offset", "status", "sort_by", "sort_order", "workflow_id"],
    "/view": ["filename", "type", "subfolder", "preview", "channel"],
    "/userdata": ["dir", "recurse", "split", "full_info"],
    "/v2/userdata": ["path"],
}
ODD_QUERY_VALUES = ["", "0", "-1", "1.5", "1e9", "99999999999999999999", "nan", "true", "a,b,,", "%00", "%ff", "[]", "null"]


def dumps(value):
    return json.dumps(value).encode("utf-8", "surrogatepass")
