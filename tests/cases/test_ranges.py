"""Cases 01-06: which ids belong to which slot."""

from __future__ import annotations

import pytest

from tests.harness import World


@pytest.mark.parametrize("row_id", [1, 1000, 1001])
def test_case_01_a_table_with_a_single_row_is_no_empty_table(world: World, row_id: int) -> None:
    world.create_items([row_id])

    assert world.run() == 0
    assert world.seen() == [row_id]


def test_case_02_rows_on_the_edges_of_slots_are_handled_once(world: World) -> None:
    ids = [1, 999, 1000, 1001, 1999, 2000, 2001]
    world.create_items(ids)

    pods = [world.start(batch_size=3, parallelism=2) for _ in range(2)]

    assert [pod.wait() for pod in pods] == [0, 0]
    assert sorted(world.seen()) == ids
