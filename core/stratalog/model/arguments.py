"""Checks of public arguments: the annotations of a function declare the allowed types and ranges.

A checked function refuses an argument of another type with ``WrongTypeError`` and a number out of range with
``ConfigError``, before its own code runs. Every value that supports ``operator.index``, such as a NumPy integer, counts
as an integer. A bool does not count as an integer. A float, such as 15.0, does not count either.

``Annotated[int, Between(1, 10)]`` declares a range. Without a range, an integer must fit 64 bits. Items of mappings and
lists are checked if they are numbers, text, bytes, tuples or enum members. The annotation ``object`` accepts any value.
A protocol without a ``__call__`` method accepts any value, too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, cast

from stratalog.model.argument_rules import LONG_MAX, Between, Rule, rule_of

T = TypeVar("T")

NotNegative: TypeAlias = Annotated[int, Between(0, LONG_MAX)]
"""An argument of 0 or more."""

Positive: TypeAlias = Annotated[int, Between(1, LONG_MAX)]
"""An argument of 1 or more."""


class CheckedArguments:
    """Base class that makes the public methods of its subclasses check their arguments.

    Properties and methods that are marked with ``checks_itself`` are not changed.
    """

    __slots__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name, member in list(vars(cls).items()):
            if not name.startswith("_") and not hasattr(member, "checks_itself"):
                checked_member = _wrap_member(member, name, functools.partial(_replace_method, cls, name))
                if checked_member is not member:
                    setattr(cls, name, checked_member)


def checks_itself(method: T) -> T:
    """Mark a method that checks its arguments in its own code, because a wrapper would make it measurably slower."""
    cast(Any, method).checks_itself = True
    return method


def checked(target: T) -> T:
    """Return the function with checks of its arguments, or the dataclass with checks of ``__init__``'s arguments."""
    if isinstance(target, type):
        checked_init = _wrap_function(vars(target)["__init__"], target.__name__, None)
        target.__init__ = checked_init  # type: ignore[misc]  # replaces the generated method of the dataclass
        return cast(T, target)
    function = cast(Any, target)
    return cast(T, _wrap_function(function, function.__name__, None))


def _wrap_member(member: object, name: str, replace: Callable[[Any, Any], None]) -> object:
    if isinstance(member, classmethod | staticmethod):
        return type(member)(_wrap_function(member.__func__, name, None))
    return _wrap_function(member, name, replace) if inspect.isfunction(member) else member


def _wrap_function(
    function: Callable[..., Any], name: str, replace: Callable[[Any, Any], None] | None
) -> Callable[..., Any]:
    """Return ``function`` with checks. The checks are compiled at the first call, because the import must stay fast."""
    code = cast(Any, inspect.unwrap(function)).__code__
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if not code.co_flags & inspect.CO_VARARGS and not set(arguments) - {"self", "cls"}:
        return function
    compiled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def check_and_replace(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiled
        if compiled is None:
            compiled = _compile_checks(function, name)
        if replace is not None:
            replace(check_and_replace, compiled)
        return compiled(*args, **kwargs)

    return check_and_replace


def _replace_method(owner: type[Any], name: str, wrapper: Any, compiled: Any) -> None:
    """Replace the method ``wrapper`` by ``compiled``, unless the class no longer has it."""
    if vars(owner).get(name) is wrapper:
        setattr(owner, name, compiled)


def _compile_checks(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a compiled function that checks each argument and calls ``function``. A loop would be slower."""
    names: dict[str, Any] = {"_function": function}
    head, lines, call = list[str](), list[str](), list[str]()
    namespace = cast(Any, inspect.unwrap(function)).__globals__
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        declaration, argument = _parameter_source(parameter, number)
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in "".join(head):
            head.append("*")
        head.append(declaration)
        call.append(argument)
        names[f"_default_{number}"] = parameter.default
        rule = None if parameter.annotation is parameter.empty else rule_of(parameter.annotation, namespace)
        if rule is None or parameter.kind is parameter.VAR_KEYWORD:
            continue
        names[f"_rule_{number}"] = functools.partial(rule.check, f"{parameter.name} of {name}()")
        lines.append(_check_source(parameter, number, rule))
    text = f"def _checked({', '.join(head)}):\n{''.join(lines)}    return _function({', '.join(call)})\n"
    exec(compile(text, f"<checks of {name}>", "exec"), names)  # noqa: S102 - the source has only names and rules, as in dataclasses
    return functools.wraps(function)(names["_checked"])


def _parameter_source(parameter: inspect.Parameter, number: int) -> tuple[str, str]:
    """Return the source text of a parameter in the signature that ``_compile_checks`` writes, and in its call."""
    name = parameter.name
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        return f"{stars}{name}", f"{stars}{name}"
    declaration = name if parameter.default is parameter.empty else f"{name}=_default_{number}"
    return declaration, f"{name}={name}" if parameter.kind is parameter.KEYWORD_ONLY else name


def _check_source(parameter: inspect.Parameter, number: int, rule: Rule) -> str:
    """Return the source lines that check one argument. The default value is always accepted."""
    name = parameter.name
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"    {name} = tuple(map(_rule_{number}, {name}))\n"
    sure = rule.sure.format(name)
    if parameter.default is not parameter.empty:
        sure = f"{name} is _default_{number} or {sure}"
    return f"    if not ({sure}):\n        {name} = _rule_{number}({name})\n"
