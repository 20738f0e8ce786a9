"""llama.cpp's server as a child of the benchmark: a slot for each request that may run at once.

The requests wait in a queue of ours, in their order, and a thread for each slot takes the next one:
so no more than max_num_seqs are with the server, and the tokens are timed as they arrive.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from minivllm.lab.peers.places import LLAMA_SERVER
from minivllm.lab.peers.protocol import Answer, Job, serve

KV_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
HOST = "127.0.0.1"
JSON_HEADER = {"Content-Type": "application/json"}


class LlamaServer:
    """llama-server on a GGUF file; every slot is emptied before a run."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.port = free_port()
        kv_type, slots = KV_TYPES[job.dtype], job.max_num_seqs
        binary = os.environ[LLAMA_SERVER]
        # Each slot has its own part of the KV cache, so all have room for the longest request (and
        # one token more, which the server keeps free), in the pieces of 256 that the server makes.
        num_kv_slots = slots * -(-(job.max_model_len + 1) // 256) * 256
        command = [
            binary, "--model", job.model, "--host", HOST, "--port", str(self.port),
            "--parallel", str(slots), "--ctx-size", str(num_kv_slots),
            "--threads", str(job.threads), "--threads-batch", str(job.threads),
            "--cache-type-k", kv_type, "--cache-type-v", kv_type, "--cache-ram", "0",
            "--no-context-shift", "--metrics", "--slot-save-path", os.getcwd(), "--no-webui",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.pid = self.process.pid
        self.wait_until_ready()
        self.facts = {
            "versions": {"llama.cpp": version(binary)},
            "kv_slots": num_kv_slots,
        }

    def run(self, requests: list[dict[str, Any]]) -> Answer:
        """All requests wait from the start; the clock of each token is its arrival here."""
        for slot in range(self.job.max_num_seqs):
            self.ask("POST", f"/slots/{slot}?action=erase", {})
        waiting = deque(range(len(requests)))
        times: list[list[float]] = [[] for _ in requests]
        token_ids: list[list[int]] = [[] for _ in requests]
        before = self.counters()
        start = time.perf_counter()

        def work() -> None:
            while waiting:
                try:
                    index = waiting.popleft()
                except IndexError:  # another thread was faster
                    break
                for new in self.complete(requests[index]):
                    token_ids[index] += new
                    times[index] += [time.perf_counter() - start] * len(new)

        with ThreadPoolExecutor(self.job.max_num_seqs) as pool:
            workers = [pool.submit(work) for _ in range(self.job.max_num_seqs)]
        for worker in workers:
            worker.result()  # raises what went wrong in the thread
        seconds = max(each[-1] for each in times if each)
        after = self.counters()
        steps, cached = (
            after[key] - before[key] if key in after else None
            for key in ("n_decode_total", "prompt_tokens_cached_total")
        )
        return Answer(seconds, steps, times, token_ids, cached)

    def complete(self, request: dict[str, Any]) -> Iterator[list[int]]:
        """Stream one request: yields the token ids of each event.

        Each has a connection of its own: the server closes one that was used when it likes.
        """
        body = {
            "prompt": request["prompt_token_ids"],
            "n_predict": request["max_tokens"],
            "ignore_eos": True,
            "temperature": 0,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": self.job.prefix_caching,
            "stream": True,
            "return_tokens": True,
        }
        connection = http.client.HTTPConnection(HOST, self.port)
        connection.request("POST", "/completion", json.dumps(body), JSON_HEADER)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"llama-server answered {response.status}: {response.read()[:200]}")
        for line in response:
            if line.startswith(b"error:"):
                raise RuntimeError(f"llama-server: {line.decode().strip()[:200]}")
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"llama-server: {event['error']}")
            if event.get("tokens"):
                yield event["tokens"]
        connection.close()

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        """One request to the server; RuntimeError unless it succeeds."""
        connection = http.client.HTTPConnection(HOST, self.port)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, JSON_HEADER)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"llama-server answered {response.status} to {path}: {answer[:200]}")
        return answer

    def counters(self) -> dict[str, int]:
        """The server's own counts, by name."""
        text = self.ask("GET", "/metrics").decode()
        pairs = re.findall(r"^llamacpp:(\w+_total) ([\d.e+]+)$", text, re.MULTILINE)
        return {name: int(float(value)) for name, value in pairs}

    def wait_until_ready(self) -> None:
        """Return when the model is loaded; RuntimeError when the server ends before that."""
        while self.process.poll() is None:
            try:
                self.ask("GET", "/health")
                return
            except (OSError, RuntimeError, http.client.HTTPException):
                time.sleep(0.2)
        raise RuntimeError(f"llama-server ended with status {self.process.returncode}")

    def close(self) -> None:
        """End the server."""
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


def version(binary: str) -> str:
    """What `llama-server --version` says of itself."""
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=600)
    found = re.search(r"version: *(.*)", done.stderr + done.stdout)
    return found.group(1).strip() if found else "unknown"


def main() -> None:
    """Serve the benchmark."""
    serve(LlamaServer)
