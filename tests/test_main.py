"""The command line: each command, its file of figures, and bad input in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import greedy, tiny_llm

from minivllm.__main__ import main
from minivllm.sampling_params import SamplingParams

COMMANDS = ["demo", "generate", "bench"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_common_option(command: str, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for option in ("--model", "--dtype", "--device", "--threads", "--json FILE"):
        assert option in text


def test_help_names_every_command(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_help_needs_no_torch():
    """It answers at once: the heavy imports belong to the commands that run."""
    code = "import sys; from minivllm.__main__ import make_parser; make_parser(); " \
           "sys.exit('torch' in sys.modules)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_generate_prints_what_the_engine_says(tmp_path: Path, capsys: pytest.CaptureFixture):
    out = tmp_path / "out.json"
    argv = ["generate", "Hi", "You", "--model", "tiny", "--max-tokens", "6", "--json", str(out)]
    assert main(argv) == 0
    chats = [[{"role": "user", "content": text}] for text in ("Hi", "You")]
    expected = tiny_llm().chat(chats, greedy(6), use_tqdm=False)
    rows = json.loads(out.read_text())
    assert [row["prompt"] for row in rows] == ["Hi", "You"]
    for row, output in zip(rows, expected, strict=True):
        completion = output.outputs[0]
        assert row["text"] == completion.text and row["token_ids"] == completion.token_ids
        assert row["finish_reason"] == completion.finish_reason
    printed = capsys.readouterr().out
    assert printed.startswith("> Hi\n") and "> You\n" in printed
    assert all(output.outputs[0].text in printed for output in expected)


def test_generate_raw_and_seeded(tmp_path: Path):
    """--raw continues the text itself; the sampling options arrive."""
    out = tmp_path / "out.json"
    argv = ["generate", "abc", "--raw", "--model", "tiny", "--json", str(out), "--max-tokens", "5"]
    assert main([*argv, "--temperature", "0.7", "--top-k", "9", "--top-p", "0.9",
                 "--seed", "3"]) == 0  # fmt: skip
    params = dict(temperature=0.7, top_k=9, top_p=0.9, seed=3)
    wanted = SamplingParams(max_tokens=5, **params)
    expected = tiny_llm().generate("abc", wanted, use_tqdm=False)
    assert json.loads(out.read_text())[0]["token_ids"] == expected[0].outputs[0].token_ids


def test_generate_answers_the_good_prompts(capsys: pytest.CaptureFixture):
    """The empty one costs a line and the exit status; the others are answered."""
    assert main(["generate", "a", "", "b", "--raw", "--model", "tiny", "--max-tokens", "2"]) == 2
    captured = capsys.readouterr()
    assert "> a\n" in captured.out and "> b\n" in captured.out
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("minivllm: prompt 2: ") and "the prompt is empty (0 tokens)" in line


def test_demo_writes_the_figures_of_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture):
    out = tmp_path / "demo.json"
    assert main(["demo", "--model", "tiny", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    static, continuous = figures["static"], figures["continuous"]
    for way in (static, continuous):
        assert way["tokens_per_second"] > 0 and way["steps"] > 0
        assert 0 < way["useful_slots"] <= 1 and way["kv_blocks_used"] <= way["kv_blocks_reserved"]
    assert static["tokens"] == continuous["tokens"]
    assert continuous["steps"] < static["steps"]
    expected = continuous["tokens_per_second"] / static["tokens_per_second"]
    assert figures["ratio"] == pytest.approx(expected)
    printed = capsys.readouterr().out
    assert "32 of 32 answers are the same, token for token." in printed
    for word in ("steps", "tokens per second", "KV blocks reserved", "row-steps"):
        assert word in printed


def test_bench_writes_the_figures_the_issue_names(tmp_path: Path, capsys: pytest.CaptureFixture):
    workload, out = tmp_path / "w.json", tmp_path / "bench.json"
    workload.write_text('[{"prompt_len": 5, "max_tokens": 4}, {"prompt_len": 9, "max_tokens": 8}]')
    argv = ["bench", "--model", "tiny", "--workload", str(workload), "--engine", "static"]
    assert main([*argv, "--runs", "3", "--dtype", "float32", "--json", str(out)]) == 0
    row = json.loads(out.read_text())
    assert (row["workload"], row["engine"], row["dtype"]) == ("w", "static", "float32")
    assert (row["steps"], row["generated_tokens"], len(row["runs"])) == (8, 12, 3)
    assert row["tokens_per_second"] == sorted(row["runs"])[1]


def test_threads(monkeypatch: pytest.MonkeyPatch):
    told = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    argv = ["generate", "a", "--raw", "--model", "tiny", "--max-tokens", "1", "--threads", "2"]
    assert main(argv) == 0 and told == [2]


BAD = {
    "model": (["generate", "a", "--model", "no/such"], "unknown model 'no/such'"),
    "dtype": (["generate", "a", "--dtype", "int8"], "dtype must be auto, float32"),
    "device": (["generate", "a", "--device", "mps"], "device must be auto, cpu or cuda"),
    "max_tokens": (["generate", "a", "--max-tokens", "0"], "max_tokens must be >= 1 or None"),
    "temperature": (["generate", "a", "--temperature", "-1"], "temperature must be >= 0, got -1.0"),
    "top_p": (["generate", "a", "--top-p", "2"], r"top_p must be in (0, 1], got 2.0"),
    "threads": (["demo", "--threads", "0"], "--threads must be at least 1, got 0"),
    "workload": (["bench", "--workload", "w9"], "workload 'w9' is neither a file nor"),
    "engine": (["bench", "--engine", "tgi"], "engine 'tgi' is not one of"),
    "runs": (["bench", "--runs", "0"], "--runs must be at least 1, got 0"),
    "json": (["bench", "--json", "no/such/folder/x.json"], "there is no such folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_status_2(case: str, capsys: pytest.CaptureFixture):
    """No traceback, nothing on stdout. The folder of --json is looked at first: its absence was
    found when minutes of measuring were over, and their figures were lost."""
    argv, message = BAD[case]
    argv = [*argv, "--model", "tiny"] if "--model" not in argv else argv
    assert main(argv) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("minivllm: ") and message in line
    assert captured.out == ""


@pytest.mark.parametrize("argv", [[], ["fly"], ["generate"], ["bench", "--runs", "many"]])
def test_a_wrong_command_line_is_status_2(argv: list[str], capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_interrupt_is_status_130(monkeypatch: pytest.MonkeyPatch, capsys):
    def interrupt(args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minivllm.__main__.run_generate", interrupt)
    assert main(["generate", "a"]) == 130
    assert capsys.readouterr().err == "minivllm: interrupted\n"


def test_from_the_shell():
    """The module runs as a program, and its status reaches the shell."""
    argv = [sys.executable, "-m", "minivllm", "generate", "--raw", "--model", "tiny"]
    done = subprocess.run([*argv, ""], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "minivllm: prompt 1: request '0': the prompt is empty (0 tokens)\n"
