"""The command `map`: it records a run of the model, or shows a stored trace."""

import argparse
from pathlib import Path

import pytest
from view_runs import random_run

from minivllm.view import Trace, map_command


def run(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    map_command.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["map", *arguments])
    args.run(args)


def test_a_stored_trace_is_shown_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture):
    """--load reads the trace, writes the page, and says what it wrote."""
    trace = random_run(1)[0]
    trace.save(tmp_path / "run.jsonl")
    out = tmp_path / "map.html"
    run("--load", "--trace", str(tmp_path / "run.jsonl"), "--out", str(out), "--text")
    said = capsys.readouterr().out
    assert f"{len(trace) - 1} iterations, {out.stat().st_size} bytes" in said
    assert "blocks in use" in said and "mv-host" in out.read_text(encoding="utf-8")


def test_load_without_a_trace_is_refused():
    """A clear sentence instead of a missing file."""
    with pytest.raises(ValueError, match="--load shows one trace"):
        run("--load")


@pytest.mark.model
def test_a_run_of_the_model_is_recorded_both_ways(
    smollm2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two questions, static and continuous: the same tokens, and their texts in the trace."""
    monkeypatch.setattr(map_command, "MOST_TOKENS", 3)
    static, continuous = map_command.record_demo(smollm2, num_prompts=2, static=True)
    assert static.token_ids == continuous.token_ids
    assert static.num_blocks == continuous.num_blocks
    row = continuous[-1].requests[0]
    text = "".join(map(continuous.text_of, continuous.token_ids[0]))
    assert row.name in text and text.startswith("<|im_start|>")
    continuous.save(tmp_path / "run.jsonl")
    assert list(Trace.load(tmp_path / "run.jsonl")) == list(continuous)
