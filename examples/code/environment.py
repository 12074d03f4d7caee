"""The policy writes a program, tries it on shown examples, and is paid by hidden ones. Needs sandbox = "namespaces"."""

import json
import random
from typing import Any

SECONDS = 1.0
SHOWN_CHARACTERS = 1000
# The number of shown and hidden inputs that one start of a sandbox serves; each has its own process in it.
MANY = """
import json, subprocess, sys
answers = []
for given in json.load(sys.stdin):
    done = subprocess.run([sys.executable, "solution.py"], input=given, capture_output=True, text=True, errors="replace")
    answers.append((done.stdout if done.returncode == 0 else done.stderr)[:1000])
print(sys.argv[1], json.dumps(answers))
"""


class Environment:
    """A row has `task` and, as pairs of input and output, `shown` and `hidden` examples."""

    def reset(self, item: dict[str, Any], seed: int) -> str:
        """Begins an episode: says the task and the shown examples."""
        self.shown, self.hidden, self.seed = item["shown"], item["hidden"], seed
        self.files: dict[str, str | bytes] = {}
        examples = "\n".join(f"{given!r} -> {answer!r}" for given, answer in self.shown)
        return f"Write solution.py, which reads the standard input and prints {item['task']}.\n{examples}"

    def write(self, path: str, content: str) -> str:
        """Writes a file.

        Args:
            path: relative, such as solution.py
            content: the whole file
        """
        files = {**self.files, path: content}
        self.sandbox.check(files)  # what no sandbox takes is told to the policy, and does not fail the reward
        self.files = files
        return "written"

    def execute(self, command: list[str]) -> dict[str, Any]:
        """Executes a command, such as ["python", "solution.py"], in a folder with the files, and keeps what it writes there."""
        done = self.sandbox.run(command, files=self.files, seconds=SECONDS, keep=True)
        if done.end == "exited":
            self.files = done.files
        return {
            "end": done.end,
            "status": done.code,
            "stdout": done.stdout[:SHOWN_CHARACTERS],
            "stderr": done.stderr[-SHOWN_CHARACTERS:],
        }

    def test(self) -> str:
        """Says how solution.py does on the shown examples."""
        answers = self._answers([given for given, _ in self.shown])
        lines = [
            f"{given!r}: {'right' if said.split() == wanted.split() else f'{said!r}, not {wanted!r}'}"
            for (given, wanted), said in zip(self.shown, answers, strict=True)
        ]
        return "\n".join(lines)

    def reward(self, _text: str) -> dict[str, float]:
        """The share of the hidden examples. What is expected never enters a sandbox: there is nothing in it to read or to forge."""
        answers = self._answers([given for given, _ in self.hidden])
        right = sum(said.split() == wanted.split() for (_, wanted), said in zip(self.hidden, answers, strict=True))
        share = right / len(self.hidden)
        return {"reward": share, "solved": float(share == 1.0)}

    def _answers(self, inputs: list[str]) -> list[str]:
        """What solution.py prints for each input; all empty if it stopped the program that asks it.

        That program comes by an argument, and imports nothing from the policy's folder. The random numbers of this module are seeded, so
        its word is as secret as the seed, which the policy never sees.
        """
        word = f"{random.getrandbits(64):x}"
        given = json.dumps(inputs)
        done = self.sandbox.run(["python", "-I", "-c", MANY, word], files=self.files, stdin=given, seconds=SECONDS)
        first, _, rest = done.stdout.partition(" ")
        return json.loads(rest) if done.ok and first == word else [""] * len(inputs)
