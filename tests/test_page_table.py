"""BlockTable: the slot arithmetic at and around block edges."""

import pytest

from minivllm.page_table import BlockTable, num_blocks_for


def table_of(block_size: int, *block_ids: int) -> BlockTable:
    table = BlockTable(block_size)
    table.block_ids += block_ids
    return table


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 16])
def test_d32_blocks_are_rounded_up(block_size: int):
    """A floor instead of a ceiling loses the last, partly filled block: 0, 1, bs - 1, bs, bs + 1
    and 2 bs tokens take 0, 1, 1, 1, 2 and 2 blocks."""
    counts = [0, 1, max(block_size - 1, 1), block_size, block_size + 1, 2 * block_size]
    assert [num_blocks_for(count, block_size) for count in counts] == [0, 1, 1, 1, 2, 2]


def test_slots_of_a_scattered_table():
    """Blocks 7, 2 and 5 of four slots: position 5 is the second slot of block 2."""
    table = table_of(4, 7, 2, 5)
    assert table.slots(0, 12) == [28, 29, 30, 31, 8, 9, 10, 11, 20, 21, 22, 23]
    assert table.slot(5) == 2 * 4 + 1
    assert table.slots(5, 5) == []
    assert (table.num_blocks, table.num_slots) == (3, 12)


def test_block_size_one_makes_a_slot_of_each_block():
    """The smallest block: slot and block id are the same number."""
    assert table_of(1, 4, 0, 9).slots(0, 3) == [4, 0, 9]


@pytest.mark.parametrize("position", [-1, 8, 9, 12])
def test_d31_a_position_outside_the_table_is_an_error(position: int):
    """A column past the end of the table once read the neighbour's row. Two blocks of four end at
    position 7; the one before 0 must not wrap round to the last block either."""
    with pytest.raises(ValueError, match=f"position {position} is outside a table of 8 slots"):
        table_of(4, 3, 1).slot(position)


def test_d31_a_range_that_leaves_the_table_is_an_error():
    """The same at the end of a range, and for a table without blocks."""
    with pytest.raises(ValueError, match="position 8 is outside a table of 8 slots"):
        table_of(4, 3, 1).slots(6, 9)
    with pytest.raises(ValueError, match="position 0 is outside a table of 0 slots"):
        table_of(4).slot(0)


def test_a_block_without_slots_is_refused():
    with pytest.raises(ValueError, match="block_size must be >= 1, got 0"):
        BlockTable(0)
