"""The benchmark's results as one file and one figure: bars for the engines, a line under the roof.

    python -m minivllm.lab.speed_figure build/speed/*.json --out figures/speed

writes figures/speed.json, all rows as they were measured, and figures/speed.svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minivllm.view.plots import STYLE, save

# colour, words
ENGINES = {
    "minivllm": ("#0072B2", "minivllm"),
    "vllm": ("#E69F00", "vLLM, CPU build"),
    "llamacpp": ("#009E73", "llama.cpp server"),
    "equal_seats": ("#56B4E9", "minivllm, as many at once as static"),
    "static": ("#999999", "static batching on our model"),
    "hf_cb": ("#CC79A7", "HF continuous batching"),
    "hf": ("#D55E00", "HF generate"),
}
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
DTYPES = {"float32": ("#0072B2", "o"), "bfloat16": ("#E69F00", "s")}


def gather(files: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """The rows of `bench --json` files, benchmarks and steps apart; ValueError for other files."""
    found: dict[str, list[dict[str, Any]]] = {"bench": [], "steps": []}
    for file in files:
        content = json.loads(file.read_text())
        for row in content if isinstance(content, list) else [content]:
            if "tokens_per_second" in row:
                found["bench"].append({**row, "sitting": file.stem})
            elif "share_of_roof" in str(row):
                found["steps"].append(row)
            else:
                raise ValueError(f"{file} was not written by `python -m minivllm bench`")
    return found


def speed_figure(found: dict[str, list[dict[str, Any]]]) -> Figure:
    """Left: generated tokens per second by workload and engine. Right: decode against its roof."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, 4.6), layout="constrained")
        bars, lines = figure.subplots(1, 2, width_ratios=(3, 1.2))
        draw_bars(bars, found["bench"])
        for steps in found["steps"]:
            draw_steps(lines, steps)
        finish(figure, bars, lines, found)
    return figure


def draw_bars(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """A group for each sitting, which is one file; in it a bar for each engine, with its number."""
    sittings = list(dict.fromkeys(row["sitting"] for row in rows))
    labelled = set()
    names = []
    for place, sitting in enumerate(sittings):
        mine = [row for row in rows if row["sitting"] == sitting]
        names.append(f"{mine[0]['workload']}\n{SHORT.get(mine[0]['dtype'], mine[0]['dtype'])}")
        mine.sort(key=lambda row: list(ENGINES).index(row["engine"]))
        width = 0.86 / max(len(mine), 1)
        for index, row in enumerate(mine):
            colour, words = ENGINES[row["engine"]]
            bar = axes.bar(
                place - 0.43 + (index + 0.5) * width, row["tokens_per_second"], 0.92 * width,
                color=colour, label=None if words in labelled else words,
            )  # fmt: skip
            labelled.add(words)
            axes.bar_label(bar, fmt="{:.0f}", fontsize=7)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("generated tokens per second")
    axes.legend(fontsize=8, frameon=False, ncols=2)
    axes.margins(y=0.4)


def draw_steps(axes: Axes, steps: dict[str, Any]) -> None:
    """Measured throughput of decode steps over the batch, and the roof as a broken line."""
    colour, marker = DTYPES[steps["dtype"]]
    batches = [row["batch"] for row in steps["steps"]]
    measured = [row["tokens_per_second"] for row in steps["steps"]]
    roof = [row["roof_tokens_per_second"] for row in steps["steps"]]
    axes.plot(batches, measured, color=colour, marker=marker, label=f"{steps['dtype']}, measured")
    axes.plot(batches, roof, color=colour, linestyle="--", linewidth=1,
              label=f"{steps['dtype']}, roof")  # fmt: skip


def finish(figure: Figure, bars: Axes, lines: Axes, found: dict[str, Any]) -> None:
    """Titles, scales, and where and when it was measured."""
    bars.set_title("Whole workloads", loc="left", fontsize=10)
    lines.set_title("Decode steps at about 140 tokens", loc="left", fontsize=10)
    lines.set_xscale("log", base=2)
    lines.set_yscale("log")
    batches = [row["batch"] for steps in found["steps"] for row in steps["steps"]]
    lines.set_xticks(sorted(set(batches)), [str(batch) for batch in sorted(set(batches))])
    lines.set_xlabel("requests in the step")
    lines.set_ylabel("tokens per second")
    if found["steps"]:
        lines.legend(fontsize=8, frameon=False)
    if found["bench"]:
        row = found["bench"][0]
        machine = row["machine"]
        note = f"measured {row['date'][:10]} on {machine['cores']} cores of {machine['cpu']}"
        figure.supxlabel(note, x=0.99, ha="right", fontsize=8, color="#555555")


def main(argv: Sequence[str] | None = None) -> None:
    """Write OUT.json and OUT.svg from the files of several benchmark runs."""
    parser = argparse.ArgumentParser(prog="python -m minivllm.lab.speed_figure")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of `bench --json`")
    parser.add_argument("--out", type=Path, required=True, help="where to, without the ending")
    args = parser.parse_args(argv)
    found = gather(args.files)
    args.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    save(speed_figure(found), args.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
