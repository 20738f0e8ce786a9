"""The child's half of the conversation between the benchmark and a peer: JSON lines.

    benchmark                                          child
    the fields of a Job                            ->  loads its engine
                                                   <-  {"facts": {...}}
    {"requests": [{"prompt_token_ids", "max_tokens"}, ...]}  ->  runs them, all arriving at once
                                                   <-  the fields of an Answer
    end of file                                    ->  ends

A failure is answered by {"error": "one line"}. Imports the standard library only: a child runs in
the virtual environment of its own engine. Whatever the engine prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from minivllm.lab.memory import peak_memory_bytes, reset_peak_memory


@dataclass(frozen=True)
class Job:
    """What an engine may use: the same for all of them, from the workload and the command line.

    model: the folder or file of the weights. num_kv_slots: tokens whose K and V fit in memory.
    """

    model: str
    dtype: str
    threads: int
    max_num_seqs: int
    max_model_len: int
    num_kv_slots: int
    prefix_caching: bool


@dataclass
class Answer:
    """One run. Times in seconds since all requests arrived; lists: one a request, in order."""

    seconds: float
    num_steps: int | None
    token_times: list[list[float]]
    token_ids: list[list[int]]
    num_cached_tokens: int | None = None  # prompt tokens found in the prefix cache
    peak_memory_bytes: int | None = None


class PeerEngine(Protocol):
    """An engine that is loaded. `pid`: the process whose memory counts; `facts`: for the report."""

    pid: int
    facts: dict[str, Any]

    def run(self, requests: list[dict[str, Any]]) -> Answer:
        """Run from an empty cache, greedily, each request to its max_tokens."""

    def close(self) -> None:
        """End what the engine started."""


def serve(load: Callable[[Job], PeerEngine]) -> None:
    """Answer the lines of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a print of the engine, or of a library below it, spoils no answer
    if os.getpgrp() == os.getpid():
        threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    engine: PeerEngine | None = None
    try:
        for line in sys.stdin:
            try:
                message = json.loads(line)
                if engine is None:
                    engine = load(Job(**message))
                    answer = {"facts": {**engine.facts, "preloads": preloads()}}
                else:
                    answer = run(engine, message["requests"])
            except Exception as error:  # whatever it is, the benchmark shall say it
                first_line = (str(error).strip().splitlines() or [""])[0]
                answer = {"error": f"{type(error).__name__}: {first_line}"}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        if engine is not None:
            engine.close()


def end_with_parent(parent: int) -> None:
    """Kill this process group, which the benchmark made for us, once the benchmark is gone.

    A benchmark that is killed closes nothing, and a child at work would not notice for minutes.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def run(engine: PeerEngine, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """One run, with the peak of the engine's memory while it went on."""
    reset_peak_memory(engine.pid)
    answer = engine.run(requests)
    answer.peak_memory_bytes = peak_memory_bytes(engine.pid)
    return asdict(answer)


def preloads() -> list[str]:
    """File names of the libraries that LD_PRELOAD really put into this process."""
    wanted = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            mapped = {os.path.basename(line.split()[-1]) for line in maps}
    except OSError:
        return []
    names = (os.path.basename(os.path.realpath(path)) for path in wanted)
    return [name for name in names if name in mapped]
