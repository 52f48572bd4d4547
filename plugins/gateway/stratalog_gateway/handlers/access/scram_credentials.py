"""DescribeUserScramCredentials and AlterUserScramCredentials, for the users in ``users.file``.

Source: apache/kafka ScramControlManager, ScramImage.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any, Final

from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.handlers.request import Outcome, Request, require
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, ResourceType
from stratalog_gateway.security.security_settings import SCRAM_SHA_256, SCRAM_SHA_512
from stratalog_gateway.security.users import (
    ALGORITHMS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    Credential,
    Users,
    credential_of,
    normalize,
)

_MECHANISMS: Final = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
_NUMBERS: Final = {name: number for number, name in _MECHANISMS.items()}


def describe_user_scram_credentials(request: Request) -> Any:
    """Return the response with mechanisms and iterations of the named users. If no user is named, include all users."""
    make, requested = request.make, [user.name for user in request.body.users or ()]
    require(request.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    # as a broker without users: kafka-configs.sh also asks for users if only quotas are of interest
    users = {} if request.node.users is None else request.node.users.current
    counts = Counter(requested)
    results = []
    for name in dict.fromkeys(requested) if requested else sorted(users):
        code, reason = int(Code.NONE), None
        credentials = users.get(normalize(name), {})
        if counts[name] > 1:
            code = Code.DUPLICATE_RESOURCE
            reason = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        elif not credentials:
            code = Code.RESOURCE_NOT_FOUND
            reason = f"Attempt to describe a user credential that does not exist: {name}"
        infos = tuple(
            make.part("CredentialInfo", mechanism=_NUMBERS[kind], iterations=credential.iterations)
            for kind, credential in ({} if code else credentials).items()
        )
        results.append(
            make.part(
                "DescribeUserScramCredentialsResult",
                user=name,
                error_code=code,
                error_message=reason,
                credential_infos=infos,
            )
        )
    return make(results=tuple(results))


def alter_user_scram_credentials(request: Request) -> Any:
    """Add, change and delete credentials of users, and return the response.

    If a change of a user is invalid, the user is unchanged. Valid changes of other users are stored.
    """
    body = request.body
    results: dict[str, tuple[int, str | None]] = {
        change.name: (Code.NONE, None) for change in (*body.deletions, *body.upsertions)
    }
    with Outcome() as outcome:
        require(request.client, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        if request.node.users is None:
            raise RefusedError(Code.SECURITY_DISABLED, "users.file is not set")
        request.node.users.change(lambda users: _apply_changes(users, body, results))
    return request.make(
        results=tuple(
            request.make.part(
                "AlterUserScramCredentialsResult",
                user=name,
                error_code=code or outcome.code,
                error_message=text or outcome.message,
            )
            for name, (code, text) in results.items()
        )
    )


def _apply_changes(users: Users, body: Any, results: dict[str, tuple[int, str | None]]) -> Users:
    """Return the users after the changes of a request. If nothing changes, return ``users`` itself.

    Errors are added to ``results``, by the name of the user. Two names mean the same user if they are equal after NFKC
    normalization.
    """
    changes = (*body.deletions, *body.upsertions)
    errors: dict[str, tuple[int, str]] = {}  # by the normalized name
    for (name, _), count in Counter((normalize(change.name), change.mechanism) for change in changes).items():
        if count > 1:
            errors[name] = Code.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
    altered = {name: dict(credentials) for name, credentials in users.items()}
    for change in changes:
        name = normalize(change.name)
        if name not in errors:
            try:
                mechanism = _mechanism(change)
                if hasattr(change, "salt"):
                    altered.setdefault(name, {})[mechanism] = _credential(change, mechanism)
                else:
                    _delete(altered.get(name, {}), mechanism)
            except RefusedError as error:
                errors[name] = error.kafka_code, str(error)
                altered[name] = dict(users.get(name, {}))
    results.update({name: errors[normalize(name)] for name in results if normalize(name) in errors})
    remaining = {name: credentials for name, credentials in altered.items() if credentials}
    return users if remaining == users else remaining


def _delete(credentials: dict[str, Credential], mechanism: str) -> None:
    if credentials.pop(mechanism, None) is None:
        raise RefusedError(Code.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")


def _mechanism(change: Any) -> str:
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise RefusedError(Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if not change.name:
        raise RefusedError(Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    return mechanism


def _credential(upsertion: Any, mechanism: str) -> Credential:
    if upsertion.iterations < MIN_ITERATIONS:
        raise RefusedError(Code.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if upsertion.iterations > MAX_ITERATIONS:
        raise RefusedError(Code.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not upsertion.salt or len(upsertion.salted_password) != hashlib.new(ALGORITHMS[mechanism]).digest_size:
        raise RefusedError(Code.UNACCEPTABLE_CREDENTIAL, "Salt or salted password has a wrong size")
    return credential_of(mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations)
