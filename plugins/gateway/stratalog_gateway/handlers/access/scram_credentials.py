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
_NO_FILE: Final = "users.file is not set"


def describe_user_scram_credentials(request: Request) -> Any:
    """Return the response with mechanisms and iterations of the named users; of all users if no user is named."""
    make, asked = request.make, [user.name for user in request.body.users or ()]
    require(request.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    if request.node.users is None:
        raise RefusedError(Code.SECURITY_DISABLED, _NO_FILE)
    known, counts = request.node.users.current, Counter(asked)
    results = []
    for name in dict.fromkeys(asked) if asked else sorted(known):
        code, reason = int(Code.NONE), None
        found = known.get(normalize(name), {})
        if counts[name] > 1:
            code = Code.DUPLICATE_RESOURCE
            reason = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        elif not found:
            code = Code.RESOURCE_NOT_FOUND
            reason = f"Attempt to describe a user credential that does not exist: {name}"
        infos = tuple(
            make.part("CredentialInfo", mechanism=_NUMBERS[kind], iterations=credential.iterations)
            for kind, credential in ({} if code else found).items()
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
    return make(error_code=Code.NONE, error_message=None, results=tuple(results))


def alter_user_scram_credentials(request: Request) -> Any:
    """Add, change and delete credentials of users, and return the response.

    If a change of a user is invalid, the user is unchanged. Valid changes of other users are stored.
    """
    body = request.body
    results: dict[str, tuple[int, str | None]] = {
        wanted.name: (Code.NONE, None) for wanted in (*body.deletions, *body.upsertions)
    }
    with Outcome() as outcome:
        require(request.client, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        if request.node.users is None:
            raise RefusedError(Code.SECURITY_DISABLED, _NO_FILE)
        request.node.users.change(lambda known: _altered(known, body, results))
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


def _altered(known: Users, body: Any, results: dict[str, tuple[int, str | None]]) -> Users:
    """Return the users after the changes of a request; ``known`` itself if nothing changes.

    Errors are written to ``results``, by the name of the user. Spellings of a name that are equal in NFKC name one user.
    """
    changes = (*body.deletions, *body.upsertions)
    errors: dict[str, tuple[int, str]] = {}  # by the normalized name
    for (name, _), count in Counter((normalize(wanted.name), wanted.mechanism) for wanted in changes).items():
        if count > 1:
            errors[name] = Code.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
    found = {name: dict(credentials) for name, credentials in known.items()}
    for wanted in changes:
        name = normalize(wanted.name)
        if name not in errors:
            try:
                mechanism = _mechanism(wanted)
                if hasattr(wanted, "salt"):
                    found.setdefault(name, {})[mechanism] = _credential(wanted, mechanism)
                else:
                    _delete(found.get(name, {}), mechanism)
            except RefusedError as error:
                errors[name] = error.kafka_code, str(error)
                found[name] = dict(known.get(name, {}))
    results.update({name: errors[normalize(name)] for name in results if normalize(name) in errors})
    left = {name: credentials for name, credentials in found.items() if credentials}
    return known if left == known else left


def _delete(credentials: dict[str, Credential], mechanism: str) -> None:
    if credentials.pop(mechanism, None) is None:
        raise RefusedError(Code.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")


def _mechanism(wanted: Any) -> str:
    mechanism = _MECHANISMS.get(wanted.mechanism)
    if mechanism is None:
        raise RefusedError(Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if not wanted.name:
        raise RefusedError(Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    return mechanism


def _credential(wanted: Any, mechanism: str) -> Credential:
    if wanted.iterations < MIN_ITERATIONS:
        raise RefusedError(Code.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if wanted.iterations > MAX_ITERATIONS:
        raise RefusedError(Code.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not wanted.salt or len(wanted.salted_password) != hashlib.new(ALGORITHMS[mechanism]).digest_size:
        raise RefusedError(Code.UNACCEPTABLE_CREDENTIAL, "Salt or salted password has a wrong size")
    return credential_of(mechanism, wanted.salted_password, wanted.salt, wanted.iterations)
