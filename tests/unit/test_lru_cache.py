"""The cache keeps entries that are used."""

from gradbus.lru_cache import LruCache


def test_the_least_recently_used_entry_is_removed_first():
    cache = LruCache(size=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_a_newer_value_replaces_an_older():
    cache = LruCache(size=1)
    cache.put("a", 1)
    cache.put("a", 2)
    assert cache.get("a") == 2


def test_entries_weigh_what_is_said_of_them_also_when_they_are_replaced():
    cache = LruCache(10, weight=len)
    cache.put("a", "1234")
    cache.put("b", "1234")
    cache.put("a", "12")
    cache.put("c", "1234")
    assert [cache.get(key) for key in "abc"] == ["12", "1234", "1234"]
    cache.put("d", "1")
    assert [cache.get(key) for key in "abcd"] == [None, "1234", "1234", "1"]
