"""What the browser tests share: reading a map out of a page, and what it should say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from minivllm.view.frame import Frame, label
from minivllm.view.trace import Trace

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Steps through all iterations of a map and reads each: blocks, requests, sentences, numbers.
READ_ALL = """async (root) => {
  const range = root.querySelector("[data-mv=range]"), frames = [];
  for (let k = 0; k <= +range.max; k++) {
    range.value = k;
    range.dispatchEvent(new Event("input"));
    const runs = [...root.querySelectorAll("[data-run]")].map((run) => ({
      blocks: [...run.querySelectorAll("[data-block]")].map((b) => ({
        owner: b.dataset.owner, fill: +b.dataset.fill, refs: +b.dataset.refs,
        state: b.dataset.state.split(" ").filter(Boolean).sort(), label: b.ariaLabel,
      })),
      host: [...run.querySelectorAll("[data-host]")].map((b) => b.dataset.owner),
      requests: [...run.querySelectorAll("[data-request]")].map((r) =>
        [+r.dataset.request, r.dataset.kind, r.querySelector(".mv-table").textContent]),
      events: [...run.querySelectorAll("[data-event]")].map((e) =>
        e.querySelector("span:last-child").textContent),
    }));
    frames.push({ step: +root.querySelector(".mv").dataset.step, runs });
  }
  return frames;
}"""


def read_all(page: Page, selector: str = ".mv-host") -> list[dict[str, Any]]:
    """What a map shows, iteration by iteration."""
    return page.locator(selector).first.evaluate(READ_ALL)


def expected(trace: Trace) -> list[dict[str, Any]]:
    """What a map of this run must show, from its frames."""
    frames = list(trace)
    befores = [frames[0], *frames]
    return [
        {
            "blocks": _blocks(before, frame),
            "host": _host(trace, frame),
            "requests": _requests(frame),
            "events": _events(frame),
        }
        for before, frame in zip(befores, frames, strict=False)
    ]


def _blocks(before: Frame, frame: Frame) -> list[dict[str, Any]]:
    owners, owned = frame.owners(), before.owners()
    shown = []
    for block_id, cell in enumerate(frame.blocks):
        now, was = owners.get(block_id, []), owned.get(block_id, [])
        states = {
            "shared": cell.ref_cnt > 1,
            "copied": ("copy", block_id) in {(op.kind, op.dst) for op in frame.ops},
            "swapped-in": ("swap_in", block_id) in {(op.kind, op.dst) for op in frame.ops},
            "swapped-out": ("swap_out", block_id) in {(op.kind, op.src) for op in frame.ops},
            "cached": cell.cached,
            "reserved": cell.ref_cnt > 0 and cell.fill == 0,
            "idle": cell.ref_cnt > 0 and frame.requests[cell.request].status == "finished",
            "freed": cell.ref_cnt == 0 and bool(was),
        }
        moved_here = states["copied"] or states["swapped-in"]
        states["new"] = bool(set(now) - set(was)) and not moved_here
        shown.append({
            "owner": " ".join(map(label, now)), "fill": cell.fill, "refs": cell.ref_cnt,
            "state": sorted(state for state, holds in states.items() if holds),
        })  # fmt: skip
    return shown


def _host(trace: Trace, frame: Frame) -> list[str]:
    owner = {b: label(i) for i, row in enumerate(frame.requests) for b in row.host_block_ids}
    return [owner.get(b, "") for b in range(trace.num_host_blocks)]


def _requests(frame: Frame) -> list[list]:
    ran, rows = dict(frame.scheduled), []
    for number in (*frame.running, *frame.waiting):
        row = frame.requests[number]
        in_prompt = row.num_computed_tokens <= row.num_prompt_tokens
        if number in ran:
            kind = "prefill" if ran[number] > 1 or in_prompt else "decode"
        elif row.status == "preempted":
            kind = "swapped" if row.host_block_ids else "preempted"
        else:
            kind = {"running": "stalled", "waiting": "waiting", "finished": "idle"}[row.status]
        table = str(list(row.block_ids)) if row.block_ids else ""
        host = f" host {list(row.host_block_ids)}" if row.host_block_ids else ""
        rows.append([number, kind, (table or ("" if host else "no blocks")) + host])
    return rows


def _events(frame: Frame) -> list[str]:
    """Those who join the line come last."""
    return [str(event) for event in sorted(frame.events, key=lambda event: event.kind == "add")]


def check_map(frames: list[dict[str, Any]], *traces: Trace) -> None:
    """Raise AssertionError where a map shows other than its traces say."""
    wanted = [expected(trace) for trace in traces]
    assert len(frames) == max(map(len, traces))
    for index, frame in enumerate(frames):
        assert frame["step"] == index
        for trace, of_run, shown in zip(traces, wanted, frame["runs"], strict=True):
            want = of_run[min(index, len(trace) - 1)]
            if index >= len(trace):  # over: its last state stays, nothing is new in it
                shown, want = _lasting(shown), _lasting(want)
            labels = [block.pop("label") for block in shown["blocks"]]
            assert all(text.startswith(f"block {b}: ") for b, text in enumerate(labels))
            assert shown == want, f"iteration {index}"


def _lasting(shown: dict[str, Any]) -> dict[str, Any]:
    passing = {"new", "freed", "copied", "swapped-in", "swapped-out"}
    blocks = [
        block | {"state": [state for state in block["state"] if state not in passing]}
        for block in shown["blocks"]
    ]
    return shown | {"blocks": blocks}


def axe_violations(page: Page, include: str = "html") -> list[str]:
    """What axe-core finds, a line for each rule that is broken."""
    import axe_playwright_python

    source = Path(axe_playwright_python.__file__).with_name("axe.min.js")
    page.evaluate(source.read_text(encoding="utf-8"))
    found = page.evaluate("async (include) => (await axe.run(include)).violations", include)
    return [
        f"{rule['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for rule in found
        for node in rule["nodes"][:3]
    ]
