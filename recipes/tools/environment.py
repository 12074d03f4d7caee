"""A calculator for word problems. The row has the right `answer`; the reward is 1 for it, and says how often the tool was used."""

import ast
import math
import operator
import re
from typing import Any

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}
LONGEST = 200


class Environment:
    """One problem."""

    def reset(self, item: dict[str, Any], _seed: int) -> None:
        """Begins an episode."""
        self.answer = float(item["answer"])
        self.calls = 0

    def calculate(self, expression: str) -> str:
        """Calculates an expression of numbers, + - * / // % and parentheses, such as (3 + 4) * 12."""
        self.calls += 1
        if len(expression) > LONGEST:
            return f"error: at most {LONGEST} characters"
        try:
            return f"{value(ast.parse(expression, mode='eval').body):.10g}"
        except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError) as error:
            return f"error: {error}"

    def reward(self, text: str) -> dict[str, float]:
        """Whether the last number of the answer is the right one."""
        numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
        right = bool(numbers) and math.isclose(float(numbers[-1].replace(",", "")), self.answer, rel_tol=1e-6)
        return {"reward": float(right), "right": float(right), "calls": float(self.calls)}


def value(node: ast.AST) -> float:
    """Of an expression. Raises ValueError for what is no arithmetic."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.operand))
    raise ValueError("only numbers, + - * / // % and parentheses")
