"""The cache keeps entries that are used."""

from gradbus_gateway.intake.lru_cache import LruCache


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
