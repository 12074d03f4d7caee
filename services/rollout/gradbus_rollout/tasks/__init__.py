"""From tasks to groups: the inbox, prompts, samples, and the buffer."""
