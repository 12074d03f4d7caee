"""Users' tokenizers and chat templates, each in a process of its own with limits on memory and time.

    service ── starts ──▶ fork server (has imported transformers) ── forks ──▶ tokenizer process, one a run
       └──────────────── frames: prompts out, token ids back ─────────────────────┘

A chat template is a program and a tokenizer holds regular expressions, so either may compute for ever or need any
amount of memory. A process can be killed, a thread cannot.

In a service: `tokenizer`, `process`, `launcher`. In the processes: `fork_server`, `child`, `encoder`, `limits`, which import nothing that
a tokenizer does not need. In both: `frames`, `errors`.
"""
