"""The data files of the S3 client, loaded once in a process."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from aiobotocore import httpsession
from botocore import session


@contextmanager
def client_data_loaded_once() -> Iterator[None]:
    """Let botocore parse its megabytes of JSON only once, not for each opened store.

    The client does not load the certificates of public authorities, because the servers of the tests have no TLS.
    """
    with (
        patch.object(session, "create_loader", functools.cache(session.create_loader)),
        patch.object(httpsession, "get_cert_path", lambda verify: None if verify is True else verify),
    ):
        yield


def load_client_data() -> None:
    """Load the description of S3, for the clients that this process and its forks open later."""
    session.get_session().create_client("s3", "us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
