"""The figures of the laboratory, drawn from a file of results (`lab --json`).

    draw_all(read_results("lab.json"), "figures")

Only what was run is drawn. Solid marks are ours, hollow or hatched ones published; each figure says
in its corner whether ours is modelled or measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minivllm.lab.experiments import anyscale, blocks, memory, online, sharing
from minivllm.view.plots import PALETTE, STYLE, save

Cases = Mapping[str, dict[str, Any]]
PART_COLOURS = dict(zip(memory.PARTS, ("#009E73", "#56B4E9", "#E69F00", "#cccccc"), strict=True))
PUBLISHED = {"hatch": "///", "edgecolor": "#333333", "linewidth": 0.8, "alpha": 0.75}


def draw_all(results: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Draw a figure for each experiment that has results; returns the files written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    cases = {name: entry["cases"] for name, entry in results["experiments"].items()}
    cases = {name: rows for name, rows in cases.items() if rows}
    written = []
    for name, draw in FIGURES.items():
        rows = dict(cases.get(name, {}))
        if name == "headline":
            rows |= cases.get("headline-here", {})
        if rows:
            with matplotlib.rc_context(STYLE):
                written.append(folder / f"lab_{name}.svg")
                save(draw(rows), written[-1])
    return written


def new_figure(width: float, height: float, columns: int, title: str, label: str) -> Figure:
    """An empty figure of so many panels; `label` says what kind of figures ours are."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(1, columns, squeeze=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(label, x=0.99, ha="right", fontsize=8, color="#555555")
    return figure


def log_scale(axes: Axes, *which: str, base: float = 10) -> None:
    """Make the axes named "x" or "y" logarithmic; not where nothing is drawn, for it has no log."""
    if any(len(line.get_xdata()) for line in axes.lines):
        for name in which:
            getattr(axes, f"set_{name}scale")("log", base=base)


def pairs_of_bars(
    axes: Axes, names: Sequence[str], ours: Sequence[float], theirs: Sequence[float]
) -> None:
    """Ours and theirs side by side, each with its number."""
    for shift, values, style in ((-0.2, ours, {"color": "#0072B2"}),
                                 (0.2, theirs, {"facecolor": "white", **PUBLISHED})):  # fmt: skip
        places = [index + shift for index in range(len(names))]
        bars = axes.bar(places, values, 0.38, **style)
        axes.bar_label(bars, fmt="{:.3g}", fontsize=8)
    axes.set_xticks(range(len(names)), [short(name) for name in names], fontsize=8)
    axes.margins(y=0.12)


def short(name: str) -> str:
    """orca-pow2 -> pow2: the label of a narrow bar."""
    return name.removeprefix("orca-")


def draw_memory(rows: Cases) -> Figure:
    """Figure 2 as stacked bars and Figure 13 as pairs."""
    label = "left bars and blue: modelled; hatched: published (SOSP 2023)"
    title = "KV memory: where it goes, and how many requests it lets run"
    figure = new_figure(10, 3.8, 3, title, label)
    names = [name for name in memory.NAMES if f"sharegpt/{name}" in rows]
    axes = figure.axes[0]
    for index, name in enumerate(names):
        ours = [rows[f"sharegpt/{name}"]["shares"][part] for part in memory.PARTS]
        theirs = [share or 0.0 for share in memory.FIGURE_2[name]]
        for shift, shares, style in ((-0.2, ours, {}), (0.2, theirs, PUBLISHED)):
            bottom = 0.0
            for part, share in zip(memory.PARTS, shares, strict=True):
                axes.bar(index + shift, share, 0.38, bottom, color=PART_COLOURS[part], **style)
                bottom += share
    for part, colour in PART_COLOURS.items():
        axes.bar(0, 0, color=colour, label=part.replace("_", " "))
    axes.set_xticks(range(len(names)), [short(name) for name in names], fontsize=8)
    axes.set_ylabel("% of all KV slots (ShareGPT)")
    axes.legend(fontsize=7, loc="upper center", ncols=2, bbox_to_anchor=(0.5, 1.17), frameon=False)
    for axes, workload in zip(figure.axes[1:], ("sharegpt", "alpaca"), strict=True):
        names = [name for name in memory.NAMES if f"{workload}/{name}" in rows]
        ours = [rows[f"{workload}/{name}"]["running"] for name in names]
        theirs = [memory.FIGURE_13[workload][name] for name in names]
        pairs_of_bars(axes, names, ours, theirs)
        axes.set_ylabel(f"requests batched ({workload})")
    return figure


def draw_sharing(rows: Cases) -> Figure:
    label = "blue: modelled; hatched: published (SOSP 2023)"
    figure = new_figure(8, 3.2, 2, "Memory saved by sharing blocks", label)
    for axes, kind in zip(figure.axes, ("parallel", "beam"), strict=True):
        cases = [case for case in sharing.PUBLISHED if kind in case and case in rows]
        names = [f"{case.split('/')[0]}\n{case.split('/')[2]}" for case in cases]
        ours = [rows[case]["saved"] for case in cases]
        pairs_of_bars(axes, names, ours, [sharing.PUBLISHED[case] for case in cases])
        axes.set_ylabel("% of blocks")
        axes.set_title({"parallel": "parallel samples", "beam": "beams"}[kind], fontsize=10)
    return figure


def draw_blocks(rows: Cases) -> Figure:
    label = "modelled: the clock knows no slower kernel at small blocks"
    figure = new_figure(10, 3.2, 3, "Block size", label)
    keys = [("share_of_used", "token states, % of KV in use"), ("throughput", "output tokens/s")]
    for axes, (key, words) in zip(figure.axes, keys, strict=False):
        for workload, colour in zip(blocks.WORKLOADS, PALETTE[4:6], strict=True):
            sizes = [size for size in blocks.SIZES if f"{workload}/{size}" in rows]
            values = [rows[f"{workload}/{size}"][key] for size in sizes]
            axes.plot(sizes, values, "o-", color=colour, label=workload)
        axes.set(xlabel="block size", ylabel=words, ylim=(0, None))
        axes.legend(fontsize=8, frameon=False)
    axes = figure.axes[2]
    sizes = [size for size in blocks.SIZES if f"swap/{size}" in rows]
    for key, words, colour in (("swap_ms", "swap out and in", PALETTE[5]),
                               ("recompute_ms", "recompute", PALETTE[2])):  # fmt: skip
        axes.plot(sizes, [rows[f"swap/{s}"][key] for s in sizes], "o-", color=colour, label=words)
    axes.set(xlabel="block size", ylabel=f"ms for {blocks.LOST_TOKENS} tokens")
    log_scale(axes, "y")
    axes.legend(fontsize=8, frameon=False)
    for axes in figure.axes:
        log_scale(axes, "x", base=2)
    return figure


def draw_anyscale(rows: Cases) -> Figure:
    label = "lines: modelled (roofline of an A100-40GB); hollow: published (Anyscale, 2023)"
    figure = new_figure(6, 3.6, 1, "Throughput against the spread of output lengths", label)
    axes = figure.axes[0]
    words = {
        "static": "static", "orca-max": "continuous, no paging", "vllm": "continuous, paged"
    }  # fmt: skip
    for name, colour in zip(anyscale.NAMES, (PALETTE[7], PALETTE[0], PALETTE[4]), strict=True):
        caps = [cap for cap in anyscale.BATCH_SIZES if f"{cap}/{name}" in rows]
        values = [rows[f"{cap}/{name}"]["tokens_per_second"] for cap in caps]
        axes.plot(caps, values, "o-", color=colour, label=words[name])
    hollow = {"fillstyle": "none", "linestyle": ":"}
    axes.plot(list(anyscale.VLLM), list(anyscale.VLLM.values()), "s", color=PALETTE[4],
              label="vLLM, published", **hollow)  # fmt: skip
    axes.plot([1536], [anyscale.STATIC_AT_1536], "s", color=PALETTE[7],
              label="naive static, published", **hollow)  # fmt: skip
    axes.set(xlabel="longest output allowed", ylabel="tokens/s")
    log_scale(axes, "x", "y")
    axes.set_xticks(list(anyscale.BATCH_SIZES), map(str, anyscale.BATCH_SIZES))
    axes.minorticks_off()
    axes.legend(fontsize=8, frameon=False)
    return figure


def draw_headline(rows: Cases) -> Figure:
    label = "modelled: Llama-3-8B, roofline; measured here: SmolLM2 on this CPU"
    title = "Continuous batching with paging over static batching, same KV memory"
    figure = new_figure(6.5, 3.8, 1, title, label)
    axes = figure.axes[0]
    axes.axhspan(5, 10, color="#f2f2f2", zorder=0)
    axes.text(0.02, 9.6, "claimed: 5 to 10 x", fontsize=8, color="#555555", va="top",
              transform=axes.get_yaxis_transform())  # fmt: skip
    by_device: dict[str, list[tuple[float, float]]] = {}
    for case, row in rows.items():
        by_device.setdefault(case.split("/")[0], []).append((row["cv"], row["ratio"]))
    for (device, points), colour in zip(by_device.items(), PALETTE[4:], strict=False):
        measured = device.startswith("this")
        points.sort()
        words = f"{device}, {'measured here' if measured else 'modelled'}"
        axes.plot(*zip(*points, strict=True), "D-" if measured else "o--", color=colour,
                  label=words)  # fmt: skip
    axes.axhline(1, color="#999999", linewidth=0.8)
    axes.set(xlabel="spread of output lengths (coefficient of variation)",
             ylabel="throughput ratio", ylim=(0, 11))  # fmt: skip
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def draw_online(rows: Cases) -> Figure:
    label = "modelled: OPT-13B on an A100-40GB (roofline), ShareGPT-like, Poisson arrivals"
    figure = new_figure(11, 3.8, 2, "Open loop: five systems under load", label)
    left, right = figure.axes
    names = dict.fromkeys(case.split("/")[0] for case in rows)
    rate_shown = "2.0"
    for name, colour in zip(names, [PALETTE[i] for i in (7, 5, 6, 0, 2, 1, 3, 4)], strict=False):
        rates = [rate for rate in online.RATES if f"{name}/{rate}" in rows]
        values = [rows[f"{name}/{rate}"]["ttft"]["p50"] for rate in rates]
        left.plot(rates, values, "o-", color=colour, label=name, markersize=4)
        if queue := rows.get(f"{name}/{rate_shown}", {}).get("queue"):
            right.step(*zip(*queue, strict=True), where="post", color=colour, linewidth=1.2)
    left.set(xlabel="requests a second", ylabel="median time to first token (s)")
    log_scale(left, "x", "y")
    left.set_xticks([0.1, 0.25, 0.5, 1, 2, 4, 6], ["0.1", "0.25", "0.5", "1", "2", "4", "6"])
    left.minorticks_off()
    figure.legend(fontsize=8, frameon=False, loc="outside right center")
    right.set(xlabel="seconds", ylabel=f"requests waiting, at {rate_shown} a second",
              xlim=(0, None), ylim=(0, None))  # fmt: skip
    return figure


def draw_calibration(rows: Cases) -> Figure:
    label = "measured here: the fastest of several steps; modelled: roofline from four probes"
    figure = new_figure(8, 3.6, 2, "The clock against the real model on this CPU", label)
    words = {"decode": "requests that decode", "prefill": "prompt tokens"}
    for axes, (kind, name) in zip(figure.axes, words.items(), strict=True):
        sizes = [int(case.split("/")[1]) for case in rows if case.startswith(kind)]
        for key, style in (("measured_ms", "D-"), ("modelled_ms", "o--")):
            values = [rows[f"{kind}/{size}"][key] for size in sizes]
            axes.plot(sizes, values, style, color=PALETTE[4 + (key == "modelled_ms")],
                      label=key[:8])  # fmt: skip
            if key == "measured_ms":
                low, high = ([factor * value for value in values] for factor in (0.75, 1.25))
                axes.fill_between(sizes, low, high, color="#eeeeee", label="25 %")
        axes.set(xlabel=name, ylabel="ms a step", ylim=(0, None))
        log_scale(axes, "x")
        axes.set_xticks(sizes, map(str, sizes))
        axes.minorticks_off()
        axes.legend(fontsize=8, frameon=False)
    return figure


FIGURES: dict[str, Callable[[Cases], Figure]] = {
    "memory": draw_memory, "sharing": draw_sharing, "blocks": draw_blocks,
    "anyscale": draw_anyscale, "headline": draw_headline, "online": draw_online,
    "calibration": draw_calibration,
}  # fmt: skip
