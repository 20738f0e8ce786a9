"""`make figures`: every figure of the README, drawn from real runs of the two engines.

    python -m minivllm.view.figures [FOLDER]        # figures/ by default

The same bytes each time, with the same matplotlib and Pillow.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image

from minivllm.config import SchedulerConfig
from minivllm.view.frame import Frame, label
from minivllm.view.occupancy import occupancy
from minivllm.view.plots import (
    STYLE,
    color,
    draw_map,
    occupancy_figure,
    save,
    timeline_figure,
)
from minivllm.view.trace import Trace
from minivllm.view.twin_runs import jobs_of, run_continuous, run_static

BLOCK_SIZE, ROWS, ROW_SLOTS, COLUMNS = 4, 4, 32, 8
NUM_BLOCKS = ROWS * ROW_SLOTS // BLOCK_SIZE  # the same memory for both
PROMPTS = [6, 5, 9, 4, 7, 5, 6, 8, 5, 4, 6, 7]
OUTPUTS = [5, 22, 8, 12, 20, 4, 9, 6, 18, 5, 7, 10]
GIF_WIDTH, GIF_HEIGHT, FRAME_MS, LAST_MS = 800, 360, 320, 4000


def readme_runs() -> tuple[Trace, Trace]:
    """Twelve requests, static and continuous, in 32 blocks of 4 slots."""
    jobs = jobs_of(PROMPTS, OUTPUTS)
    config = SchedulerConfig(NUM_BLOCKS, BLOCK_SIZE, max_num_batched_tokens=32)
    return run_static(jobs, ROWS, ROW_SLOTS, BLOCK_SIZE), run_continuous(jobs, config)


def crowded_run() -> Trace:
    """Twelve requests with a common beginning in a pool too small for them."""
    jobs = [job._replace(prompt_token_ids=[7] * 8 + job.prompt_token_ids)
            for job in jobs_of(PROMPTS, OUTPUTS)]  # fmt: skip
    config = SchedulerConfig(
        20, BLOCK_SIZE, max_num_batched_tokens=32, enable_prefix_caching=True, watermark_blocks=0
    )
    return run_continuous(jobs, config, "A pool of 20 blocks, a prefix shared by all")


def write_gif(path: Path, static: Trace, continuous: Trace) -> None:
    """The block maps of two runs side by side, one picture per iteration."""
    pairs = [list(static), list(continuous)]
    length = max(map(len, pairs))
    images = [
        _picture((static, continuous), [frames[min(k, len(frames) - 1)] for frames in pairs], k)
        for k in range(length)
    ]
    # One palette for all pictures, so that no colour flickers: taken from the fullest.
    busiest = images[continuous.busiest].quantize(colors=64, dither=Image.Dither.NONE)
    colours = busiest.getpalette()
    brightest = max(range(0, len(colours), 3), key=lambda at: sum(colours[at : at + 3]))
    colours[brightest : brightest + 3] = [255, 255, 255]  # quantizing greys the background a bit
    busiest.putpalette(colours)
    flat = [image.quantize(palette=busiest, dither=Image.Dither.NONE) for image in images]
    durations = [FRAME_MS] * (length - 1) + [LAST_MS]
    flat[0].save(path, save_all=True, append_images=flat[1:], duration=durations, loop=0)


def _picture(traces: tuple[Trace, Trace], frames: list[Frame], index: int) -> Image.Image:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(GIF_WIDTH / 100, GIF_HEIGHT / 100), dpi=100)
        for place, (trace, frame) in enumerate(zip(traces, frames, strict=True)):
            left = 0.02 + 0.5 * place
            axes = figure.add_axes((left, 0.3, 0.46, 0.58))
            draw_map(axes, trace, frame, COLUMNS)
            axes.set_anchor("W")
            _caption(figure, left, trace, frame, index)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert(
            "RGB"
        )


def _caption(figure: Figure, left: float, trace: Trace, frame: Frame, index: int) -> None:
    """Above the map what it is, below it who waits and what was gained and wasted."""
    done = index >= len(trace) - 1
    figure.text(left, 0.92, trace.title, fontsize=15, fontweight="bold")
    clock = f"done after {len(trace) - 1}" if done else f"iteration {index}"
    figure.text(left + 0.455, 0.92, clock, fontsize=12, ha="right")
    axes = figure.add_axes((left, 0.02, 0.46, 0.25))
    axes.set(xlim=(0, 36.8), ylim=(0, 8.8))
    axes.set_axis_off()
    now = occupancy(frame, trace.block_size)
    share = now.num_slots_wasted / max(now.num_slots_used, 1)
    wasted = f"{now.num_slots_wasted} of {now.num_slots_used} slots wasted"
    total = sum(OUTPUTS)
    _meter(
        axes, 6.6, frame.num_output_tokens / total, "#009E73", f"{frame.num_output_tokens} tokens"
    )
    _meter(axes, 3.6, share, "#D55E00", wasted if now.num_slots_used else "no slot in use")
    axes.text(0, 0.9, "waiting" if frame.waiting else "nobody waits", fontsize=11, va="center")
    for place, number in enumerate(frame.waiting):
        box = FancyBboxPatch((6.3 + 2.5 * place, 0.2), 1.6, 1.4, boxstyle="round,pad=0.2",
                             facecolor=color(number), edgecolor="none")  # fmt: skip
        axes.add_patch(box)
        plate = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
        axes.text(
            7.1 + 2.5 * place, 0.88, label(number), ha="center", va="center", fontsize=8, bbox=plate
        )


def _meter(axes: Axes, y: float, share: float, colour: str, words: str) -> None:
    axes.add_patch(Rectangle((0, y), 15, 1.6, facecolor="#ececec"))
    axes.add_patch(Rectangle((0, y), 15 * share, 1.6, facecolor=colour))
    axes.text(16, y + 0.75, words, fontsize=11, va="center")


def main(folder: str | Path = "figures") -> None:
    """Write all figures into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    static, continuous = readme_runs()
    write_gif(folder / "block_map.gif", static, continuous)
    save(timeline_figure(static, continuous), folder / "timeline.svg")
    save(occupancy_figure(crowded_run()), folder / "occupancy.svg")


if __name__ == "__main__":
    main(*sys.argv[1:2])
