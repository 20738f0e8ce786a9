"""The figures for print: the same bytes each time, and the same colours as the map's."""

import json
import re
from pathlib import Path

import matplotlib
import PIL
import pytest
from view_runs import random_run

from minivllm.config import SchedulerConfig
from minivllm.lab.figures import draw_all
from minivllm.lab.speed_figure import speed_figure
from minivllm.view import figures
from minivllm.view.page import MODULE
from minivllm.view.plots import PALETTE, map_figure, occupancy_figure, save, timeline_figure
from minivllm.view.twin_runs import jobs_of, run_continuous, run_static

JOBS = jobs_of([3, 5, 4], [6, 2, 3])
STORED = Path(__file__).parents[1] / "figures"
# What the files in figures/ were made with.
MADE_WITH = {"matplotlib": "3.11.2", "Pillow": "13.0.0"}


def short_runs():
    return run_static(JOBS, 2, 12, 4), run_continuous(JOBS, SchedulerConfig(8, 4))


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_the_same_run_gives_the_same_bytes(tmp_path: Path, suffix: str):
    """No date, no random id: drawn twice from two recordings of the same run."""
    for turn in "ab":
        static, continuous = short_runs()
        save(timeline_figure(static, continuous), tmp_path / f"timeline-{turn}{suffix}")
        save(occupancy_figure(random_run(4)[0]), tmp_path / f"occupancy-{turn}{suffix}")
        save(map_figure(random_run(4)[0]), tmp_path / f"map-{turn}{suffix}")
    for name in ("timeline", "occupancy", "map"):
        first, second = (tmp_path / f"{name}-{turn}{suffix}" for turn in "ab")
        assert first.read_bytes() == second.read_bytes() != b""


def test_the_animation_is_the_same_each_time_and_has_each_iteration(tmp_path: Path):
    """Read back: as many pictures as iterations, 800 pixels wide, white around."""
    for turn in "ab":
        figures.write_gif(tmp_path / f"{turn}.gif", *short_runs())
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    image = PIL.Image.open(tmp_path / "a.gif")
    assert image.n_frames == len(short_runs()[0]) and image.size[0] == 800
    image.seek(2)
    assert image.convert("RGB").getpixel((5, 355)) == (255, 255, 255)


def test_static_batching_and_the_engine_give_the_same_tokens():
    """What the figures compare is the same work."""
    static, continuous = figures.readme_runs()
    assert static.token_ids == continuous.token_ids
    assert static.num_blocks * static.block_size == continuous.num_blocks * continuous.block_size


def test_the_crowded_run_shows_what_it_should():
    """Shared blocks and preemptions: a figure without them would explain nothing."""
    frames = list(figures.crowded_run())
    assert any(event.kind == "preempt" for frame in frames for event in frame.events)
    assert any(cell.ref_cnt > 1 for frame in frames for cell in frame.blocks)


def test_the_colours_are_the_maps():
    """The palette is written twice, in two languages, and is one."""
    source = MODULE.read_text(encoding="utf-8")
    found = re.search(r"const PALETTE = \[(.*?)\]", source, re.S)[1]
    assert re.findall(r"#\w{6}", found) == PALETTE


def test_other_formats_are_refused(tmp_path: Path):
    """A format whose bytes are not known to be stable."""
    with pytest.raises(ValueError, match="saved as .svg, .png, .pdf, not '.jpg'"):
        save(map_figure(short_runs()[0]), tmp_path / "map.jpg")


MEASURED = {"speed.json", "speed.svg"}
MEASURED |= {"lab_measured.json", "lab_headline.svg", "lab_calibration.svg"}


@pytest.mark.slow
def test_the_stored_figures_are_what_make_figures_draws(tmp_path: Path):
    """Whoever changes a view draws the figures again. The measured ones are drawn from stored
    rows, since nobody can measure the same twice."""
    here = {"matplotlib": matplotlib.__version__, "Pillow": PIL.__version__}
    if here != MADE_WITH:
        pytest.skip(f"the stored figures were made with {MADE_WITH}, here is {here}")
    figures.main(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted({path.name for path in STORED.iterdir()} - MEASURED)
    speed = json.loads((STORED / "speed.json").read_text())
    save(speed_figure(speed), tmp_path / "speed.svg")
    draw_all(json.loads((STORED / "lab_measured.json").read_text()), tmp_path)
    for name in sorted(path.name for path in tmp_path.iterdir()):
        assert (tmp_path / name).read_bytes() == (STORED / name).read_bytes(), name
