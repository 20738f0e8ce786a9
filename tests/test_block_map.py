"""The block map as text and as HTML; the browser tests look at what a browser makes of it."""

import json
import re
from pathlib import Path

import pytest
from view_runs import random_run

from minivllm.config import SchedulerConfig
from minivllm.view import BlockMap, Trace, compare, occupancy_curve, timeline
from minivllm.view.page import MODULE, module_source
from minivllm.view.text_map import clean
from minivllm.view.twin_runs import Job, jobs_of, run_continuous, run_static

NASTY = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"quotes\" 'and' & &amp; `ticks` ${x}",
    "🦊 👩‍👩‍👧 é",
    "\u202eright to left\u202c שלום",
    "line\nbreak\ttab\x1b[31mred\x00",
    "\ud800 alone",
    "x" * 10_000,
]


def small_trace(**more: object) -> Trace:
    config = SchedulerConfig(num_blocks=8, block_size=4, max_num_batched_tokens=16, **more)
    return run_continuous(jobs_of([6, 5, 9], [3, 8, 6]), config, title="three requests")


# ---- text ----


def test_the_text_map_letter_by_letter():
    """Three requests in eight blocks: the fill in eighths, the new block, who waits and why."""
    assert BlockMap(small_trace()).text(2) == (
        "three requests\n"
        "iteration 2 of 8: 7 of 8 blocks in use, 22 of 28 slots filled, 5 tokens generated\n"
        "    0  A█ A▆ B█ B▄ C█ C█ C▂ ··\n"
        "A r0 running: 7/8 tokens computed, ran 1, blocks [0, 1]\n"
        "B r1 running: 6/7 tokens computed, ran 1, blocks [2, 3]\n"
        "C r2 running: 9/10 tokens computed, ran 4, blocks [4, 5, 6]"
    )


def test_shared_cached_and_ended_have_marks_of_their_own():
    """& shared, a small letter for free but cached, - for a row whose request has ended."""
    jobs = [Job(f"r{i}", [7] * 8 + [i] * 3, most) for i, most in enumerate((2, 9, 9))]
    config = SchedulerConfig(8, 4, max_num_batched_tokens=11, enable_prefix_caching=True)
    trace = run_continuous(jobs, config)
    texts = [BlockMap(trace).text(k) for k in range(len(trace))]
    assert any(re.search(r"\b[A-C]█&", text) for text in texts)
    assert any(re.search(r"\ba█", text) for text in texts)
    static = run_static(jobs_of([3, 1], [2, 4]), batch_size=2, max_model_len=8, block_size=4)
    assert "A█- A▂- B▄  B▂" in BlockMap(static).text(3)


def test_it_opens_at_the_busiest_iteration():
    """What a page without scripts shows is worth showing."""
    trace = small_trace()
    used = [sum(cell.ref_cnt > 0 for cell in frame.blocks) for frame in trace]
    assert BlockMap(trace).step == used.index(max(used)) > 0


@pytest.mark.parametrize("seed", range(6))
def test_text_and_html_are_deterministic(seed: int):
    """The same run gives the same bytes: nbval compares them."""
    first, second = (BlockMap(random_run(seed)[0], timeline=True, curve=True) for _ in range(2))
    assert first.html() == second.html()
    assert repr(first) == repr(second) and "0x" not in repr(first)


@pytest.mark.parametrize("name", NASTY)
def test_names_are_cleaned_in_text(name: str):
    """No control or format character, no line break, no surrogate, and never long."""
    text = clean(name)
    assert len(text) <= 24 and text.isprintable() or "\u200d" in text
    text.encode("utf-8")


# ---- html ----


def nasty_map() -> BlockMap:
    jobs = [Job(name, [1, 2, 3 + i], 4) for i, name in enumerate(NASTY)]
    trace = run_continuous(jobs, SchedulerConfig(16, 4), title=NASTY[0])
    return BlockMap(trace, timeline=True)


def test_no_name_breaks_out_of_the_html(tmp_path: Path):
    """One script for the data, one for the module, and the data is what went in."""
    block_map = nasty_map()
    html = block_map.html()
    outside = html[: html.index('<script type="module">')]
    assert outside.count("<script") == outside.count("</script>") == 1
    assert "<img" not in outside
    data = re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1]
    requests = json.loads(data)["traces"][0]["frames"][1]["requests"]
    assert [requests[str(i)]["name"] for i in range(len(NASTY))] == NASTY
    block_map.save(tmp_path / "map.html")
    assert (tmp_path / "map.html").read_text(encoding="utf-8").count("<script") == 2


def test_the_page_asks_for_nothing(tmp_path: Path):
    """No address, no import, no style sheet: the page is all there is."""
    compare(small_trace(), small_trace()).save(tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    page = page.replace("http://www.w3.org/2000/svg", "")  # a name, not an address that is fetched
    assert not re.search(r"https?://|<link|@import|\bimport\b|\bsrc=|url\(", page)


def test_text_comes_first_and_has_no_script_in_it():
    """Where scripts are stripped, the <pre> is what remains."""
    html = BlockMap(small_trace()).html()
    assert html.startswith('<div class="mv-host"><pre>three requests\niteration')
    assert " id=" not in html[: html.index('<script type="module">')]


def test_the_module_is_stored_without_comments_and_indentation():
    """It goes into every stored map; what is taken out must not change it."""
    source = module_source()
    assert "export function mount" in source and "export default" in source
    assert not any(line.startswith((" ", "//")) for line in source.splitlines())
    # What was taken out line by line must not have been part of a string of several lines.
    assert MODULE.read_text().count("`\n") <= 2


def test_a_notebook_gets_html_and_text():
    """No widget view by default: it would not survive without the kernel."""
    bundle = BlockMap(small_trace())._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}


def test_two_runs_share_one_clock():
    """The shorter one stays at its end."""
    jobs = jobs_of([3, 2, 4], [6, 2, 3])
    both = compare(run_static(jobs, 2, 12, 4), run_continuous(jobs, SchedulerConfig(8, 4)))
    last = max(map(len, both.traces)) - 1
    text = both.text(last)
    assert "Static batching\n" in text and "Continuous batching\n" in text
    assert f"iteration {len(both.traces[1]) - 1} of {len(both.traces[1]) - 1}" in text


def test_the_views_choose_their_parts():
    """The timeline and the curve bring the map along unless it is left out."""
    trace = small_trace()
    assert timeline(trace).parts == ["map", "timeline"]
    assert occupancy_curve(trace, map=False).parts == ["curve"]
    assert "P prefill" in timeline(trace, map=False).text()


def test_what_cannot_be_shown_is_refused():
    """No trace, an empty one, a step outside."""
    with pytest.raises(ValueError, match="at least one trace"):
        BlockMap()
    with pytest.raises(ValueError, match="no empty one"):
        BlockMap(Trace(4, 8))
    with pytest.raises(ValueError, match="step 99 is outside the 9 frames"):
        BlockMap(small_trace(), step=99)


# ---- widget ----


def test_the_widget_follows_python():
    """`step` and `trace` can be set; the fallback HTML and the text are of the step shown."""
    widget = BlockMap(small_trace(), step=1).widget()
    assert "iteration 1 of" in repr(widget)
    widget.step = 3
    assert "iteration 3 of" in repr(widget)
    other = run_continuous(jobs_of([3], [2]), SchedulerConfig(4, 4))
    widget.trace = other
    assert widget.step == len(other) - 1
    assert widget.payload["traces"][0]["num_blocks"] == 4
    bundle = widget._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert {"text/html", "application/vnd.jupyter.widget-view+json"} <= set(data)
    assert "iteration 2 of 2" in data["text/html"]


def test_a_live_widget_sends_each_line_until_the_payload_has_it():
    """Whenever a page opens, payload and fresh lines together are the whole trace."""
    trace = run_continuous(jobs_of([3], [60]), SchedulerConfig(32, 4))
    lines = list(trace.lines)
    del trace.lines[1:]
    widget = BlockMap(trace, step=0).widget()
    for line in lines[1:]:
        trace.lines.append(line)
        widget.push()
        known = widget.payload["traces"][0]["frames"]
        assert widget.fresh["start"] <= len(known)
        assert known[: widget.fresh["start"]] + widget.fresh["lines"] == trace.lines
