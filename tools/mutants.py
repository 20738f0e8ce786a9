"""Test the tests: plant classic faults into a copy of the package, one by one, and want red.

Each fault replaces one piece of text that must occur exactly once in its file; the working tree is
never touched. Usage: python tools/mutants.py [WORD ...] runs those whose name holds a WORD, or all.
Exit status 0 only if every planted fault is caught.
"""

# ruff: noqa: E501 (one fault a line)

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NUM_WORKERS = 2
TIMEOUT = 90  # seconds; a fault that makes the tests hang is caught, too
LAW_SEEDS = "300"
# The fast ones first; the test that mirrors the file goes before all, the law last.
TESTS = [
    "allocator", "page_table", "request", "request_queue", "policy", "prefix_cache", "config",
    "sampling_params", "kv_cache_manager", "scheduler", "scheduler_preemption", "engine", "stats",
    "integrity", "fake_executor", "beam_search_preemption", "law",
]  # fmt: skip


class Fault(NamedTuple):
    name: str
    file: str  # of minivllm/, without .py
    old: str
    new: str


FAULTS = [
    # --- the pool and the table -----------------------------------------------------------------
    Fault("skip a decrement", "allocator", "self.ref_cnt[block_id] = count - 1", "pass"),
    Fault("free a shared block", "allocator", "if count == 1:\n                self._free", "if count >= 1:\n                self._free"),
    Fault("double free goes unnoticed", "allocator", "if count == 0:\n                raise ValueError", "if count < 0:\n                raise ValueError"),
    Fault("touch leaves the block in the free list", "allocator", "                del self._free[block_id]\n", "                pass\n"),
    Fault("newest free block first", "allocator", "popitem(last=False)", "popitem(last=True)"),
    Fault("take what there is instead of all or none", "allocator", "if num_blocks > len(self._free):", "if not self._free:"),
    Fault("floor instead of ceil", "page_table", "return -(-num_tokens // block_size)", "return num_tokens // block_size"),
    Fault("one block too many at an edge", "page_table", "return -(-num_tokens // block_size)", "return num_tokens // block_size + 1"),
    Fault("slot of the next position", "page_table", "+ position % self.block_size", "+ (position + 1) % self.block_size"),
    Fault("one position past the table", "page_table", "if not 0 <= position < self.num_slots:", "if not 0 <= position <= self.num_slots:"),
    # --- the prefix cache -----------------------------------------------------------------------
    Fault("no forget on reuse", "kv_cache_manager", "self.evicted += self.prefix_cache.forget(block_ids)", "pass"),
    Fault("publish before compute", "kv_cache_manager", "num_full = request.num_computed_tokens // self.block_size", "num_full = request.num_tokens // self.block_size"),
    Fault("publish a block that is not full", "kv_cache_manager", "num_full = request.num_computed_tokens // self.block_size", "num_full = num_blocks_for(request.num_computed_tokens, self.block_size)"),
    Fault("key without its parent", "prefix_cache", "parent = keys[-1] if keys else ROOT\n            extras", "parent = ROOT\n            extras"),
    Fault("salt ignored", "prefix_cache", 'if salt is not None and not keys else ()', "if False else ()"),
    Fault("tokens not compared", "prefix_cache", "return entry.parent == parent and entry.token_ids == tokens", "return True"),
    Fault("parent not compared", "prefix_cache", "return entry.parent == parent and entry.token_ids == tokens", "return entry.token_ids == tokens"),
    Fault("a twin takes over the key", "prefix_cache", "            return self._same(entry, parent, tuple(tokens))\n", "            pass\n"),
    Fault("collision goes unnoticed", "prefix_cache", "            return self._same(entry, parent, tuple(tokens))\n", "            return True\n"),
    Fault("whole prompt cached", "kv_cache_manager", "(request.num_tokens - 1) // self.block_size", "request.num_tokens // self.block_size"),
    Fault("hit without touch", "kv_cache_manager", "self.pool.touch(need.cached_block_ids)", "pass"),
    Fault("hits counted as held although free", "kv_cache_manager", "num_held = sum(self.pool.ref_cnt[block_id] > 0 for block_id in cached)", "num_held = len(cached)"),
    Fault("hits of a resumed request counted", "scheduler", "if not resumes:", "if True:"),
    Fault("head freed before tail", "kv_cache_manager", "self.pool.free_blocks(reversed(request.block_table.block_ids))", "self.pool.free_blocks(request.block_table.block_ids)"),
    # --- sharing --------------------------------------------------------------------------------
    Fault("copy-on-write forgotten", "kv_cache_manager", "return offset > 0 and self.pool.ref_cnt[block_ids[first]] > 1", "return False"),
    Fault("copied block keeps its holder", "kv_cache_manager", "        self.pool.free_blocks([block_ids[index]])\n", ""),
    Fault("table keeps the shared block", "kv_cache_manager", "        block_ids[index] = new_block_id\n", ""),
    Fault("copy in the wrong direction", "kv_cache_manager", 'BlockOp("copy", block_ids[index], new_block_id)', 'BlockOp("copy", new_block_id, block_ids[index])'),
    Fault("fork without touch", "kv_cache_manager", "self.pool.touch(child.block_table.block_ids)", "pass"),
    Fault("fork shares the table itself", "kv_cache_manager", "child.block_table.block_ids = parent.block_table.block_ids[:num_written]", "child.block_table = parent.block_table"),
    Fault("fork shares the tokens themselves", "request", "child.token_ids = list(self.token_ids)", "pass"),
    Fault("room for the copy forgotten", "kv_cache_manager", "num_new = num_missing + is_shared", "num_new = num_missing or is_shared"),
    Fault("samples draw the same numbers", "request", '{self.seed}/{sample_index}/', "{self.seed}/"),
    # --- preemption -----------------------------------------------------------------------------
    Fault("resume with the prompt's length", "scheduler", "num_lacking = request.num_tokens - (num_cached", "num_lacking = request.num_prompt_tokens - (num_cached"),
    Fault("recompute from where it was", "kv_cache_manager", "        request.num_computed_tokens = 0\n        return 0", "        return 0"),
    Fault("a step that broke off counts", "engine", "            self.scheduler.lose_all()\n", "            pass\n"),
    Fault("outputs lost to an observer's error", "engine", "            self._held = results\n", "            pass\n"),
    Fault("swapped-out KV survives a step that broke off", "scheduler", "        for request in self.waiting:\n            self.kv.lose(request)\n", ""),
    Fault("a beam's repeated offer counts", "beam_search", "beam.num_computed_tokens < beam.num_tokens", "False"),
    Fault("no prefix search, no hit", "scheduler", "admission.no_seat(request, seats)", "admission.no_seat(request, seats - 1)"),
    Fault("oldest is preempted", "scheduler", "last, why = self.running[-1],", "last, why = self.running[0],"),
    Fault("preempted is overtaken", "request_queue", "fresh = request.status is not RequestStatus.PREEMPTED", "fresh = False"),
    Fault("preempted still in the running list", "scheduler", "        self.running.remove(request)\n        num_computed", "        num_computed"),
    Fault("new ones enter in a step that preempts", "batching", "if budget is not None and scheduler.waiting:", "budget = budget or 1\n    if scheduler.waiting:"),
    Fault("part of a request is swapped", "kv_cache_manager", "or num_written > self.host_pool.num_free_blocks", "or not self.host_pool.num_free_blocks"),
    Fault("swap in the wrong order", "kv_cache_manager", "        return ops\n", "        return ops[::-1]\n"),
    Fault("swapped in from the wrong side", "kv_cache_manager", 'BlockOp("swap_in", src, dst)', 'BlockOp("swap_in", dst, src)'),
    Fault("moves lost", "scheduler", "output.block_ops = self.kv.take_block_ops()", "self.kv.take_block_ops()"),
    Fault("host blocks leak on return", "kv_cache_manager", "        self.host_pool.free_blocks(request.host_block_ids)\n        request.host_block_ids = []\n\n", "        request.host_block_ids = []\n\n"),
    Fault("host blocks leak on abort", "kv_cache_manager", "            self.host_pool.free_blocks(request.host_block_ids)\n", ""),
    Fault("swapped-out request is not brought back", "kv_cache_manager", "            self._swap_in(request)\n", "            request.host_block_ids = []\n"),
    # --- the scheduler --------------------------------------------------------------------------
    Fault("watermark forgotten", "admission", "watermark = config.watermark_blocks if scheduler.running else 0", "watermark = 0"),
    Fault("watermark for an empty engine", "admission", "watermark = config.watermark_blocks if scheduler.running else 0", "watermark = config.watermark_blocks"),
    Fault("admission off by one block", "admission", "if num_free - watermark < num_blocks:", "if num_free - watermark <= num_blocks:"),
    Fault("budget not spent by running ones", "scheduler", "                budget -= num_new\n        return budget", "        return budget"),
    Fault("budget not spent by new ones", "scheduler", "                budget -= num_new\n        if request", "        if request"),
    Fault("seats not taken", "scheduler", "            seats -= request.num_seats\n", ""),
    Fault("samples to come take no seat", "request", "self.num_seats = params.n ", "self.num_seats = 1 "),
    Fault("abort leaks", "scheduler", "        self.kv.free(request)\n        request.status", "        request.status"),
    Fault("abort forgets the waiting line", "scheduler", "queue = self.running if request.status is RequestStatus.RUNNING else self.waiting", "queue = self.running if request.status is RequestStatus.RUNNING else [request]"),
    Fault("group is kept after its last sample", "scheduler", "            del self.requests[request.request_id]\n", "            pass\n"),
    Fault("who left is run all the same", "step_records", "if request.status is running", "if True"),
    Fault("who left gets its token all the same", "scheduler", "if request.status is not running:", "if False:"),
    Fault("middle chunk emits", "fake_executor", "if end == request.num_tokens:", "if True:"),
    Fault("chunk counted twice", "scheduler", "request.num_computed_tokens += num_new\n", "request.num_computed_tokens += num_new + (num_new > 1)\n"),
    Fault("who has ended stays in the batch", "scheduler", "self.running = [request for request in self.running if not request.is_finished]", "pass"),
    Fault("chunk limit ignored", "scheduler", "min(self.config.max_chunk, budget))", "budget)"),
    Fault("reserved less than known", "admission", "return request.num_tokens", "return request.num_prompt_tokens"),
    # --- the door and the end -------------------------------------------------------------------
    Fault("max_tokens one too many", "request", "elif num_output >= self.max_tokens:", "elif num_output > self.max_tokens:"),
    Fault("min_tokens ignored", "request", "and num_output > self.params.min_tokens", ""),
    Fault("stop tokens not suppressed", "request", "return sorted(self.stop_token_ids)", "return []"),
    Fault("ignore_eos ignored", "request", "frozenset() if params.ignore_eos else frozenset(eos_token_ids)", "frozenset(eos_token_ids)"),
    Fault("length beyond the model's", "admission", "request.max_tokens = min(request.max_tokens or room, room)", "request.max_tokens = request.max_tokens or room"),
    Fault("door counts one token too many", "request", "return self.num_prompt_tokens + self.max_tokens - 1", "return self.num_prompt_tokens + self.max_tokens"),
    Fault("door lets in what cannot run alone", "admission", "if num_blocks > config.num_blocks:", "if num_blocks > config.num_blocks + 1:"),
    Fault("duplicate id accepted", "admission", "if request.request_id in requests:", "if False:"),
    Fault("vocabulary one too large", "admission", "if not 0 <= token_id < vocab_size:", "if not 0 <= token_id <= vocab_size:"),
]  # fmt: skip


def check_faults(faults: list[Fault]) -> None:
    """Each text occurs once, and each replacement changes it. Raises SystemExit naming the rest."""
    stale = []
    for fault in faults:
        count = source(fault).count(fault.old)
        if count != 1 or fault.old == fault.new:
            stale.append(f"{fault.name}: found {count} times in {fault.file}.py")
    if stale:
        sys.exit("faults that no longer fit the package:\n" + "\n".join(stale))


def source(fault: Fault) -> str:
    return (ROOT / "minivllm" / f"{fault.file}.py").read_text(encoding="utf-8")


def run_tests(fault: Fault | None) -> tuple[bool, str]:
    """Plant one fault (or none) in a fresh copy, and run the tests: (all green, last words)."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for part in ("minivllm", "tests"):
            ignore = shutil.ignore_patterns("__pycache__", "conftest.py")
            shutil.copytree(ROOT / part, copy / part, ignore=ignore)
        tests = list(TESTS)
        if fault is not None:
            planted = source(fault).replace(fault.old, fault.new)
            (copy / "minivllm" / f"{fault.file}.py").write_text(planted, encoding="utf-8")
            tests.sort(key=lambda name: not name.startswith(fault.file))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += [f"tests/test_{name}.py" for name in tests]
        command[-1] += "::test_tokens_do_not_depend_on_the_schedule"
        environment = {**os.environ, "PYTHONPATH": folder, "LAW_SEEDS": LAW_SEEDS}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        try:
            run = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            return False, f"no end within {TIMEOUT} s"
    if run.returncode > 1:  # pytest itself failed: that is no test that went red
        sys.exit(f"{fault.name if fault else 'the package as it is'}:\n{run.stdout}{run.stderr}")
    words = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return run.returncode == 0, (words or ["green"])[0]


def main(words: list[str]) -> int:
    faults = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    check_faults(faults)
    green, last_words = run_tests(None)
    if not green:
        print(f"the tests are red without any fault: {last_words}")
        return 1
    survivors = []
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        for fault, (green, last_words) in zip(faults, pool.map(run_tests, faults), strict=True):
            caught = last_words.removeprefix("FAILED tests/").split(" - ")[0]
            print(f"{'SURVIVES' if green else 'caught  '} {fault.name} ({fault.file}.py): {caught}")
            sys.stdout.flush()
            survivors += [fault] if green else []
    for fault in survivors:
        print(f"\nno test notices: {fault.name}\n  {fault.old.strip()}\n  -> {fault.new.strip()}")
    print(f"{len(faults) - len(survivors)} of {len(faults)} planted faults caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
