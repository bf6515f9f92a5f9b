"""Many clients and many prompts at once: is every event there, and in order?

    gantry serve --testing-nodes --port 8188 &
    python3 tools/load/load.py --port 8188 --pid $!

Opens the WebSockets of all clients, posts all prompts (small graphs of the test pack: plain ones, mixes, loops that
expand, and ones that are cached after the first), and watches the events of each client until all prompts have ended.
Prints a JSON object: what was wrong, how long POST /prompt took, and the server's memory before and after. Exits with 1
if anything was wrong. Only the standard library is needed; it talks to 127.0.0.1 only.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
import uuid

from wire import TEXT, Connection, connect_websocket, request_bytes, rss_mib


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=8188)
    parser.add_argument("--pid", type=int, help="the server's process, to measure its memory")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--posters", type=int, default=4, help="processes that post, each one prompt after the other")
    parser.add_argument("--timeout", type=float, default=600, help="seconds until all prompts must have ended")
    parser.add_argument("--settle", type=float, default=10, help="seconds to wait for memory to return")
    parser.add_argument("--max-growth-mib", type=float, default=64, help="how much more memory may be used at the end")
    parser.add_argument("--max-p99-ms", type=float, help="fail if POST /prompt is slower than that, in the server, in the slowest percent")
    parser.add_argument("--keep-history", action="store_true", help="do not clear the history at the end")
    return parser.parse_args()


# The prompts ---------------------------------------------------------------------------------------------------------


def node(kind, **inputs):
    return {"class_type": kind, "inputs": inputs}


def plain_graph(number):
    size = {"height": 16 + number % 48, "width": 16 + number // 48, "batch_size": 1}
    return {"1": node("StubImage", content="NOISE", **size), "out": node("PreviewImage", images=["1", 0])}


def mix_graph(number):
    size = {"height": 16, "width": 16, "batch_size": 1}
    return {
        "1": node("StubImage", content="BLACK", **size),
        "2": node("StubConstantImage", value=(number % 997 + 1) / 1000, **size),
        "3": node("StubMask", value=0.5, **size),
        "4": node("TestLazyMixImages", image1=["1", 0], image2=["2", 0], mask=["3", 0]),
        "out": node("PreviewImage", images=["4", 0]),
    }


def loop_graph(number):
    size = {"height": 8 + number % 8, "width": 8, "batch_size": 1}
    return {
        "1": node("StubImage", content="BLACK", **size),
        "2": node("StubImage", content="NOISE", **size),
        "3": node("TestForLoopOpen", remaining=2, initial_value1=["2", 0]),
        "4": node("TestVariadicAverage", input1=["1", 0], input2=["3", 2]),
        "5": node("TestForLoopClose", flow_control=["3", 0], initial_value1=["4", 0]),
        "out": node("PreviewImage", images=["5", 0]),
    }


def known_graph(_):
    size = {"height": 16, "width": 16, "batch_size": 1}
    return {"1": node("StubImage", content="WHITE", **size), "out": node("PreviewImage", images=["1", 0])}


GRAPHS = [plain_graph, mix_graph, known_graph, loop_graph]


class Plan:
    """One prompt to be posted."""

    def __init__(self, number, client):
        self.id, self.client = str(uuid.uuid4()), client
        self.graph = GRAPHS[number % len(GRAPHS)](number)


def post_all(port, plans, start, results):
    """Posts prompts one after the other over one connection; runs in a process of its own, so that reading events
    does not slow what is measured."""
    connection = Connection(port, timeout=120)
    connection.open()
    start.wait()
    answers = []
    for plan in plans:
        body = json.dumps({"prompt": plan.graph, "client_id": plan.client, "prompt_id": plan.id}).encode()
        data = request_bytes("POST", "/prompt", [("Content-Type", "application/json")], body)
        before = time.perf_counter()
        try:
            status, headers, text = connection.exchange(data)
            problem = None if status == 200 else f"{status} {text[:200]!r}"
            # What the server itself took: reading, validation and storing, without the way there and back.
            inside = float(headers.get("server-timing", "dur=nan").rpartition("dur=")[2]) / 1e3
        except (OSError, ValueError) as error:
            connection.close()
            problem, inside = repr(error), float("nan")
        answers.append((plan.id, time.perf_counter() - before, inside, problem))
    results.put(answers)


# The events ----------------------------------------------------------------------------------------------------------


class Run:
    """The events of one prompt so far, judged as they come."""

    def __init__(self, plan):
        self.nodes = set(plan.graph)
        # A node with lazy inputs starts again when it has them.
        self.lazy = {name for name, node in plan.graph.items() if node["class_type"] == "TestLazyMixImages"}
        self.last, self.cached, self.executing, self.executed = "posted", set(), [], []
        self.states = {}

    @property
    def is_over(self):
        return self.last == "over"

    def hear(self, kind, data):
        """Takes an event and yields what is wrong with it."""
        if self.is_over:
            yield f"{kind} after the end"
        elif kind == "execution_start":
            if self.last != "posted":
                yield f"execution_start after {self.last}"
            self.last = "started"
        elif kind == "execution_cached":
            if self.last != "started":
                yield f"execution_cached after {self.last}"
            self.last, self.cached = "running", set(data["nodes"])
        elif kind in ("execution_error", "execution_interrupted"):
            yield f"{kind}: {data.get('exception_message')}"
            self.last = "ended"
        elif kind == "executing" and data["node"] is None:
            if self.last != "ended":
                yield f"executing(null) after {self.last}"
            self.last = "over"
        elif self.last != "running":
            yield f"{kind} after {self.last}"
        elif kind == "execution_success":
            yield from self.judge_success()
            self.last = "ended"
        else:
            yield from self.hear_node(kind, data)

    def hear_node(self, kind, data):
        if kind == "progress_state":
            states = {name: state["state"] for name, state in data["nodes"].items()}
            for name, state in self.states.items():
                if name not in states:
                    yield f"progress_state lost the node {name}"
                elif state == "finished" and states[name] != "finished":
                    yield f"{name} went from finished to {states[name]}"
            self.states = states
        elif kind == "executing":
            if self.states.get(data["node"]) != "running":
                yield f"executing {data['node']} before a progress_state that says so"
            if data["node"] in self.executing and data["node"] not in self.lazy:
                yield f"executing {data['node']} twice"
            self.executing.append(data["node"])
        elif kind == "executed":
            if data["node"] not in self.executing and data["node"] not in self.cached:
                yield f"executed {data['node']} before executing"
            if self.states.get(data["node"]) == "finished":
                yield f"executed {data['node']} after it was finished"
            self.executed.append(data["node"])
        elif kind == "progress" and data["node"] not in self.executing:
            yield f"progress of {data['node']} before executing"

    def judge_success(self):
        if missing := self.nodes - self.cached - set(self.executing):
            yield f"no executing for {sorted(missing)}"
        if unfinished := [name for name in self.executing if self.states.get(name) != "finished"]:
            yield f"no finished progress_state for {unfinished}"
        if self.executed.count("out") != 1:
            yield f"executed for the output came {self.executed.count('out')} times"


class Client:
    """One WebSocket and what it heard."""

    def __init__(self, name, watch):
        self.name, self.watch, self.expected, self.runs = name, watch, [], {}
        self.position, self.statuses, self.last_remaining, self.is_closing = 0, 0, None, False
        self.events = 0

    def problem(self, text):
        self.watch.problem(f"{self.name}: {text}")

    def heard(self, opcode, payload):
        self.events += 1
        if opcode != TEXT:
            return self.problem("a binary message, though no node has a preview")
        if not payload.startswith(b'{"type":') and not payload.startswith(b'{ "type"'):
            self.problem(f"type is not the first key: {payload[:40]!r}")
        message = self.watch.parse(payload)
        kind, data = message["type"], message["data"]
        if kind == "status":
            return self.hear_status(data)
        run = self.runs.get(data.get("prompt_id"))
        if run is None:
            return self.problem(f"{kind} of a prompt of another client: {data.get('prompt_id')}")
        if kind == "execution_start":
            self.hear_start(data["prompt_id"])
        for text in run.hear(kind, data):
            self.problem(f"prompt {data['prompt_id']}: {text}")
        if run.is_over:
            self.watch.over(data["prompt_id"])

    def hear_status(self, data):
        remaining = data["status"]["exec_info"]["queue_remaining"]
        if self.statuses == 0 and data.get("sid") != self.name:
            self.problem(f"the first status has the sid {data.get('sid')!r}")
        if not 0 <= remaining <= self.watch.total:
            self.problem(f"queue_remaining is {remaining}")
        self.statuses, self.last_remaining = self.statuses + 1, remaining

    def hear_start(self, prompt_id):
        if self.position < len(self.expected) and self.expected[self.position] != prompt_id:
            self.problem(f"prompt {prompt_id} started out of the order in which it was posted")
        if self.position and not self.runs[self.expected[self.position - 1]].is_over:
            self.problem(f"prompt {prompt_id} started before the one before it was over")
        self.position += 1

    def ended(self):
        if not self.is_closing:
            self.problem("the server closed the WebSocket")


class Watch:
    """What all clients share: the count of prompts that are over, and what was wrong."""

    def __init__(self, total):
        self.total, self.ended, self.problems, self.problem_count = total, set(), [], 0
        self.done = asyncio.Event()
        self.statuses = {}

    def parse(self, payload):
        # Every status goes to every client: the same bytes are read once.
        message = self.statuses.get(payload)
        if message is None:
            message = json.loads(payload)
            if message["type"] == "status":
                self.statuses[payload] = message
        return message

    def problem(self, text):
        self.problem_count += 1
        if len(self.problems) < 50:
            self.problems.append(text)

    def over(self, prompt_id):
        self.ended.add(prompt_id)
        if len(self.ended) == self.total:
            self.done.set()


# The whole -----------------------------------------------------------------------------------------------------------


def percentiles(seconds):
    ordered = sorted(seconds)
    if not ordered:
        return {}
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    result = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for name, share in at.items()}
    return {"mean": sum(ordered) / len(ordered) * 1000, **result}


async def sample_memory(pid, peak):
    while True:
        peak[0] = max(peak[0], rss_mib(pid) or 0)
        await asyncio.sleep(0.25)


async def watch_all(given, watch, clients, start):
    """Connects all clients, lets the prompts be posted, and waits for their ends."""
    connect = [connect_websocket(given.port, f"/ws?clientId={client.name}", client.heard, client.ended) for client in clients]
    sockets = []
    for position in range(0, len(connect), 50):
        sockets += await asyncio.gather(*connect[position : position + 50])
    memory = {"before": rss_mib(given.pid)}
    peak = [0.0]
    sampling = asyncio.create_task(sample_memory(given.pid, peak))
    begun = time.perf_counter()
    start.set()
    try:
        await asyncio.wait_for(watch.done.wait(), given.timeout)
    except asyncio.TimeoutError:
        watch.problem(f"{watch.total - len(watch.ended)} prompts did not end in {given.timeout} s")
    seconds = time.perf_counter() - begun
    await asyncio.sleep(1)
    sampling.cancel()
    memory["peak"] = peak[0] or None
    for client in clients:
        if client.last_remaining != 0:
            client.problem(f"the last status says that {client.last_remaining} remain")
        client.is_closing = True
    for websocket in sockets:
        websocket.transport.close()
    return seconds, memory


def judge_history(given, plans, watch):
    """Every prompt must be in the history, as a success."""
    connection = Connection(given.port, timeout=60)
    try:
        _, _, text = connection.exchange(request_bytes("GET", f"/history?max_items={max(10000, len(plans))}"))
        history = json.loads(text)
    except (OSError, ValueError) as error:
        return watch.problem(f"/history: {error!r}")
    for plan in plans:
        entry = history.get(plan.id)
        if entry is None:
            watch.problem(f"prompt {plan.id} is not in the history")
        elif entry["status"]["status_str"] != "success" or "out" not in entry["outputs"]:
            watch.problem(f"prompt {plan.id} is in the history as {entry['status']}")
    if not given.keep_history:
        for target, body in [("/history", b'{"clear":true}'), ("/free", b'{"unload_models":true,"free_memory":true}')]:
            connection.exchange(request_bytes("POST", target, body=body))


def judge_memory(given, memory, watch):
    deadline = time.monotonic() + given.settle
    while (after := rss_mib(given.pid)) is not None:
        memory["after"], memory["growth"] = after, after - memory["before"]
        if memory["growth"] <= given.max_growth_mib:
            return
        if time.monotonic() > deadline:
            return watch.problem(f"{memory['growth']:.0f} MiB more than before are in use")
        time.sleep(0.5)
    if given.pid is not None:
        watch.problem("the server's process is gone")


async def main(given):
    names = [f"load-{number}-{uuid.uuid4()}" for number in range(given.clients)]
    plans = [Plan(number, names[number % len(names)]) for number in range(given.prompts)]
    watch = Watch(len(plans))
    clients = {name: Client(name, watch) for name in names}
    for plan in plans:
        clients[plan.client].expected.append(plan.id)
        clients[plan.client].runs[plan.id] = Run(plan)

    # All prompts of a client go through one poster, so that their order is known.
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    position = {name: number for number, name in enumerate(names)}
    shares = [[plan for plan in plans if position[plan.client] % given.posters == share] for share in range(given.posters)]
    posters = [context.Process(target=post_all, args=(given.port, share, start, results), daemon=True) for share in shares]
    for poster in posters:
        poster.start()

    seconds, memory = await watch_all(given, watch, list(clients.values()), start)
    loop = asyncio.get_running_loop()
    answers = []
    for _ in posters:
        answers += await loop.run_in_executor(None, lambda: results.get(timeout=130))
    for prompt_id, _, _, problem in answers:
        if problem:
            watch.problem(f"POST /prompt of {prompt_id}: {problem}")
    judge_history(given, plans, watch)
    judge_memory(given, memory, watch)
    latency = percentiles([taken for _, taken, _, problem in answers if not problem])
    inside = percentiles([inside for _, _, inside, problem in answers if not problem])
    if given.max_p99_ms and not inside.get("p99", 0) <= given.max_p99_ms:
        watch.problem(f"POST /prompt takes the server {inside['p99']:.2f} ms in the slowest percent")
    return {
        "clients": given.clients,
        "prompts": given.prompts,
        "ended": len(watch.ended),
        "seconds": seconds,
        "prompts_per_second": len(watch.ended) / seconds,
        "events": sum(client.events for client in clients.values()),
        "statuses": sum(client.statuses for client in clients.values()),
        "post_prompt_ms": latency,
        "post_prompt_in_server_ms": inside,
        "memory_mib": memory,
        "problem_count": watch.problem_count,
        "problems": watch.problems,
    }


if __name__ == "__main__":
    report = asyncio.run(main(options()))
    print(json.dumps(report, indent=2))
    sys.exit(1 if report["problem_count"] else 0)
