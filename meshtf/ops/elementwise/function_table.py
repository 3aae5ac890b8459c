"""The entries of the tables of elementwise functions, in `unary_op` and `binary_op`.

cos = Function("cos", lambda dy, y, x: -(dy * sin(x)), ANALYTIC)
cos.run(tf.constant([0.0, 1.0]))     # by TensorFlow's kernel
cos.result_dtype("bool", way_outs)   # DTypeError: cos does not take the type bool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from meshtf.errors import DTypeError, explain_error
from meshtf.names import is_complex, is_integer, real_dtype
from meshtf.ops.common.tensorflow_functions import tf_function

# The kinds of data types that functions take.
FLOAT = ("float",)
ANALYTIC = ("float", "complex")
REAL = ("float", "int")
NUMERIC = ("float", "int", "complex")
BOOL = ("bool",)
ANY = (*NUMERIC, "bool")


class Function(NamedTuple):
    """A function of one tensor, y = f(x), or of two tensors, z = f(x, y), element by element.

    Attributes:
      name: the name of the function.
      gradient: a rule made of named ops, (dy, y, x) -> dx or (dz, z, x, y) -> (dx, dy); or,
        for a fused gradient, "x", "y" or "xy", the tensors that it reads beside the
        cotangent; or None if there is no gradient, as of what is constant almost everywhere.
      kinds: the kinds of data types that the function takes.
      sample_values: the prefix that says how samples are drawn, such as "positive ": see
        `Sample`.
      result: the data type of the result: "bool", "real" for the real type of the input, or
        "" for that of the input.
      linearity: whether the function of partial sums is a partial sum: "joint" if all inputs
        are partial sums, "each" if one of them is.
      refuses_integers: whether some integers are refused as the second argument: 0 as a
        divisor, a negative exponent. None refuses 1, which is in the padding of shards.
      kernel: the function of TensorFlow tensors; None: that of tf.math of the same name.
    """

    name: str
    gradient: Callable[..., Any] | str | None = None
    kinds: tuple[str, ...] = FLOAT
    sample_values: str = ""
    result: str = ""
    linearity: str | None = None
    refuses_integers: bool = False
    kernel: Callable[..., Any] | None = None

    def run(self, *xs: Any) -> Any:
        """Returns the function of TensorFlow tensors."""
        kernel = self.kernel or tf_function("math." + self.name)
        return kernel(*xs)

    def result_dtype(self, dtype: str, way_outs: Mapping[str, str]) -> str:
        """Returns the data type of the result for inputs of type `dtype`.

        Args:
          dtype: the data type of the inputs.
          way_outs: for "bool" and "int", what an error tells users to do.

        Raises:
          DTypeError: the function does not take this type.
        """
        kind = _kind(dtype)
        if kind in self.kinds:
            if self.result == "real":
                return real_dtype(dtype)
            return self.result or dtype
        if self.kinds == BOOL:
            way_out = "Convert it to booleans first, as in x != 0."
        elif kind == "complex":
            way_out = (
                "Convert it to real numbers first: abs(x), mtf.math.real(x) or "
                "mtf.math.imag(x)."
            )
        else:
            way_out = way_outs[kind]
        problem = f"{self.name} does not take the type {dtype}."
        raise DTypeError(explain_error(problem, way_out=way_out))


def _kind(dtype: str) -> str:
    """Returns the kind of a data type: "int", "complex", "bool" or "float"."""
    if is_integer(dtype):
        return "int"
    if is_complex(dtype):
        return "complex"
    return "bool" if dtype == "bool" else "float"


def table_of(*functions: Function) -> dict[str, Function]:
    """Returns functions by their names."""
    return {function.name: function for function in functions}
