"""Workloads: the same from the same seed, as the benchmark's definition says, files checked."""

import json
from pathlib import Path

import pytest

from minivllm.lab.workload import WorkItem, Workload, built_in, load

VOCAB = 1000


def lengths(workload: Workload) -> tuple[list[int], list[int]]:
    """Prompt and output lengths, sorted."""
    items = workload.items
    return sorted(len(i.prompt_token_ids) for i in items), sorted(i.max_tokens for i in items)


@pytest.mark.parametrize("name", ["w1", "w2", "w3", "w4"])
def test_a_seed_makes_one_workload(name: str):
    """The same again, another with another seed, and token ids inside the vocabulary."""
    first = built_in(name, VOCAB, seed=1)
    assert first == built_in(name, VOCAB, seed=1) != built_in(name, VOCAB, seed=2)
    assert first.name == name and first.num_tokens == sum(lengths(first)[1])
    tokens = {token for item in first.items for token in item.prompt_token_ids}
    assert tokens <= set(range(VOCAB)) and len(tokens) > VOCAB // 3
    assert set(built_in(name, 2).items[0].prompt_token_ids) == {0, 1}


def test_w1_is_short_outputs_and_a_few_long_ones():
    """64 requests, prompts 32..128; 80 % of the outputs 8..32, 20 % 128..256; 16 at once."""
    workload = built_in("w1", VOCAB)
    prompts, outputs = lengths(workload)
    assert len(prompts) == 64 and 32 <= prompts[0] and prompts[-1] <= 128
    short, long = outputs[:51], outputs[51:]  # 51 of 64 are 80 %
    assert 8 <= short[0] and short[-1] <= 32 and 128 <= long[0] and long[-1] <= 256
    first = [item.max_tokens for item in workload.items[:16]]
    assert max(first) > 32, "the long ones are scattered, so that each static batch has some"
    assert (workload.batch_size, workload.max_num_seqs) == (16, 16)


def test_w2_has_equal_outputs():
    prompts, outputs = lengths(built_in("w2", VOCAB))
    assert outputs == [64] * 64 and 32 <= prompts[0] and prompts[-1] <= 128


def test_w3_has_a_common_prefix():
    """32 requests of 256 + 16 tokens: the first 256 are the same, what follows is not."""
    items = built_in("w3", VOCAB).items
    assert [len(item.prompt_token_ids) for item in items] == [272] * 32
    assert len({tuple(item.prompt_token_ids[:256]) for item in items}) == 1
    assert len({tuple(item.prompt_token_ids[256:]) for item in items}) == 32
    assert {item.max_tokens for item in items} == {32}


def test_w4_has_equal_memory_for_all_engines():
    """256 requests, 7/8 outputs 8..24 and 1/8 300..400; 16 x 544 slots, so up to 64 at once."""
    workload = built_in("w4", VOCAB)
    prompts, outputs = lengths(workload)
    assert len(outputs) == 256 and outputs[223] <= 24 and outputs[0] >= 8
    assert 300 <= outputs[224] and outputs[-1] <= 400
    assert (workload.batch_size, workload.row_slots, workload.max_num_seqs) == (16, 544, 64)
    assert prompts[-1] + outputs[-1] <= workload.row_slots


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="workload 'w5' is neither a file nor one of w1, w2, w3"):
        built_in("w5", VOCAB)


def write(path: Path, rows: object) -> Path:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_a_file_gives_ids_or_a_length(tmp_path: Path):
    rows = [
        {"prompt_token_ids": [5, 6], "max_tokens": 3},
        {"prompt_len": 10, "max_tokens": 1},
        {"prompt_len": 4, "max_tokens": 7},
    ]
    workload = load(write(tmp_path / "mine.json", rows), VOCAB)
    assert workload.name == "mine"
    assert workload.items[0] == WorkItem([5, 6], 3)
    assert [len(item.prompt_token_ids) for item in workload.items] == [2, 10, 4]
    assert workload == load(tmp_path / "mine.json", VOCAB)
    assert workload.row_slots == 10 + 7, "any of them may share a static batch"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "must hold a list of requests, at least one"),
        ({"prompt_len": 3}, "must hold a list of requests"),
        ([5], "request 0 of the workload is 5, not an object"),
        ([{"prompt_len": 3}], "request 0 .*: max_tokens must be an integer >= 1, got None"),
        ([{"prompt_len": 3, "max_tokens": 0}], "max_tokens must be an integer >= 1, got 0"),
        ([{"max_tokens": 3}], "prompt_len must be an integer >= 1, got None"),
        ([{"prompt_len": 0, "max_tokens": 3}], "prompt_len must be an integer >= 1, got 0"),
        ([{"prompt_len": 2.5, "max_tokens": 3}], "got 2.5"),
        ([{"prompt_token_ids": [], "max_tokens": 3}], "must be ids from 0 to 999"),
        ([{"prompt_token_ids": "abc", "max_tokens": 3}], "must be ids from 0 to 999"),
        ([{"prompt_token_ids": [True], "max_tokens": 3}], "must be ids from 0 to 999"),
        (
            [
                {"prompt_len": 3, "max_tokens": 3},
                {"prompt_token_ids": [1000], "max_tokens": 3},
            ],
            "request 1 of the workload: prompt_token_ids must be ids from 0 to 999",
        ),
    ],
)
def test_a_bad_file_is_refused_by_the_entry(tmp_path: Path, rows: object, message: str):
    with pytest.raises(ValueError, match=message) as caught:
        load(write(tmp_path / "bad.json", rows), VOCAB)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"[{", b"\xff\xfe", None])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None):
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="broken.json cannot be read") as caught:
        load(path, VOCAB)
    assert "\n" not in str(caught.value)
