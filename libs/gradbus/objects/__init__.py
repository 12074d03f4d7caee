"""Object storage: content-addressed blobs, and what a run keeps under its own name."""

from gradbus.objects.folder import materialise
from gradbus.objects.store import ObjectStore

__all__ = ["ObjectStore", "materialise"]
