"""The formula of a `multi` grader, e.g. `0.5 * digits + 0.5 * exact`: arithmetic over names, evaluated without `eval`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from gradbus.errors import GraderError

MAX_LENGTH = 2_000
_MAX_SHOWN = 200
"""Of the formula in an error, which is cut off before its cause if it is too long."""
FUNCTIONS: Mapping[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}

_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}

_Evaluation = Callable[[Mapping[str, float]], float]


class Formula:
    """A formula, compiled once to closures over floats. Raises GraderError if it is more than arithmetic."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._shown = repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
        self.names: set[str] = set()
        if len(text) > MAX_LENGTH:
            raise GraderError(f"the formula has {len(text)} characters; keep it under {MAX_LENGTH}")
        try:
            self._evaluate = self._compiled(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            raise GraderError(f"formula {self._shown} cannot be read: {error}; write e.g. 0.5 * first + 0.5 * second") from error

    def value(self, values: Mapping[str, float]) -> float:
        """The result, for the `values` of all names. Raises GraderError if it is not finite (division by zero, overflow)."""
        try:
            result = self._evaluate(values)
        except (ArithmeticError, ValueError, TypeError, RecursionError) as error:  # TypeError: min and max of complex numbers
            raise GraderError(f"formula {self._shown} has no value here: {error}; guard it with min or max") from error
        # A negative number to a fractional power is complex in Python.
        if not isinstance(result, float) or not math.isfinite(result):
            raise GraderError(f"formula {self._shown} gives {result}, not a finite number; guard it with min or max")
        return result

    def _compiled(self, node: ast.expr) -> _Evaluation:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                # Floats only: with integers `9 ** 9 ** 9` would take all memory.
                constant = float(number)
                return lambda _values: constant
            case ast.Name(id=name):
                self.names.add(name)
                return lambda values: values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                first, second, apply = self._compiled(left), self._compiled(right), _BINARY[type(op)]
                return lambda values: apply(first(values), second(values))
            case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
                return _applied(_UNARY[type(sign)], self._compiled(operand))
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in FUNCTIONS:
                return self._call(name, args)
        part = ast.unparse(node)[:_MAX_SHOWN]
        raise GraderError(f"formula {self._shown}: {part!r} is not allowed; use numbers, names, + - * / **, {', '.join(FUNCTIONS)}")

    def _call(self, name: str, args: list[ast.expr]) -> _Evaluation:
        if (name == "abs") != (len(args) == 1):
            raise GraderError(f"formula {self._shown}: {name} has {len(args)} argument(s); abs takes one, min and max two or more")
        return _applied(FUNCTIONS[name], *[self._compiled(argument) for argument in args])


def _applied(function: Callable[..., float], *steps: _Evaluation) -> _Evaluation:
    return lambda values: function(*[step(values) for step in steps])
