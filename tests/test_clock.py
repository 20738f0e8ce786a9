"""The roofline clock: each term on paper, which roof holds, and the work of a step counted."""

from dataclasses import replace

import pytest
from helpers import engine_of, greedy, prompt

from minivllm.lab.clock import (
    A100_40GB,
    GPT_3,
    H200,
    LLAMA_3_8B,
    OPT_13B,
    SMOLLM2,
    Clock,
    Device,
    ModelShape,
    StepWork,
    num_kv_slots,
)
from minivllm.step_records import BlockOp, SchedulerOutput

# 1 layer, E = 8, I = 16, 2 query heads and 1 KV head of 4, 10 tokens of vocabulary, 2 bytes each.
SMALL = ModelShape("small", 1, 8, 16, 2, 1, 4, 10, operators=3)
ROUND = Device("round numbers", bandwidth=100.0, flops=1000.0, launch=0.5, pcie=10.0,
               copy_launch=0.25)  # fmt: skip


def test_sizes_of_a_small_model_on_paper():
    """qkv and o: 8 * (2 + 1 + 1 + 2) * 4 = 192; gate, up, down: 3 * 8 * 16 = 384."""
    assert SMALL.layer_params == 192 + 384
    assert SMALL.head_params == 80
    assert SMALL.kv_bytes_per_token == 2 * 1 * 1 * 4 * 2
    assert SMALL.activation_bytes_per_token == (16 * 8 + 8 * 16) * 2


@pytest.mark.parametrize(
    ("model", "billions"), [(OPT_13B, 12.8), (LLAMA_3_8B, 7.5), (SMOLLM2, 0.1345), (GPT_3, 174.6)]
)
def test_known_models_have_their_published_sizes(model: ModelShape, billions: float):
    """Matrices and head, in billions of weights (Llama's input embedding is not read in a step)."""
    assert (model.layer_params + model.head_params) / 1e9 == pytest.approx(billions, rel=0.005)


def test_the_papers_memory_holds_the_papers_tokens():
    """12 GB at 800 KB a token are 15.7 K slots; in blocks of 16, 983 of them."""
    assert num_kv_slots(OPT_13B, 12 * 2**30) == 15728
    assert num_kv_slots(OPT_13B, 12 * 2**30, 16) == 983 * 16
    assert num_kv_slots(SMALL, 16 * 3 + 15) == 3


def test_each_part_of_a_step_on_paper():
    """2 decoding requests at 5 positions: the roofs of each part, the larger one holds."""
    work = StepWork(num_tokens=2, num_sampled=2, num_kv_read=10, num_pairs=10)
    parts = Clock(ROUND, SMALL).parts(work)
    assert parts["linear"] == max((2 * 576 + 2 * 512) / 100, 2 * 576 * 2 / 1000)
    assert parts["head"] == max(2 * 80 / 100, 2 * 80 * 2 / 1000)
    assert parts["attention"] == max((10 + 2) * 16 / 100, 4 * 2 * 4 * 10 / 1000)
    assert parts["launch"] == 0.5 * 3
    assert parts["swap"] == 0


def test_bytes_and_flops_are_added_where_they_do_not_overlap():
    work = StepWork(2, 2, 10, 10)
    parts = Clock(replace(ROUND, overlap=0.0, kv_passes=3), SMALL).parts(work)
    assert parts["linear"] == (2 * 576 + 2 * 512) / 100 + 2 * 576 * 2 / 1000
    assert parts["attention"] == pytest.approx((3 * 10 + 2) * 16 / 100 + 4 * 2 * 4 * 10 / 1000)


def test_swapping_is_bytes_over_pcie_and_a_copy_for_each_block_layer_and_tensor():
    clock = Clock(ROUND, SMALL)
    assert clock.swap_seconds(8, 2) == 2 * 1 * 2 * 0.25 + 8 * 16 / 10
    assert clock.seconds(StepWork(num_moved=8, num_moves=2)) > clock.swap_seconds(8, 2)


def test_an_empty_step_takes_no_time():
    assert Clock(A100_40GB, OPT_13B).seconds(StepWork()) == 0


def test_a_prefill_is_bound_by_flops_and_a_decode_by_bytes():
    clock = Clock(A100_40GB, OPT_13B)
    decode = StepWork(1, 1, 500, 500)
    prefill = StepWork(2048, 1, 2048, 2048 * 2049 // 2)
    weights = 2 * OPT_13B.layer_params / A100_40GB.bandwidth
    assert clock.parts(decode)["linear"] == pytest.approx(weights, rel=0.001)
    flops = 2 * OPT_13B.layer_params * 2048 / A100_40GB.flops
    assert clock.parts(prefill)["linear"] == flops


def test_more_work_never_takes_less_time_and_the_faster_device_less():
    sizes = [1, 2, 8, 64, 512, 4096]
    for device in (A100_40GB, H200):
        clock = Clock(device, LLAMA_3_8B)
        times = [clock.seconds(StepWork(n, n, 300 * n, 300 * n)) for n in sizes]
        assert times == sorted(times)
    work = StepWork(16, 16, 8000, 8000)
    assert Clock(H200, OPT_13B).seconds(work) < Clock(A100_40GB, OPT_13B).seconds(work)


def test_the_work_of_a_mixed_step_is_counted_from_its_chunks():
    """A decode at 6 tokens and a chunk of 4: 7 + 4 positions read, 7 + (1 + 2 + 3 + 4) pairs."""
    engine = engine_of(4, 16)
    engine.add_request("a", prompt(6), greedy(5))
    engine.step()
    engine.add_request("b", prompt(4, first=50), greedy(5))
    output = engine.scheduler.schedule()
    assert StepWork.of_step(output, 4) == StepWork(5, 2, 11, 17)


def test_a_chunk_behind_others_sees_all_before_it():
    """Tokens 8 to 11 of a prompt: 4 * 8 + 10 pairs, 12 positions read."""
    engine = engine_of(4, 16, chunk=8)
    engine.add_request("a", prompt(12), greedy(2))
    engine.step()
    assert StepWork.of_step(engine.scheduler.schedule(), 4) == StepWork(4, 1, 12, 42)


def test_moves_are_counted_without_copies():
    ops = [BlockOp("swap_out", 0, 1), BlockOp("copy", 2, 3), BlockOp("swap_in", 1, 0)]
    work = StepWork.of_step(SchedulerOutput(1, block_ops=ops), 16)
    assert (work.num_moves, work.num_moved) == (2, 32)


def test_a_static_step_pays_for_every_row_and_column():
    """3 rows, 5 columns of prompts, then one column more: padding and ended rows count."""
    rows = [None] * 3
    assert StepWork.of_rows(rows, 0, 5) == StepWork(15, 3, 15, 45)
    assert StepWork.of_rows(rows, 5, 1) == StepWork(3, 3, 18, 18)
