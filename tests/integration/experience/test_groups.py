"""Sampled groups in the buffer: the first stored answer wins."""

import asyncio

from gradbus.buffer import keys


async def test_the_first_answer_wins(store, group):
    await store.put([group(0, worker="first")])
    await store.put([group(0, worker="second"), group(1, worker="second")])
    found = await store.get([0, 1, 2])
    assert {index: item.worker for index, item in found.items()} == {0: "first", 1: "second"}


async def test_of_many_workers_everybody_sees_one_answer(store, group):
    await asyncio.gather(*(store.put([group(0, worker=str(n))]) for n in range(10)))
    seen = {(await store.get([0]))[0].worker for _ in range(3)}
    assert len(seen) == 1


async def test_a_corrupt_group_is_removed_so_that_the_next_answer_counts(client, store, run_id, group):
    await store.put([group(0), group(1)])
    record = bytearray(await client.get(keys.assembly(run_id, 0)))
    record[-1] ^= 1
    await client.set(keys.assembly(run_id, 0), bytes(record))
    assert (await store.get([0, 1])).keys() == {1}
    await store.put([group(0, worker="again")])
    assert (await store.get([0]))[0].worker == "again"


async def test_held_out_completions_of_two_versions_are_apart(store, group):
    await store.put_evaluation(1, [group(0, worker="one")])
    await store.put_evaluation(2, [group(0, worker="two")])
    assert (await store.get_evaluation(1, [0]))[0].worker == "one"
    await store.discard_evaluation(1, [0])
    assert await store.get_evaluation(1, [0]) == {}
    assert (await store.get_evaluation(2, [0]))[0].worker == "two"


async def test_discarding_and_removing_touch_nothing_else(client, store, log, group, entries, run_id):
    await store.put([group(0), group(1)])
    await store.discard([0, 9])
    await store.discard([])
    assert (await store.get([0, 1])).keys() == {1}
    await client.set(keys.term(run_id + "0"), 1)
    await log.append(1, entries(5))
    await store.remove_run()
    assert await client.keys(keys.everything(run_id)) == [keys.term(run_id).encode()]
    assert await client.delete(keys.term(run_id + "0")) == 1


async def test_of_no_groups_nothing_is_stored_or_found(store):
    await store.put([])
    assert await store.get([]) == {}
