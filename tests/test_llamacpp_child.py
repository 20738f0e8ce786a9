"""How the benchmark talks to llama.cpp's server; here that is a few lines of Python."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minivllm.lab.peers import places
from minivllm.lab.peers.llamacpp_child import LlamaServer
from minivllm.lab.peers.process import Peer, command_of
from minivllm.lab.peers.protocol import Job
from minivllm.lab.workload import WorkItem, Workload

FAKE = Path(__file__).parent / "fake_llama_server.py"
JOB = Job("weights.gguf", "bfloat16", 1, 3, 300, 900, True)


def ignore(num_tokens: int) -> None:
    """Nobody looks at the progress."""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """The child with the fake server, whose program is a script that calls this Python."""
    server = tmp_path / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    server.chmod(0o755)
    command = command_of(sys.executable, LlamaServer.__module__)
    peer = Peer("llamacpp", command, {places.LLAMA_SERVER: str(server)}, tmp_path, JOB)
    yield peer
    peer.close()


def workload_of(*prompts: list[int]) -> Workload:
    return Workload("w", [WorkItem(prompt, 2 + index) for index, prompt in enumerate(prompts)])


def test_each_request_gets_its_own_tokens(peer: Peer, tmp_path: Path):
    """Seven requests over three slots: each in its place, all slots emptied before each run."""
    workload = workload_of(*([10 * i] for i in range(7)))
    runs = [peer.run(workload, ignore) for _ in range(2)]
    for run in runs:
        assert run.token_ids == [[10 * i + k for k in range(2 + i)] for i in range(7)]
        assert all(times == sorted(times) for times in run.token_times)
        assert run.num_steps == workload.num_tokens and run.facts["cached_tokens"] == 2 * 7
    assert runs[0].facts["versions"] == {"llama.cpp": "9 (fake)"}
    assert runs[0].facts["kv_slots"] == 3 * 512  # 301 in pieces of 256
    asked = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]
    erased = [f"/slots/{slot}?action=erase" for slot in range(3)]
    assert [path for path, _ in asked] == (erased + ["/completion"] * 7) * 2
    bodies = [body for path, body in asked if path == "/completion"]
    assert all(body["ignore_eos"] and body["cache_prompt"] and body["stream"] for body in bodies)


def test_the_server_gets_the_jobs_limits(peer: Peer, tmp_path: Path):
    options = json.loads((tmp_path / "options.json").read_text())
    pairs = dict(zip(options, options[1:], strict=False))
    assert (pairs["--model"], pairs["--parallel"], pairs["--threads"]) == ("weights.gguf", "3", "1")
    assert pairs["--cache-type-k"] == pairs["--cache-type-v"] == "bf16"
    assert pairs["--ctx-size"] == str(3 * 512)


@pytest.mark.parametrize(("first", "message"), [(99, "answered 400"), (98, "no room left")])
def test_a_request_that_the_server_refuses_is_one_line(peer: Peer, first: int, message: str):
    with pytest.raises(ValueError, match=f"the engine llamacpp failed: .*{message}"):
        peer.run(workload_of([1], [first], [2]), ignore)


def test_a_server_that_does_not_start_is_one_line(tmp_path: Path):
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\nexit 7\n")
    server.chmod(0o755)
    command = command_of(sys.executable, LlamaServer.__module__)
    with pytest.raises(ValueError, match="failed: RuntimeError: llama-server ended with status 7"):
        Peer("llamacpp", command, {places.LLAMA_SERVER: str(server)}, tmp_path, JOB)
