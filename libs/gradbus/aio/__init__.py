"""asyncio: background tasks that end with their block, and threads that may hang."""
