"""The trace: what was recorded is what the engine was, at each iteration, and comes back so."""

import json
import random
from pathlib import Path

import pytest
from view_runs import add_random_request, random_engine, random_run, see

from minivllm.config import SchedulerConfig
from minivllm.sampling_params import SamplingParams
from minivllm.view.frame import Frame, RequestRow
from minivllm.view.occupancy import occupancy
from minivllm.view.recorder import Recorder, record
from minivllm.view.trace import Trace
from minivllm.view.twin_runs import Job, jobs_of, run_continuous, run_static


def shown(trace: Trace, frame: Frame) -> dict:
    """A frame in the words of `see`."""
    names = [row.name for row in frame.requests]
    live = {}
    for number, row in enumerate(frame.requests):
        if row.status != "finished":
            live[row.name] = (
                row.status, trace.token_ids[number][: row.num_tokens], row.num_computed_tokens,
                list(row.block_ids), list(row.host_block_ids), row.num_preemptions,
                row.num_cached_tokens,
            )  # fmt: skip
    return {
        "step": frame.step,
        "ref_cnt": [cell.ref_cnt for cell in frame.blocks],
        "cached": [cell.cached for cell in frame.blocks],
        "running": [names[number] for number in frame.running],
        "waiting": [names[number] for number in frame.waiting],
        "live": live,
    }


# ---- replay equals the engine ----


@pytest.mark.parametrize("seed", range(40))
def test_a_trace_replays_to_the_engine_at_each_iteration(seed: int, tmp_path: Path):
    """Random runs (preempted, swapped, forked, cached, aborted), read back from their file."""
    trace, seen, sentences = random_run(seed)
    trace.save(tmp_path / "run.jsonl")
    loaded = Trace.load(tmp_path / "run.jsonl")
    frames = list(loaded)
    assert len(frames) == len(seen) == len(trace)
    assert frames == list(trace)
    for frame, state, events in zip(frames, seen, sentences, strict=True):
        usage = state.pop("usage")
        assert shown(loaded, frame) == state
        assert [str(event) for event in frame.events] == events
        now = occupancy(frame, loaded.block_size)
        assert (now.num_used, now.num_shared, now.num_slots_wasted) == (
            usage.num_used_blocks, usage.num_shared_blocks, usage.num_wasted_slots,
        )  # fmt: skip
        assert now.num_reserved <= usage.num_reserved_blocks
        assert sum(now[:5]) == loaded.num_blocks


@pytest.mark.parametrize("seed", range(5))
def test_a_block_shows_the_tokens_that_its_slots_hold(seed: int):
    """The twin stores each slot's token: the trace names the same ones, block by block."""
    rng = random.Random(seed)
    engine = random_engine(rng)
    trace = record(engine)
    for number in range(6):
        add_random_request(rng, engine, f"r{number}")
    size = trace.block_size
    while engine.has_unfinished_requests:
        engine.step()
        frame = trace[-1]
        for block_id, cell in enumerate(frame.blocks):
            slots = engine.executor.slots[block_id * size : block_id * size + cell.fill]
            assert trace.block_token_ids(frame, block_id) == [slot.token_id for slot in slots]


def test_a_block_that_changes_hands_within_one_step_is_the_new_ones():
    """Each request enters, fills a block and ends in one step, so no frame sees it hold the block:
    the third takes block 0 over from the first, and the free block shows the third's tokens."""
    config = SchedulerConfig(2, 4, max_num_seqs=1, enable_prefix_caching=True)
    jobs = [Job(f"r{i}", [10 * i + j for j in range(4)], 1) for i in range(3)]
    trace = run_continuous(jobs, config)
    frame = trace[-1]
    assert [(cell.ref_cnt, cell.cached) for cell in frame.blocks] == [(0, True)] * 2
    assert [trace.block_token_ids(frame, b) for b in (0, 1)] == [[20, 21, 22, 23], [10, 11, 12, 13]]


def test_frames_never_change():
    """A frame and its file line read before the run goes on are the same after it."""
    engine = random_engine(random.Random(3))
    trace = record(engine)
    add_random_request(random.Random(4), engine, "a")
    engine.step()
    frame, line = trace[1], json.dumps(trace.lines[1])
    held = see(engine)["ref_cnt"]
    while engine.has_unfinished_requests:
        engine.step()
    assert trace[1] == frame and json.dumps(trace.lines[1]) == line
    assert [cell.ref_cnt for cell in frame.blocks] == held
    with pytest.raises(AttributeError):
        frame.step = 9


def test_a_recorder_stops_and_the_engine_is_free_of_it():
    """After `with` nothing observes any more, and the steps that follow are not recorded."""
    engine = random_engine(random.Random(1))
    with Recorder(engine) as recorder:
        add_random_request(random.Random(1), engine, "a")
        engine.step()
    assert engine.observers == [] and len(recorder.trace) == 2
    engine.step()
    assert len(recorder.trace) == 2


def test_who_is_stopped_after_the_last_step_has_ended_in_the_trace():
    """A stop string ends a request between two steps; no further step comes to show it."""
    engine = random_engine(random.Random(1))
    with Recorder(engine) as recorder:
        engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=9))
        engine.step()
        engine.stop("a", 0, "END")
    frame = recorder.trace[-1]
    assert len(recorder.trace) == 3 and frame.requests[0].finish_reason == "stop"
    assert [event.kind for event in frame.events] == ["finish"]
    assert not frame.owners()


def test_recording_changes_no_token():
    """The same run with and without a recorder gives the same tokens."""

    def tokens(recorded: bool) -> list:
        engine = random_engine(random.Random(5))
        if recorded:
            record(engine)
        rng, found = random.Random(6), []
        for number in range(5):
            add_random_request(rng, engine, f"r{number}")
        while engine.has_unfinished_requests:
            found += [(o.request_id, o.sample_index, o.new_token_ids) for o in engine.step()]
        return found

    assert tokens(True) == tokens(False)


def test_a_recording_that_begins_in_the_middle_begins_with_what_is_there():
    """Frame 0 is the engine as it stands, its requests and their tokens included."""
    engine = random_engine(random.Random(2))
    add_random_request(random.Random(2), engine, "early")
    engine.step()
    trace = record(engine)
    state = see(engine)
    state.pop("usage")
    assert shown(trace, trace[0]) == state


def test_an_id_used_twice_is_two_requests():
    """A request may bear the id of one that has ended: it gets a letter of its own."""
    engine = random_engine(random.Random(1))
    trace = record(engine)
    for _ in range(2):
        engine.add_request("same", [1, 2, 3], SamplingParams(max_tokens=2))
        while engine.has_unfinished_requests:
            engine.step()
    assert [row.name for row in trace[-1].requests] == ["same", "same"]
    assert trace[-1].num_output_tokens == 4


def test_texts_are_recorded_once_for_each_token():
    """`decode` is asked once for each token id, and an id without a text shows itself."""
    asked = []
    engine = random_engine(random.Random(1))
    trace = record(engine, decode=lambda token_id: asked.append(token_id) or f"t{token_id}")
    engine.add_request("a", [5, 5, 6], SamplingParams(max_tokens=4))
    while engine.has_unfinished_requests:
        engine.step()
    assert sorted(asked) == sorted(set(trace.token_ids[0]))
    assert (trace.text_of(5), trace.text_of(10**6)) == ("t5", "<1000000>")


def test_static_batching_is_recorded_as_what_it_is():
    """Two rows of 8 slots in blocks of 4: the one that ends keeps its blocks until both have."""
    trace = run_static(jobs_of([3, 1], [2, 4]), batch_size=2, max_model_len=8, block_size=4)
    frame = trace[3]
    assert [row.status for row in frame.requests] == ["finished", "running"]
    assert [row.block_ids for row in frame.requests] == [(0, 1), (2, 3)]
    assert [cell.fill for cell in trace[1].blocks] == [3, 0, 1, 0]  # the left row is not padded
    assert trace[1].requests[1].num_padding == 2
    now = occupancy(frame, 4)
    assert (now.num_used, now.num_slots_used) == (4, 16)
    assert now.num_slots_wasted == 16 - frame.requests[1].num_computed_tokens
    assert dict(frame.scheduled) == {1: 1}
    assert "keeps its row" in str(trace[2].events)


def test_what_is_no_engine_cannot_be_recorded():
    """A clear error, not a recorder that sees nothing."""
    with pytest.raises(ValueError, match="a list cannot be recorded"):
        record([])


def test_tokens_that_do_not_add_up_are_refused():
    """A hand-made frame whose request has more tokens than were given."""
    row = RequestRow("a", 3, 4, num_tokens=3)
    frame = Frame(1, (row,), (), (0,), (), Frame.empty(2).blocks)
    trace = Trace(4, 2)
    with pytest.raises(ValueError, match="'a' has 3 tokens, 0 recorded"):
        trace.append(frame)
    trace.append(frame, {0: [1, 2, 3]})
    assert trace[0] == frame


# ---- files ----


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    random_run(7)[0].save(path)
    return path


def test_a_newer_file_is_named_as_such(saved: Path):
    """The version is told, not a traceback from the middle of the file."""
    saved.write_text(saved.read_text().replace('"version":1', '"version":2', 1))
    with pytest.raises(ValueError, match="version 2; this minivllm reads version 1"):
        Trace.load(saved)


@pytest.mark.parametrize("text", ["", "hello\n", "[]\n", '{"format": "png"}\n', "3\n"])
def test_what_is_no_trace_is_named_as_such(saved: Path, text: str):
    """Empty, prose, other JSON."""
    saved.write_text(text)
    with pytest.raises(ValueError, match="is not a trace"):
        Trace.load(saved)


def test_a_file_of_bytes_is_named_as_such(saved: Path):
    """A picture, say."""
    saved.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ValueError, match="is not a trace"):
        Trace.load(saved)


def test_a_cut_file_is_named_as_such(saved: Path):
    """At a line's end the count tells; in a line's middle the line does."""
    lines = saved.read_text().splitlines()
    saved.write_text("\n".join(lines[:-2]))
    with pytest.raises(ValueError, match=f"is cut: {len(lines) - 3} of {len(lines) - 1}"):
        Trace.load(saved)
    saved.write_text("\n".join(lines[:5]) + "\n" + lines[5][: len(lines[5]) // 2])
    with pytest.raises(ValueError, match="is damaged in line 6"):
        Trace.load(saved)


def test_a_block_outside_the_pool_is_found(saved: Path):
    """Block -1 would be the last one for Python: it must not be taken for it."""
    lines = saved.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | {"blocks": [[-1, 1]]})
    saved.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="damaged in line 3.*block -1"):
        Trace.load(saved)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_is_an_error_or_another_trace(saved: Path, seed: int):
    """One character changed anywhere: a ValueError that names the file, never another error."""
    rng = random.Random(seed)
    text = list(saved.read_text())
    for _ in range(rng.choice([1, 1, 5])):
        text[rng.randrange(len(text))] = rng.choice('0123456789-"[]{},:xe.')
    saved.write_text("".join(text))
    try:
        Trace.load(saved)
    except ValueError as error:
        assert str(saved) in str(error)
