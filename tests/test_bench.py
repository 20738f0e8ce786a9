"""The benchmark: every engine does the same work, and the file says what was measured."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from need import need
from tiny import tiny_model

from minivllm.lab import bench as bench_module
from minivllm.lab.bench import bench, kv_use, report, take_turns
from minivllm.lab.contestants import engine_config, run_minivllm, run_static
from minivllm.lab.measure import Run
from minivllm.lab.workload import WorkItem, Workload, built_in

KEYS = {"workload", "engine", "dtype", "tokens_per_second", "steps", "generated_tokens", "runs"}


def ignore(num_tokens: int) -> None:
    """Nobody looks at the progress."""


@pytest.fixture
def workload_file(tmp_path: Path) -> Path:
    rows = [{"prompt_len": 3 + i, "max_tokens": 1 + 4 * (i % 3)} for i in range(20)]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(rows))
    return path


def arguments(**changes: object) -> Namespace:
    """The command line's arguments, those left out at the values that suit a test."""
    settings = dict(
        model="tiny", dtype="auto", device="cpu", threads=None, json=None, workload="w1",
        engine="minivllm", runs=2, seed=0, prefix_caching=False,
    )  # fmt: skip
    return Namespace(**{**settings, **changes})


def test_the_file_of_one_engine_is_one_object(workload_file: Path, tmp_path: Path):
    out = tmp_path / "out.json"
    bench(arguments(workload=str(workload_file), engine="minivllm", json=str(out)))
    row = json.loads(out.read_text())
    assert row.keys() >= KEYS
    assert (row["workload"], row["engine"], row["dtype"]) == ("mine", "minivllm", "float32")
    assert row["generated_tokens"] == sum(1 + 4 * (i % 3) for i in range(20))
    assert len(row["runs"]) == 2 and row["tokens_per_second"] == pytest.approx(sum(row["runs"]) / 2)
    assert row.keys() >= {"ttft", "tpot", "kv_blocks", "kv_blocks_used_peak", "preemptions"}


def test_the_file_of_several_engines_is_a_list(workload_file: Path, tmp_path: Path, capsys):
    """All generate the same number of tokens; static batching takes more steps."""
    out = tmp_path / "out.json"
    rows = bench(arguments(workload=str(workload_file), engine="minivllm,static", json=str(out)))
    assert json.loads(out.read_text()) == rows
    ours, static = rows
    assert all(row.keys() >= KEYS for row in rows)
    assert ours["generated_tokens"] == static["generated_tokens"]
    assert ours["steps"] < static["steps"] == 9 + 9  # two batches, each as long as its slowest
    table = capsys.readouterr().out
    assert "mine: 20 requests, " in table and "TTFT" in table
    assert "KV blocks in use on average" in table and "KV slots reserved all the time" in table


@pytest.mark.hf
def test_hugging_face_does_the_same_work(workload_file: Path):
    """Left-padded static batches: as many steps and tokens as our static batching."""
    need("transformers")
    static, hf = bench(arguments(workload=str(workload_file), engine="static,hf", runs=1))
    for key in ("steps", "generated_tokens"):
        assert hf[key] == static[key]
    assert kv_use(hf) == "its KV memory is its own affair"


def test_all_engines_have_the_same_kv_memory():
    """w4: 16 rows of 544 slots, or 544 blocks of 16: the same bytes to a byte."""
    from minivllm.baselines.static_executor import StaticModelExecutor
    from minivllm.executor import ModelExecutor

    workload = built_in("w4", 259)
    config = engine_config(workload)
    paged = ModelExecutor(tiny_model(), config.num_blocks, config.block_size)
    static = StaticModelExecutor(tiny_model(), workload.batch_size, workload.row_slots)
    assert paged.cache.nbytes == static.nbytes
    assert (config.max_num_seqs, config.num_blocks * config.block_size) == (64, 16 * 544)


def test_each_run_begins_with_an_empty_engine():
    """The second run of the same workload finds no prefix of the first in the cache."""
    workload = Workload("w", [WorkItem(list(range(40)), 2)] * 2, batch_size=2, row_slots=64)
    runs = [run_minivllm(tiny_model(), workload, ignore, enable_prefix_caching=True)
            for _ in range(2)]  # fmt: skip
    assert runs[0].facts == runs[1].facts
    assert run_static(tiny_model(), workload, ignore).num_tokens == 4


def test_engines_take_turns_after_a_warm_up():
    """a, b warm up with four requests; then a, b, a, b, a, b with all: a slow minute hits both."""
    calls = []

    def contestant(name: str):
        def run(workload: Workload, progress) -> Run:
            calls.append((name, len(workload.items)))
            return Run(1.0, 1, [[1.0]])

        return run

    workload = Workload("w", [WorkItem([1], 2)] * 9)
    runs = take_turns({name: contestant(name) for name in "ab"}, workload, 3)
    assert calls == [("a", 4), ("b", 4)] + [("a", 9), ("b", 9)] * 3
    assert [len(runs[name]) for name in "ab"] == [3, 3]


def test_an_interrupt_keeps_the_runs_that_are_done(workload_file: Path, monkeypatch):
    calls = []

    def interrupted(*args, **options) -> Run:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return Run(1.0, 1, [[1.0], [1.0]])

    monkeypatch.setattr(bench_module, "run_minivllm", interrupted)
    (row,) = bench(arguments(workload=str(workload_file), engine="minivllm", runs=5))
    assert row["runs"] == [2.0, 2.0]


def test_the_median_run_is_reported():
    """1, 2 and 9 tokens a second in this order: the second run's steps and times, all three in
    `runs`, the median as the figure."""
    runs = [Run(1 / rate, steps, [[0.1]]) for rate, steps in ((9.0, 9), (2.0, 2), (1.0, 1))]
    row = report("x", runs, Workload("w", []), torch.bfloat16)
    assert (row["tokens_per_second"], row["steps"], row["dtype"]) == (2.0, 2, "bfloat16")
    assert row["runs"] == [9.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(engine="tgi"), "engine 'tgi' is not one of minivllm, equal_seats, static, hf, vllm"),
        (dict(engine=""), "engine '' is not one of"),
        (dict(runs=0), "--runs must be at least 1, got 0"),
        (dict(workload="w9"), "workload 'w9' is neither a file nor one of"),
        (dict(workload="no.json"), "no.json cannot be read"),
        (dict(dtype="int8"), "dtype must be"),
        (dict(model="none"), "unknown model 'none'"),
    ],
)
def test_bad_input_is_refused(changes: dict, message: str):
    with pytest.raises(ValueError, match=message):
        bench(arguments(**changes))


def test_a_workload_longer_than_the_models_context_is_refused(tmp_path: Path):
    """1020 + 5 tokens; the tiny model was made for 1024. It was an IndexError in the middle of the
    run, out of the table of positions."""
    path = tmp_path / "long.txt"
    path.write_text('[{"prompt_len": 1020, "max_tokens": 5}]')
    with pytest.raises(ValueError, match="rows of 1025 tokens; tiny was made for 1024"):
        bench(arguments(workload=str(path), engine="minivllm"))
