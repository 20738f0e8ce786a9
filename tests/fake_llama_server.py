#!/usr/bin/env python3
"""Speaks llama-server's HTTP, as far as the benchmark uses it: token i of a prompt p is p[0] + i.

Its options are noted in options.json, what it was asked for in asked.jsonl. A prompt that begins
with 99 is refused, one that begins with 98 fails in the middle.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOCK = threading.Lock()
COUNTS = {"n_decode_total": 0, "prompt_tokens_cached_total": 0, "busy": 0, "most_busy": 0}


class Handler(BaseHTTPRequestHandler):
    """One connection; HTTP/1.1, so that it stays open between requests."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *unused: object) -> None:
        """Be quiet."""

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        if self.path == "/metrics":
            counts = (f"llamacpp:{name} {value}\n" for name, value in COUNTS.items())
            self.answer(200, "# HELP\n" + "".join(counts))
        else:
            self.answer(200, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK, open("asked.jsonl", "a") as file:
            file.write(json.dumps([self.path, body]) + "\n")
        if not self.path.startswith("/completion"):
            self.answer(200, "{}")
        elif body["prompt"][0] == 99:
            self.answer(400, '{"error": "no room"}')
        else:
            self.stream(body)

    def stream(self, body: dict) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with LOCK:
            COUNTS["busy"] += 1
            COUNTS["most_busy"] = max(COUNTS["busy"], COUNTS["most_busy"])
            COUNTS["prompt_tokens_cached_total"] += 2
        for i in range(body["n_predict"]):
            with LOCK:
                COUNTS["n_decode_total"] += 1
            if body["prompt"][0] == 98:
                self.event({"error": {"message": "no room left"}})
                break
            self.event({"tokens": [body["prompt"][0] + i], "stop": False})
        with LOCK:
            COUNTS["busy"] -= 1
        self.event({"tokens": [], "stop": True})
        self.wfile.write(b"0\r\n\r\n")

    def event(self, value: dict) -> None:
        data = f"data: {json.dumps(value)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print("version: 9 (fake)", file=sys.stderr)
        sys.exit()
    with open("options.json", "w") as file:
        json.dump(sys.argv[1:], file)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
