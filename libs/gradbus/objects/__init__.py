"""Object storage: content-addressed blobs, and objects under a run's path."""

from gradbus.objects.folder import materialise
from gradbus.objects.store import ObjectStore

__all__ = ["ObjectStore", "materialise"]
