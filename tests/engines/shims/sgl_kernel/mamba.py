"""Imported with SGLang; the models under test use nothing of it."""

from sgl_kernel import __getattr__  # noqa: F401
