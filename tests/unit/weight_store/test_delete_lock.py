import asyncio

from gradbus_weight_store.delete_lock import StoreDeleteLock


async def test_deleting_waits_for_those_who_store_and_keeps_others_out():
    lock = StoreDeleteLock()
    order = []
    leave = asyncio.Event()

    async def store(name, until):
        async with lock.storing():
            order.append(f"{name} in")
            await until.wait()
            order.append(f"{name} out")

    async def delete():
        async with lock.deleting():
            order.append("deleting")
            late = asyncio.create_task(store("late", leave))
            await asyncio.sleep(0)
            order.append("deleted")
        await late

    first = asyncio.create_task(store("first", leave))
    second = asyncio.create_task(store("second", leave))
    await asyncio.sleep(0)
    deleting = asyncio.create_task(delete())
    await asyncio.sleep(0)
    leave.set()
    await asyncio.wait_for(asyncio.gather(first, second, deleting), 60)
    assert order.index("deleting") > order.index("second out")
    assert order.index("late in") > order.index("deleted")


async def test_a_failure_inside_releases_the_lock():
    lock = StoreDeleteLock()
    for enter in (lock.storing, lock.deleting):
        try:
            async with enter():
                raise ValueError
        except ValueError:
            pass
    async with asyncio.timeout(60), lock.deleting():
        pass
