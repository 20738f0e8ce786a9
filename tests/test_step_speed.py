"""The benchmark of single steps: counts and sums, never times."""

import json
from pathlib import Path

import pytest
from tiny import tiny_model

from minivllm.__main__ import main
from minivllm.lab import step_speed
from minivllm.lab.clock import Clock, Device, ModelShape, StepWork
from minivllm.lab.speed_figure import main as draw
from minivllm.lab.step_speed import PARTS, Stopwatch, ideal_seconds, take_apart, watched


def test_the_roof_is_the_longer_of_all_bytes_and_all_flops() -> None:
    """By hand: 1 layer, everything 1 wide, so that each count is small."""
    shape = ModelShape("one", 1, 1, 1, 1, 1, 1, 1, itemsize=4)
    work = StepWork(2, 2, 6, 6)
    both = Clock(Device("", 100.0, 1000.0, 0.0), shape)
    fetch = sum(Clock(Device("", 100.0, float("inf"), 0.0), shape).parts(work).values())
    compute = sum(Clock(Device("", float("inf"), 1000.0, 0.0), shape).parts(work).values())
    assert ideal_seconds(both, work) == max(fetch, compute)
    assert 0 < compute < fetch


def test_a_call_inside_another_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks once at each look: the outer call keeps its own ticks only."""
    ticks = iter(range(100))
    monkeypatch.setattr(step_speed.time, "perf_counter", lambda: next(ticks))
    watch = Stopwatch()
    inner = watch.timed("attention", lambda: None)
    watch.timed("the rest", lambda: (inner(), inner()))()
    assert watch.seconds["attention"] == 2
    assert watch.seconds["the rest"] == 5 - 2


def test_a_step_taken_apart_is_whole_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is seen, and the model and the metadata have their own functions back."""
    monkeypatch.setattr(step_speed, "NUM_STEPS", 2)
    monkeypatch.setattr(step_speed, "CONTEXT", 8)
    model = tiny_model()
    before = (model.ops, model.head, model.layers[0].qkv, step_speed.AttentionMetadata.build)
    parts = take_apart(model)
    assert list(parts) == list(PARTS) and min(parts.values()) > 0
    after = (model.ops, model.head, model.layers[0].qkv, step_speed.AttentionMetadata.build)
    assert before == after
    engine = step_speed.make_engine(model, 1, 8, 2)
    with pytest.raises(RuntimeError, match="broken off"), watched(engine, Stopwatch()):
        raise RuntimeError("broken off")
    assert (model.ops, model.head) == before[:2]


def test_the_command_writes_what_the_figure_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"NUM_STEPS": 2, "CONTEXT": 8, "BATCH_SIZES": (1, 3), "BIG": 1 << 20}
    for name, value in small.items():
        monkeypatch.setattr(step_speed, name, value)
    file = tmp_path / "steps.json"
    assert main(["bench", "--steps", "--model", "tiny", "--json", str(file)]) in (0, None)
    assert "share" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert [row["batch"] for row in result["steps"]] == [1, 3]
    for row in result["steps"]:
        ratio = row["tokens_per_second"] / row["roof_tokens_per_second"]
        assert row["share_of_roof"] == pytest.approx(ratio)
    bench = tmp_path / "bench.json"
    work = tmp_path / "work.json"
    work.write_text(json.dumps([{"prompt_len": 5, "max_tokens": 3}] * 2))
    arguments = ["--model", "tiny", "--runs", "1", "--json", str(bench)]
    main(["bench", "--workload", str(work), "--engine", "minivllm,static", *arguments])
    draw([str(file), str(bench), "--out", str(tmp_path / "speed")])
    merged = json.loads((tmp_path / "speed.json").read_text())
    assert [row["engine"] for row in merged["bench"]] == ["minivllm", "static"]
    assert (tmp_path / "speed.svg").read_text().startswith("<?xml")
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(ValueError, match="was not written by"):
        draw([str(other), "--out", str(tmp_path / "no")])
