"""Jobs of the laboratory: stated means hold, seeds repeat, and bad trace rows are named by line."""

import json
import statistics
from pathlib import Path

import pytest

from minivllm.lab import arrivals, lengths
from minivllm.lab.jobs import Job, arriving, make_prompt, means
from minivllm.lab.trace_files import load_azure, load_mooncake

NUM_JOBS = 4000


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        (lengths.sharegpt_like, (161.31, 337.99)),
        (lengths.alpaca_like, (19.31, 58.45)),
        (lambda n, seed=0: lengths.trace_shaped(n, "azure_conversation", seed), (1154.7, 211.1)),
        (lambda n, seed=0: lengths.trace_shaped(n, "azure_code", seed), (2048, 28)),
        (lambda n, seed=0: lengths.trace_shaped(n, "mooncake_conversation", seed), (12035, 343)),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_stated_means_hold_after_the_cut(family, wanted: tuple[float, float], seed: int):
    """Within 1 %, in a sample of the size that the experiments use."""
    assert means(family(NUM_JOBS, seed=seed)) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("family", [lengths.sharegpt_like, lengths.alpaca_like])
def test_the_cut_is_kept_and_the_spread_is_the_one_stated(family):
    jobs = family(NUM_JOBS)
    assert max(job.num_tokens for job in jobs) <= 2048
    outputs = [job.output_len for job in jobs]
    assert 0.8 < statistics.pstdev(outputs) / statistics.fmean(outputs) < 1.05


@pytest.mark.parametrize(
    "family",
    [
        lengths.sharegpt_like,
        lengths.orca_mix,
        lengths.mix_80_20,
        lambda n, seed: lengths.short_and_long(n, 8, 50, 2000, seed),
        lambda n, seed: lengths.exponential_redrawn(n, 128, seed=seed),
        lambda n, seed: lengths.trace_shaped(n, "azure_code", seed),
    ],
)
def test_a_seed_repeats_and_another_differs(family):
    assert family(200, seed=1) == family(200, seed=1) != family(200, seed=2)


def test_the_textbook_mix_is_seven_short_for_one_long():
    jobs = lengths.short_and_long(64, 8, 50, 2000)
    outputs = sorted(job.output_len for job in jobs)
    assert outputs == [50] * 56 + [2000] * 8
    assert jobs[:8] != sorted(jobs[:8], key=lambda job: job.output_len)


def test_four_of_five_outputs_are_short():
    outputs = [job.output_len for job in lengths.mix_80_20(500)]
    assert sum(8 <= output <= 32 for output in outputs) == 400
    assert sum(128 <= output <= 256 for output in outputs) == 100


def test_a_draw_above_the_cap_is_drawn_again_not_clipped():
    """Clipped at 32, three outputs in four would be 32; drawn again, about one in 26 is."""
    outputs = [job.output_len for job in lengths.exponential_redrawn(NUM_JOBS, 32)]
    assert max(outputs) <= 32 and outputs.count(32) < NUM_JOBS / 15
    assert statistics.fmean(outputs) == pytest.approx(15.8, rel=0.03)
    free = [job.output_len for job in lengths.exponential_redrawn(NUM_JOBS, 10**6)]
    assert statistics.fmean(free) == pytest.approx(128, rel=0.05)


def test_orcas_bounds():
    jobs = lengths.orca_mix(NUM_JOBS)
    assert {min(j.prompt_len for j in jobs), max(j.prompt_len for j in jobs)} == {32, 512}
    assert {min(j.output_len for j in jobs), max(j.output_len for j in jobs)} == {1, 128}


def test_percentiles_are_hit_exactly_and_the_tail_is_bent():
    table = [*range(0, 990, 10), 1000, 9000]  # p99 1000, p100 9000
    assert lengths.at_quantile(table, 500, 0.5) == 500
    assert lengths.at_quantile(table, 500, 0.985) == 990  # between p98 = 980 and p99 = 1000
    straight = sum((a + b) / 2 for a, b in zip(table, table[1:], strict=False)) / 100
    draws = [lengths.at_quantile(table, straight - 20, (i + 0.5) / 10**5) for i in range(10**5)]
    assert statistics.fmean(draws) == pytest.approx(straight - 20, rel=0.002)


def test_an_unknown_trace_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'azure' is not one of azure_conversation, azure_code"):
        lengths.trace_shaped(3, "azure")


def test_prompts_have_their_length_and_share_no_block():
    prompts = [make_prompt(Job(40, 1), index, 1000) for index in range(50)]
    assert all(len(prompt) == 40 for prompt in prompts)
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 50
    assert make_prompt(Job(40, 1), 3, 1000) == prompts[3]


def test_an_empty_job_is_refused():
    with pytest.raises(ValueError, match="a prompt of 0 and an output of 5"):
        Job(0, 5)


# ---- arrivals ----


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in zip([0.0, *times], times, strict=False)]


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_spread(cv: float):
    times = arrivals.gamma(4.0, cv, 40000)
    between = gaps(times)
    assert min(between) >= 0 and statistics.fmean(between) == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(between) / statistics.fmean(between) == pytest.approx(cv, rel=0.1)


def test_poisson_is_gamma_with_cv_1_and_cv_0_is_a_clock():
    assert arrivals.poisson(2.0, 50, seed=3) == arrivals.gamma(2.0, 1.0, 50, seed=3)
    assert arrivals.gamma(2.0, 0, 4) == [0.5, 1.0, 1.5, 2.0]
    assert arrivals.poisson(2.0, 50, seed=3) != arrivals.poisson(2.0, 50, seed=4)


@pytest.mark.parametrize(("rate", "cv"), [(0, 1), (-1, 1), (1, -0.1)])
def test_a_rate_that_is_none_is_refused(rate: float, cv: float):
    with pytest.raises(ValueError, match="rate must be above 0"):
        arrivals.gamma(rate, cv, 3)


def test_every_job_gets_its_time():
    assert [job.arrival for job in arriving([Job(1, 1)] * 3, arrivals.bursts(3, 2, 5.0))] == [
        0.0, 0.0, 5.0,
    ]  # fmt: skip
    with pytest.raises(ValueError):
        arriving([Job(1, 1)], [1.0, 2.0])


# ---- trace files ----

AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:15:46.6805900,374,44\r\n"
    b"2023-11-16 18:15:50.9951690,396,109\r\n"
    b"2023-11-17 00:00:00.0000001,7,1"  # the last line has no end, as in the real file
)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(content)
    return path


def test_azure_crlf_seven_digits_and_no_last_line_end(tmp_path: Path):
    jobs = load_azure(write(tmp_path, AZURE))
    assert [(job.prompt_len, job.output_len) for job in jobs] == [(374, 44), (396, 109), (7, 1)]
    assert [job.arrival for job in jobs] == pytest.approx([0.0, 4.314579, 20653.3194101], abs=1e-6)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (b"2023-11-16 18:15:46.6805900,374", "is no row"),
        (b"2023-11-16 18:15:46.6805900,374,44,9", "is no row"),
        (b"2023-11-16 18:15:46.6805900,many,44", "is no row"),
        (b"2023-11-16 18:15:46.68x5900,374,44", "is no row"),
        (b"yesterday,374,44", "is no row"),
        (b"2023-11-16 18:15:46,374,0", "at least 1, got 374 and 0"),
    ],
)
def test_azure_a_bad_row_is_named_by_its_line(tmp_path: Path, row: bytes, why: str):
    lines = AZURE.split(b"\r\n")
    path = write(tmp_path, b"\r\n".join([*lines[:2], row, *lines[2:]]))
    with pytest.raises(ValueError, match=rf"line 3: .*{why}"):
        load_azure(path)


def test_azure_another_file_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="line 1: the header"):
        load_azure(write(tmp_path, b"a,b,c\r\n1,2,3\r\n"))
    with pytest.raises(ValueError, match="holds no request"):
        load_azure(write(tmp_path, AZURE.split(b"\r\n")[0]))
    with pytest.raises(ValueError, match="is not text"):
        load_azure(write(tmp_path, b"\xff\xfe\x00"))


def mooncake_row(**changes: object) -> str:
    row = {"timestamp": 1500, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 8]}
    return json.dumps(row | changes)


def test_mooncake_the_partial_last_block_is_left_out(tmp_path: Path):
    """1100 tokens are two full blocks of 512 and a rest; 1024 are two full ones."""
    text = mooncake_row() + "\n" + mooncake_row(input_length=1024, hash_ids=[0, 9])
    jobs = load_mooncake(write(tmp_path, text.encode()))
    assert jobs == [
        Job(1100, 5, 1.5, block_hashes=(0, 7)),
        Job(1024, 5, 1.5, block_hashes=(0, 9)),
    ]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "is no row"),
        ("[1]", "is no row"),
        ('{"timestamp": 0}', "is no row"),
        (mooncake_row(input_length="long"), "timestamp, input_length and output_length are"),
        (mooncake_row(output_length=0), "timestamp, input_length and output_length are"),
        (mooncake_row(hash_ids=[0, 7]), "1100 tokens are 3 blocks, and there are 2 hash_ids"),
        (mooncake_row(hash_ids="0 7 8"), "hash_ids must be a list of integers"),
    ],
)
def test_mooncake_a_bad_row_is_named_by_its_line(tmp_path: Path, row: str, why: str):
    path = write(tmp_path, f"{mooncake_row()}\n\n{row}\n".encode())
    with pytest.raises(ValueError, match=rf"line 3: .*{why}"):
        load_mooncake(path)
