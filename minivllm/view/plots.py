"""The same views as figures for print, drawn with matplotlib.

    map_figure(trace, 12), timeline_figure(static, continuous), occupancy_figure(trace)
    save(figure, "timeline.svg")             # the same bytes each time: no date, a fixed salt

No pyplot: a figure here belongs to nobody but its caller, and a notebook shows it as it is. The
background is white, for a transparent figure cannot be read on a dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minivllm.view.frame import FREE, BlockCell, Frame, label
from minivllm.view.occupancy import occupancy_of, preemptions_of
from minivllm.view.text_map import clean, columns_for
from minivllm.view.timeline import segments_of
from minivllm.view.trace import Trace

PALETTE = ["#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
           "#999999"]  # fmt: skip  # Okabe and Ito's
HATCHES = ["", "//", "..", "--"]
STYLE = {
    "svg.hashsalt": "minivllm", "font.family": "DejaVu Sans", "font.size": 10,
    "hatch.linewidth": 0.8, "axes.spines.top": False, "axes.spines.right": False,
    "figure.facecolor": "white",
}  # fmt: skip
METADATA = {".svg": {"Date": None}, ".png": {"Software": None}, ".pdf": {"CreationDate": None}}
# (colour, hatch, words) of each kind of a timeline and of each layer of the curve
KINDS = {
    "waiting": ("#999999", "", "waits"),
    "prefill": ("#0072B2", "", "prefill"),
    "decode": ("#56B4E9", "", "decode"),
    "stalled": ("#c9e6f8", "||", "holds, runs nothing"),
    "preempted": ("#ffffff", "////", "preempted"),
    "swapped": ("#ffffff", "...", "swapped out"),
    "idle": ("#F0E442", "xxxx", "ended, keeps its row"),
}
EDGES = {"preempted": "#D55E00", "swapped": "#CC79A7", "idle": "#222222"}
LAYERS = {
    "num_shared": ("#0072B2", "||", "shared"),
    "num_filled": ("#56B4E9", "", "held by one"),
    "num_reserved": ("#fbe3b0", "////", "reserved, empty"),
    "num_cached": ("#e6e6e6", "..", "free but cached"),
}


def map_figure(trace: Trace, index: int | None = None, columns: int | None = None) -> Figure:
    """The blocks of one iteration (the busiest, unless given)."""
    index = trace.busiest if index is None else index
    columns = columns or columns_for(trace.num_blocks)
    rows = -(-trace.num_blocks // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(0.55 * columns + 0.6, 0.55 * rows + 0.6), layout="constrained")
        axes = figure.add_subplot()
        draw_map(axes, trace, trace[index], columns)
        name = f"{clean(trace.title, 60)}, " if trace.title else ""
        axes.set_title(f"{name}iteration {index}", loc="left", fontsize=10)
    return figure


def draw_map(axes: Axes, trace: Trace, frame: Frame, columns: int) -> None:
    """The blocks of a frame as a grid: the holder's colour, hatch and letter, filled as far as it
    is."""
    rows = -(-trace.num_blocks // columns)
    axes.set(xlim=(-0.1, columns), ylim=(rows, -0.1), aspect="equal")
    axes.set_axis_off()
    owners = frame.owners()
    for block_id, cell in enumerate(frame.blocks):
        corner = (block_id % columns, block_id // columns)
        ended = cell.request >= 0 and frame.requests[cell.request].status == "finished"
        _draw_cell(
            axes, corner, cell, owners.get(block_id, []), cell.fill / trace.block_size, ended
        )


def _draw_cell(
    axes: Axes,
    corner: tuple[int, int],
    cell: BlockCell,
    owners: Sequence[int],
    fill: float,
    has_ended: bool,
) -> None:
    x, y = corner
    axes.add_patch(Rectangle((x, y), 0.9, 0.9, facecolor="#f1f1f1", edgecolor="none"))
    if cell == FREE or (not owners and not cell.cached):
        return
    alpha = 1.0 if owners else 0.35
    for place, owner in enumerate(owners or [cell.request]):
        width, height = 0.9 / max(len(owners), 1), 0.9 * fill
        hatch = "xxxx" if has_ended and owners else HATCHES[owner // len(PALETTE) % len(HATCHES)]
        axes.add_patch(Rectangle(
            (x + place * width, y + 0.9 - height), width, height, facecolor=color(owner),
            alpha=alpha, hatch=hatch, edgecolor="#00000099", linewidth=0,
        ))  # fmt: skip
    style = "-" if cell.fill and owners else "--"
    edge, width = ("black", 2.2) if cell.ref_cnt > 1 else (color(cell.request), 1.6)
    axes.add_patch(Rectangle((x, y), 0.9, 0.9, fill=False, edgecolor=edge, lw=width, ls=style))
    letters = label(cell.request) if owners else label(cell.request).lower()
    letters += f"+{len(owners) - 1}" if len(owners) > 1 else ""
    plate = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    axes.text(x + 0.45, y + 0.47, letters, ha="center", va="center", fontsize=9, bbox=plate)


def timeline_figure(*traces: Trace) -> Figure:
    """Requests as rows, iterations as columns: one timeline under the other, on one clock."""
    length = max(map(len, traces))
    with matplotlib.rc_context(STYLE):
        counts = [len(segments_of(trace)) for trace in traces]
        figure = Figure(figsize=(9, 0.26 * sum(counts) + 0.9 * len(traces)), layout="constrained")
        all_axes = figure.subplots(
            len(traces), sharex=True, squeeze=False, height_ratios=[max(n, 1) for n in counts]
        )
        for axes, trace in zip(all_axes[:, 0], traces, strict=True):
            _draw_timeline(axes, trace)
            axes.set_xlim(-0.5, length - 0.5)
        all_axes[-1, 0].set_xlabel("iteration")
        _legend(figure, all_axes[:, 0], KINDS)
    return figure


def _draw_timeline(axes: Axes, trace: Trace) -> None:
    rows = segments_of(trace)
    for number, row in enumerate(rows):
        for kind, first, last, _ in row:
            colour, hatch, words = KINDS[kind]
            span, thin = (first - 0.5, last - first + 1), kind == "waiting"
            axes.broken_barh(
                [span], (number + (0.38 if thin else 0), 0.04 if thin else 0.8), facecolor=colour,
                hatch=hatch, edgecolor="none" if thin else EDGES.get(kind, "white"), label=words,
                linewidth=0.6,
            )  # fmt: skip
    axes.set_yticks([n + 0.4 for n in range(len(rows))], [label(n) for n in range(len(rows))])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows), -0.2)
    axes.set_title(
        f"{clean(trace.title, 60)}: {len(trace) - 1} iterations", loc="left", fontsize=11
    )


def occupancy_figure(*traces: Trace) -> Figure:
    """The blocks in use over the iterations, stacked by kind; triangles mark preemptions."""
    length = max(map(len, traces))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 2.3 * len(traces)), layout="constrained")
        all_axes = figure.subplots(len(traces), sharex=True, squeeze=False)
        for axes, trace in zip(all_axes[:, 0], traces, strict=True):
            _draw_occupancy(axes, trace)
            axes.set_xlim(-0.5, length - 0.5)
        all_axes[-1, 0].set_xlabel("iteration")
        _legend(figure, all_axes[:, 0], LAYERS)
    return figure


def _draw_occupancy(axes: Axes, trace: Trace) -> None:
    uses = occupancy_of(trace)
    edges = [index - 0.5 for index in range(len(uses) + 1)]
    base = [0] * len(uses)
    for name, (colour, hatch, words) in LAYERS.items():
        heights = [getattr(use, name) for use in uses]
        top = [low + height for low, height in zip(base, heights, strict=True)]
        if any(heights):
            axes.stairs(top, edges, baseline=base, fill=True, facecolor=colour, hatch=hatch,
                        edgecolor="#00000066", linewidth=0, label=words)  # fmt: skip
        base = top
    marks = preemptions_of(trace)
    if marks:
        axes.plot(marks, [trace.num_blocks * 1.04] * len(marks), "v", color="#D55E00",
                  markersize=6, clip_on=False, label="preemption")  # fmt: skip
    axes.set_ylim(0, trace.num_blocks * 1.08)
    axes.set_ylabel(f"blocks of {trace.num_blocks}")
    axes.set_title(clean(trace.title, 60), loc="left", fontsize=11)


def _legend(figure: Figure, all_axes: Sequence[Axes], order: dict[str, tuple]) -> None:
    """Each word once, in the order of `order`, above everything."""
    found = {}
    for axes in all_axes:
        for handle, words in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(words, handle)
    known = [words for _, _, words in order.values() if words in found]
    words = known + [word for word in found if word not in known]
    figure.legend([found[word] for word in words], words, loc="outside upper right", ncols=6,
                  frameon=False, fontsize=9)  # fmt: skip


def color(number: int) -> str:
    """The colour of a request, the same as in the block map."""
    return PALETTE[number % len(PALETTE)]


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure; the same figure gives the same bytes. Raises ValueError for other formats."""
    suffix = Path(path).suffix
    if suffix not in METADATA:
        raise ValueError(f"{path}: a figure is saved as {', '.join(METADATA)}, not {suffix!r}")
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata=METADATA[suffix], dpi=160)
