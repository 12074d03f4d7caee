"""How an episode of many turns becomes tokens: what the policy drew stays as it is, and only what follows a turn is encoded.

    probe            what the model's chat template writes between two messages, found with sentinels
    template_frames  what was found
    cut              a long message, shortened by tokens
    extension        the ids between two turns, and who wrote each
    parsers          the calls in a turn, one module for each way to write them
    turn_grammar     all of it for one run

In a tokenizer's process. See docs/turns.md.
"""
