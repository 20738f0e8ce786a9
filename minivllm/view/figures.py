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
    halves = [[_half(trace, frame, index) for index, frame in enumerate(trace)]
              for trace in (static, continuous)]  # fmt: skip
    length = max(map(len, halves))
    images = []
    for index in range(length):
        image = Image.new("RGB", (GIF_WIDTH, GIF_HEIGHT), "white")
        for place, half in enumerate(halves):  # whoever is done stays as it is
            image.paste(half[min(index, len(half) - 1)], (place * GIF_WIDTH // 2, 0))
        images.append(image)
    # One palette for all pictures, so that no colour flickers: taken from the fullest.
    busiest = images[continuous.busiest].quantize(colors=64, dither=Image.Dither.NONE)
    # Quantizing greys the white a bit.
    colours = [255 if value >= 250 else value for value in busiest.getpalette()]
    busiest.putpalette(colours)
    flat = [image.quantize(palette=busiest, dither=Image.Dither.NONE) for image in images]
    durations = [FRAME_MS] * (length - 1) + [LAST_MS]
    flat[0].save(path, save_all=True, append_images=flat[1:], duration=durations, loop=0)


def _half(trace: Trace, frame: Frame, index: int) -> Image.Image:
    """One run's picture of one iteration."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(GIF_WIDTH / 200, GIF_HEIGHT / 100), dpi=100)
        axes = figure.add_axes((0.04, 0.3, 0.92, 0.58))
        draw_map(axes, trace, frame, COLUMNS)
        axes.set_anchor("W")
        _caption(figure, trace, frame, index)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        size, pixels = canvas.get_width_height(), canvas.buffer_rgba()
        return Image.frombuffer("RGBA", size, pixels).convert("RGB")


def _caption(figure: Figure, trace: Trace, frame: Frame, index: int) -> None:
    """Above the map what it is, below it who waits and what was gained and wasted."""
    done = index >= len(trace) - 1
    figure.text(0.04, 0.92, trace.title, fontsize=15, fontweight="bold")
    clock = f"done after {len(trace) - 1}" if done else f"iteration {index}"
    figure.text(0.95, 0.92, clock, fontsize=12, ha="right")
    axes = figure.add_axes((0.04, 0.02, 0.92, 0.25))
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
