"""A check that a component's methods accept the arguments that ``stratalog.spi`` declares."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from stratalog.registry.result_types import members_of


def signature_problems(component: object, part: type[object]) -> Iterator[str]:
    """Yield a sentence for each method of ``component`` that does not accept the arguments that ``part`` declares.

    ``part`` is the class in ``stratalog.spi``. A method that is a coroutine function or cannot be called is a problem
    too.
    """
    for name, declared in members_of(part):
        found = inspect.getattr_static(type(component), name, None)
        if isinstance(declared, property) or found is None:
            continue
        method = getattr(component, name)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            yield f"{name} is an async def, but the contract has no asynchronous methods: use def"
        elif callable(method):
            yield from _not_accepted(name, method, declared)
        else:
            yield f"{name} must be a method"


def _not_accepted(name: str, method: object, declared: object) -> Iterator[str]:
    assert callable(method)
    assert callable(declared)
    wanted = list(inspect.signature(declared).parameters.values())[1:]  # without self
    positional = [parameter.name for parameter in wanted if parameter.kind is not parameter.KEYWORD_ONLY]
    keywords = {parameter.name: None for parameter in wanted if parameter.kind is parameter.KEYWORD_ONLY}
    try:
        inspect.signature(method).bind(*positional, **keywords)
    except TypeError as error:
        yield f"{name}{inspect.signature(method)} must accept {name}{_without_self(declared)}: {error}"


def _without_self(declared: object) -> str:
    assert callable(declared)
    signature = inspect.signature(declared)
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()][1:]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))
