"""Calls of a topic's cleanup policies, and checks of the actions that they plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real

from stratalog.errors import PluginError, StorageError
from stratalog.registry.guarded_parts import guard_of
from stratalog.spi.cleanup import Action, CleanupPolicy, DeletePrefix, Keep, LogSummary, Rewrite


def actions_of(
    policies: Mapping[str, CleanupPolicy],
    summary: LogSummary,
    ask: Callable[[CleanupPolicy], Sequence[Action]],
    check: Callable[[CleanupPolicy, LogSummary, Action], None],
) -> dict[str, tuple[Action, ...]]:
    """Return the actions of each policy, by the policy's name.

    ``ask`` returns the actions of one policy. ``check`` raises PluginError if an action of a policy is wrong. Raise
    PluginError, which names the policy, if a policy fails, or plans a wrong action.
    """
    actions = dict[str, tuple[Action, ...]]()
    for name, policy in policies.items():
        try:
            actions[name] = tuple(ask(policy))
        except PluginError as error:
            raise PluginError(f"{summary.log}: {error}") from error
        except StorageError:
            raise
        except Exception as error:  # a plugin may raise anything, and the cleaner must continue with the other logs
            raise PluginError(f"cleanup policy {name} failed on {summary.log}: {error!r}") from error
        check_each(name, policy, summary, actions[name], check)
    return actions


def check_each(
    name: str,
    policy: CleanupPolicy,
    summary: LogSummary,
    actions: Sequence[Action],
    check: Callable[[CleanupPolicy, LogSummary, Action], None],
) -> None:
    """Raise PluginError, with the name of the policy, if ``check`` raises an error for one of the policy's actions."""
    for action in actions:
        try:
            check(policy, summary, action)
        except Exception as error:  # such as the TypeError of ``check_values``
            owner = guard_of(policy) or f"cleanup policy {name}"
            reason = error if isinstance(error, PluginError) else f"{error!r} in the check of {action!r}"
            raise PluginError(f"{owner} is wrong about {summary.log}: {reason}") from error


def check_action(policy: CleanupPolicy, summary: LogSummary, action: object) -> None:
    """Raise an error if ``action`` is not an action or has wrong values, or if it is a rewrite without a filter."""
    if isinstance(action, Action):
        check_values(action)
    if isinstance(action, DeletePrefix):
        check_prefix(summary, action)
    elif isinstance(action, Rewrite):
        check_filter(policy, action)
    elif not isinstance(action, Keep):
        raise PluginError(f"{action!r} is not an action: return Keep, DeletePrefix and Rewrite values")


def check_values(action: Action) -> None:
    """Raise TypeError unless the offsets of an action are integers, its reason a text, and its dirty ratio a number."""
    offsets = [action.start, action.end]
    ratio: object = 0.0
    if isinstance(action, Rewrite):
        offsets.append(action.dirty_start)
        ratio = action.dirty_ratio
    if not all(isinstance(offset, int) for offset in offsets) or not isinstance(action.reason, str):
        raise TypeError("offsets must be integers, and the reason must be a text")
    if not isinstance(ratio, Real):
        raise TypeError("the dirty ratio must be a number")


def has_filter(policy: CleanupPolicy) -> bool:
    """Return True if a policy implements ``record_filter``, which every policy that plans a Rewrite needs."""
    return type(policy).record_filter is not CleanupPolicy.record_filter


def rewriters(policies: Mapping[str, CleanupPolicy]) -> dict[str, CleanupPolicy]:
    """Return the policies that have a record filter, by name.

    Every compaction round uses the filters of all of these policies, because the local part and the tier part of
    a log have only one first dirty offset each.
    """
    return {name: policy for name, policy in policies.items() if has_filter(policy)}


def check_prefix(summary: LogSummary, action: DeletePrefix) -> None:
    """Raise PluginError if a deletion is empty, starts above the log's first offset, or has an end above the log end.

    The first offset is the log start, or the base offset of the first segment, whichever is higher.
    """
    start, end = summary.offsets.log_start, summary.offsets.log_end
    first = summary.segments[0].base_offset if summary.segments else start
    if action.start > max(first, start):
        raise PluginError(f"{action} is not a prefix: the log begins at {first}")
    if action.end <= action.start:
        raise PluginError(f"{action} is empty: end must be above start")
    if action.end > end:
        raise PluginError(f"{action} ends beyond the log, whose end offset is {end}")


def check_filter(policy: CleanupPolicy, action: Rewrite) -> None:
    """Raise PluginError if a policy without a record filter plans a rewrite."""
    if not has_filter(policy):
        raise PluginError(f"{action} needs a record filter: implement its method record_filter")


def check_rewrite(summary: LogSummary, action: Rewrite) -> None:
    """Raise PluginError unless a rewrite consists of whole closed segments below the last stable offset.

    All these segments must be in the local part of the log, or all must be in its tier part.
    """
    tiered = [segment for segment in summary.segments if segment.is_remote]
    local = [segment for segment in summary.segments if not segment.is_remote]
    border = tiered[-1].end_offset if tiered else 0
    active = next((segment.base_offset for segment in local if segment.is_active), border)
    # the first local segment, even the active one, may begin below the end of the tier
    part, closed_end = (tiered, border) if action.end <= border else (local, active)
    limit = min(summary.offsets.last_stable, closed_end)
    starts = {segment.base_offset for segment in part}
    ends = {segment.end_offset for segment in part}
    if action.start not in starts or action.end not in ends:
        raise PluginError(
            f"{action} does not begin and end where closed segments of {summary.log} do, in its tier or on local disk alone"
        )
    if not action.start <= action.dirty_start < action.end <= limit:
        raise PluginError(f"{action} is not in order, or ends above {limit}, the limit for rewrites of {summary.log}")
