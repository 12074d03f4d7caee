"""A world of several turns: find a letter from `a` to `o` by guesses, each answered by where the letter lies."""


class Environment:
    """The letter is in the dataset row. The policy sees `<` for an earlier letter, and `>` for a later one."""

    def reset(self, item, seed):
        self.letter = item["letter"]
        self.guesses = 0

    def step(self, text):
        """Answers one guess. The sooner the letter is found, the higher the reward."""
        self.guesses += 1
        if text == self.letter:
            return {"reward": 1.0 - 0.1 * (self.guesses - 1), "components": {"found": 1.0}, "done": True}
        return {"message": "<" if self.letter < text else ">"}

    def reward(self, text):
        """Called at the end of every episode, and added: the letter was found, or the guesses are used up."""
        return 0.0
