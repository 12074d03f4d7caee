"""asyncio: background tasks and threads that end with their block."""
