"""The saved page in a real browser: what it shows, keys, pointer, names, and a screen reader's
view."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from browser_tools import axe_violations, check_map, read_all
from view_runs import add_random_request, random_engine, random_run

from minivllm.config import SchedulerConfig
from minivllm.view import BlockMap, Trace, compare, record
from minivllm.view.occupancy import occupancy_of
from minivllm.view.timeline import segments_of
from minivllm.view.twin_runs import Job, jobs_of, run_continuous, run_static

pytestmark = pytest.mark.browser

NASTY = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"quotes\" 'and' & &amp; `ticks` ${x}",
    "🦊 👩‍👩‍👧 é",
    "\u202eright to left\u202c שלום",
    "line\nbreak\ttab\x1b[31mred",
    "x" * 10_000,
]


def crowded_trace() -> Trace:
    """Everything at once: shared, cached, copied, preempted, swapped, waiting, with texts."""
    config = SchedulerConfig(
        20, 4, max_num_batched_tokens=24, max_num_seqs=6, enable_prefix_caching=True,
        preemption_mode="swap", num_host_blocks=8,
    )  # fmt: skip
    jobs = [Job(f"user {i}", [7] * 8 + [100 + i] * (2 + i % 5), 6 + 5 * (i % 4)) for i in range(9)]
    return run_continuous(jobs, config, "crowded")


@pytest.fixture
def crowded(tmp_path: Path) -> tuple[Trace, Path]:
    trace = crowded_trace()
    BlockMap(trace, step=12, timeline=True, curve=True).save(tmp_path / "map.html")
    return trace, tmp_path / "map.html"


def step_of(page: Any) -> int:
    return int(page.locator(".mv").get_attribute("data-step"))


# ---- what is shown is what was recorded ----


@pytest.mark.parametrize("seed", [1, 7, 12, 27])
def test_the_map_shows_each_block_as_the_trace_has_it(open_page: Any, tmp_path: Path, seed: int):
    """Random runs, every iteration, block by block: owners, fill, counts, states; and the requests
    with their tables, and the reasons."""
    trace = random_run(seed)[0]
    BlockMap(trace, timeline=True, curve=True).save(tmp_path / "map.html")
    page = open_page(tmp_path / "map.html")
    check_map(read_all(page), trace)


def test_the_crowded_map_shows_every_state(open_page: Any, crowded: tuple[Trace, Path]):
    """All words for a block's state occur, so the comparison above compares something."""
    trace, path = crowded
    page = open_page(path)
    frames = read_all(page)
    states = {s for frame in frames for block in frame["runs"][0]["blocks"] for s in block["state"]}
    assert states >= {"new", "shared", "cached", "swapped-in", "swapped-out", "reserved", "freed"}
    check_map(frames, trace)


def test_forked_samples_show_copies(open_page: Any, tmp_path: Path):
    """n > 1: the half full block that the samples share is copied before it is written."""
    rng = random.Random(0)
    engine = random_engine(rng)
    while engine.scheduler.config.block_size < 4:
        engine = random_engine(rng)
    trace = record(engine)
    for number in range(6):
        add_random_request(rng, engine, f"r{number}")
    while engine.has_unfinished_requests:
        engine.step()
    assert any(op.kind == "copy" for frame in trace for op in frame.ops)
    BlockMap(trace).save(tmp_path / "map.html")
    check_map(read_all(open_page(tmp_path / "map.html")), trace)


def test_two_runs_under_one_clock(open_page: Any, tmp_path: Path):
    """Static and continuous side by side; the shorter one stays and says that it is done."""
    jobs = jobs_of([3, 5, 4, 6], [6, 2, 9, 3])
    static, continuous = run_static(jobs, 2, 16, 4), run_continuous(jobs, SchedulerConfig(8, 4))
    compare(static, continuous, timeline=True, curve=True).save(tmp_path / "map.html")
    page = open_page(tmp_path / "map.html")
    frames = read_all(page)
    check_map(frames, static, continuous)
    assert any("idle" in block["state"] for block in frames[-1]["runs"][0]["blocks"])
    assert page.locator(".mv-run.mv-over").count() == 1
    assert page.locator(".mv-over .mv-title").inner_text() == "Continuous batching"


def test_the_timeline_and_the_curve_are_the_traces(open_page: Any, crowded: tuple[Trace, Path]):
    """Each bar has its request's kind and iterations; the curve's words give the peak."""
    trace, path = crowded
    page = open_page(path)
    lanes = page.locator(".mv-lane").evaluate_all(
        "(lanes) => lanes.map((lane) => [...lane.querySelectorAll('.mv-bar')].map((bar) =>"
        " [bar.dataset.kind, +bar.dataset.first, +bar.dataset.last]))"
    )
    wanted = [[[s.kind, s.first, s.last] for s in row] for row in segments_of(trace)]
    assert lanes == wanted
    peak = max(now.num_used for now in occupancy_of(trace))
    words = page.locator(".mv-curve [role=img]").get_attribute("aria-label")
    assert f"at most {peak} of {trace.num_blocks}" in words and "preemptions in" in words


def test_a_thousand_blocks(open_page: Any, tmp_path: Path):
    """1,024 blocks and 80 requests: it draws, and any iteration can be reached."""
    config = SchedulerConfig(1024, 16, max_num_seqs=64, max_num_batched_tokens=2048)
    trace = run_continuous(jobs_of([60] * 80, [10 + i % 40 for i in range(80)]), config)
    BlockMap(trace, timeline=True, curve=True).save(tmp_path / "map.html")
    page = open_page(tmp_path / "map.html")
    assert page.locator("[data-block]").count() == 1024
    page.locator("[data-mv=range]").fill(str(len(trace) - 1))
    assert step_of(page) == len(trace) - 1
    page.locator("[data-mv=range]").fill("30")
    held = page.locator("[data-block]:not([data-owner=''])").count()
    assert held == sum(cell.ref_cnt > 0 for cell in trace[30].blocks)


# ---- hands ----


def test_keys_and_buttons_move_through_the_iterations(open_page: Any, crowded: tuple[Trace, Path]):
    """Arrows, Home, End, comma, full stop, the buttons and the slider; none reaches the page."""
    trace, path = crowded
    page = open_page(path)
    page.evaluate("document.addEventListener('keydown', (e) => { window.leaked = e.key; })")
    last = len(trace) - 1
    assert step_of(page) == 12
    page.locator("[data-mv=range]").focus()
    moves = {"ArrowRight": 13, "ArrowLeft": 12, "End": last, "Home": 0, ".": 1, ",": 0}
    for key, wanted in moves.items():
        page.keyboard.press(key)
        assert step_of(page) == wanted, key
    page.locator("[data-mv=next]").click()
    page.locator("[data-mv=next]").click()
    page.locator("[data-mv=back]").click()
    assert step_of(page) == 1
    page.locator("[data-mv=range]").fill("4")
    assert step_of(page) == 4
    words = page.locator("[data-mv=range]").get_attribute("aria-valuetext")
    used = sum(cell.ref_cnt > 0 for cell in trace[4].blocks)
    assert words == f"iteration 4 of {last}: {used} of 20 blocks in use"
    assert page.evaluate("window.leaked") is None


def test_play_runs_to_the_end_and_stops(open_page: Any, crowded: tuple[Trace, Path]):
    """Space plays; while it plays the reasons are not read aloud; at the end it stops by itself."""
    trace, path = crowded
    page = open_page(path)
    page.locator(".mv-speed").select_option("fast")
    page.locator("[data-mv=range]").focus()
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('.mv-why').ariaLive === 'off'")
    assert page.locator("[data-mv=play]").get_attribute("aria-label") == "Pause"
    page.wait_for_function(
        f"document.querySelector('.mv').dataset.step === '{len(trace) - 1}'"
        " && document.querySelector('[data-mv=play]').ariaLabel === 'Play'"
    )
    assert page.locator(".mv-why").get_attribute("aria-live") == "polite"


def test_nothing_moves_by_itself(open_page: Any, crowded: tuple[Trace, Path]):
    """No map starts to play before it is asked to."""
    page = open_page(crowded[1])
    page.wait_for_timeout(700)
    assert step_of(page) == 12


def test_a_block_tells_whose_it_is_and_what_is_in_it(open_page: Any, tmp_path: Path):
    """By the pointer and by the keyboard: request, logical block, the text of its tokens."""
    words = {1: "The", 2: " cat", 3: "\n", 4: " <b>"}
    engine = random_engine(random.Random(0))
    trace = record(engine, decode=lambda token_id: words.get(token_id, "?"))
    size = trace.block_size
    engine.add_request("poem", [1, 2, 3, 4] * 5)
    engine.step()
    engine.step()
    BlockMap(trace, step=1).save(tmp_path / "map.html")
    page = open_page(tmp_path / "map.html")
    row = trace[1].requests[0]
    page.locator(f"[data-block='{row.block_ids[0]}']").hover()
    detail = page.locator(".mv-detail")
    assert f"poem block {row.block_ids[0]} · logical block 0" in " ".join(
        detail.inner_text().split()
    )
    texts = detail.locator(".mv-slot").all_inner_texts()
    assert (
        texts
        == ["The", "·cat", "⏎", "·<b>"][:size]
        + (["The", "·cat", "⏎", "·<b>"] * 5)[4 : max(size, 4)][: max(size - 4, 0)]
    )
    page.mouse.move(1, 1)
    page.locator("[data-block='0']").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.block") == "1"
    assert "block 1" in detail.inner_text() and step_of(page) == 1
    page.keyboard.press(".")
    assert step_of(page) == 2 and "block 1" in detail.inner_text()


def test_a_request_lights_its_blocks_in_their_order(open_page: Any, crowded: tuple[Trace, Path]):
    """Focus on a request: its blocks stand out, numbered as in its table."""
    trace, path = crowded
    page = open_page(path)
    number = trace[12].running[1]
    page.locator(f"[data-request='{number}']").focus()
    lit = page.locator(".mv-lit").evaluate_all(
        "(cells) => cells.map((c) => [+c.dataset.block, c.querySelector('small').textContent])"
    )
    table = trace[12].requests[number].block_ids
    assert sorted(lit) == sorted([b, f"#{i}"] for i, b in enumerate(table))
    page.locator("[data-mv=play]").focus()
    assert page.locator(".mv-lit").count() == 0


def test_a_click_on_the_timeline_moves_the_map(open_page: Any, crowded: tuple[Trace, Path]):
    """And one on the curve."""
    trace, path = crowded
    page = open_page(path)
    for field, wanted in ((".mv-timeline .mv-overlay", 5), (".mv-curve .mv-overlay", 20)):
        page.locator(field).scroll_into_view_if_needed()
        box = page.locator(field).bounding_box()
        page.mouse.click(box["x"] + box["width"] * (wanted + 0.5) / len(trace), box["y"] + 8)
        assert step_of(page) == wanted


# ---- every reader ----


def test_names_stay_text(open_page: Any, tmp_path: Path):
    """No name becomes markup or opens a dialog (the fixture looks), and all can be read."""
    trace = run_continuous(
        [Job(name, [1, 2, 3 + i], 9) for i, name in enumerate(NASTY)],
        SchedulerConfig(16, 4),
        title=NASTY[0],
    )
    BlockMap(trace, step=1, timeline=True).save(tmp_path / "map.html")
    page = open_page(tmp_path / "map.html")
    assert page.title() == NASTY[0] == page.locator("h1").inner_text()
    names = page.locator(".mv-request bdi").all_text_contents()
    assert names[:6] == NASTY[:6] and names[6] == "x" * 39 + "…"
    assert page.locator(".mv img").count() == page.locator(".mv script").count() == 0
    box = page.locator(".mv").bounding_box()
    assert box["width"] <= 1200


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page: Any, tmp_path: Path, scheme: str):
    """One run with all its states, and two under one clock, legend open, narrow and wide."""
    jobs = jobs_of([3, 5, 4, 6], [6, 2, 9, 3])
    pair = run_static(jobs, 2, 16, 4), run_continuous(jobs, SchedulerConfig(8, 4))
    maps = {"one": BlockMap(crowded_trace(), step=12, timeline=True, curve=True),
            "two": compare(*pair, step=5, timeline=True, curve=True)}  # fmt: skip
    for name, block_map in maps.items():
        block_map.save(tmp_path / f"{name}.html")
        width = {"one": 800, "two": 1280}[name]
        page = open_page(
            tmp_path / f"{name}.html",
            color_scheme=scheme,
            viewport={"width": width, "height": 900},
        )
        page.locator("summary").click()
        page.locator("[data-block='2']").first.focus()
        assert axe_violations(page) == []


def test_axe_can_find_something(open_page: Any, crowded: tuple[Trace, Path]):
    """The check above can fail: a slider without a name is found."""
    page = open_page(crowded[1])
    page.evaluate("document.querySelector('[data-mv=range]').removeAttribute('aria-label')")
    assert any("label" in violation for violation in axe_violations(page))


def test_without_scripts_the_text_remains(open_page: Any, crowded: tuple[Trace, Path]):
    """What GitHub shows, say."""
    trace, path = crowded
    page = open_page(path, java_script_enabled=False)
    assert page.locator("pre").inner_text() == BlockMap(trace, step=12, timeline=True).text()


def test_it_fits_a_narrow_page(open_page: Any, tmp_path: Path):
    """At 800 pixels and at 420 nothing sticks out to the right."""
    jobs = jobs_of([3, 5, 4, 6], [6, 2, 9, 3])
    pair = run_static(jobs, 2, 16, 4), run_continuous(jobs, SchedulerConfig(8, 4))
    compare(*pair, timeline=True, curve=True).save(tmp_path / "map.html")
    for width in (800, 420):
        page = open_page(tmp_path / "map.html", viewport={"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
