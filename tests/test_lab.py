"""The laboratory: simulated runs are real scheduling, experiments run and say what they are, and an
interrupted run loses nothing."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from minivllm.baselines.systems import SYSTEMS
from minivllm.config import SchedulerConfig
from minivllm.lab import lab_command
from minivllm.lab.arrivals import poisson
from minivllm.lab.clock import A100_40GB, OPT_13B, Clock
from minivllm.lab.experiment import MEASURED, MODELLED, Experiment, Finding, Options
from minivllm.lab.experiments import headline, memory, orca, sharing, traces
from minivllm.lab.figures import FIGURES, draw_all
from minivllm.lab.jobs import Job, arriving
from minivllm.lab.lab_command import add_options, lab, read_results
from minivllm.lab.lengths import mix_80_20, trace_shaped
from minivllm.lab.simulation import simulate

CONFIG = SchedulerConfig(
    num_blocks=64, block_size=16, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=384
)
CLOCK = Clock(A100_40GB, OPT_13B)


# ---- simulated runs ----


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_job_gets_all_its_tokens_in_time_order(name: str):
    jobs = arriving(mix_80_20(40), poisson(5.0, 40))
    run = simulate(SYSTEMS[name], CONFIG, jobs, CLOCK)
    assert [len(times.token_times) for times in run.requests] == [job.output_len for job in jobs]
    for times in run.requests:
        assert times.arrival < times.token_times[0]
        assert times.token_times == sorted(times.token_times)
    assert run.seconds == max(times.token_times[-1] for times in run.requests)
    assert run.num_request_steps == sum(job.output_len for job in jobs)


def test_a_run_repeats_to_the_last_digit():
    jobs = arriving(mix_80_20(30), poisson(8.0, 30))
    runs = [simulate(SYSTEMS["vllm"], CONFIG, jobs, CLOCK).summary() for _ in range(2)]
    assert runs[0] == runs[1]


def test_an_idle_server_waits_for_the_next_arrival():
    run = simulate(SYSTEMS["vllm"], CONFIG, [Job(5, 2, 0.0), Job(5, 2, 100.0)], CLOCK)
    first, second = run.requests
    assert first.latency == pytest.approx(second.latency) and second.token_times[0] > 100


def test_a_job_that_cannot_run_is_counted_as_failed():
    run = simulate(SYSTEMS["vllm"], CONFIG, [Job(400, 2), Job(5, 2)], CLOCK)
    assert [times.failed for times in run.requests] == [True, False]
    assert run.summary()["failed"] == 1


def test_what_users_ask_for_reaches_the_reservation():
    """max_new_tokens = 300 of 1024 slots: three at once instead of eight."""
    jobs = [Job(16, 8, max_new_tokens=300)] * 8
    steps = {
        name: simulate(SYSTEMS[name], CONFIG, jobs, None).num_steps
        for name in ("vllm", "trtllm-no-evict")
    }
    assert steps == {"vllm": 8, "trtllm-no-evict": 24}


def test_without_a_clock_a_step_is_a_second():
    run = simulate(SYSTEMS["vllm"], CONFIG, [Job(5, 4)], None)
    assert run.requests[0].token_times == [1.0, 2.0, 3.0, 4.0]


def test_a_static_run_takes_the_time_of_its_longest_row():
    """Two jobs together, 2 and 9 tokens: 9 steps, and the short one is done after the second."""
    run = simulate(SYSTEMS["static"], CONFIG, [Job(5, 2), Job(5, 9)], None)
    assert run.num_steps == 9 and run.requests[0].token_times == [1.0, 2.0]


def test_the_queue_is_seen_to_grow_and_to_empty():
    run = simulate(SYSTEMS["vllm"], replace(CONFIG, max_num_seqs=1), [Job(5, 3)] * 4, None)
    assert [waiting for _, waiting in run.queue] == [3, 2, 1, 0]


# ---- experiments ----


def results_of(experiment: Experiment, cases: list[str], scale: float) -> dict:
    return {case: experiment.run(case, Options(scale=scale)) for case in cases}


def test_paged_kv_is_96_percent_token_states_and_orca_is_as_published():
    """Figure 2 and Figure 13 at a tenth of the size: every part within 6 points, though few run."""
    names = ["vllm", "orca-max", "orca-oracle"]
    results = results_of(memory.MEMORY, [f"sharegpt/{name}" for name in names], 0.12)
    for name in names:
        result = results[f"sharegpt/{name}"]
        shares = [result["shares"][part] for part in memory.PARTS]
        for ours, theirs in zip(shares, memory.FIGURE_2[name], strict=True):
            assert theirs is None or ours == pytest.approx(theirs, abs=6)
        assert result["running"] == pytest.approx(memory.FIGURE_13["sharegpt"][name], rel=0.3)
    assert results["sharegpt/vllm"]["share_of_used"] > 96


def test_findings_say_what_they_are_and_what_was_published():
    results = results_of(memory.MEMORY, ["sharegpt/orca-max"], 0.1)
    findings = memory.read(results)
    assert {finding.label for finding in findings} == {MODELLED}
    assert [f.published for f in findings] == [20.4, 13.3, 57.3, 8.9, 7.0]
    assert "modelled" in str(findings[0]) and "20.4" in str(findings[0])


def test_the_headline_goes_from_about_1_to_above_5():
    """Equal lengths: only the memory that is not held yet; 7 of 50 for one of 2000: 5 to 10 x."""
    results = results_of(headline.HEADLINE, ["A100-40GB/294", "A100-40GB/50"], 0.3)
    equal, mixed = (results[case]["ratio"] for case in results)
    assert 1.0 <= equal < 1.6 and 5 < mixed < 10
    assert results["A100-40GB/294"]["cv"] == 0 and results["A100-40GB/50"]["cv"] > 2
    assert mixed < results["A100-40GB/50"]["steps"][0] / results["A100-40GB/50"]["steps"][1]


def test_the_textbook_batch_wastes_85_percent():
    """The claim's case: seven end at 50, one runs to 2000: 2350 of 16,000 slots give a token."""
    assert traces.useful_slots([Job(1, 50)] * 7 + [Job(1, 2000)], 8) == 100 * 2350 / 16000


def test_useful_slots_are_what_the_static_engine_counts():
    jobs = mix_80_20(64)
    config = replace(CONFIG, num_blocks=8 * 24)
    run = simulate(SYSTEMS["static"], config, jobs, None)
    assert run.engine.batch_size == 8
    share = 100 * run.engine.num_useful_row_steps / run.engine.num_row_steps
    assert traces.useful_slots(jobs, 8) == share


def test_azure_shares_are_the_published_ones():
    jobs = trace_shaped(8000, "azure_conversation")
    assert traces.useful_slots(jobs, 8) == pytest.approx(48, abs=3)
    assert traces.useful_slots(jobs, 32) == pytest.approx(38, abs=3)
    assert traces.kv_used(jobs, 32) == pytest.approx(30, abs=3)


def test_prefix_hits_stop_at_the_first_miss_and_the_oldest_is_overwritten():
    def job(*names: int) -> Job:
        return Job(512 * len(names), 1, block_hashes=names)

    assert traces.hit_rate([job(1, 2, 3), job(1, 2, 4)], None) == pytest.approx(100 * 2 / 6)
    assert traces.hit_rate([job(1, 2), job(3, 4), job(1, 2)], None) == pytest.approx(100 * 2 / 6)
    assert traces.hit_rate([job(1, 2), job(3, 4), job(1, 2)], 2) == 0
    assert traces.hit_rate([], 5) == 0


def test_parallel_samples_share_the_full_blocks_of_their_prompt():
    """Two samples of a prompt of 64: after the first of two tokens, 4 blocks instead of 8."""
    meters = []

    def make(executor):
        engine = sharing._engine(CONFIG, executor, sharing.SharingMeter())
        meters.append(engine.observers[0])
        return engine

    sharing.run_parallel([Job(64, 2)], 2, make)
    assert meters[0].saved == 50


def test_the_best_log_probabilities_are_sorted_and_below_one():
    import math
    import random

    rng = random.Random(0)
    for _ in range(200):
        scores = sharing.best_logprobs(rng, 6)
        assert scores == sorted(scores, reverse=True) and sum(map(math.exp, scores)) < 1


def test_orcas_latency_grows_with_the_rate():
    jobs = orca.orca_mix(60)
    slow, fast = (orca.latency_at(rate, "orca-max", jobs) for rate in (1.0, 100.0))
    assert slow < fast


# ---- the command ----


def arguments(*words: str) -> Namespace:
    parser = ArgumentParser()
    add_options(parser)
    parser.add_argument("--json")
    parser.set_defaults(model="tiny", dtype="auto")
    return parser.parse_args(list(words))


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One experiment of three cases that notes which it has run, and can be told to break off."""
    ran: list[str] = []

    def run(case: str, options: Options) -> dict:
        if case == "two" and "two" not in ran:
            ran.append("two")
            raise KeyboardInterrupt
        ran.append(case)
        return {"value": len(case) * options.scale}

    def read(results: dict) -> list[Finding]:
        return [Finding(case, row["value"], MEASURED) for case, row in results.items()]

    toy = Experiment("toy", "A toy", "none", ["one", "two", "three"], run, read)
    monkeypatch.setattr(lab_command, "PLACES", {"toy": "toy:TOY"})
    monkeypatch.setattr(lab_command, "find", lambda place: toy)
    return ran


def test_an_interrupt_keeps_what_is_done_and_the_next_run_goes_on(
    experiment: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
):
    path = tmp_path / "lab.json"
    with pytest.raises(KeyboardInterrupt):
        lab(arguments("toy", "--json", str(path)))
    assert list(read_results(path)["experiments"]["toy"]["cases"]) == ["one"]
    assert "2 of 3 cases have not run" in capsys.readouterr().out
    data = lab(arguments("toy", "--json", str(path)))
    assert experiment == ["one", "two", "two", "three"]
    assert data == json.loads(path.read_text())
    assert [f["ours"] for f in data["experiments"]["toy"]["findings"]] == [3.0, 3.0, 5.0]
    assert not list(tmp_path.glob("*.part"))


def test_results_of_other_options_are_not_taken_up(experiment: list[str], tmp_path: Path):
    path = tmp_path / "lab.json"
    experiment.append("two")  # it will not break off
    lab(arguments("toy", "--json", str(path)))
    lab(arguments("toy", "--json", str(path), "--scale", "2"))
    assert read_results(path)["experiments"]["toy"]["cases"]["one"] == {"value": 6.0}


def test_bad_input_is_refused_with_a_line(tmp_path: Path):
    with pytest.raises(ValueError, match="'nothing' is not one of memory, sharing"):
        lab(arguments("nothing"))
    with pytest.raises(ValueError, match="--scale must be above 0, got 0.0"):
        lab(arguments("traces", "--scale", "0"))
    path = tmp_path / "lab.json"
    for text in ("[1, 2]", "no json"):
        path.write_text(text)
        with pytest.raises(ValueError, match="not a file of lab results"):
            lab(arguments("traces", "--json", str(path)))


def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture):
    assert lab(arguments()) == {}
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(lab_command.PLACES)


def test_all_is_what_needs_no_model_and_every_place_holds_its_experiment():
    assert lab_command.chosen_names(arguments("--all")) == list(lab_command.MODELLED)
    for name, place in lab_command.PLACES.items():
        found = lab_command.find(place)
        assert found.name == name and len(found.cases) == len(set(found.cases))
        assert found.measures == (name in lab_command.MEASURED)


def made_up_results(name: str) -> dict[str, dict]:
    """A row for each case of an experiment, with every field that the figures read."""
    row = {
        "shares": dict.fromkeys(memory.PARTS, 25.0), "share_of_used": 90.0, "running": 7.0,
        "saved": 30.0, "throughput": 900.0, "tokens_per_second": 1000.0, "ratio": 5.0,
        "swap_ms": 50.0, "recompute_ms": 20.0, "cv": 1.0, "ttft": {"p50": 1.0},
        "queue": [(0.0, 1), (5.0, 3)], "measured_ms": 20.0, "modelled_ms": 22.0,
    }  # fmt: skip
    return {case: row for case in lab_command.find(lab_command.PLACES[name]).cases}


def test_figures_are_drawn_of_what_was_run(tmp_path: Path):
    entries = {name: {"cases": made_up_results(name)} for name in lab_command.PLACES}
    written = draw_all({"options": {}, "experiments": entries}, tmp_path)
    assert [path.name for path in written] == [f"lab_{name}.svg" for name in FIGURES]
    for path in written:
        assert b"modelled" in path.read_bytes(), path
    assert set(FIGURES) <= set(lab_command.PLACES)


@pytest.mark.parametrize("name", ["blocks", "anyscale", "calibration"])
def test_a_figure_of_an_interrupted_run_shows_what_there_is(name: str, tmp_path: Path):
    """The first third of the cases: whole panels are empty, and a log axis of nothing is none."""
    rows = made_up_results(name)
    rows = dict(list(rows.items())[: len(rows) // 3])
    data = {"options": {}, "experiments": {name: {"cases": rows}}}
    assert [path.name for path in draw_all(data, tmp_path)] == [f"lab_{name}.svg"]


def test_nothing_is_drawn_of_what_has_not_run(tmp_path: Path):
    data = {"options": {}, "experiments": {"online": {"cases": {}}}}
    assert draw_all(data, tmp_path) == []
